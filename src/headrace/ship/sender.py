"""Sends events to topics through a Kafka producer, with headers that identify each event."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.model.audit import AUDIT_TOPIC, MinuteCounts
from headrace.ship.acknowledgements import Chunk
from headrace.ship.events import FIRST, Events
from headrace.ship.formats import Format, parser_of
from headrace.ship.generations import Generation
from headrace.ship.routes import Routes
from headrace.ship.state import Totals

# The memory that records wait in while no broker answers. When it is full, the reader waits.
QUEUE_RECORDS = 100_000
QUEUE_KB = 32 * 1024
PRODUCER_SETTINGS: Mapping[str, object] = {
    "acks": "all",
    # Retried batches keep the order of lines, and are not duplicated.
    "enable.idempotence": True,
    # However long the broker is away, a record waits for it: it is in the file anyway.
    "message.timeout.ms": 0,
    "message.max.bytes": 1_000_000_000,  # the topic limits the size of a record
    "queue.buffering.max.messages": QUEUE_RECORDS,
    "queue.buffering.max.kbytes": QUEUE_KB,
    "linger.ms": 20,
    "reconnect.backoff.max.ms": 2_000,
    "retry.backoff.max.ms": 1_000,
}

Headers = list[tuple[str, str | bytes | None]]


@dataclass
class Delivery:
    """The events of a chunk, and how many of them were handed to the producer."""

    generation: Generation
    events: Events
    chunk: Chunk
    sent: int = 0
    # All records of a chunk have one timestamp: the audit counts them in its minute.
    timestamp_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    topics: Counter[str] = field(default_factory=Counter)


class Sender:
    """Turns events into records and hands them to the producer."""

    def __init__(
        self,
        producer: Producer,
        host: str,
        routes: Routes,
        totals: Totals,
        format: Format = Format.RAW,
        keyed: bool = True,
        counts: MinuteCounts | None = None,
    ) -> None:
        """``counts`` is published for the audit; None: nothing is."""
        self.failure: KafkaError | None = None  # the first record that the broker refused
        self._producer = producer
        self._host = host
        self._routes = routes
        self.totals = totals
        self._format = format
        self._parse = parser_of(format)
        self._keyed = keyed
        self._counts = counts
        self.uncounted: KafkaError | None = None  # why counts could not be published

    def publish_counts(self, done: Callable[[], None]) -> None:
        """Publish what was acknowledged, and then call ``done``."""
        message = self._counts.take() if self._counts is not None else None
        if message is None or self.uncounted is not None:
            done()
            return

        def published(error: Any, record: object = None) -> None:
            if error is not None:
                self.uncounted = error
            done()

        try:
            self._producer.produce(AUDIT_TOPIC, message.value, message.key, on_delivery=published)
        except (BufferError, KafkaException):
            # The queue is full of records. Their positions are saved after the next message.
            assert self._counts is not None
            self._counts.put_back(message)

    def poll(self, seconds: float) -> None:
        """Serve acknowledgements that arrived, or wait for one."""
        self._producer.poll(seconds)

    def flush(self, seconds: float) -> None:
        """Wait for all acknowledgements, at most ``seconds``."""
        self._producer.flush(seconds)

    @property
    def queued(self) -> int:
        """Records that are not acknowledged."""
        return len(self._producer)

    def failed(self, error: Any) -> None:
        if self.failure is None:
            self.failure = error

    def send(self, delivery: Delivery) -> bool:
        """Send the events that are left. Return False if the producer's queue is full."""
        generation, events, chunk = delivery.generation, delivery.events, delivery.chunk
        key = f"{self._host}:{generation.file}".encode() if self._keyed else None
        common: Headers = [
            ("host", self._host.encode()),
            ("file", generation.file.encode("utf-8", "surrogateescape")),
            ("generation", generation.id.encode()),
        ]
        topic = self._routes.of_file(generation.file)
        topic_of = self._routes.of_event(topic)
        parts = events.parts
        plain = self._parse is None and topic_of is None and not parts
        produce, delivered = self._producer.produce, chunk.delivered
        at_ms, before = delivery.timestamp_ms, delivery.sent
        chunk.counted = lambda: self._count(delivery)
        for index in range(delivery.sent, len(events.values)):
            value = events.values[index]
            headers: Headers = [*common, ("offset", b"%d" % events.offsets[index])]
            if not plain:
                if topic_of is not None:
                    topic = topic_of(value)
                value = self._annotated(value, parts.get(index), headers)
            try:
                produce(topic, value, key, on_delivery=delivered, headers=headers, timestamp=at_ms)
                if topic_of is not None:
                    delivery.topics[topic] += 1
            except BufferError:
                if topic_of is None:
                    delivery.topics[topic] += index - before
                delivery.sent = index
                return False
            except KafkaException as failure:
                self.failed(failure.args[0])
                return False
        if topic_of is None:
            delivery.topics[topic] += len(events.values) - before
        delivery.sent = len(events.values)
        self.totals.events += len(events.values)
        self.totals.bytes += events.size
        return True

    def _count(self, delivery: Delivery) -> None:
        if self._counts is not None:
            for topic, count in delivery.topics.items():
                self._counts.add(topic, delivery.timestamp_ms, count)

    def _annotated(self, value: bytes, part: bytes | None, headers: Headers) -> bytes:
        """The value in the format of the topic; headers say what could not be done."""
        if part is not None:
            headers.append(("part", part))
            self.totals.cut += part == FIRST
            return value
        if self._parse is None:
            return value
        parsed = self._parse(value)
        if parsed is None:
            headers.append(("unparsed", self._format.value.encode()))
            self.totals.unparsed += 1
            return value
        return parsed
