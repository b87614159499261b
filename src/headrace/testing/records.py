"""Send records to a topic, and read all that a topic holds."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_TIMEOUT_S = 30.0
_POLL_S = 0.1
_FETCH_WAIT_MS = 10  # the end of a partition is reported when a fetch returns without records


class Record(NamedTuple):
    """One record. Every field is optional when it is sent; the broker assigns the offset."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None  # in ms
    partition: int | None = None
    offset: int | None = None


Text = str | bytes | None
# A value, a key and a value, or all fields.
Sendable = Text | tuple[Text, Text] | Record


def send(bootstrap_servers: str, topic: str, records: Iterable[Sendable]) -> None:
    """Send records and wait for their delivery. Raises KafkaException if one is not delivered."""
    from confluent_kafka import KafkaException, Producer

    if isinstance(records, (str, bytes)):  # Python would take it for a list of letters
        raise TypeError(f"produce takes several records: [{records!r}]")
    to_send = [_as_record(record) for record in records]
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            # Keeps the order if the broker refuses a batch. Idempotence would too, but the client
            # takes half a second to get its producer ID.
            "max.in.flight.requests.per.connection": 1,
            "partitioner": "murmur2_random",  # as Kafka's Java producer
            "message.timeout.ms": int(_TIMEOUT_S * 1000),
        }
    )
    failures: list[KafkaError] = []

    def delivered(error: "KafkaError | None", message: "Message") -> None:
        if error is not None:
            failures.append(error)

    for record in to_send:
        optional: dict[str, Any] = {}
        if record.partition is not None:
            optional["partition"] = record.partition
        if record.timestamp is not None:
            optional["timestamp"] = record.timestamp
        producer.produce(
            topic,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            on_delivery=delivered,
            **optional,
        )
        producer.poll(0)
    producer.flush()  # bounded by message.timeout.ms
    if failures:
        raise KafkaException(failures[0])


def _as_record(record: Any) -> Record:
    match record:
        case Record():
            return record
        case None | str() | bytes():
            return Record(value=_as_bytes(record))
        case (None | str() | bytes() as key, None | str() | bytes() as value):
            return Record(key=_as_bytes(key), value=_as_bytes(value))
    raise TypeError(
        "produce: expected a value, a (key, value) pair or a Record, with keys and values as "
        f"strings, bytes or None; got {record!r}"
    )


def _as_bytes(text: Text) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def read_all(bootstrap_servers: str, topic: str, *, isolation_level: str) -> list[Record]:
    """Read each partition from its start to its current end.

    With ``read_committed`` the end of a partition is its last stable offset: the records of an
    open transaction and those after it are not read.
    """
    from confluent_kafka import (
        OFFSET_BEGINNING,
        Consumer,
        KafkaError,
        KafkaException,
        TopicPartition,
    )

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "group.id": "headrace-testing",  # the client requires one; nothing is committed
            "enable.auto.commit": False,
            "auto.offset.reset": "error",  # never skip records silently
            "enable.partition.eof": True,
            "isolation.level": isolation_level,
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
        }
    )
    try:
        described = consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
        if described.error is not None:
            raise KafkaException(described.error)
        unread = set(described.partitions)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in unread])
        found: list[Record] = []
        give_up_at = time.monotonic() + _TIMEOUT_S
        while unread:
            message = consumer.poll(_POLL_S)
            if message is None:
                if time.monotonic() >= give_up_at:
                    raise TimeoutError(f"could not read {topic} to its end within {_TIMEOUT_S:g} s")
                continue
            error = message.error()
            if error is None:
                if message.partition() in unread:  # else it arrived after the end was reached
                    found.append(_received(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
            else:
                raise KafkaException(error)
    finally:
        consumer.close()
    return sorted(found, key=lambda record: (record.partition, record.offset))


def _received(message: "Message") -> Record:
    from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

    headers: Any = message.headers() or ()  # the client declares types that it never returns
    kind, timestamp = message.timestamp()
    return Record(
        key=message.key(),
        value=message.value(),
        headers=tuple(headers),
        timestamp=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        partition=message.partition(),
        offset=message.offset(),
    )
