"""Replay: from the records of consumer groups, by type, to the groups of a shard."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.core.groups.consumer.group import ConsumerGroup
from headrace.wire import messages as m
from headrace.wire.framing import decode_record_key, decode_versioned
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.core.groups.shard import GroupShard

KeyT = TypeVar("KeyT", bound=Message)
ValueT = TypeVar("ValueT", bound=Message)
Replayer = Callable[["GroupShard", bytes, bytes | None], None]


def _group_to_replay(
    shard: "GroupShard", group_id: str, value: bytes | None
) -> ConsumerGroup | None:
    """None for a tombstone of something that is already gone."""
    group = shard.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return group
    if value is None:
        return None
    # A classic group with this id had its tombstone, or only holds offsets.
    made = shard.groups[group_id] = ConsumerGroup(shard, group_id)
    return made


def _replayer(
    key_class: type[KeyT],
    value_class: type[ValueT],
    apply: Callable[[ConsumerGroup, KeyT, ValueT | None], None],
) -> Replayer:
    def replay(shard: "GroupShard", record_key: bytes, value: bytes | None) -> None:
        key: Any = decode_record_key((key_class,), record_key)  # all of these keys name a group
        assert key is not None
        group = _group_to_replay(shard, key.group_id, value)
        if group is not None:
            opened = decode_versioned(value_class, value) if value is not None else None
            apply(group, key, opened)

    return replay


def _replay_metadata(shard: "GroupShard", record_key: bytes, value: bytes | None) -> None:
    key = decode_record_key((m.ConsumerGroupMetadataKey,), record_key)
    assert key is not None
    group = _group_to_replay(shard, key.group_id, value)
    if group is None:
        return
    if value is None:
        shard.remove(key.group_id)
    else:
        group.replay_metadata(decode_versioned(m.ConsumerGroupMetadataValue, value))


REPLAYERS: Mapping[int, Replayer] = {
    3: _replay_metadata,
    4: _replayer(
        m.ConsumerGroupPartitionMetadataKey,
        m.ConsumerGroupPartitionMetadataValue,
        lambda group, key, value: group.replay_partition_metadata(value),
    ),
    5: _replayer(
        m.ConsumerGroupMemberMetadataKey,
        m.ConsumerGroupMemberMetadataValue,
        lambda group, key, value: group.replay_member(key.member_id, value),
    ),
    6: _replayer(
        m.ConsumerGroupTargetAssignmentMetadataKey,
        m.ConsumerGroupTargetAssignmentMetadataValue,
        lambda group, key, value: group.replay_assignment_metadata(value),
    ),
    7: _replayer(
        m.ConsumerGroupTargetAssignmentMemberKey,
        m.ConsumerGroupTargetAssignmentMemberValue,
        lambda group, key, value: group.replay_target(key.member_id, value),
    ),
    8: _replayer(
        m.ConsumerGroupCurrentMemberAssignmentKey,
        m.ConsumerGroupCurrentMemberAssignmentValue,
        lambda group, key, value: group.replay_assignment(key.member_id, value),
    ),
    16: _replayer(
        m.ConsumerGroupRegularExpressionKey,
        m.ConsumerGroupRegularExpressionValue,
        lambda group, key, value: group.replay_pattern(key.regular_expression, value),
    ),
}
