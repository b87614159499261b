"""Sends bad records to the dead-letter topic, with their place and the reason.

Key and value stay as they were; headers with the prefix ``__headrace.errors.`` hold the rest. A
letter has the time when it was sent: with the record's own timestamp, retention could delete it
at once, or the topic could refuse it as too old. A task that runs again sends its bad records
again: delivery is at least once.
"""

import time

from headrace.arrow.encoding import EncodedBatch
from headrace.arrow.rows import RejectedRecord
from headrace.model.dead_letters import HEADER_PREFIX
from headrace.model.ids import TopicPartition
from headrace.records.record import Record, build_batch
from headrace.spark.cluster import Cluster
from headrace.spark.producing import BatchSender, Identity

# A value of nearly max.message.bytes still gets a batch of its own.
_BATCH_SIZE = 500_000


class DeadLetters:
    """Collects the bad records of one task and sends them."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._records: list[Record] = []

    def add(self, record: RejectedRecord) -> None:
        headers = (
            (f"{HEADER_PREFIX}topic", record.place.topic.encode()),
            (f"{HEADER_PREFIX}partition", str(record.place.partition).encode()),
            (f"{HEADER_PREFIX}offset", str(record.offset).encode()),
            (f"{HEADER_PREFIX}timestamp", str(record.timestamp_ms).encode()),
            (f"{HEADER_PREFIX}reason", record.reason.encode()),
        )
        self._records.append(Record(0, int(time.time() * 1000), record.key, record.value, headers))

    def send(self) -> None:
        """Send all collected records and wait until the brokers have them."""
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
