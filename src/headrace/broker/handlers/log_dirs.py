"""DescribeLogDirs and AlterReplicaLogDirs: log directories, their partitions and sizes."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.broker.context import Context
from headrace.broker.needs import NeedsLogDirs, NeedsReplicas, NeedsWorld
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import TopicPartition
from headrace.storage.log_move import check_name
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.storage.log_manager import LogDirectory


class Needs(NeedsLogDirs, NeedsReplicas, NeedsWorld, Protocol):
    """What these handlers use of the broker."""


def describe_log_dirs(
    broker: Needs, context: Context, request: m.DescribeLogDirsRequest
) -> m.DescribeLogDirsResponse:
    wanted = _wanted(request)
    return m.DescribeLogDirsResponse(
        results=[_describe(broker, directory, wanted) for directory in broker.logs.directories]
    )


def _wanted(request: m.DescribeLogDirsRequest) -> set[TopicPartition] | None:
    """None means all partitions."""
    if request.topics is None:
        return None
    return {
        TopicPartition(topic.topic, partition)
        for topic in request.topics
        for partition in topic.partitions
    }


def _describe(
    broker: Needs, directory: "LogDirectory", wanted: set[TopicPartition] | None
) -> m.DescribeLogDirsResponse.DescribeLogDirsResult:
    response = m.DescribeLogDirsResponse
    result = response.DescribeLogDirsResult(log_dir=str(directory.path))
    if directory.offline is not None:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return result
    try:
        total, free = broker.world.files.disk_usage(str(directory.path))
    except OSError as error:
        directory.failed(error)
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return result
    result.total_bytes, result.usable_bytes = total, free
    by_topic: dict[str, list[m.DescribeLogDirsResponse.DescribeLogDirsPartition]] = {}

    def add(topic_partition: TopicPartition, size: int, lag: int, *, is_copy: bool) -> None:
        if wanted is None or topic_partition in wanted:
            by_topic.setdefault(topic_partition.topic, []).append(
                response.DescribeLogDirsPartition(
                    partition_index=topic_partition.partition,
                    partition_size=size,
                    offset_lag=lag,
                    is_future_key=is_copy,
                )
            )

    for log in broker.logs:
        if log.directory is directory:
            add(log.topic_partition, log.segments.size, 0, is_copy=False)
    for copy in broker.moves.copies_in(directory):
        add(copy.topic_partition, copy.size, copy.lag, is_copy=True)
    result.topics = [
        response.DescribeLogDirsTopic(name=topic, partitions=partitions)
        for topic, partitions in by_topic.items()
    ]
    return result


async def alter_replica_log_dirs(
    broker: Needs, context: Context, request: m.AlterReplicaLogDirsRequest
) -> m.AlterReplicaLogDirsResponse:
    """Start moves between log directories; DescribeLogDirs shows their progress."""
    response = m.AlterReplicaLogDirsResponse
    by_topic: dict[str, list[m.AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult]] = {}
    for asked in request.dirs:
        for topic in asked.topics:
            for partition in topic.partitions:
                code = ErrorCode.NONE
                try:
                    _move(broker, TopicPartition(topic.name, partition), Path(asked.path))
                except Rejected as refusal:
                    code = refusal.code
                by_topic.setdefault(topic.name, []).append(
                    response.AlterReplicaLogDirPartitionResult(
                        partition_index=partition, error_code=code
                    )
                )
                await asyncio.sleep(0)  # creating a directory takes time; let other requests run
    return response(
        results=[
            response.AlterReplicaLogDirTopicResult(topic_name=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ]
    )


def _move(broker: Needs, topic_partition: TopicPartition, target: Path) -> None:
    check_name(topic_partition)  # first, as in Kafka
    for directory in broker.logs.directories:
        if directory.path == target:
            break
    else:
        raise Rejected(ErrorCode.LOG_DIR_NOT_FOUND, f"{target} is not in log.dirs")
    if directory.offline is not None:
        raise Rejected(ErrorCode.KAFKA_STORAGE_ERROR, f"{target} is offline: {directory.offline}")
    replica = broker.replicas.require(*topic_partition)
    if replica.log.offline is not None:
        raise Rejected(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"the disk of {topic_partition} failed: {replica.log.offline}",
        )
    broker.moves.request(replica.log, directory)
