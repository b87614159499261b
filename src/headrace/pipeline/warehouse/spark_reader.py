"""The rows of a table as a DataFrame of Spark, without a jar for Delta or S3.

Spark's own reader of Parquet is used where it can be: the table is in a directory, and the names of
the directories below it show all partition values. Otherwise tasks read the files with Python.
"""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from headrace.pipeline.warehouse.batch import TableFile
from headrace.pipeline.warehouse.compaction import rows_of
from headrace.pipeline.warehouse.storage import Location, for_spark
from headrace.pipeline.warehouse.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TASKS_MAX = 200
_TASK_BYTES = 4 << 20  # a task of its own for a small file costs more than reading it


def read_table(spark: Any, table: Table) -> "DataFrame":
    """The rows of the version that ``table`` shows, with the partition columns."""
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(table.handle.schema().to_json()))
    files = table.files()
    found: DataFrame
    if not files:
        found = spark.createDataFrame([], schema)
    elif table.location.is_directory and all(map(_shows_values, files)):
        paths = [for_spark(table.location / file.path) for file in files]
        reader = spark.read.schema(schema).option("basePath", for_spark(table.location))
        found = reader.parquet(*paths).select(*(f"`{name}`" for name in schema.names))
    else:
        found = read_with_python(spark, table, files)
    return found


def read_with_python(spark: Any, table: Table, files: Sequence[TableFile]) -> "DataFrame":
    """The rows of some files of a table, read by tasks: Spark has no jar for S3."""
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(table.handle.schema().to_json()))
    whole = pa.schema(table.handle.schema().to_arrow())
    tasks = _Files(table.location, whole, table.file_schema(), tuple(files))
    tasks_wanted = -(-sum(file.size for file in files) // _TASK_BYTES)
    task_count = min(_TASKS_MAX, len(files), max(1, tasks_wanted))
    numbers = spark.range(0, len(files), 1, task_count)
    found: DataFrame = numbers.mapInArrow(tasks.read, schema)
    return found


def _shows_values(file: TableFile) -> bool:
    directories = file.path.split("/")[:-1]
    return directories == [f"{name}={value}" for name, value in file.partition_values]


class _Files(NamedTuple):
    """Pickled for the tasks."""

    location: Location
    schema: pa.Schema  # of the table
    file_schema: pa.Schema
    files: tuple[TableFile, ...]

    def read(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self._rows(self.files[number])

    def _rows(self, file: TableFile) -> Iterator[pa.RecordBatch]:
        values = {
            name: pa.scalar(text, pa.string()).cast(self.schema.field(name).type)
            for name, text in file.partition_values
        }
        for rows in rows_of(self.location, self.file_schema, file):
            columns = [
                pa.repeat(values[name], rows.num_rows) if name in values else rows.column(name)
                for name in self.schema.names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
