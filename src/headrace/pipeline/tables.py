"""Job tables: Delta tables to which every batch appends, and which show one row per key.

A batch is one commit with the transaction ``<query id>/<table>`` and the number of the batch + 1,
so a batch that runs again is dropped. Appending is cheap, and merging on write is not: it rewrites
whole files. So rows merge when they are read. All merge rules are associative, and the newest row
of a key is too: ``fold`` may replace any rows by their merged row, except those of a query's
newest batch, which may run again and must not see its own rows. It forgets deleted keys.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.pipeline.errors import CommitRefused
from headrace.pipeline.warehouse.batch import Batch, NewFile, Numbered, TableFile
from headrace.pipeline.warehouse.files import PartitionedFiles, unique_name
from headrace.pipeline.warehouse.offsets import Decision
from headrace.pipeline.warehouse.schema import compare, fields_of
from headrace.pipeline.warehouse.spark_reader import read_with_python
from headrace.pipeline.warehouse.storage import Location, for_spark, location_of
from headrace.pipeline.warehouse.table import (
    Table,
    delta_json,
    now_ms,
    open_or_create,
    open_table,
    open_version,
)
from headrace.spark.workers import settle

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DELETED = "_deleted"
NO_VERSION = -1  # of a table without rows
QUERY, BATCH, WRITTEN_AT = "_query", "_batch", "_written_at"
_OURS = StructType(
    [
        StructField(QUERY, StringType()),
        StructField(BATCH, LongType()),
        StructField(WRITTEN_AT, TimestampType()),
    ]
)
_PERCENTILES = (50, 95, 99)
# Folding costs a Spark job; reading costs a little for every file.
FOLD_FILES = 64
_FOLD_BYTES = 64 << 20
_REPLACE_TRIES = 8
_RESULT = pa.schema([("result", pa.binary())])

_MERGED = {
    "sum": F.sum,
    "min": F.min,
    "max": F.max,
    "hll": F.hll_union_agg,
    "kll": F.kll_merge_agg_double,
}


class BatchName(NamedTuple):
    """The batch of a query. Its number does not change when the batch runs again."""

    query: str
    number: int


class Appended(NamedTuple):
    row_count: int
    is_repeated: bool = False


class Rules(NamedTuple):
    """How the rows of a table with equal keys become one."""

    key: tuple[str, ...]
    merge: Mapping[str, str] = {}


class JobTable:
    """One job table, for one thread at a time."""

    def __init__(
        self, location: Path | Location, rules: Rules, claim: Numbered | None = None
    ) -> None:
        """``claim`` is that of the run which writes: see ``runner/claim.py``."""
        self.location = location_of(location)
        self._rules = rules
        self._claim = claim
        self._opened: Table | None = None

    @property
    def name(self) -> str:
        return self.location.name

    # --- writing ------------------------------------------------------------------------

    def append(self, rows: "DataFrame", batch: BatchName) -> Appended:
        """Commit the rows of a batch, unless the table has them. Nothing is computed then."""
        if self._has(batch):
            return Appended(0, is_repeated=True)
        written_at_ms = now_ms()
        schema = _marked_schema(rows)
        files = write_files(rows, self.location, schema, _marks(batch, written_at_ms))
        return self._commit(files, schema, batch, written_at_ms)

    def append_few(self, rows: pa.Table, batch: BatchName) -> Appended:
        """The same for rows that the driver has."""
        if self._has(batch):
            return Appended(0, is_repeated=True)
        written_at_ms = now_ms()
        for name, mark in _marks(batch, written_at_ms).items():
            rows = rows.append_column(name, pa.repeat(mark, rows.num_rows))
        files = PartitionedFiles(self.location, rows.schema, unique_name())
        for part in rows.to_batches():
            files.add((), part)
        return self._commit(files.finish(), rows.schema, batch, written_at_ms)

    def _has(self, batch: BatchName) -> bool:
        table = self._table()
        if table is None:
            return False
        table.update()
        return self._recorded(table, batch) > batch.number

    def _recorded(self, table: Table, batch: BatchName) -> int:
        """The number after the newest batch of a query that a version has; 0 without any."""
        return table.recorded(self._txn(batch).txn_id) or 0

    def _txn(self, batch: BatchName) -> Numbered:
        return Numbered(f"{batch.query}/{self.name}", batch.number + 1)

    def _commit(
        self, files: tuple[NewFile, ...], schema: pa.Schema, batch: BatchName, written_at_ms: int
    ) -> Appended:
        if not files:
            return Appended(0)
        if self._opened is None:
            self._opened = open_or_create(self.location, schema, [])
        numbered = self._txn(batch)
        done = self._opened.commit(
            Batch((), files, schema, written_at_ms, numbered=numbered, claim=self._claim)
        )
        return Appended(sum(file.row_count for file in files), done is Decision.REPEATED)

    def fold(self, spark: "SparkSession", *, files_min: int = FOLD_FILES) -> bool:
        """Replace the rows of small files by one row per key, if there are many files."""
        table = self._table()
        if table is None:
            return False
        table.update()
        small = [file for file in table.files() if file.size < _FOLD_BYTES]
        if len(small) < files_min:
            return False
        began_ms = now_ms()
        rows = self._read(spark, table, small)
        newest = {row[QUERY]: row[1] for row in rows.groupBy(QUERY).agg(F.max(BATCH)).collect()}
        may_run_again = F.lit(False)
        for query, number in sorted(newest.items()):
            may_run_again |= (F.col(QUERY) == query) & (F.col(BATCH) == number)
        kept = rows.where(may_run_again)
        folded = self._one_per_key(rows.where(~may_run_again)).select(*rows.columns)
        if DELETED in rows.columns and len(small) == len(table.files()):
            # No other file has a row that a deleted key would hide.
            folded = folded.where(f"{DELETED} is not true")
        schema = table.file_schema()
        added = write_files(folded.unionAll(kept), self.location, schema)
        return table.rewrite(small, added, began_ms)

    def replace(self, rows: "DataFrame", kept: "Column | None", batch: BatchName) -> int:
        """Replace the rows of this table in one commit, except what ``kept`` selects.

        Raises CommitRefused if others rewrite the table each time.
        """
        table = self._table()
        if table is None:
            return self.append(rows, batch).row_count
        began_ms = now_ms()
        table.update()
        table.ensure_columns(_marked_schema(rows))
        schema = table.file_schema()
        fresh = write_files(rows, self.location, schema, _marks(batch, began_ms))
        txn_id = self._txn(batch).txn_id
        for _ in range(_REPLACE_TRIES):
            table.update()
            old = table.files()
            others: tuple[NewFile, ...] = ()
            if kept is not None and old:
                found = self._read(rows.sparkSession, table, old).where(kept)
                others = write_files(found, self.location, schema)
            newest = table.recorded(txn_id)
            known = {} if newest is None else {txn_id: newest}
            if not old and not fresh:
                return 0
            if table.rewrite(old, (*fresh, *others), began_ms, known):
                return sum(file.row_count for file in fresh)
        raise CommitRefused(
            f"gave up after {_REPLACE_TRIES} attempts: other programs rewrote the files of "
            f"{self.location} each time. None of its rows was replaced; run it again"
        )

    def take_over(self, schema: StructType, *, without_rows: bool) -> None:
        """Refuse the commits of runs before this one, from now on. Creates a missing table.

        ``without_rows`` removes all rows, in one commit: files that an older run still writes would
        damage a table that was deleted and created again.
        """
        assert self._claim is not None
        columns = arrow_schema(StructType([*schema.fields, *_OURS.fields]))
        table = self._opened = open_or_create(self.location, columns, [])
        if without_rows:
            table.start_over(columns, self._claim)
        else:
            table.commit(Batch((), (), columns, now_ms(), numbered=self._claim, claim=self._claim))

    # --- reading ------------------------------------------------------------------------

    def last_batch(self, query: str) -> int:
        """The newest batch of a query that the table has; -1 if there is none."""
        table = self._table()
        return -1 if table is None else self._recorded(table, BatchName(query, 0)) - 1

    def version(self) -> int | None:
        """The newest version; None if there is no table yet."""
        table = self._table()
        if table is None:
            return None
        table.update()
        return table.version

    def file_bytes(self) -> int:
        """The size of all files."""
        table = self._table()
        if table is None:
            return 0
        table.update()
        return sum(file.size for file in table.files())

    def rows(
        self,
        spark: "SparkSession",
        schema: StructType,
        *,
        before: BatchName | None = None,
        version: int | None = None,
    ) -> "DataFrame":
        """One row per key, with sketches; ``schema`` is that of a table without rows.

        ``before`` leaves out what this batch, or a later one of its query, wrote.
        """
        table = self._table()
        if version not in (None, NO_VERSION) and table is not None and version != table.version:
            table = open_version(self.location, version)
        elif table is not None and version is None:
            table.update()
        fields = [field for field in schema if field.name != DELETED]
        if table is None or version == NO_VERSION:
            return spark.createDataFrame([], StructType(fields))
        rows = self._read(spark, table, table.files())
        if before is not None and self._recorded(table, before) > before.number:
            ours = (F.col(QUERY) == before.query) & (F.col(BATCH) >= before.number)
            rows = rows.where(~ours)
        merged = self._one_per_key(rows)
        if DELETED in merged.columns:
            merged = merged.where(f"{DELETED} is not true").drop(DELETED)
        found = merged.drop(*_OURS.fieldNames())
        known = [
            F.col(f"`{field.name}`")
            if field.name in found.columns
            else F.lit(None).cast(field.dataType).alias(field.name)  # newer than the rows
            for field in fields
        ]
        others = [name for name in found.columns if name not in schema.fieldNames()]
        return found.select(*known, *(F.col(f"`{name}`") for name in others))

    def shown(self, spark: "SparkSession") -> "DataFrame":
        """One row per key, as people read it: estimates and percentiles in place of sketches."""
        rows = self.rows(spark, StructType([]))
        columns: list[Any] = []
        for name in rows.columns:
            rule = self._rules.merge.get(name)
            if rule == "hll":
                columns.append(F.hll_sketch_estimate(name).alias(name))
            elif rule == "kll":
                columns += [
                    F.kll_sketch_get_quantile_double(name, F.lit(percent / 100)).alias(
                        f"{name}_p{percent}"
                    )
                    for percent in _PERCENTILES
                ]
            else:
                columns.append(F.col(name))
        return rows.select(*columns)

    def _one_per_key(self, rows: "DataFrame") -> "DataFrame":
        newest = F.struct(WRITTEN_AT, BATCH, QUERY)
        key, merge = self._rules
        if not merge:
            picked = rows.groupBy(*key).agg(F.max_by(F.struct("*"), newest).alias("_row"))
            return picked.select("_row.*")
        return (
            rows.groupBy(*key)
            .agg(
                *(_MERGED[rule](column).alias(column) for column, rule in merge.items()),
                F.max(newest).alias("_newest"),
            )
            .select("*", "_newest.*")
            .drop("_newest")
        )

    def _table(self) -> Table | None:
        if self._opened is None:
            self._opened = open_table(self.location)
        return self._opened

    def _read(self, spark: "SparkSession", table: Table, files: Sequence[TableFile]) -> "DataFrame":
        schema = spark_schema(table)
        if not files:
            return spark.createDataFrame([], schema)
        if not self.location.is_directory:
            return read_with_python(spark, table, files)
        paths = [for_spark(self.location / file.path) for file in files]
        return spark.read.schema(schema).parquet(*paths)


def is_job_table(table: Table) -> bool:
    """Whether a pipeline wrote this table."""
    return set(_OURS.fieldNames()) <= {field["name"] for field in table.fields()}


def column_conflicts(table: Table, schema: StructType) -> tuple[str, ...]:
    """Why rows of this schema do not fit a job table; empty if they do."""
    fields = [*schema.fields, *_OURS.fields]
    known = {field["name"] for field in table.fields()}
    if DELETED in known and DELETED not in schema.fieldNames():
        fields.append(StructField(DELETED, BooleanType()))  # rows of windows get it later
    batch = fields_of(delta_json(arrow_schema(StructType(fields))))
    return compare(table.fields(), batch).conflicts


def read(spark: "SparkSession", location: Path | Location, rules: Rules) -> "DataFrame":
    """A job table as people read it."""
    return JobTable(location, rules).shown(spark)


def _marks(batch: BatchName, written_at_ms: int) -> dict[str, pa.Scalar]:
    """The columns that name a batch, each with one value.

    Tasks add them. In a query of Spark they would be part of the code that Spark generates, and it
    would compile that again for every batch.
    """
    found = {QUERY: batch.query, BATCH: batch.number, WRITTEN_AT: written_at_ms * 1000}
    fields = to_arrow_schema(_OURS, timezone="UTC")
    return {field.name: pa.scalar(found[field.name]).cast(field.type) for field in fields}


def _marked_schema(rows: "DataFrame") -> pa.Schema:
    return arrow_schema(StructType([*rows.schema.fields, *_OURS.fields]))


# --- files ------------------------------------------------------------------------------


class _FileTask(NamedTuple):
    """Writes the rows of one task. Spark pickles it for the executors."""

    location: Location
    schema: pa.Schema
    name: str
    marks: Mapping[str, pa.Scalar]

    def run(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        context = TaskContext.get()
        place = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
        name = f"{self.name}-{place[0]:05d}-{place[1]}"
        files = PartitionedFiles(self.location, self.schema, name)
        try:
            for batch in batches:
                files.add((), self._fitted(batch))
            result = pickle.dumps(files.finish())
        except BaseException:
            files.abandon()
            raise
        settle()
        yield pa.RecordBatch.from_arrays([pa.array([result], pa.binary())], schema=_RESULT)

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            pa.repeat(self.marks[field.name], batch.num_rows)
            if field.name in self.marks
            else batch.column(field.name).cast(field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def write_files(
    rows: "DataFrame",
    location: Location,
    schema: pa.Schema,
    marks: Mapping[str, pa.Scalar] | None = None,
) -> tuple[NewFile, ...]:
    """Write rows on the executors; none of the files belongs to the table yet.

    ``marks`` are columns with one value, which ``rows`` do not have.
    """
    task = _FileTask(location, schema, unique_name(), marks or {})
    names = [name for name in schema.names if name not in task.marks]
    results = rows.select(*(f"`{name}`" for name in names)).mapInArrow(task.run, "result binary")
    return tuple(file for row in results.collect() for file in pickle.loads(row.result))


def collected(rows: "DataFrame") -> pa.Table:
    """Rows in the types of a table, in this process: for ``JobTable.append_few``."""
    return rows.toArrow().cast(arrow_schema(rows.schema))


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns of a table for these rows; each may be null, whatever the first batch says."""
    nullable = _nullable(schema)
    assert isinstance(nullable, StructType)
    return pa.schema(list(to_arrow_schema(nullable, timezone="UTC")))


def spark_schema(table: Table) -> StructType:
    found = from_arrow_schema(table.file_schema())
    assert isinstance(found, StructType)
    return found


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return StructType(
            [StructField(field.name, _nullable(field.dataType)) for field in kind.fields]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind
