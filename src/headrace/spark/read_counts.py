"""Counts what the tasks of a query read, by partition and minute, for the audit.

A task publishes its counts when it has read its ranges, before Spark can count it as done. The key
names the query, the batch and the ranges: a task that runs again publishes the same again.
"""

import time
from collections import Counter
from collections.abc import Mapping

import numpy as np

from headrace.arrow.columns import Records
from headrace.arrow.encoding import EncodedBatch
from headrace.model.audit import AUDIT_TOPIC, MINUTE_MS, ReadMessage, ReadRange
from headrace.model.ids import TopicPartition, id_to_text
from headrace.records.record import Record, build_batch
from headrace.spark.cluster import Cluster
from headrace.spark.offsets import Range
from headrace.spark.producing import BatchSender, Identity


class ReadCounts:
    """The counts of one task."""

    def __init__(self, cluster: Cluster, query: str, batch: int) -> None:
        self._cluster = cluster
        self._query = query
        self._batch = batch
        self._minutes: dict[Range, Counter[int]] = {}

    def begin(self, range_: Range) -> None:
        self._minutes[range_] = Counter()

    def add(self, range_: Range, records: Records) -> None:
        minutes = records.timestamp_ms - records.timestamp_ms % MINUTE_MS
        values, counts = np.unique(minutes, return_counts=True)
        self._minutes[range_].update(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def publish(self, topic_ids: Mapping[str, bytes]) -> None:
        """Wait until the brokers have the counts."""
        message = ReadMessage(
            self._query,
            self._batch,
            tuple(
                ReadRange(
                    range_.place.topic,
                    id_to_text(topic_ids[range_.place.topic]),
                    range_.place.partition,
                    range_.first_offset,
                    range_.offset_end,
                    dict(minutes),
                )
                for range_, minutes in self._minutes.items()
            ),
        )
        record = Record(0, time.time_ns() // 1_000_000, message.key, message.value, ())
        batch = EncodedBatch(TopicPartition(AUDIT_TOPIC, 0), 1, build_batch([record]))
        with BatchSender(self._cluster, Identity()) as sender:
            sender.send([batch])
            sender.flush()
