"""The part of a load that runs on executors: read spans of offsets, write Parquet files.

No row passes through the JVM: a task fetches, decodes and writes in one Python process, and tells
the driver the names of its files.
"""

import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException

from headrace.client.errors import ClientError
from headrace.model.audit import ReadRange
from headrace.pipeline.warehouse.batch import NewFile
from headrace.pipeline.warehouse.files import PartitionedFiles
from headrace.pipeline.warehouse.offsets import Span
from headrace.pipeline.warehouse.rows import DEAD_LETTER_SCHEMA, RowBuilder, RowSettings
from headrace.pipeline.warehouse.settings import ValueColumns
from headrace.pipeline.warehouse.storage import Location
from headrace.spark.cluster import shared_cluster
from headrace.spark.fetching import RangeReader
from headrace.spark.offsets import Range
from headrace.spark.options import SourceOptions
from headrace.spark.read_counts import RangeCounts
from headrace.spark.value_format import value_parser
from headrace.spark.workers import settle

DEAD_LETTERS = "_dead_letters"  # a table below the table; readers skip names that begin with "_"
_RESULT = pa.schema([("result", pa.binary())])
_RESULT_DDL = "result binary"
Result = TypeVar("Result")


class TaskResult(NamedTuple):
    files: tuple[NewFile, ...]
    letters: tuple[NewFile, ...]  # relative to the table of dead letters
    bytes_fetched: int
    offsets_fetched: int  # whole batches are fetched, so more than the spans have
    counts: tuple[ReadRange, ...] = ()  # of all records, also of dead letters


class Job(NamedTuple):
    """All tasks of one batch. Spark pickles it for every executor."""

    batch_id: str  # unique: names the files
    table: Location
    source: SourceOptions
    columns: ValueColumns
    rows: RowSettings
    tasks: tuple[tuple[Span, ...], ...]

    def run(self, spark: Any) -> list[TaskResult]:
        return run_tasks(spark, len(self.tasks), self.run_task)

    def run_task(self, number: int) -> TaskResult:
        """Write the files of one task. Files of a failed attempt are deleted."""
        name = attempt_name(self.batch_id, number)
        files = PartitionedFiles(self.table, self.rows.file_schema, name)
        letters = PartitionedFiles(self.table / DEAD_LETTERS, DEAD_LETTER_SCHEMA, name)
        bytes_fetched = offsets_fetched = 0
        counts: list[ReadRange] = []
        try:
            for span in self.tasks[number]:
                counted = RangeCounts(_range(span), span.topic_id)
                reader = self._write(span, files, letters, counted)
                bytes_fetched += reader.bytes_fetched
                offsets_fetched += reader.offsets_fetched
                counts += counted.ranges()
            fetched = bytes_fetched, offsets_fetched
            return TaskResult(files.finish(), letters.finish(), *fetched, tuple(counts))
        except BaseException:
            files.abandon()
            letters.abandon()
            raise

    def _write(
        self, span: Span, files: PartitionedFiles, letters: PartitionedFiles, counts: RangeCounts
    ) -> RangeReader:
        parse = None
        if not self.rows.conflict:
            parse = value_parser(self.source.value, self.columns.kind)
        builder = RowBuilder(self.rows, span.place, span.topic_id, parse)
        reader = RangeReader(
            shared_cluster(self.source.client),
            _range(span),
            span.topic_id,
            self.source.fetch,
        )
        for records in reader:
            counts.add(records)
            for built in builder.build(records):
                for values, rows in built.rows:
                    files.add(values, rows)
                if built.letters is not None:
                    letters.add((), built.letters)
        return reader


def _range(span: Span) -> Range:
    return Range(span.place, span.first_offset, span.offset_end)


def run_tasks(spark: Any, count: int, run_task: Callable[[int], Result]) -> list[Result]:
    """Run numbered tasks on executors; the results of the attempts that Spark counts."""

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(run_task(number))
                yield pa.RecordBatch.from_arrays([pa.array([result])], schema=_RESULT)
        settle()

    if not count:
        return []
    try:
        rows = spark.range(0, count, 1, count).mapInArrow(run, _RESULT_DDL).collect()
    except PySparkException as failure:
        raise ClientError(f"a task of the load failed: {_python_reason(str(failure))}") from failure
    return [pickle.loads(row.result) for row in rows]


def attempt_name(batch_id: str, number: int) -> str:
    """The name of the files of this attempt of a task."""
    context = TaskContext.get()
    attempt = context.taskAttemptId() if context is not None else 0
    return f"{batch_id}-{number:05d}-{attempt}"


def _python_reason(text: str) -> str:
    """The last error of a Python traceback in a message of Spark; all of it if there is none."""
    errors = re.findall(r"^(?:\w+\.)*[A-Z]\w+: .+$", text, re.MULTILINE)
    return errors[-1] if "Traceback" in text and errors else text
