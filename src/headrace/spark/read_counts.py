"""Counts what tasks read, by partition and minute, for the audit.

A task of a query publishes its counts when it has read its ranges, before Spark can count it as
done. The key names the query, the batch and the ranges: a task that runs again publishes the same
again.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from headrace.arrow.columns import Records
from headrace.arrow.encoding import EncodedBatch
from headrace.model.audit import AUDIT_TOPIC, MINUTE_MS, Message, ReadMessage, ReadRange
from headrace.model.ids import TopicPartition, id_to_text
from headrace.records.record import Record, build_batch
from headrace.spark.cluster import Cluster
from headrace.spark.offsets import Range
from headrace.spark.producing import BatchSender, Identity

# A message of the audit is smaller than brokers allow, however many minutes a task read.
_RANGE_MINUTES_MAX = 10_000
_MESSAGE_MINUTES_MAX = 20_000
_RANGE_COSTS = 20  # minutes: the JSON of its names
_DENSE_MAX = 100_000


class RangeCounts:
    """The counts of one range. It is cut where its records are of very many minutes."""

    def __init__(self, range_: Range, topic_id: bytes) -> None:
        self._range = range_
        self._topic_id = id_to_text(topic_id)
        self._first_offset = range_.first_offset
        self._minutes: Counter[int] = Counter()
        self._cut: list[ReadRange] = []

    def add(self, records: Records) -> None:
        """Count records, which follow the earlier ones."""
        for start in range(0, records.size, _RANGE_MINUTES_MAX):
            end = min(start + _RANGE_MINUTES_MAX, records.size)
            counts = count_by_minute(records.timestamp_ms[start:end])
            if len(self._minutes.keys() | counts.keys()) > _RANGE_MINUTES_MAX:
                offset_end = int(records.offset[start])
                self._cut.append(self._until(offset_end))
                self._first_offset = offset_end
                self._minutes.clear()
            self._minutes.update(counts)

    def ranges(self) -> list[ReadRange]:
        return [*self._cut, self._until(self._range.offset_end)]

    def _until(self, offset_end: int) -> ReadRange:
        (topic, partition), first = self._range.place, self._first_offset
        return ReadRange(topic, self._topic_id, partition, first, offset_end, dict(self._minutes))


def count_by_minute(timestamp_ms: npt.NDArray[np.int64]) -> dict[int, int]:
    """The number of timestamps in each minute, by its start in milliseconds."""
    if not len(timestamp_ms):
        return {}
    minutes = timestamp_ms // MINUTE_MS
    first = int(minutes.min())
    if int(minutes.max()) - first < _DENSE_MAX:  # much faster than sorting
        dense = np.bincount(minutes - first)
        values = np.flatnonzero(dense)
        counts = dense[values]
    else:
        values, counts = np.unique(minutes - first, return_counts=True)
    starts = (values + first) * MINUTE_MS
    return dict(zip(starts.tolist(), counts.tolist(), strict=True))


class ReadCounts:
    """The counts of one task of a query."""

    def __init__(self, cluster: Cluster, query: str, batch: int) -> None:
        self._cluster = cluster
        self._query = query
        self._batch = batch
        self._counts: list[RangeCounts] = []

    def begin(self, range_: Range, topic_id: bytes) -> None:
        self._counts.append(RangeCounts(range_, topic_id))

    def add(self, records: Records) -> None:
        """Count records of the range that began last."""
        self._counts[-1].add(records)

    def publish(self) -> None:
        """Wait until the brokers have the counts."""
        ranges = (one for counts in self._counts for one in counts.ranges())
        publish(self._cluster, ranges, lambda some: ReadMessage(self._query, self._batch, some))


def publish(
    cluster: Cluster,
    ranges: Iterable[ReadRange],
    message_of: Callable[[tuple[ReadRange, ...]], Message],
) -> None:
    """Send ranges in as few messages as their size allows, and wait until the brokers have them."""
    with BatchSender(cluster, Identity()) as sender:
        for some in groups(ranges):
            message = message_of(some)
            record = Record(0, time.time_ns() // 1_000_000, message.key, message.value, ())
            place = TopicPartition(AUDIT_TOPIC, 0)
            sender.send([EncodedBatch(place, 1, build_batch([record]))])
        sender.flush()


def groups(ranges: Iterable[ReadRange]) -> Iterator[tuple[ReadRange, ...]]:
    """The ranges of each message."""
    group: list[ReadRange] = []
    size = 0
    for one in ranges:
        own = len(one.counts) + _RANGE_COSTS
        if group and size + own > _MESSAGE_MINUTES_MAX:
            yield tuple(group)
            group, size = [], 0
        group.append(one)
        size += own
    if group:
        yield tuple(group)
