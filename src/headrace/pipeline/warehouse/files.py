"""Writes the Parquet files of one task: one or more for each combination of partition values.

The name of a file contains the batch and the task attempt, so two attempts of one task never write
the same file. A file belongs to the table only after the driver has committed it.
"""

import contextlib
import json
import uuid
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.pipeline.warehouse.batch import NewFile, PartitionValues
from headrace.pipeline.warehouse.storage import Location, location_of

FILE_BYTES_MAX = 256 << 20
# Rows wait in memory until they make a row group; above the limit for all files, the largest go.
_ROW_GROUP_BYTES = 64 << 20
_WAITING_BYTES_MAX = 192 << 20
# Minimum and maximum of these columns are kept in the table's log. All are exact: no text is cut,
# and no time is rounded, so no reader skips a file that it needs.
STATS_COLUMNS = ("_topic", "_topic_id", "_partition", "_offset")


def unique_name() -> str:
    """A name for the files of one batch that no other batch uses."""
    return uuid.uuid4().hex[:12]


class _ColumnStats(NamedTuple):
    low: Any  # None if all values are null
    high: Any
    null_count: int

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> "_ColumnStats":
        found = pc.min_max(column).as_py()
        return cls(found["min"], found["max"], column.null_count)

    def merged(self, other: "_ColumnStats") -> "_ColumnStats":
        values = [one for one in (self.low, self.high, other.low, other.high) if one is not None]
        return _ColumnStats(
            min(values, default=None),
            max(values, default=None),
            self.null_count + other.null_count,
        )


class _Part:
    """The rows of one combination of partition values that are not in a finished file."""

    def __init__(self) -> None:
        self.waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0
        self.path = ""
        self.file: BinaryIO | None = None
        self.writer: Any = None
        self.row_count = 0
        self.stats: dict[str, _ColumnStats] = {}


class PartitionedFiles:
    """The files of one task attempt below the directory of a table."""

    def __init__(
        self,
        table: Path | Location,
        schema: pa.Schema,
        name: str,
        *,
        file_bytes: int = FILE_BYTES_MAX,
    ) -> None:
        """``schema`` is that of the files, without the partition columns."""
        self._table = location_of(table)
        self._schema = schema
        self._name = name
        self._file_bytes = file_bytes
        self._parts: dict[PartitionValues, _Part] = {}
        self._finished: list[NewFile] = []
        self._started: list[str] = []

    def add(self, values: PartitionValues, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        part = self._parts.setdefault(values, _Part())
        part.waiting.append(rows)
        part.waiting_bytes += rows.nbytes
        if part.waiting_bytes >= _ROW_GROUP_BYTES:
            self._flush(values, part)
        elif sum(one.waiting_bytes for one in self._parts.values()) > _WAITING_BYTES_MAX:
            self._flush(*max(self._parts.items(), key=lambda item: item[1].waiting_bytes))

    def finish(self) -> tuple[NewFile, ...]:
        """Write the rest, and return all files, which are durable by then."""
        for values, part in self._parts.items():
            if part.waiting:
                self._flush(values, part)
            if part.writer is not None:
                self._close(values, part)
        return tuple(self._finished)

    def abandon(self) -> None:
        """Delete what was written; vacuum finds what a killed task leaves behind."""
        for part in self._parts.values():
            # On a full disk the footer cannot be written either.
            with contextlib.suppress(OSError, pa.ArrowException):
                if part.writer is not None:
                    part.writer.close()
            with contextlib.suppress(OSError):
                if part.file is not None:
                    part.file.close()
        for path in self._started:
            self._table.delete(path)

    def _flush(self, values: PartitionValues, part: _Part) -> None:
        rows = pa.Table.from_batches(part.waiting, self._schema)
        part.waiting, part.waiting_bytes = [], 0
        if part.writer is None:
            self._open(values, part)
        part.writer.write_table(rows)
        part.row_count += rows.num_rows
        for column in STATS_COLUMNS:
            if column in self._schema.names:
                found = _ColumnStats.of(rows.column(column))
                known = part.stats.get(column)
                part.stats[column] = found if known is None else known.merged(found)
        assert part.file is not None
        if part.file.tell() >= self._file_bytes:
            self._close(values, part)

    def _open(self, values: PartitionValues, part: _Part) -> None:
        # The table's log holds the values; the directories are for people. Only values that need
        # no escaping are in the name.
        directory = "/".join(
            f"{column}={value}"
            for column, value in values
            if value is not None and value.replace("-", "").isalnum() and value.isascii()
        )
        name = f"part-{self._name}-{len(self._started):05d}.parquet"
        part.path = f"{directory}/{name}" if directory else name
        self._started.append(part.path)
        part.file = self._table.create(part.path)
        part.writer = pq.ParquetWriter(part.file, self._schema, compression="zstd")

    def _close(self, values: PartitionValues, part: _Part) -> None:
        assert part.file is not None
        part.writer.close()
        size = part.file.tell()
        self._table.finish(part.path, part.file)
        known = {column: one for column, one in part.stats.items() if one.low is not None}
        stats = {
            "numRecords": part.row_count,
            "minValues": {column: low for column, (low, _, _) in known.items()},
            "maxValues": {column: high for column, (_, high, _) in known.items()},
            "nullCount": {column: one.null_count for column, one in part.stats.items()},
        }
        self._finished.append(NewFile(part.path, size, values, part.row_count, json.dumps(stats)))
        part.writer = part.file = None
        part.row_count, part.stats = 0, {}
