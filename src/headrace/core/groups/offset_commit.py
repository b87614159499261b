"""OffsetCommit and TxnOffsetCommit: which members may commit, and the records of the offsets."""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.core.groups.group import CommitOptions, Member
from headrace.core.groups.offsets import (
    NO_METADATA,
    PLAIN_HEAD,
    PLAIN_TAIL,
    TOPIC_ID_TAG,
    VALUE_VERSION,
    CommittedOffset,
    Offsets,
    encode_value,
)
from headrace.core.groups.packed import take_packed
from headrace.core.outcome import (
    NewRecord,
    Outcome,
    ProducerStamp,
    Reply,
    Ticket,
)
from headrace.model.cluster_metadata import ClusterMetadata, TopicState
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, TopicId
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.core.groups.shard import GroupShard

AnyCommitRequest = m.OffsetCommitRequest | m.TxnOffsetCommitRequest
AnyCommitResponse = m.OffsetCommitResponse | m.TxnOffsetCommitResponse

_PARTITION = Struct(">i")
_LAST_TIME = (1 << 63) - 1


def commit(
    shard: "GroupShard",
    ticket: Ticket,
    request: m.OffsetCommitRequest,
    options: CommitOptions,
    now: Millis,
) -> Outcome:
    member = Member(
        request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
    )
    by_topic_id, supports_member_epoch, _ = options
    metadata = shard.cluster.metadata
    code = ErrorCode.NONE
    try:
        group = shard.groups.get(request.group_id)
        if group is not None:
            group.check_commit(
                member,
                transactional=False,
                supports_member_epoch=supports_member_epoch,
                partitions=lambda: _partitions_of(request, metadata, by_topic_id),
            )
            if member.member_id:
                group.committed(member, now)
        elif member.generation >= 0:
            raise Rejected(
                ErrorCode.GROUP_ID_NOT_FOUND
                if supports_member_epoch
                else ErrorCode.ILLEGAL_GENERATION
            )
        # Else: a commit without a membership claim may create a group.
    except Rejected as refusal:
        code = refusal.code
    expire_at = -1
    if request.retention_time_ms >= 0:
        # The largest retention time means forever; its end would not fit the record.
        expire_at = min(now + request.retention_time_ms, _LAST_TIME)
    elif not code:
        packed = take_packed(request, options, metadata, shard.offsets, now)
        if packed is not None:
            return Outcome(packed[0], (Reply(ticket, packed[1]),))
    metadata_length_max = shard.cluster.config.int("offset.metadata.max.bytes")
    terms = Commit(
        request.group_id, metadata, by_topic_id, code, metadata_length_max, expire_at, now
    )
    response = m.OffsetCommitResponse()
    records = take_commits(terms, request, response, shard.offsets)
    return Outcome(tuple(records), (Reply(ticket, response),))


def txn_commit(
    shard: "GroupShard", ticket: Ticket, request: m.TxnOffsetCommitRequest, now: Millis
) -> Outcome:
    """The offsets stay pending until the end marker of the producer's transaction."""
    member = Member(request.member_id, request.group_instance_id, request.generation_id)
    metadata = shard.cluster.metadata
    code = ErrorCode.NONE
    try:
        group = shard.groups.get(request.group_id)
        if group is not None:
            group.check_commit(
                member,
                transactional=True,
                supports_member_epoch=True,
                partitions=lambda: _partitions_of(request, metadata, by_topic_id=False),
            )
        elif member.generation >= 0:
            raise Rejected(ErrorCode.ILLEGAL_GENERATION)
    except Rejected as refusal:
        code = refusal.code
    metadata_length_max = shard.cluster.config.int("offset.metadata.max.bytes")
    terms = Commit(request.group_id, metadata, False, code, metadata_length_max, -1, now)
    response = m.TxnOffsetCommitResponse()
    records = take_commits(terms, request, response, shard.offsets)
    producer = ProducerStamp(request.producer_id, request.producer_epoch)
    return Outcome(tuple(records), (Reply(ticket, response),), producer=producer)


