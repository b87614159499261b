"""A SQL database as an exactly-once sink: rows and offsets are written in one transaction.

The database holds the next offset of each partition, and nothing else is believed: no consumer
group, no file. A sink that is killed anywhere continues from there. Moving an offset names the
offset from which it moves, so of two sinks at once only one commits a batch; the other reads the
offsets again.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

OFFSETS_TABLE = "headrace_offsets"
_TIMEOUT_S = 30.0
_WAIT_S = 0.5
_PLACEHOLDERS: dict[str, Callable[[int], str]] = {
    "qmark": lambda number: "?",
    "format": lambda number: "%s",
    "pyformat": lambda number: "%s",
    "numeric": lambda number: f":{number}",
}


class SinkFailed(Exception):
    """The sink cannot continue without losing or doubling a record; the message says why."""


class Cursor(Protocol):
    """What a cursor of a Python database driver has (PEP 249)."""

    rowcount: int

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Any: ...
    def executemany(self, sql: str, rows: Sequence[Sequence[Any]], /) -> Any: ...
    def fetchall(self) -> Sequence[Sequence[Any]]: ...


class SinkRecord(NamedTuple):
    """A record of the topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


Write = Callable[[Cursor, Sequence[SinkRecord]], None]


class SqlSink:
    """Writes the records of one topic to a database, each once.

    ``connect`` opens a connection of any driver that follows PEP 249, with autocommit off, and
    ``paramstyle`` is that of the driver. ``write`` gets a cursor and the next records, and must
    neither commit nor roll back. ``name`` tells sinks of one topic and one database apart.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        bootstrap_servers: str,
        topic: str,
        write: Write,
        *,
        paramstyle: str,
        name: str = "",
        batch_records: int = 1_000,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        if paramstyle not in _PLACEHOLDERS:
            known = ", ".join(_PLACEHOLDERS)
            raise ValueError(f"paramstyle is {paramstyle!r}; use {known}, as the driver says")
        self._connect = connect
        self._topic = topic
        self._write = write
        self._placeholder = _PLACEHOLDERS[paramstyle]
        self._name = name or topic
        self._batch_records = batch_records
        self._client: dict[str, Any] = {**(settings or {}), "bootstrap.servers": bootstrap_servers}

    def run(self, *, once: bool = False, stop: threading.Event | None = None) -> int:
        """Write records until ``stop`` is set; with ``once``, until the current end of the topic.

        Returns the number of records written. Raises SinkFailed, and errors of the driver.
        """
        stopping = stop or threading.Event()
        connection = self._connect()
        # Positions come from the database: the group is only a name that the client requires.
        consumer = Consumer(
            {
                **self._client,
                "group.id": f"headrace-sql-{self._name}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        try:
            return _Run(self, connection, consumer, self._find_topic()).run(once, stopping)
        finally:
            consumer.close()
            connection.close()

    def _find_topic(self) -> tuple[str, list[int]]:
        """The ID of the topic, and its partitions."""
        admin = AdminClient(self._client)
        try:
            asked = admin.describe_topics(TopicCollection([self._topic]))
            found = asked[self._topic].result(_TIMEOUT_S)
        except KafkaException as failure:
            raise SinkFailed(f"topic {self._topic}: {failure.args[0].str()}") from failure
        return str(found.topic_id), [partition.id for partition in found.partitions]

    def _sql(self, text: str) -> str:
        """Replace each ``?`` by the placeholder of the driver."""
        pieces = text.split("?")
        made = pieces[0]
        for number, piece in enumerate(pieces[1:], 1):
            made += self._placeholder(number) + piece
        return made


class _Moved(Exception):
    """Another sink of this name has moved the offsets."""


class _Run:
    """One run of a sink, on one connection."""

    def __init__(
        self, sink: SqlSink, connection: Any, consumer: Consumer, topic: tuple[str, list[int]]
    ) -> None:
        self._sink = sink
        self._connection = connection
        self._consumer = consumer
        self._topic_id, self._partitions = topic
        self._next: dict[int, int] = {}

    def run(self, once: bool, stop: threading.Event) -> int:
        self._create_table()
        self._start()
        written = 0
        ended: set[int] = set()
        while not stop.is_set() and not (once and len(ended) == len(self._partitions)):
            records = self._fetch(ended)
            if not records:
                continue
            try:
                self._commit(records)
                written += len(records)
            except _Moved:
                ended.clear()
                self._start()
        return written

    def _fetch(self, ended: set[int]) -> list[SinkRecord]:
        records = []
        for message in self._consumer.consume(self._sink._batch_records, _WAIT_S):
            error, partition = message.error(), message.partition() or 0
            if error is None:
                ended.discard(partition)
                records.append(_record(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(partition)
            elif not error.retriable():
                raise SinkFailed(f"{self._sink._topic}:{partition}: {error.str()}")
        return records

    def _commit(self, records: Sequence[SinkRecord]) -> None:
        cursor = self._connection.cursor()
        ends = {one.partition: one.offset + 1 for one in records}
        try:
            for partition, end in sorted(ends.items()):
                cursor.execute(
                    self._sink._sql(
                        f"update {OFFSETS_TABLE} set next_offset = ? where sink = ? "
                        "and topic_id = ? and partition_id = ? and next_offset = ?"
                    ),
                    (end, self._sink._name, self._topic_id, partition, self._next[partition]),
                )
                if cursor.rowcount != 1:
                    raise _Moved
            self._sink._write(cursor, records)
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        finally:
            cursor.close()
        self._next |= ends

    # --- where to start ---------------------------------------------------------------

    def _create_table(self) -> None:
        cursor = self._connection.cursor()
        cursor.execute(
            f"create table if not exists {OFFSETS_TABLE} (sink varchar(250) not null, "
            "topic_id varchar(50) not null, partition_id integer not null, "
            "next_offset bigint not null, primary key (sink, topic_id, partition_id))"
        )
        self._connection.commit()
        cursor.close()

    def _start(self) -> None:
        """Read the offsets, and continue there. A new partition starts with its first record."""
        self._next = self._saved()
        for partition in self._partitions:
            place = TopicPartition(self._sink._topic, partition)
            first, end = self._consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S)
            known = self._next.get(partition)
            if known is None:
                self._next[partition] = first
                self._insert(partition, first)
            elif not first <= known <= end:
                raise SinkFailed(
                    f"sink {self._sink._name} is at offset {known} of {self._sink._topic}:"
                    f"{partition}, but the log has offsets {first} to {end}: records are lost. To "
                    f"continue without them, set next_offset in {OFFSETS_TABLE}"
                )
        self._connection.commit()
        self._consumer.assign(
            [TopicPartition(self._sink._topic, one, offset) for one, offset in self._next.items()]
        )

    def _saved(self) -> dict[int, int]:
        cursor = self._connection.cursor()
        cursor.execute(
            self._sink._sql(
                f"select partition_id, next_offset from {OFFSETS_TABLE} "
                "where sink = ? and topic_id = ?"
            ),
            (self._sink._name, self._topic_id),
        )
        found = {int(partition): int(offset) for partition, offset in cursor.fetchall()}
        cursor.close()
        return found

    def _insert(self, partition: int, offset: int) -> None:
        cursor = self._connection.cursor()
        cursor.execute(
            self._sink._sql(f"insert into {OFFSETS_TABLE} values (?, ?, ?, ?)"),
            (self._sink._name, self._topic_id, partition, offset),
        )
        cursor.close()


def _record(message: Any) -> SinkRecord:
    return SinkRecord(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )
