"""ListOffsets and OffsetForLeaderEpoch: where records are, by place, by time and by reign."""

from typing import TYPE_CHECKING

from headrace.broker.context import Context
from headrace.broker.replication.replica_manager import Replica
from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import LeaderEpoch, Millis
from headrace.storage.time_lookup import offset_for_time, offset_of_max_timestamp
from headrace.wire import messages as m
from headrace.wire.api import NO_LIMIT

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(
    -1, -7, -1
)
# The version from which each special time may be asked for. A special time that is not here
# belongs to a Kafka to come, of which no version is served.
_SINCE = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_NOWHERE = (-1, -1, -1)  # offset, timestamp, leader epoch


async def list_offsets(
    broker: "Broker", context: Context, request: m.ListOffsetsRequest
) -> m.ListOffsetsResponse:
    response = m.ListOffsetsResponse
    asked_twice = _asked_twice(request)
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
                        ErrorCode.INVALID_REQUEST, "the partition is named twice in one request"
                    )
                if asked.timestamp < 0 and context.api_version < _SINCE.get(
                    asked.timestamp, NO_LIMIT
                ):
                    raise Rejected(
                        ErrorCode.UNSUPPORTED_VERSION,
                        f"timestamp {asked.timestamp} cannot be asked for in ListOffsets version "
                        f"{context.api_version}",
                    )
                replica = broker.replica(topic.name, asked.partition_index)
                replica.lead_in(asked.current_leader_epoch)
                offset, timestamp, leader_epoch = await _find(
                    replica, asked.timestamp, request.isolation_level
                )
                answer.offset = offset
                answer.timestamp = timestamp
                answer.leader_epoch = leader_epoch
                if context.api_version == 0:
                    answer.old_style_offsets = _old_style(replica, asked, offset)
            except Rejected as refusal:
                answer.error_code = refusal.code
        topics.append(response.ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    return response(topics=topics)


def _asked_twice(request: m.ListOffsetsRequest) -> set[tuple[str, int]]:
    seen: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in request.topics:
        for asked in topic.partitions:
            key = (topic.name, asked.partition_index)
            (twice if key in seen else seen).add(key)
    return twice


async def _find(replica: Replica, timestamp: int, isolation_level: int) -> tuple[int, int, int]:
    log = replica.log
    readable_end = replica.readable_end(isolation_level)
    if timestamp == LATEST:
        return readable_end, -1, replica.lead().leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start, -1, log.leader_epochs.epoch_at(log.log_start)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOWHERE  # nothing is tiered here
    try:
        if timestamp == MAX_TIMESTAMP:
            found = await offset_of_max_timestamp(log)
        else:
            found = await offset_for_time(log, Millis(timestamp))
    except FileNotFoundError as gone:
        # Retention or compaction took the segment away meanwhile, or the whole topic is gone.
        raise Rejected(
            ErrorCode.LEADER_NOT_AVAILABLE, f"{replica.topic_partition} changed: {gone}; ask again"
        ) from gone
    except (Corrupt, OSError) as problem:
        raise replica.unreadable(problem) from problem
    # What consumers may not read yet has no time for them either.
    if found is None or found[0] >= readable_end:
        return _NOWHERE
    return found


def _old_style(
    replica: Replica, asked: m.ListOffsetsRequest.ListOffsetsPartition, offset: int
) -> list[int]:
    """Version 0: offsets at or before a time, newest first, by segment; Kafka 0.8 clients."""
    if asked.max_num_offsets <= 0:
        return []
    if asked.timestamp == LATEST:
        bases = [base for base in replica.log.segments.bases if base < offset]
        return [offset, *reversed(bases)][: asked.max_num_offsets]
    return [offset] if offset >= 0 else []


def offset_for_leader_epoch(
    broker: "Broker", context: Context, request: m.OffsetForLeaderEpochRequest
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
                replica = broker.replica(topic.topic, asked.partition)
                replica.lead_in(asked.current_leader_epoch)
                log = replica.log
                end = log.leader_epochs.end_of(LeaderEpoch(asked.leader_epoch), log.log_end)
                answer.leader_epoch = end.leader_epoch
                answer.end_offset = end.end_offset
            except Rejected as refusal:
                answer.error_code = refusal.code
        topics.append(response.OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
    return response(topics=topics)
