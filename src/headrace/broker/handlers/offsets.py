"""ListOffsets and OffsetForLeaderEpoch: offsets by position, time and leader epoch."""

from typing import Protocol

from headrace.broker.context import Context
from headrace.broker.needs import NeedsReplicas
from headrace.broker.replication.replica import Replica
from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import LeaderEpoch, Millis
from headrace.storage.time_lookup import offset_for_time, offset_of_max_timestamp
from headrace.wire import messages as m
from headrace.wire.api import NO_LIMIT

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(
    -1, -7, -1
)
# The first version that supports each special timestamp. Others belong to later releases of Kafka,
# whose versions are not supported.
_SINCE = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_OFFSET_NOT_AVAILABLE_SINCE = 5
_NOT_FOUND = (-1, -1, -1)  # offset, timestamp, leader epoch


class Needs(NeedsReplicas, Protocol):
    """What these handlers use of the broker."""


async def list_offsets(
    broker: Needs, context: Context, request: m.ListOffsetsRequest
) -> m.ListOffsetsResponse:
    response = m.ListOffsetsResponse
    asked_twice = _repeated_partitions(request)
    topics = []
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            answer = response.ListOffsetsPartitionResponse(
                partition_index=asked.partition_index, timestamp=-1, offset=-1, leader_epoch=-1
            )
            partitions.append(answer)
            try:
                if (topic.name, asked.partition_index) in asked_twice:
                    raise Rejected(
                        ErrorCode.INVALID_REQUEST, "the partition appears twice in the request"
                    )
                if asked.timestamp < 0 and context.api_version < _SINCE.get(
                    asked.timestamp, NO_LIMIT
                ):
                    raise Rejected(
                        ErrorCode.UNSUPPORTED_VERSION,
                        f"ListOffsets version {context.api_version} does not support timestamp "
                        f"{asked.timestamp}",
                    )
                replica = broker.replicas.require(topic.name, asked.partition_index)
                replica.require_leadership_in(asked.current_leader_epoch)
                if request.replica_id >= 0 and asked.timestamp == LATEST:
                    # A follower continues at the log end; the high watermark may be behind it.
                    offset, timestamp, leader_epoch = _log_end(replica)
                else:
                    offset, timestamp, leader_epoch = await _find(
                        replica, asked.timestamp, request.isolation_level
                    )
                    _check_available(context, replica, asked.timestamp, offset)
                answer.offset = offset
                answer.timestamp = timestamp
                answer.leader_epoch = leader_epoch
                if context.api_version == 0:
                    answer.old_style_offsets = _answer_version_0(replica, asked, offset)
            except Rejected as refusal:
                answer.error_code = refusal.code
        topics.append(response.ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    return response(topics=topics)


def _check_available(context: Context, replica: Replica, timestamp: int, offset: int) -> None:
    """Reject a request if a new leader's high watermark may be stale: "latest" could decrease."""
    if replica.require_leadership().is_high_watermark_current:
        return
    if timestamp == LATEST or (timestamp >= 0 and offset == -1):
        code = ErrorCode.OFFSET_NOT_AVAILABLE
        if context.api_version < _OFFSET_NOT_AVAILABLE_SINCE:
            code = ErrorCode.LEADER_NOT_AVAILABLE
        raise Rejected(
            code, f"the high watermark of {replica.topic_partition} is not known yet; try again"
        )


def _repeated_partitions(request: m.ListOffsetsRequest) -> set[tuple[str, int]]:
    seen: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in request.topics:
        for asked in topic.partitions:
            key = (topic.name, asked.partition_index)
            (twice if key in seen else seen).add(key)
    return twice


def _log_end(replica: Replica) -> tuple[int, int, int]:
    return replica.log.log_end, -1, replica.require_leadership().leader_epoch


async def _find(replica: Replica, timestamp: int, isolation_level: int) -> tuple[int, int, int]:
    log = replica.log
    readable_end = replica.readable_end(isolation_level)
    if timestamp == LATEST:
        return readable_end, -1, replica.require_leadership().leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start, -1, log.leader_epochs.epoch_at(log.log_start)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOT_FOUND  # there is no tiered storage
    try:
        if timestamp == MAX_TIMESTAMP:
            found = await offset_of_max_timestamp(log)
        else:
            found = await offset_for_time(log, Millis(timestamp))
    except FileNotFoundError as gone:
        # Retention, compaction or the deletion of the topic removed the segment meanwhile.
        raise Rejected(
            ErrorCode.LEADER_NOT_AVAILABLE, f"{replica.topic_partition} changed: {gone}; try again"
        ) from gone
    except (Corrupt, OSError) as problem:
        raise replica.unreadable(problem) from problem
    # A search by time must not find records that consumers cannot read yet.
    if found is None or found[0] >= readable_end:
        return _NOT_FOUND
    return found


def _answer_version_0(
    replica: Replica, asked: m.ListOffsetsRequest.ListOffsetsPartition, offset: int
) -> list[int]:
    """Version 0 (Kafka 0.8): segment offsets at or before a time, newest first."""
    if asked.max_num_offsets <= 0:
        return []
    if asked.timestamp == LATEST:
        bases = [base for base in replica.log.segments.bases if base < offset]
        return [offset, *reversed(bases)][: asked.max_num_offsets]
    return [offset] if offset >= 0 else []


def offset_for_leader_epoch(
    broker: Needs, context: Context, request: m.OffsetForLeaderEpochRequest
) -> m.OffsetForLeaderEpochResponse:
    response = m.OffsetForLeaderEpochResponse
    topics = []
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            answer = response.EpochEndOffset(
                partition=asked.partition, leader_epoch=-1, end_offset=-1
            )
            partitions.append(answer)
            try:
                replica = broker.replicas.require(topic.topic, asked.partition)
                replica.require_leadership_in(asked.current_leader_epoch)
                log = replica.log
                end = log.leader_epochs.end_of(LeaderEpoch(asked.leader_epoch), log.log_end)
                answer.leader_epoch = end.leader_epoch
                answer.end_offset = end.end_offset
            except Rejected as refusal:
                answer.error_code = refusal.code
        topics.append(response.OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
    return response(topics=topics)
