"""OffsetFetch: the committed offsets of a group, as a response."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headrace.core.groups.offsets import Offsets, decode_value
from headrace.core.outcome import Outcome, Reply, Ticket
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import NO_TOPIC_ID, TopicId
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.core.groups.shard import GroupShard


def fetch(
    shard: "GroupShard",
    ticket: Ticket,
    request: m.OffsetFetchRequest.OffsetFetchRequestGroup,
    *,
    require_stable: bool,
    by_topic_id: bool,
) -> Outcome:
    """Answer for one group of an OffsetFetch; ``topics`` None requests all offsets."""
    answer = m.OffsetFetchResponse.OffsetFetchResponseGroup(group_id=request.group_id)
    group = shard.groups.get(request.group_id)
    try:
        if group is not None:
            group.check_offset_fetch(request.member_id, request.member_epoch)
    except Rejected as refusal:
        answer.error_code = refusal.code
        return Outcome(replies=(Reply(ticket, answer),))
    if request.topics is None:
        answer.topics = _all_offsets(shard, request.group_id, require_stable, by_topic_id)
    else:
        answer.topics = [
            _topic_offsets(shard, request.group_id, topic, require_stable, by_topic_id)
            for topic in request.topics
        ]
    return Outcome(replies=(Reply(ticket, answer),))


def _topic_offsets(
    shard: "GroupShard",
    group_id: str,
    wanted: m.OffsetFetchRequest.OffsetFetchRequestTopics,
    require_stable: bool,
    by_topic_id: bool,
) -> m.OffsetFetchResponse.OffsetFetchResponseTopics:
    name = wanted.name
    metadata = shard.cluster.metadata
    if by_topic_id:
        state = metadata.topic_by_id(TopicId(wanted.topic_id))
        if state is None:
            answer = _offsets_of(b"", {}, wanted.partition_indexes, None, NO_TOPIC_ID)
            for partition in answer.partitions:
                partition.error_code = ErrorCode.UNKNOWN_TOPIC_ID
            answer.topic_id = wanted.topic_id
            return answer
        name = state.name
    else:
        state = metadata.topics.get(name)
    found = shard.offsets.of_group(group_id).get(name)
    answer = _offsets_of(
        shard.offsets.prefix(group_id, name),
        found.values if found is not None else {},
        wanted.partition_indexes,
        _pending(shard, require_stable),
        state.topic_id if state is not None else NO_TOPIC_ID,
    )
    answer.name, answer.topic_id = name, wanted.topic_id
    return answer


def _all_offsets(
    shard: "GroupShard", group_id: str, require_stable: bool, by_topic_id: bool
) -> list[m.OffsetFetchResponse.OffsetFetchResponseTopics]:
    pending = _pending(shard, require_stable)
    answers = []
    for found in shard.offsets.of_group(group_id).values():
        state = shard.cluster.metadata.topics.get(found.topic)
        if by_topic_id and state is None:
            continue  # a deleted topic has no id to name it by
        topic_id = state.topic_id if state is not None else NO_TOPIC_ID
        answer = _offsets_of(found.prefix, found.values, found.values, pending, topic_id)
        answer.name, answer.topic_id = found.topic, topic_id
        answers.append(answer)
    return answers


def _pending(shard: "GroupShard", require_stable: bool) -> Offsets | None:
    return shard.offsets if require_stable and shard.offsets.has_pending else None


def _offsets_of(
    prefix: bytes,
    values: Mapping[int, bytes],
    partitions: Iterable[int],
    pending: Offsets | None,
    topic_id: bytes,
) -> m.OffsetFetchResponse.OffsetFetchResponseTopics:
    """``pending``, if given, tells which offsets are not stable yet.

    An offset with another topic id was committed for a deleted topic of the same name.
    """
    answers = []
    make, answer_class = object.__new__, m.OffsetFetchResponse.OffsetFetchResponsePartitions
    for partition in partitions:
        answer = make(answer_class)
        answer.partition_index = partition
        answer.error_code = ErrorCode.NONE
        value = values.get(partition)
        if pending is not None and pending.is_pending(prefix, partition):
            answer.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
            value = None
        answer.committed_offset = answer.committed_leader_epoch = -1
        answer.metadata = ""
        if value is not None:
            offset, leader_epoch, metadata, _, _, committed_id = decode_value(value)
            if committed_id == topic_id or NO_TOPIC_ID in (committed_id, topic_id):
                answer.committed_offset = offset
                answer.committed_leader_epoch = leader_epoch
                answer.metadata = metadata
        answers.append(answer)
    return m.OffsetFetchResponse.OffsetFetchResponseTopics(partitions=answers)
