"""Sends bad records to the dead-letter topic, with their place and the reason.

Key and value stay as they were; headers with the prefix ``__headrace.errors.`` hold the rest. A
letter has the time when it was sent: with the record's own timestamp, retention could delete it
at once, or the topic could refuse it as too old. A task that runs again sends its bad records
again: delivery is at least once.

A letter that is too large for the topic goes without its value, so that one large record does not
stop the query at each start. The record is still in its own topic.
"""

import logging
import time
from collections.abc import Iterable, Iterator

from headrace.arrow.encoding import EncodedBatch
from headrace.arrow.errors import BadRow
from headrace.arrow.rows import RejectedRecord
from headrace.model.dead_letters import HEADER_PREFIX
from headrace.model.ids import TopicPartition
from headrace.records.record import Record, build_batch
from headrace.spark.cluster import Cluster
from headrace.spark.producing import BatchSender, Identity

log = logging.getLogger("headrace.spark")

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
        try:
            self._deliver(
                self._batch(group, number % count) for number, group in enumerate(_groups(records))
            )
        except BadRow:
            # One is too large. Those that were sent already are sent again: at least once.
            for number, record in enumerate(records):
                self._send_what_fits(record, number % count)

    def _send_what_fits(self, record: Record, partition: int) -> None:
        """Send one letter: whole, or without its value, or also without its key."""
        if self._fits(record, partition):
            return
        size = len(record.value or b"")
        if not self._fits(_marked(record._replace(value=None), size), partition):
            size += len(record.key or b"")
            without = _marked(record._replace(key=None, value=None), size)
            self._deliver([self._batch([without], partition)])
        headers = dict(record.headers)
        log.warning(
            "The dead letter of offset %s of %s-%s is in topic %s without %d bytes: the topic does "
            "not accept so large a record (max.message.bytes)",
            *(
                (headers[HEADER_PREFIX + name] or b"").decode()
                for name in ("offset", "topic", "partition")
            ),
            self._topic,
            size,
        )

    def _fits(self, record: Record, partition: int) -> bool:
        """Send a letter; False if the topic refused it as too large."""
        try:
            self._deliver([self._batch([record], partition)])
        except BadRow:
            return False
        return True

    def _deliver(self, batches: Iterable[EncodedBatch]) -> None:
        with BatchSender(self._cluster, Identity()) as sender:
            sender.send(batches)
            sender.flush()

    def _partition_count(self) -> int:
        self._cluster.topics([self._topic], create=True)
        return len(self._cluster.topic(self._topic).leaders)

    def _batch(self, records: list[Record], partition: int) -> EncodedBatch:
        place = TopicPartition(self._topic, partition)
        return EncodedBatch(place, len(records), build_batch(records))


def _groups(records: Iterable[Record]) -> Iterator[list[Record]]:
    """The records of each batch."""
    group: list[Record] = []
    size = 0
    for record in records:
        group.append(record._replace(offset=len(group)))
        size += len(record.key or b"") + len(record.value or b"") + 200
        if size > _BATCH_SIZE:
            yield group
            group, size = [], 0
    if group:
        yield group


def _marked(record: Record, omitted_size: int) -> Record:
    """The letter with a header that says how many bytes it goes without."""
    mark = (f"{HEADER_PREFIX}omitted", str(omitted_size).encode())
    return record._replace(headers=(*record.headers, mark))
