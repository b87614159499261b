"""Counts the records of a topic by minute: as it was published, in the log, in a table."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.audit import (
    AUDIT_TOPIC,
    MINUTE_MS,
    LoadMessage,
    Message,
    ReadMessage,
    parse_message,
)
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition, id_to_text
from headrace.pipeline.warehouse.table import Table, open_table
from headrace.pipeline.warehouse.tasks import DEAD_LETTERS
from headrace.spark.cluster import EARLIEST, LATEST, Cluster
from headrace.spark.fetching import RangeReader
from headrace.spark.offsets import Range
from headrace.spark.options import FetchSettings
from headrace.spark.read_counts import count_by_minute

_FETCH = FetchSettings(read_committed=True, fail_on_data_loss=False)
# Without them, nobody can tell which record a row is.
_ROW_COLUMNS = {"_topic_id", "_partition", "_offset", "_timestamp"}

Numbers = npt.NDArray[np.int64]


class Topic(NamedTuple):
    """A topic that exists now, and the bounds of its logs."""

    name: str
    topic_id: bytes
    first_offsets: Mapping[int, int]  # by partition
    end_offsets: Mapping[int, int]


class Unreadable(NamedTuple):
    """A record in the topic of the audit that is no message of the audit."""

    partition: int
    offset: int
    reason: str


class Published(NamedTuple):
    """The messages of the audit, each once."""

    sent: dict[str, Counter[int]]  # by producers: topic -> minute -> records
    read: dict[str, list[ReadMessage]]  # by queries, under their names
    loaded: dict[str, list[LoadMessage]]  # by loads, under the places of their tables
    unreadable: list[Unreadable]
    # Retention deleted messages: counts of earlier minutes may be gone. None: it deleted none.
    whole_since_ms: int | None = None


class Offsets(NamedTuple):
    """From one offset to before another, by partition; a partition without entry has none."""

    first: Mapping[int, int]
    end: Mapping[int, int]


class LogCounts(NamedTuple):
    """The records of a topic by minute."""

    all: Counter[int]
    within: list[Counter[int]]  # the offsets that were asked for
    whole_since_ms: int | None  # retention deleted records of the minutes before; None: of none


# Every record of a partition was deleted: nobody knows of which minutes.
_NEVER_WHOLE_MS = (1 << 63) - 1


class TableCounts(NamedTuple):
    """The records of a topic in a table or its dead letters, each once, by minute."""

    found: Counter[int]
    doubled: Counter[int]


def find_topics(cluster: Cluster, names: list[str]) -> list[Topic]:
    """Those of the named topics that exist."""
    known = {
        name: metadata
        for name, metadata in cluster.topics(sorted(names)).items()
        if metadata.error == ErrorCode.NONE
    }
    places = [TopicPartition(name, n) for name, one in known.items() for n in sorted(one.leaders)]
    first, end = (
        cluster.list_offsets(dict.fromkeys(places, which), read_committed=True)
        for which in (EARLIEST, LATEST)
    )
    return [
        Topic(
            name,
            metadata.topic_id,
            {n: first[TopicPartition(name, n)] for n in metadata.leaders},
            {n: end[TopicPartition(name, n)] for n in metadata.leaders},
        )
        for name, metadata in known.items()
    ]


def published(cluster: Cluster) -> Published:
    """What producers, queries and loads published."""
    messages: dict[bytes, Message] = {}
    unreadable: dict[bytes | None, Unreadable] = {}
    whole_since: int | None = None
    for topic in find_topics(cluster, [AUDIT_TOPIC]):
        for partition, first_offset in topic.first_offsets.items():
            for number, records in enumerate(_reader(cluster, topic, partition)):
                if first_offset > 0 and number == 0:
                    oldest = int(_minutes(records.timestamp_ms)[0])
                    whole_since = max(whole_since or 0, oldest + MINUTE_MS)
                for offset, key, value in zip(
                    records.offset.tolist(),
                    records.keys().to_pylist(),
                    records.values().to_pylist(),
                    strict=True,
                ):
                    unreadable.pop(key, None)
                    if value is None:
                        continue
                    try:
                        message = parse_message(value)
                    except ValueError as wrong:
                        unreadable[key] = Unreadable(partition, offset, str(wrong))
                    else:
                        messages[message.key] = message
    found = Published({}, {}, {}, list(unreadable.values()), whole_since)
    for message in messages.values():
        if isinstance(message, ReadMessage):
            found.read.setdefault(message.query, []).append(message)
        elif isinstance(message, LoadMessage):
            found.loaded.setdefault(message.table, []).append(message)
        else:
            for name, minutes in message.counts.items():
                found.sent.setdefault(name, Counter()).update(minutes)
    if whole_since is not None:
        for query, some in found.read.items():
            found.read[query] = _of_whole_batches(some)
    return found


def _of_whole_batches(messages: list[ReadMessage]) -> list[ReadMessage]:
    """Without those of the oldest batch: retention may have deleted the message of a task."""
    oldest = min(message.batch for message in messages)
    return [message for message in messages if message.batch > oldest]


def in_log(cluster: Cluster, topic: Topic, asked: Sequence[Offsets]) -> LogCounts:
    """Read the whole log of a topic. Counts all of it, and the records of each ``asked``."""
    everything: Counter[int] = Counter()
    within: list[Counter[int]] = [Counter() for _ in asked]
    whole_since: int | None = None
    for partition, first_offset in topic.first_offsets.items():
        reader = _reader(cluster, topic, partition)
        is_first = True
        for records in reader:
            minutes = _minutes(records.timestamp_ms)
            everything.update(count_by_minute(minutes))
            for found, (first, end) in zip(within, asked, strict=True):
                known = records.offset >= first.get(partition, 0)
                known &= records.offset < end.get(partition, 0)
                found.update(count_by_minute(minutes[known]))
            if is_first and first_offset > 0:
                whole_since = max(whole_since or 0, int(minutes[0]) + MINUTE_MS)
            is_first = False
        if is_first and first_offset > 0:
            whole_since = _NEVER_WHOLE_MS
    return LogCounts(everything, within, whole_since)


def names_records(table: Table) -> bool:
    """Whether the rows of a table say which records they are."""
    return {field["name"] for field in table.fields()} >= _ROW_COLUMNS


def in_table(table: Table, topic: Topic, loaded: Mapping[int, int]) -> TableCounts:
    """The rows and dead letters of one topic that are in its log, below the offsets ``loaded``.

    Rows that are there twice are counted wherever they are.
    """
    rows = _rows_of(table, topic.topic_id, "_timestamp")
    minutes = _minutes(rows[2] // 1000)
    places = _places(rows[0], rows[1])
    doubled = Counter(count_by_minute(minutes))
    doubled.subtract(count_by_minute(minutes[np.unique(places, return_index=True)[1]]))
    letters = open_table(table.location / DEAD_LETTERS)
    if letters is not None:
        bad = _rows_of(letters, topic.topic_id, "_timestamp_ms")
        places = np.concatenate([places, _places(bad[0], bad[1])])
        minutes = np.concatenate([minutes, _minutes(bad[2])])
    places, indexes = np.unique(places, return_index=True)
    known = _known(places, topic.first_offsets, loaded)
    return TableCounts(Counter(count_by_minute(minutes[indexes][known])), +doubled)


def _known(
    places: Numbers, first: Mapping[int, int], end: Mapping[int, int]
) -> npt.NDArray[np.bool_]:
    """Whether each place is between the offsets of its partition."""
    count = max([*first, int(places.max(initial=-1)) >> 48]) + 1
    firsts, ends = (
        np.array([bounds.get(n, 0) for n in range(count)], np.int64) for bounds in (first, end)
    )
    partition, offset = places >> 48, places & ((1 << 48) - 1)
    known: npt.NDArray[np.bool_] = (offset >= firsts[partition]) & (offset < ends[partition])
    return known


def _rows_of(table: Table, topic_id: bytes, time: str) -> tuple[Numbers, Numbers, Numbers]:
    """Partition, offset and timestamp of each row of a topic."""
    columns = ["_partition", "_offset", time, "_topic_id"]
    if time == "_timestamp_ms":
        columns.append("stage")
    # Not filtered while it is read: deltalake takes a column without statistics for one of nulls.
    rows = table.read(columns)
    rows = rows.filter(pc.equal(rows["_topic_id"], id_to_text(topic_id)))
    if time == "_timestamp_ms":
        rows = rows.filter(pc.not_equal(rows["stage"], "lost"))
    partition, offset, timestamp = (
        column.combine_chunks().cast(pa.int64()).to_numpy(zero_copy_only=False)
        for column in rows.columns[:3]
    )
    return partition, offset, timestamp


def _reader(cluster: Cluster, topic: Topic, partition: int) -> RangeReader:
    range_ = Range(
        TopicPartition(topic.name, partition),
        topic.first_offsets[partition],
        topic.end_offsets[partition],
    )
    return RangeReader(cluster, range_, topic.topic_id, _FETCH)


def _places(partition: Numbers, offset: Numbers) -> Numbers:
    """One number for partition and offset: no topic has 2^15 partitions of 2^48 records."""
    return (partition << 48) | offset


def _minutes(timestamp_ms: Numbers) -> Numbers:
    minutes: Numbers = timestamp_ms - timestamp_ms % MINUTE_MS
    return minutes
