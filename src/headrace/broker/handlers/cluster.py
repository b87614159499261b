"""ApiVersions, DescribeCluster, FindCoordinator and UpdateFeatures."""

import re
from typing import Protocol

from headrace.broker.context import Context
from headrace.broker.handlers.metadata import CLUSTER_OPERATIONS, NOT_ASKED
from headrace.broker.needs import NeedsController, NeedsMetadata, NeedsServedApis
from headrace.core import features
from headrace.core.topics import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
    java_hash,
)
from headrace.model.errors import ErrorCode, Rejected
from headrace.wire import messages as m
from headrace.wire.api import SERVED, ApiKey

# Name and version of the client software (KIP-511) are used in metric names, hence the strict rule.
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_VERSION_WITH_SOFTWARE = 3
# Earlier clients fail on a feature with minimum level 0 (KAFKA-17011).
_FIRST_VERSION_WITH_LEVEL_0 = 4

_BROKERS, _CONTROLLERS = 1, 2  # types of endpoints
_GROUP, _TRANSACTION, _SHARE = 0, 1, 2  # types of coordinators
_COORDINATOR_TOPICS = {
    _GROUP: OFFSETS_TOPIC,
    _TRANSACTION: TRANSACTIONS_TOPIC,
    _SHARE: SHARE_STATE_TOPIC,
}
_FIRST_VERSION_WITH_MANY_KEYS = 4
_FIRST_VERSION_WITH_SHARE = 6
# The key of a share coordinator: group, topic id and partition.
_SHARE_KEY = re.compile(r"[^:]+:[A-Za-z0-9_-]{22}:-?\d+")


class Needs(NeedsController, NeedsMetadata, NeedsServedApis, Protocol):
    """What these handlers use of the broker."""


def api_versions(
    broker: Needs, context: Context, request: m.ApiVersionsRequest | None
) -> m.ApiVersionsResponse:
    """``request`` is None if its version is not supported."""
    response = m.ApiVersionsResponse
    if request is None:
        lowest, highest = SERVED[ApiKey.API_VERSIONS]
        return response(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[
                response.ApiVersion(
                    api_key=ApiKey.API_VERSIONS, min_version=lowest, max_version=highest
                )
            ],
        )
    if context.api_version >= _FIRST_VERSION_WITH_SOFTWARE and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return response(error_code=ErrorCode.INVALID_REQUEST)
    cache = broker.metadata_cache
    return response(
        api_keys=[
            response.ApiVersion(api_key=key, min_version=lowest, max_version=highest)
            for key, (lowest, highest) in broker.served_apis.items()
        ],
        supported_features=[
            response.SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
            for name, (lowest, highest) in features.SUPPORTED.items()
            if lowest > 0 or context.api_version >= _FIRST_VERSION_WITH_LEVEL_0
        ],
        finalized_features_epoch=cache.features_epoch,
        finalized_features=[
            response.FinalizedFeatureKey(
                name=name, max_version_level=level, min_version_level=level
            )
            for name, level in cache.feature_levels.items()
            if level > 0
        ],
    )


async def describe_cluster(
    broker: Needs, context: Context, request: m.DescribeClusterRequest
) -> m.DescribeClusterResponse:
    response = m.DescribeClusterResponse
    if request.endpoint_type == _CONTROLLERS:
        raise Rejected(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "This is a broker endpoint; the request is for a controller endpoint.",
        )
    if request.endpoint_type != _BROKERS:
        raise Rejected(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"Unknown endpoint type {request.endpoint_type}.",
        )
    await broker.metadata_cache.wait_to_be_told()
    metadata = broker.metadata
    return response(
        error_message=None,
        endpoint_type=_BROKERS,
        cluster_id=metadata.cluster_id,
        controller_id=metadata.controller_id,
        brokers=[
            response.DescribeClusterBroker(
                broker_id=entry.broker_id,
                host=address.host,
                port=address.port,
                rack=entry.rack,
                is_fenced=False,
            )
            for entry in metadata.brokers.values()
            if (address := entry.endpoints.get(context.listener)) is not None
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


async def find_coordinator(
    broker: Needs, context: Context, request: m.FindCoordinatorRequest
) -> m.FindCoordinatorResponse:
    """The leader of the key's partition of the internal topic.

    The first request creates the topic and waits for it.
    """
    many = context.api_version >= _FIRST_VERSION_WITH_MANY_KEYS
    keys = request.coordinator_keys if many else [request.key]
    topic = _COORDINATOR_TOPICS.get(request.key_type)
    if request.key_type == _SHARE and context.api_version < _FIRST_VERSION_WITH_SHARE:
        topic = None
    if topic is not None and topic not in broker.metadata.topics:
        await broker.controller.auto_create([topic])
    found = [_coordinator(broker, context, topic, key) for key in keys]
    if many:
        return m.FindCoordinatorResponse(coordinators=found)
    (only,) = found
    return m.FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message or ErrorCode(only.error_code).name,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


def _coordinator(
    broker: Needs, context: Context, topic: str | None, key: str
) -> m.FindCoordinatorResponse.Coordinator:
    answer = m.FindCoordinatorResponse.Coordinator(key=key, node_id=-1, port=-1, error_message="")
    if topic is None:
        answer.error_code = ErrorCode.INVALID_REQUEST
        answer.error_message = "Unknown coordinator type."
        return answer
    if topic == SHARE_STATE_TOPIC and not _SHARE_KEY.fullmatch(key):
        answer.error_code = ErrorCode.INVALID_REQUEST
        return answer
    metadata = broker.metadata
    state = metadata.topics.get(topic)
    entry = None
    if state is not None:
        partition = java_hash(key) % len(state.partitions)
        entry = metadata.brokers.get(state.partitions[partition].leader)
    address = entry.endpoints.get(context.listener) if entry is not None else None
    if entry is None or address is None:
        answer.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return answer
    answer.node_id, answer.host, answer.port = entry.broker_id, address.host, address.port
    return answer


async def update_features(
    broker: Needs, context: Context, request: m.UpdateFeaturesRequest
) -> m.UpdateFeaturesResponse:
    updates = [
        features.FeatureUpdate(
            update.feature,
            update.max_version_level,
            _update_kind(context, update),
        )
        for update in request.feature_updates
    ]
    await broker.controller.update_features(updates, validate_only=request.validate_only)
    response = m.UpdateFeaturesResponse
    return response(
        error_message=None,
        results=[
            response.UpdatableFeatureResult(
                feature=update.name, error_code=ErrorCode.NONE, error_message=None
            )
            for update in updates
        ],
    )


def _update_kind(context: Context, update: m.UpdateFeaturesRequest.FeatureUpdateKey) -> int:
    # Version 0 only has a flag for downgrades.
    if context.api_version == 0:
        return features.SAFE_DOWNGRADE if update.allow_downgrade else features.UPGRADE
    return update.upgrade_type
