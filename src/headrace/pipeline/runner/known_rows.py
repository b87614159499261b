"""Keeps the rows of the tables that a query writes and reads, so that no batch reads them again.

The driver writes the rows of small batches itself. It merges them into the rows that it has, as
the table does when it is read, and Spark gets them without a plan, a job and many small files.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from headrace.pipeline.tables import DELETED, Rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BYTES_MAX = 256 << 20  # of one table
_FILE_BYTES_MAX = 32 << 20  # the same on disk, compressed: collecting a larger one could fail
_MERGES = ("sum", "min", "max")  # sketches are Spark's
_PLACE = "_place"


class KnownRows:
    """The rows of some tables, one per key, before the next batch of the query."""

    def __init__(self, rules: Mapping[str, Rules]) -> None:
        self._rules = {
            name: one for name, one in rules.items() if set(one.merge.values()) <= set(_MERGES)
        }
        self._rows: dict[str, pa.Table] = {}
        self._schemas: dict[str, StructType] = {}
        self._frames: dict[str, DataFrame] = {}
        self._written: dict[str, pa.Table] = {}
        self._too_large: set[str] = set()

    @property
    def names(self) -> Collection[str]:
        return self._rules

    def frame(
        self,
        name: str,
        spark: "SparkSession",
        read: "Callable[[], DataFrame]",
        file_bytes: Callable[[], int],
    ) -> "DataFrame":
        """The rows of a table; ``read`` reads them, where the driver does not have them."""
        if name not in self._rules or name in self._too_large:
            return read()
        if name not in self._rows:
            if file_bytes() > _FILE_BYTES_MAX:
                return read()
            found = read()
            rows = found.toArrow()
            if rows.nbytes > _BYTES_MAX:
                self._too_large.add(name)
                return found
            self._rows[name], self._schemas[name] = rows, found.schema
        if name not in self._frames:
            rows = self._rows[name]
            # Spark cannot read an Arrow table without chunks.
            self._frames[name] = spark.createDataFrame(
                rows if len(rows) else [],
                self._schemas[name],
            )
        return self._frames[name]

    def written(self, name: str, rows: pa.Table) -> None:
        """Rows that the batch adds to a table. It does not see them itself."""
        self._written[name] = rows

    def batch_ended(self) -> None:
        """All tables and topics of the batch are written."""
        for name, rows in self._written.items():
            if name in self._rows and len(rows):
                merged = merge(self._rows[name], rows, self._rules[name])
                del self._frames[name], self._rows[name]
                if merged.nbytes <= _BYTES_MAX:
                    self._rows[name] = merged
                else:
                    self._too_large.add(name)
        self._written.clear()

    def forget(self) -> None:
        """A batch is written without these rows."""
        self._written.clear()
        self._rows.clear()
        self._frames.clear()
        self._too_large.clear()


def merge(known: pa.Table, added: pa.Table, rules: Rules) -> pa.Table:
    """One row per key, as ``JobTable.rows`` has them; ``added`` are newer, and may delete keys."""
    key = list(rules.key)
    names = [name for name in known.column_names if name in added.column_names]
    fitted = [added.column(name).cast(known.schema.field(name).type) for name in names]
    new = pa.table(fitted, names=names)
    both = pa.concat_tables([known, new], promote_options="default")
    if rules.merge:
        wanted = [(column, rule) for column, rule in rules.merge.items()]
        found = both.group_by(key, use_threads=False).aggregate(wanted)
        renamed = {f"{column}_{rule}": column for column, rule in wanted}
        found = found.rename_columns([renamed.get(name, name) for name in found.column_names])
        return found.select(known.column_names).cast(known.schema)
    places = pa.array(range(len(both)), pa.int64())
    newest = both.select(key).append_column(_PLACE, places)
    newest = newest.group_by(key, use_threads=False).aggregate([(_PLACE, "max")])
    kept = newest.column(f"{_PLACE}_max").combine_chunks()
    if DELETED in added.column_names:
        is_deleted = pc.fill_null(added.column(DELETED), False).combine_chunks()
        gone = pc.filter(pa.array(range(len(known), len(both)), pa.int64()), is_deleted)
        kept = pc.filter(kept, pc.invert(pc.is_in(kept, gone)))
    return both.take(pc.take(kept, pc.array_sort_indices(kept))).combine_chunks()
