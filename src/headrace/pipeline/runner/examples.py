"""Runs the examples of a pipeline file: given rows through all functions, against expected rows.

Examples need no broker. Given rows become records with JSON values, and pass through the same
decoding, deduplication and tables as those of a stream.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

from headrace.pipeline.analysis import analyze
from headrace.pipeline.errors import BadPipeline
from headrace.pipeline.graph import Node, queries
from headrace.pipeline.loading import PipelineFile, mistake_of
from headrace.pipeline.runner.fanout import Contents, Done, Fanout, job_table
from headrace.pipeline.runner.history import record_schema
from headrace.pipeline.runner.records import arrived, deduplicated, source_rows
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.runner.streams import prepared
from headrace.pipeline.runner.windows import Touched
from headrace.pipeline.tables import BatchName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = Mapping[str, Sequence[Mapping[str, Any]]]  # by function


class Outcome(NamedTuple):
    example: str
    problems: tuple[str, ...]
    seconds: float


def run_examples(file: PipelineFile, spark: "SparkSession") -> Iterator[Outcome]:
    """One outcome per example. Raises BadPipeline for mistakes of the file."""
    session = prepared(spark)
    schemas = analyze(file.nodes, session)
    for example in file.examples:
        began_at = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="headrace-example-") as scratch:
            trial = _Trial(file, schemas, session, Path(scratch))
            problems = trial.run(example)
        yield Outcome(example.name, tuple(problems), time.monotonic() - began_at)


class _Trial:
    """One example, in a warehouse of its own."""

    def __init__(
        self, file: PipelineFile, schemas: Any, spark: "SparkSession", warehouse: Path
    ) -> None:
        self._nodes = {node.name: node for node in file.nodes}
        self._spark = spark
        self._settings = RunSettings(warehouse, {})
        self._sent: dict[str, list[dict[str, Any]]] = {}
        self._known: DataFrame | None = None
        self._fanouts = [
            Fanout(
                file.name,
                self._nodes,
                query,
                schemas,
                self._settings,
                send=self._keep,
                processed=self._processed,
            )
            for query in queries(file.nodes)
        ]

    def run(self, example: Node) -> list[str]:
        given, expected = self._parts(example)
        batches = [given] if isinstance(given, Mapping) else list(given)
        unknown = [
            name
            for batch in batches
            for name in batch
            if name not in self._nodes or self._nodes[name].kind != "source"
        ]
        unknown += [n for n in expected if n not in self._nodes or not self._nodes[n].is_sink]
        if unknown:
            raise BadPipeline(
                [example.mistake(f"{name!r} is no source, table or topic") for name in unknown]
            )
        records = self._records(batches)
        for fanout in self._fanouts:
            self._known = rows = deduplicated(records, fanout.sources)
            for number in range(len(batches)):
                batch = rows.where(F.col("_number") == number).drop("_number")
                fanout.run(batch, BatchName("example", number))
        return [problem for name in expected for problem in self._compare(name, expected[name])]

    def _parts(self, example: Node) -> tuple[Any, Rows]:
        try:
            given, expected = example.function()
        except Exception as failed:
            raise BadPipeline([mistake_of(failed, example.place)]) from failed
        return given, expected

    def _records(self, batches: Sequence[Rows]) -> "DataFrame":
        rows: list[tuple[Any, ...]] = []
        for number, batch in enumerate(batches):
            for name, values in batch.items():
                source = source_rows(self._nodes[name])
                for value in values:
                    text = json.dumps(value, default=_json)
                    time = _time(value.get(source.event_time))
                    rows.append(
                        (source.topic, 0, len(rows), time, None, None, text.encode(), number)
                    )
        schema = record_schema().add("_number", IntegerType())
        return arrived(self._spark.createDataFrame(rows, schema))

    def _processed(
        self, spark: "SparkSession", batch: BatchName, contents: Contents, windows: Touched
    ) -> "DataFrame":
        assert self._known is not None
        return self._known.where(F.col("_number") <= batch.number).drop("_number")

    def _keep(self, node: Node, rows: "DataFrame", batch: BatchName) -> Done:
        found = rows.toArrow().to_pylist()
        self._sent.setdefault(node.name, []).extend(found)
        return Done(len(found))

    def _compare(self, name: str, expected: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        node = self._nodes[name]
        if node.kind == "topic":
            found = self._sent.get(name, [])
        else:
            found = job_table(node, self._settings).shown(self._spark).toArrow().to_pylist()
        names = dict.fromkeys(column for row in expected for column in row)
        actual = [_plain({column: row.get(column) for column in names}) for row in found]
        for row in map(_plain, expected):
            if row in actual:
                actual.remove(row)
            else:
                yield f"{node.kind} {name} lacks {row}"
        yield from (f"{node.kind} {name} has {row}, which was not expected" for row in actual)


def _json(value: object) -> str:
    if isinstance(value, datetime | date):
        return value.isoformat()
    raise TypeError(f"{value!r} cannot be a JSON value")


def _time(value: object) -> datetime:
    """When a record arrives: at its event time."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    return datetime.now(UTC)


def _plain(value: Any) -> Any:
    """Values in a form that does not depend on how they are written."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, str):
        try:
            return _plain(datetime.fromisoformat(value))
        except ValueError:
            return value
    if isinstance(value, datetime):
        naive = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return naive.isoformat()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day).isoformat()  # noqa: DTZ001
    return round(value, 9) if isinstance(value, float) else value
