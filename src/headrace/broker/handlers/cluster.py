"""ApiVersions, DescribeCluster, FindCoordinator, UpdateFeatures: what this cluster is."""

import re
from typing import TYPE_CHECKING

from headrace.broker.context import Context
from headrace.broker.handlers.metadata import CLUSTER_OPERATIONS, NOT_ASKED
from headrace.core import features
from headrace.model.errors import ErrorCode, Rejected
from headrace.wire import messages as m
from headrace.wire.api import SERVED, ApiKey

if TYPE_CHECKING:
    from headrace.broker.app import Broker

# Name and version of a client's software (KIP-511) end up in metrics, hence the narrow rule.
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_VERSION_WITH_SOFTWARE = 3
# Before this version clients fail on a feature whose lowest level is 0 (KAFKA-17011).
_FIRST_VERSION_WITH_LEVEL_0 = 4

_BROKERS, _CONTROLLERS = 1, 2  # kinds of endpoints
_GROUP, _TRANSACTION, _SHARE = 0, 1, 2  # kinds of coordinators
_FIRST_VERSION_WITH_MANY_KEYS = 4


def api_versions(
    broker: "Broker", context: Context, request: m.ApiVersionsRequest | None
) -> m.ApiVersionsResponse:
    """``request`` is None when it came in a version that nobody here can read."""
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
    control = broker.control
    return response(
        api_keys=[
            response.ApiVersion(api_key=key, min_version=lowest, max_version=highest)
            for key, (lowest, highest) in SERVED.items()
        ],
        supported_features=[
            response.SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
            for name, (lowest, highest) in features.SUPPORTED.items()
            if lowest > 0 or context.api_version >= _FIRST_VERSION_WITH_LEVEL_0
        ],
        finalized_features_epoch=control.features_epoch,
        finalized_features=[
            response.FinalizedFeatureKey(
                name=name, max_version_level=level, min_version_level=level
            )
            for name, level in control.feature_levels.items()
            if level > 0
        ],
    )


def describe_cluster(
    broker: "Broker", context: Context, request: m.DescribeClusterRequest
) -> m.DescribeClusterResponse:
    response = m.DescribeClusterResponse
    if request.endpoint_type == _CONTROLLERS:
        raise Rejected(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "This is an endpoint of a broker, and one of a controller was wanted.",
        )
    if request.endpoint_type != _BROKERS:
        raise Rejected(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"There are no endpoints of type {request.endpoint_type}.",
        )
    picture = broker.picture
    return response(
        error_message=None,
        endpoint_type=_BROKERS,
        cluster_id=picture.cluster_id,
        controller_id=picture.controller_id,
        brokers=[
            response.DescribeClusterBroker(
                broker_id=entry.broker_id,
                host=address.host,
                port=address.port,
                rack=entry.rack,
                is_fenced=False,
            )
            for entry in picture.brokers.values()
            if (address := entry.endpoints.get(context.listener)) is not None
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def find_coordinator(
    broker: "Broker", context: Context, request: m.FindCoordinatorRequest
) -> m.FindCoordinatorResponse:
    """This node coordinates everything; what it cannot do yet, its ApiVersions do not announce."""
    many = context.api_version >= _FIRST_VERSION_WITH_MANY_KEYS
    keys = request.coordinator_keys if many else [request.key]
    found = [_coordinator(broker, context, request.key_type, key) for key in keys]
    if many:
        return m.FindCoordinatorResponse(coordinators=found)
    (only,) = found
    return m.FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


def _coordinator(
    broker: "Broker", context: Context, key_type: int, key: str
) -> m.FindCoordinatorResponse.Coordinator:
    picture = broker.picture
    address = picture.brokers[broker.node_id].endpoints.get(context.listener)
    code = ErrorCode.NONE
    if key_type not in (_GROUP, _TRANSACTION, _SHARE):
        code = ErrorCode.INVALID_REQUEST
    elif key_type == _SHARE and len(key.split(":")) != 3:
        # A share coordinator is asked for by group, topic id and partition.
        code = ErrorCode.INVALID_REQUEST
    elif address is None:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code is not ErrorCode.NONE or address is None:
        return m.FindCoordinatorResponse.Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=code, error_message=code.name
        )
    return m.FindCoordinatorResponse.Coordinator(
        key=key,
        node_id=broker.node_id,
        host=address.host,
        port=address.port,
        error_code=code,
        error_message="",
    )


async def update_features(
    broker: "Broker", context: Context, request: m.UpdateFeaturesRequest
) -> m.UpdateFeaturesResponse:
    updates = [
        features.FeatureUpdate(
            update.feature,
            update.max_version_level,
            _update_kind(context, update),
        )
        for update in request.feature_updates
    ]
    await broker.control.update_features(updates, validate_only=request.validate_only)
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
    # Version 0 could only say whether a downgrade was meant.
    if context.api_version == 0:
        return features.SAFE_DOWNGRADE if update.allow_downgrade else features.UPGRADE
    return update.upgrade_type
