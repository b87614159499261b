"""What a table holds of each partition, and how far it is behind the log."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition, id_from_text, id_to_text
from headrace.pipeline.warehouse.offsets import txn_id
from headrace.pipeline.warehouse.storage import Location
from headrace.pipeline.warehouse.table import Table, now_ms, open_table
from headrace.pipeline.warehouse.tasks import DEAD_LETTERS
from headrace.spark.cluster import EARLIEST, LATEST, Cluster
from headrace.spark.fetching import RangeReader
from headrace.spark.offsets import Range
from headrace.spark.options import FetchSettings

_KEY = ("_topic", "_topic_id", "_partition")


class Key(NamedTuple):
    topic: str
    topic_id: str
    partition: int


class PartitionStatus(NamedTuple):
    """One partition of one topic ID; None is unknown."""

    topic: str
    topic_id: str
    partition: int
    loaded_up_to: int | None  # the next offset
    lag_records: int | None  # None if the cluster has no such topic ID any more
    lag_seconds: float | None  # the age of the oldest record that is not in the table
    rows: int | None  # None if the table has no columns that name the partition of a row
    files: int | None
    bytes: int | None
    last_commit_ms: int | None
    dead_letters: int
    lost_records: int


class _Held:
    """What the table holds of one partition."""

    def __init__(self) -> None:
        self.rows = self.files = self.bytes = self.last_commit_ms = 0


def read_status(
    table: Table, cluster: Cluster, topics: Iterable[str] = ()
) -> list[PartitionStatus]:
    """All partitions that have rows or dead letters, and those of the named topics."""
    known = all(name in {field["name"] for field in table.fields()} for name in _KEY)
    held = _held(table) if known else {}
    letters, lost = _dead_letters(table.location / DEAD_LETTERS)
    seen = held.keys() | letters.keys() | lost.keys()
    live = _live(cluster, {key.topic for key in seen} | set(topics))
    found = []
    for key in sorted(seen | live.keys()):
        next_offset = table.recorded(txn_id(id_from_text(key.topic_id), key.partition))
        lag_records, lag_seconds = None, None
        if key in live:
            earliest, latest = live[key]
            first = earliest if next_offset is None else next_offset
            lag_records = max(0, latest - first)
            lag_seconds = _age_s(cluster, key, max(first, earliest), latest)
        one = held.get(key, _Held())
        found.append(
            PartitionStatus(
                *key,
                next_offset,
                lag_records,
                lag_seconds,
                one.rows if known else None,
                one.files if known else None,
                one.bytes if known else None,
                one.last_commit_ms or None,
                letters.get(key, 0),
                lost.get(key, 0),
            )
        )
    return found


def _held(table: Table) -> dict[Key, _Held]:
    found: dict[Key, _Held] = defaultdict(_Held)
    damaged = table.damaged_files()
    for file in pa.table(table.handle.get_add_actions(flatten=True)).to_pylist():
        if file["path"] in damaged:
            continue  # its rows cannot be read
        for key, rows in _rows_of(table.location, file):
            one = found[key]
            one.rows += rows
            one.files += 1
            one.bytes += file["size_bytes"] * rows // file["num_records"]
            one.last_commit_ms = max(one.last_commit_ms, file["modification_time"])
    return dict(found)


def _rows_of(location: Location, file: dict[str, Any]) -> Iterator[tuple[Key, int]]:
    """The rows of a file by partition. Only a file of several partitions is opened."""
    low: list[Any] = [file.get(f"min.{name}") for name in _KEY]
    high: list[Any] = [file.get(f"max.{name}") for name in _KEY]
    if low == high and None not in low:
        yield Key(*low), file["num_records"]
        return
    with location.reading(file["path"]) as opened:
        rows = opened.read(columns=list(_KEY))
    for row in rows.group_by(list(_KEY)).aggregate([([], "count_all")]).to_pylist():
        yield Key(*(row[name] for name in _KEY)), row["count_all"]


def _dead_letters(location: Location) -> tuple[dict[Key, int], dict[Key, int]]:
    """Dead letters and lost records by partition; a batch that ran twice wrote letters twice."""
    table = open_table(location)
    letters: dict[Key, int] = defaultdict(int)
    lost: dict[Key, int] = defaultdict(int)
    if table is not None:
        columns = [*_KEY, "_offset", "_offset_end", "stage"]
        rows = table.read(columns)
        for row in rows.group_by(columns).aggregate([]).to_pylist():
            key = Key(*(row[name] for name in _KEY))
            if row["stage"] == "lost":
                lost[key] += row["_offset_end"] - row["_offset"]
            else:
                letters[key] += 1
    return dict(letters), dict(lost)


def _live(cluster: Cluster, topics: set[str]) -> dict[Key, tuple[int, int]]:
    """Start and end of the logs of these topics, as far as they exist."""
    if not topics:
        return {}
    metadata = {
        name: found
        for name, found in cluster.topics(sorted(topics)).items()
        if found.error == ErrorCode.NONE
    }
    places = [
        TopicPartition(name, partition)
        for name, found in metadata.items()
        for partition in sorted(found.leaders)
    ]
    first, end = (
        cluster.list_offsets(dict.fromkeys(places, which), read_committed=True)
        for which in (EARLIEST, LATEST)
    )
    return {
        Key(place.topic, id_to_text(metadata[place.topic].topic_id), place.partition): (
            first[place],
            end[place],
        )
        for place in places
    }


def _age_s(cluster: Cluster, key: Key, first: int, end: int) -> float:
    """The age of the first record in this range; 0 if there is none."""
    if first >= end:
        return 0.0
    range_ = Range(TopicPartition(key.topic, key.partition), first, end)
    settings = FetchSettings(read_committed=True, fail_on_data_loss=False)
    reader = RangeReader(cluster, range_, id_from_text(key.topic_id), settings)
    for records in reader:
        return max(0.0, (now_ms() - int(records.timestamp_ms[0])) / 1000)
    return 0.0
