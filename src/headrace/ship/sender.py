"""Sends events to topics through a Kafka producer, with headers that identify each event."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

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
    ) -> None:
        self.failure: KafkaError | None = None  # the first record that the broker refused
        self._producer = producer
        self._host = host
        self._routes = routes
        self.totals = totals
        self._format = format
        self._parse = parser_of(format)
        self._keyed = keyed

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
        for index in range(delivery.sent, len(events.values)):
            value = events.values[index]
            headers: Headers = [*common, ("offset", b"%d" % events.offsets[index])]
            if not plain:
                if topic_of is not None:
                    topic = topic_of(value)
                value = self._annotated(value, parts.get(index), headers)
            try:
                produce(topic, value, key, on_delivery=delivered, headers=headers)
            except BufferError:
                delivery.sent = index
                return False
            except KafkaException as failure:
                self.failed(failure.args[0])
                return False
        self.totals.events += len(events.values)
        self.totals.bytes += events.size
        return True

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
