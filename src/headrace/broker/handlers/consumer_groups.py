"""The APIs of the consumer protocol (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe.

Both are always announced, as in Kafka. They are served once the cluster's ``group.version`` is 1
and ``group.coordinator.rebalance.protocols`` names the protocol.
"""

from functools import partial
from typing import Any, Protocol

from headrace.broker.context import Context
from headrace.broker.handlers.coordinator_requests import Answer, ask, gather, reported_code
from headrace.broker.handlers.groups import GROUP_OPERATIONS, request_context
from headrace.broker.handlers.metadata import NOT_ASKED
from headrace.broker.needs import (
    NeedsConfig,
    NeedsGroups,
    NeedsMetadata,
    NeedsWorld,
)
from headrace.broker.random_ids import draw_member_id
from headrace.core.features import GROUP_VERSION
from headrace.core.groups.consumer.describe import describe
from headrace.core.groups.consumer.heartbeat import heartbeat, is_large
from headrace.model.errors import ErrorCode, Rejected
from headrace.wire import messages as m
from headrace.wire.schema import Message

_FIRST_GROUP_VERSION_WITH_PROTOCOL = 1
_FIRST_HEARTBEAT_WITH_OWN_ID = 1  # clients draw their own member id (KIP-1082)


class Needs(NeedsConfig, NeedsGroups, NeedsMetadata, NeedsWorld, Protocol):
    """What these handlers use of the broker."""


def is_served(broker: Needs) -> bool:
    level = broker.metadata_cache.feature_levels.get(GROUP_VERSION, 0)
    return level >= _FIRST_GROUP_VERSION_WITH_PROTOCOL and "consumer" in broker.config.list(
        "group.coordinator.rebalance.protocols"
    )


def consumer_group_heartbeat(
    broker: Needs, context: Context, request: m.ConsumerGroupHeartbeatRequest
) -> Answer:
    def refuse(refusal: Rejected) -> Message:
        return m.ConsumerGroupHeartbeatResponse(
            error_code=reported_code(refusal.code), error_message=refusal.message
        )

    if not is_served(broker):
        return refuse(Rejected(ErrorCode.UNSUPPORTED_VERSION))
    client = request_context(context)
    drawn_id = None
    if context.api_version < _FIRST_HEARTBEAT_WITH_OWN_ID:
        drawn_id = "" if request.member_id else draw_member_id(broker.world.random)
    return ask(
        partial(broker.groups.ask, is_large=lambda shard: is_large(shard, client, request)),
        request.group_id,
        lambda shard, ticket, now: heartbeat(shard, ticket, client, request, drawn_id, now),
        refuse,
    )


def consumer_group_describe(
    broker: Needs, context: Context, request: m.ConsumerGroupDescribeRequest
) -> Answer:
    described = m.ConsumerGroupDescribeResponse.DescribedGroup

    def ask_for(group_id: str) -> Answer:
        if not is_served(broker):
            return described(group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION)
        if not group_id:
            return described(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
        return ask(
            broker.groups.ask,
            group_id,
            lambda shard, ticket, now: describe(shard, ticket, group_id, now),
            lambda refusal: described(
                group_id=group_id,
                error_code=reported_code(refusal.code),
                error_message=refusal.message,
            ),
        )

    def finish(groups: list[Any]) -> Message:
        operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
        for group in groups:
            if not group.error_code:
                group.authorized_operations = operations
        return m.ConsumerGroupDescribeResponse(groups=groups)

    return gather((ask_for(group_id) for group_id in request.group_ids), finish)
