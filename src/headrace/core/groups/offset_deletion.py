"""How offsets are deleted: OffsetDelete, deleted topics, and expiration, also of empty groups."""

from struct import Struct
from typing import TYPE_CHECKING

from headrace.core.groups.group import Group, Timer
from headrace.core.outcome import NewRecord, Outcome, Reply, Ticket
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.core.groups.shard import GroupShard

EXPIRATION = Timer("", "expiration")

_PARTITION = Struct(">i")
_MINUTE_MS = 60_000
_GROUPS_PER_ROUND = 200  # checked in one go; other requests are served in between


def delete(
    shard: "GroupShard", ticket: Ticket, request: m.OffsetDeleteRequest, now: Millis
) -> Outcome:
    response = m.OffsetDeleteResponse()
    group = shard.groups.get(request.group_id)
    try:
        if group is None:
            raise Rejected(ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_offset_delete()
    except Rejected as refusal:
        response.error_code = refusal.code
        return Outcome(replies=(Reply(ticket, response),))
    records = []
    for topic in request.topics:
        known = shard.cluster.metadata.topics.get(topic.name)
        found = shard.offsets.of_group(request.group_id).get(topic.name)
        answer = response.OffsetDeleteResponseTopic(name=topic.name)
        response.topics.append(answer)
        for wanted in topic.partitions:
            partition = wanted.partition_index
            code = ErrorCode.NONE
            if known is None or not 0 <= partition < len(known.partitions):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif group.is_subscribed(topic.name):
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif found is not None and partition in found.values:
                records.append(NewRecord(found.prefix + _PARTITION.pack(partition), None))
            answer.partitions.append(
                response.OffsetDeleteResponsePartition(partition_index=partition, error_code=code)
            )
    return Outcome(tuple(records), (Reply(ticket, response),))


def schedule_expiration(shard: "GroupShard", now: Millis) -> None:
    interval_ms = shard.cluster.config.int("offsets.retention.check.interval.ms")
    shard.timers.set(EXPIRATION, now + interval_ms)


def expire(shard: "GroupShard", now: Millis) -> Outcome:
    """Check some of the groups; all of them in turn, then again after the interval."""
    unchecked = shard.unchecked_groups
    if not unchecked:
        unchecked += shard.groups
    chunk = unchecked[-_GROUPS_PER_ROUND:]
    del unchecked[-_GROUPS_PER_ROUND:]
    if unchecked:
        shard.timers.set(EXPIRATION, now)
    else:
        schedule_expiration(shard, now)
    retention_ms = shard.cluster.config.int("offsets.retention.minutes") * _MINUTE_MS
    records: list[NewRecord] = []
    for group_id in chunk:
        group = shard.groups.get(group_id)
        if group is not None:
            records += _expired_of(shard, group, retention_ms, now)
    return Outcome(tuple(records), splittable=True)


def _expired_of(
    shard: "GroupShard", group: Group, retention_ms: int, now: Millis
) -> list[NewRecord]:
    expiry = group.offset_expiry()
    if expiry is None:
        return []
    offsets, group_id = shard.offsets, group.group_id
    records = list(offsets.expired(group_id, expiry, retention_ms, now))
    count = sum(len(found.values) for found in offsets.of_group(group_id).values())
    if len(records) == count and group.is_empty and not offsets.pending_of(group_id):
        records += group.tombstones()
    return records
