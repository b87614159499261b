"""Counts of records per topic and minute, which the topic ``headrace-audit`` collects.

A record is counted in the minute of its own timestamp, so that every tier counts it in the same
minute. Each message adds to the earlier ones. The topic is compacted, and the key of a message
names its producer, run and number: a message that is sent twice counts once. Queries of pipelines
and loads publish what they read, with the offsets.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

AUDIT_TOPIC: Final = "headrace-audit"
# Counts are compared with logs. They are not needed after retention has deleted the records.
_RETENTION_MS = 30 * 24 * 3600 * 1000
AUDIT_TOPIC_CONFIGS: Final = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(_RETENTION_MS),
}
MINUTE_MS: Final = 60_000
_COUNT_MAX = 1 << 53


class AuditMessage(NamedTuple):
    """What one producer got acknowledged since its last message."""

    producer: str
    run: str  # differs between two starts of one program
    number: int
    counts: Mapping[str, Mapping[int, int]]  # by topic and start of the minute, in milliseconds

    @property
    def key(self) -> bytes:
        return f"{self.producer}/{self.run}/{self.number}".encode()

    @property
    def value(self) -> bytes:
        return _encoded(self._asdict())

    @classmethod
    def parse(cls, value: bytes) -> Self:
        """Raises ValueError if the value is no such message."""
        found = parse_message(value)
        if not isinstance(found, cls):
            raise ValueError("not the message of a producer")
        return found


class ReadRange(NamedTuple):
    """Records of one partition that a query or a load read."""

    topic: str
    topic_id: str
    partition: int
    first_offset: int
    offset_end: int
    counts: Mapping[int, int]  # by start of the minute, in milliseconds


class ReadMessage(NamedTuple):
    """What one task of a batch read. A batch that runs again may have other tasks."""

    query: str  # pipeline, name and ID of the query
    batch: int
    ranges: tuple[ReadRange, ...]

    @property
    def key(self) -> bytes:
        return f"read/{self.query}/{self.batch}/{_names(self.ranges)}".encode()

    @property
    def value(self) -> bytes:
        read = [one._asdict() for one in self.ranges]
        return _encoded({"query": self.query, "batch": self.batch, "read": read})


class LoadMessage(NamedTuple):
    """What a load commits to a table, or lost: what retention deleted before it was loaded."""

    table: str  # its directory or URL
    ranges: tuple[ReadRange, ...]
    is_lost: bool = False

    @property
    def key(self) -> bytes:
        return f"{self._verb}/{self.table}/{_names(self.ranges)}".encode()

    @property
    def value(self) -> bytes:
        return _encoded({"table": self.table, self._verb: [one._asdict() for one in self.ranges]})

    @property
    def _verb(self) -> str:
        return "lost" if self.is_lost else "loaded"


Message = AuditMessage | ReadMessage | LoadMessage


def reader_name(pipeline: str, query: str, query_id: str) -> str:
    """Under which a query publishes what it reads. A query that starts over has another ID."""
    return f"{pipeline}/{query}/{query_id}"


def parse_message(value: bytes) -> Message:
    """Raises ValueError if the value is no message of the audit."""
    try:
        given: Any = json.loads(value)
        if "read" in given:
            return ReadMessage(_text(given["query"]), int(given["batch"]), _ranges(given["read"]))
        for verb in ("loaded", "lost"):
            if verb in given:
                return LoadMessage(_text(given["table"]), _ranges(given[verb]), verb == "lost")
        counts = {_text(topic): _counts(minutes) for topic, minutes in given["counts"].items()}
        producer, run = _text(given["producer"]), _text(given["run"])
        return AuditMessage(producer, run, int(given["number"]), counts)
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError) as wrong:
        raise ValueError(f"not a message of the audit: {wrong!r}") from wrong


def _ranges(given: Any) -> tuple[ReadRange, ...]:
    found = tuple(
        ReadRange(
            _text(one["topic"]),
            _text(one["topic_id"]),
            int(one["partition"]),
            int(one["first_offset"]),
            int(one["offset_end"]),
            _counts(one["counts"]),
        )
        for one in given
    )
    for one in found:
        if not 0 <= one.first_offset <= one.offset_end:
            raise ValueError(f"a range from offset {one.first_offset} to {one.offset_end}")
    return found


def _text(given: Any) -> str:
    found = str(given)
    found.encode()  # JSON has names that no topic can have
    return found


def _counts(given: Any) -> dict[int, int]:
    found = {int(minute): int(count) for minute, count in given.items()}
    for count in found.values():
        if not 0 <= count <= _COUNT_MAX:
            raise ValueError(f"{count} is not a number of records")
    return found


def _names(ranges: Sequence[ReadRange]) -> str:
    return ",".join(
        f"{one.topic_id}-{one.partition}:{one.first_offset}-{one.offset_end}" for one in ranges
    )


def _encoded(given: Mapping[str, Any]) -> bytes:
    return json.dumps(given, separators=(",", ":")).encode()


class MinuteCounts:
    """Counts what a producer got acknowledged, between two messages."""

    def __init__(self, producer: str, run: str) -> None:
        self._producer = producer
        self._run = run
        self._number = 0
        self._counts: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))

    def add(self, topic: str, timestamp_ms: int, count: int = 1) -> None:
        self._counts[topic][timestamp_ms - timestamp_ms % MINUTE_MS] += count

    def take(self) -> AuditMessage | None:
        """The next message; None if nothing was counted since the last one."""
        if not self._counts:
            return None
        counts = {topic: dict(minutes) for topic, minutes in self._counts.items()}
        self._counts.clear()
        self._number += 1
        return AuditMessage(self._producer, self._run, self._number, counts)

    def put_back(self, message: AuditMessage) -> None:
        """Count again what a message says that was not sent. Its number is not used again."""
        for topic, minutes in message.counts.items():
            for minute, count in minutes.items():
                self.add(topic, minute, count)