def _partitions_of(
    request: AnyCommitRequest, metadata: ClusterMetadata, by_topic_id: bool
) -> Iterator[tuple[TopicId, int]]:
    """The partitions of a commit whose topics exist."""
    topic: Any  # of either request; only OffsetCommit has topic ids
    for topic in request.topics:
        if by_topic_id:
            state = metadata.topic_by_id(TopicId(topic.topic_id))
        else:
            state = metadata.topics.get(topic.name)
        if state is not None:
            for wanted in topic.partitions:
                yield state.topic_id, wanted.partition_index


class Commit(NamedTuple):
    """The terms that hold for every partition of one OffsetCommit or TxnOffsetCommit."""

    group_id: str
    metadata: ClusterMetadata
    by_topic_id: bool
    refusal: ErrorCode  # NONE, or why no offset is taken
    metadata_length_max: int
    expire_at: int  # -1: by the retention of the broker
    now: Millis


def take_commits(
    commit: Commit,
    request: AnyCommitRequest,
    response: AnyCommitResponse,
    offsets: Offsets | None,
) -> list[NewRecord]:
    """Put a code for each partition into ``response``; returns the records of taken offsets.

    ``offsets`` may be None if the commit is refused as a whole.
    """
    records: list[NewRecord] = []
    topic_class = getattr(response, f"{type(response).__name__}Topic")
    partition_class = getattr(response, f"{type(response).__name__}Partition")
    topic: Any  # of either request
    for topic in request.topics:
        given = topic_class(name=topic.name)
        response.topics.append(given)
        if commit.by_topic_id:
            given.topic_id = topic.topic_id
            state = commit.metadata.topic_by_id(TopicId(topic.topic_id))
        else:
            state = commit.metadata.topics.get(topic.name)
        if state is None and commit.by_topic_id:
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answers = given.partitions
        if state is None or commit.refusal:
            partition_count = len(state.partitions) if state is not None else 0
            for wanted in topic.partitions:
                is_known = 0 <= wanted.partition_index < partition_count
                answers.append(
                    partition_class(
                        partition_index=wanted.partition_index,
                        error_code=commit.refusal if is_known else unknown,
                    )
                )
        else:
            assert offsets is not None
            prefix = offsets.prefix(commit.group_id, state.name)
            records += _take_topic(
                commit, topic.partitions, state, prefix, partition_class, answers
            )
    return records


def _take_topic(
    commit: Commit,
    partitions: Iterable[Any],
    state: TopicState,
    prefix: bytes,
    answer_class: type[Any],
    answers: list[Any],
) -> list[NewRecord]:
    """The hot loop of a commit.

    It bypasses the constructors of the answers and packs a value without metadata in one call.
    """
    records: list[Any] = []
    partition_count, topic_id = len(state.partitions), state.topic_id
    metadata_length_max, expire_at, now = commit[-3:]
    is_plain = expire_at < 0
    tail = PLAIN_TAIL.pack(now, TOPIC_ID_TAG, topic_id)
    make, pack_partition, pack_head = object.__new__, _PARTITION.pack, PLAIN_HEAD.pack
    for wanted in partitions:
        answer = make(answer_class)
        answer.partition_index = partition = wanted.partition_index
        answer.error_code = ErrorCode.NONE
        answers.append(answer)
        metadata = wanted.committed_metadata
        if not 0 <= partition < partition_count:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            continue
        if not metadata and is_plain:
            offset, leader_epoch = wanted.committed_offset, wanted.committed_leader_epoch
            value = pack_head(VALUE_VERSION, offset, leader_epoch, NO_METADATA) + tail
        elif metadata and len(metadata) > metadata_length_max:
            answer.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            continue
        else:
            value = encode_value(
                CommittedOffset(
                    wanted.committed_offset,
                    wanted.committed_leader_epoch,
                    metadata or "",
                    now,
                    expire_at,
                    topic_id,
                )
            )
        # A plain tuple: a named one would cost as much as the rest of the record.
        records.append((prefix + pack_partition(partition), value))
    return records
