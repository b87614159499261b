"""The APIs of the consumer protocol (KIP-848): one heartbeat for everything, and a look at groups.

Both are announced always, as in Kafka, and served once the cluster's ``group.version`` is at 1
and ``group.coordinator.rebalance.protocols`` names the protocol.
"""

from typing import TYPE_CHECKING, Any

from headrace.broker.context import Context
from headrace.broker.handlers.groups import (
    GROUP_OPERATIONS,
    Answer,
    ask_shard,
    asker_of,
    code_told,
    draw_id,
    gather,
)
from headrace.broker.handlers.metadata import NOT_ASKED
from headrace.core.features import GROUP_VERSION
from headrace.core.groups.consumer.describe import describe
from headrace.core.groups.consumer.heartbeat import heartbeat, is_large
from headrace.model.errors import ErrorCode, Rejected
from headrace.wire import messages as m
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.broker.services import Services

_FIRST_GROUP_VERSION_WITH_PROTOCOL = 1


def is_served(broker: "Services") -> bool:
    level = broker.metadata_cache.feature_levels.get(GROUP_VERSION, 0)
    return level >= _FIRST_GROUP_VERSION_WITH_PROTOCOL and "consumer" in broker.config.list(
        "group.coordinator.rebalance.protocols"
    )


def consumer_group_heartbeat(
    broker: "Services", context: Context, request: m.ConsumerGroupHeartbeatRequest
) -> Answer:
    def refuse(refusal: Rejected) -> Message:
        return m.ConsumerGroupHeartbeatResponse(
            error_code=code_told(refusal.code), error_message=refusal.message
        )

    if not is_served(broker):
        return refuse(Rejected(ErrorCode.UNSUPPORTED_VERSION))
    asker = asker_of(context)
    drawn_id = "" if request.member_id else draw_id()
    return ask_shard(
        broker,
        request.group_id,
        lambda shard, ticket, now: heartbeat(shard, ticket, asker, request, drawn_id, now),
        refuse,
        is_large=lambda shard: is_large(shard, asker, request),
    )


def consumer_group_describe(
    broker: "Services", context: Context, request: m.ConsumerGroupDescribeRequest
) -> Answer:
    described = m.ConsumerGroupDescribeResponse.DescribedGroup

    def ask(group_id: str) -> Answer:
        if not is_served(broker):
            return described(group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION)
        if not group_id:
            return described(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
        return ask_shard(
            broker,
            group_id,
            lambda shard, ticket, now: describe(shard, ticket, group_id, now),
            lambda refusal: described(
                group_id=group_id,
                error_code=code_told(refusal.code),
                error_message=refusal.message,
            ),
        )

    def finish(groups: list[Any]) -> Message:
        operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
        for group in groups:
            if not group.error_code:
                group.authorized_operations = operations
        return m.ConsumerGroupDescribeResponse(groups=groups)

    return gather((ask(group_id) for group_id in request.group_ids), finish)
