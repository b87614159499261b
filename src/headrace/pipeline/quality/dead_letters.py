"""Reads the tables of dead letters that loads and pipelines write, and records decisions.

No letter is ever deleted: another table beside the letters holds what was decided about each.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline.quality.letters import Decision, Identity, Letter, Wanted, each_once
from headrace.pipeline.warehouse.batch import Batch
from headrace.pipeline.warehouse.files import PartitionedFiles, unique_name
from headrace.pipeline.warehouse.storage import Location, location_of
from headrace.pipeline.warehouse.table import Table, now_ms, open_or_create, open_table
from headrace.pipeline.warehouse.tasks import DEAD_LETTERS

DECISIONS = "_dead_letter_decisions"
_DECISIONS_SCHEMA = pa.schema(
    [
        ("pipeline", pa.string()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("stage", pa.string()),
        ("action", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
# The fields of a letter by the columns of the two writers.
_OF_LOADS = {
    "stage": "stage",
    "reason": "reason",
    "_topic": "topic",
    "_topic_id": "topic_id",
    "_partition": "partition",
    "_offset": "offset",
    "_offset_end": "offset_end",
    "_timestamp_ms": "timestamp_ms",
    "_loaded_at": "written_ms",
}
_OF_PIPELINES = {
    "pipeline": "pipeline",
    "stage": "stage",
    "rule": "rule",
    "reason": "reason",
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "topic_id": "topic_id",
    "timestamp": "timestamp_ms",
    "attempt": "attempt",
    "sinks": "sinks",
    "_written_at": "written_ms",
}
_CONTENT_OF_LOADS = {"_key": "key", "value": "value", "_headers": "headers"}
_CONTENT_OF_PIPELINES = {"key": "key", "value": "value", "headers": "headers"}


class LetterTable(NamedTuple):
    """The dead letters of one load, or of all pipelines of a warehouse."""

    directory: Location  # of the loaded table, or the warehouse
    table: str | None  # the name of the loaded table; None: those of pipelines

    def read(
        self, wanted: Wanted, *, with_content: bool = False, with_decided: bool = False
    ) -> list[Letter]:
        """Letters, each once; key, value and headers only ``with_content``. Raises LoadStopped.

        Letters that were dropped or sent again are left out, unless ``with_decided``.
        """
        letters = open_table(self.directory / DEAD_LETTERS)
        if letters is None:
            return []
        found = each_once(filter(wanted.selects, self._letters(letters, with_content)))
        decided = {} if with_decided else self.decisions()
        return [
            one for one in found if not any(map(one.is_settled_by, decided.get(one.identity, ())))
        ]

    def decisions(self) -> dict[Identity, list[Decision]]:
        """What was decided about letters, in the order of time."""
        table = open_table(self.directory / DECISIONS)
        found: dict[Identity, list[Decision]] = {}
        if table is None:
            return found
        for row in sorted(_rows(table, _DECISIONS_SCHEMA.names), key=lambda row: row["at"]):
            identity = Identity(
                row["pipeline"],
                row["topic_id"] or row["topic"],
                row["partition"],
                row["offset"],
                row["stage"],
                row["timestamp_ms"],
            )
            found.setdefault(identity, []).append(Decision(row["action"], row["at"]))
        return found

    def decide(self, letters: Sequence[Letter], action: str) -> None:
        """Record that these letters were dropped or sent again, in one commit.

        Raises LoadStopped or CommitRefused.
        """
        at_ms = now_ms()
        rows = [
            {
                "pipeline": one.pipeline,
                "topic": one.topic,
                "topic_id": one.topic_id,
                "partition": one.partition,
                "offset": one.offset,
                "timestamp_ms": one.timestamp_ms,
                "stage": one.stage,
                "action": action,
                "at": at_ms * 1000,
            }
            for one in letters
        ]
        location = self.directory / DECISIONS
        table = open_or_create(location, _DECISIONS_SCHEMA, [])
        files = PartitionedFiles(location, _DECISIONS_SCHEMA, unique_name())
        files.add((), pa.RecordBatch.from_pylist(rows, _DECISIONS_SCHEMA))
        table.commit(Batch((), files.finish(), _DECISIONS_SCHEMA, at_ms))

    def _letters(self, letters: Table, with_content: bool) -> Iterator[Letter]:
        fields = _OF_PIPELINES if self.table is None else _OF_LOADS
        if with_content:
            fields = fields | (_CONTENT_OF_PIPELINES if self.table is None else _CONTENT_OF_LOADS)
        absent: dict[str, Any] = {"pipeline": None, "rule": None, "topic_id": None}
        for row in _rows(letters, list(fields)):
            found = absent | {fields[name]: value for name, value in row.items()}
            found.setdefault("offset_end", found["offset"] + 1)
            found["attempt"] = found.get("attempt") or 0
            headers = found.pop("headers", None) or ()
            pairs = tuple((one["key"], one["value"]) for one in headers)
            yield Letter(table=self.table, headers=pairs, **found)


def letter_tables(place: Path | Location) -> list[LetterTable]:
    """All tables of dead letters below a warehouse: its own, and those of loaded tables."""
    warehouse = location_of(place)
    inner = {name: _directories(warehouse / name) for name in _directories(warehouse)}
    names = [name for name, below in inner.items() if DEAD_LETTERS in below]
    for name, below in inner.items():
        places = [f"{name}/{one}" for one in below]
        names += [one for one in places if DEAD_LETTERS in _directories(warehouse / one)]
    return [LetterTable(warehouse, None), *(LetterTable(warehouse / one, one) for one in names)]


def _directories(place: Location) -> list[str]:
    """Directories in a warehouse, or in a table; not those of its files."""
    return [name for name in place.directories() if "=" not in name and name != "_delta_log"]


def _rows(table: Table, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """All rows, without columns that are newer than their file; times as milliseconds.

    File by file, because deltalake's dataset takes a column without statistics for one of nulls.
    """
    for path in sorted(table.paths()):
        with table.location.reading(path) as file:
            present = [name for name in columns if name in file.schema_arrow.names]
            for batch in file.iter_batches(columns=present):
                arrays = [_millis(column) for column in batch.columns]
                yield from pa.RecordBatch.from_arrays(arrays, batch.schema.names).to_pylist()


def _millis(column: pa.Array) -> pa.Array:
    """Not as dates: the timestamp of a record may be beyond the year 9999."""
    if not pa.types.is_timestamp(column.type):
        return column
    return pc.divide(column.cast(pa.int64()), 1000)
