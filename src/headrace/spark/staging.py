"""Staging: tasks store batches that are too large for a message to the driver in a topic."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.arrow.encoding import EncodedBatch
from headrace.model.ids import TopicPartition
from headrace.spark.cluster import Cluster
from headrace.spark.failures import PipelineError
from headrace.spark.fetching import RangeReader
from headrace.spark.offsets import Range
from headrace.spark.options import FetchSettings, SinkOptions
from headrace.spark.producing import BatchSender, Identity

_PARTITIONS = 8
_BATCH_SIZE_MAX = 1 << 30
_DAY_MS = 86_400_000
_FULL_MESSAGES = 4


class StagedBatch(NamedTuple):
    """A batch in the staging topic: its target partition, and its position there."""

    place: TopicPartition
    record_count: int
    staged: TopicPartition
    base_offset: int


def message_size_max(options: SinkOptions, task: int) -> int:
    """The bytes of rows that this task may send to the driver; it stages larger results.

    Spark tells a Python task its number but not the number of tasks, and the driver holds the
    messages of all tasks in memory. So the first few tasks may fill a message, and each later
    task gets a smaller share: together they stay below eight full messages.
    """
    nth = task + 1
    return options.message_size_max * min(_FULL_MESSAGES**2, nth**2) // nth**2


def stage(
    cluster: Cluster, options: SinkOptions, batches: Sequence[EncodedBatch], task: int
) -> list[StagedBatch]:
    """Store a task's batches in the staging topic, unchanged."""
    cluster.create_topic(
        options.staging_topic,
        _PARTITIONS,
        {
            "cleanup.policy": "delete",
            "retention.ms": str(_DAY_MS),
            # Log append time or another codec would change the batches.
            "message.timestamp.type": "CreateTime",
            "compression.type": "producer",
            # The target topic decides which rows are too large.
            "max.message.bytes": str(_BATCH_SIZE_MAX),
        },
        option="delivery.stagingTopic",
    )
    count = len(cluster.existing_topic(options.staging_topic).leaders)
    staged_at = TopicPartition(options.staging_topic, task % count)
    with BatchSender(
        cluster, Identity(), timeout_ms=options.delivery_timeout_ms, keep_places=True
    ) as sender:
        sender.send(batch._replace(place=staged_at) for batch in batches)
        sender.flush()
    staged = []
    stored = iter(sender.stored)
    for batch in batches:
        left = batch.record_count
        while left:  # more than one if the staging topic requires smaller batches
            where = next(stored)
            staged.append(
                StagedBatch(batch.place, where.record_count, staged_at, where.base_offset)
            )
            left -= where.record_count
    return staged


def unstaged(cluster: Cluster, staged: Sequence[StagedBatch]) -> Iterator[EncodedBatch]:
    """The staged batches of one task, unchanged and in order."""
    if not staged:
        return
    wanted = {batch.base_offset: batch for batch in staged}
    place = staged[0].staged
    last = max(staged, key=lambda batch: batch.base_offset)
    range_ = Range(place, min(wanted), last.base_offset + last.record_count)
    topic_id = cluster.existing_topic(place.topic).topic_id
    for _, sections in RangeReader(cluster, range_, topic_id, FetchSettings()).batches():
        for header, data in sections:
            batch = wanted.pop(header.base_offset, None)
            if batch is not None:
                yield EncodedBatch(batch.place, batch.record_count, bytes(data))
    if wanted:
        raise PipelineError(
            f"{len(wanted)} staged batches are missing from {place}; its retention may be too short"
        )
