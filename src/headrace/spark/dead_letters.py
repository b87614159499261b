"""Bad records into a topic of their own, with where they lay and what is wrong with them.

Key and value stay as they were; the headers ``topic``, ``partition``, ``offset``, ``timestamp``
and ``reason`` tell the rest. A letter has the time of its sending: with the record's own, retention
could take it at once, or the topic refuse it as too far from now. A task that is run again sends
its bad records again: at least once.
"""

import time

from headrace.arrow.encoding import EncodedBatch
from headrace.arrow.rows import RejectedRecord
from headrace.model.ids import TopicPartition
from headrace.records.record import Record, build_batch
from headrace.spark.cluster import Cluster
from headrace.spark.producing import BatchSender, Identity

# What one batch may hold; a value of nearly max.message.bytes still gets a batch of its own.
_BATCH_SIZE = 500_000


class DeadLetters:
    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._records: list[Record] = []

    def add(self, record: RejectedRecord) -> None:
        headers = (
            ("topic", record.place.topic.encode()),
            ("partition", str(record.place.partition).encode()),
            ("offset", str(record.offset).encode()),
            ("timestamp", str(record.timestamp_ms).encode()),
            ("reason", record.reason.encode()),
        )
        self._records.append(Record(0, int(time.time() * 1000), record.key, record.value, headers))

    def send(self) -> None:
        """Returns when the brokers have everything that was added."""
        if not self._records:
            return
        records, self._records = self._records, []
        count = self._cluster.persistently(self._partition_count, f"finding {self._topic!r}")
        batches: list[EncodedBatch] = []
        group: list[Record] = []
        size = 0
        for record in records:
            group.append(record._replace(offset=len(group)))
            size += len(record.key or b"") + len(record.value or b"") + 200
            if size > _BATCH_SIZE:
                batches.append(self._batch(group, len(batches) % count))
                group, size = [], 0
        if group:
            batches.append(self._batch(group, len(batches) % count))
        with BatchSender(self._cluster, Identity()) as sender:
            sender.send(batches)
            sender.flush()

    def _partition_count(self) -> int:
        self._cluster.topics([self._topic], create=True)
        return len(self._cluster.topic(self._topic).leaders)

    def _batch(self, records: list[Record], partition: int) -> EncodedBatch:
        place = TopicPartition(self._topic, partition)
        return EncodedBatch(place, len(records), build_batch(records))
