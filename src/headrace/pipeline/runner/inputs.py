"""The inputs of a query's functions in one batch, each computed when it is first needed."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.pipeline.calling import call
from headrace.pipeline.errors import broken_file, python_error
from headrace.pipeline.graph import Node
from headrace.pipeline.planned import Functions, PlainFunctions
from headrace.pipeline.runner.expectations import Judged, Verdict
from headrace.pipeline.runner.kept import Kept
from headrace.pipeline.runner.known_rows import KnownRows
from headrace.pipeline.runner.records import SourceRows, rows_of
from headrace.pipeline.tables import BatchName, JobTable
from headrace.spark.failures import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Parts(NamedTuple):
    """What a query is made of."""

    nodes: Mapping[str, Node]
    sources: Sequence[SourceRows]
    tables: Mapping[str, JobTable]
    schemas: Mapping[str, StructType]
    shared: Collection[str]  # steps that several functions use


class Inputs:
    """The inputs of functions, until ``release``."""

    def __init__(
        self,
        parts: Parts,
        records: "DataFrame",
        batch: BatchName,
        pinned: Mapping[str, int],
        *,
        inside: "Callable[[Column], Column] | None" = None,
        functions: Functions | None = None,
        known: KnownRows | None = None,
    ) -> None:
        """``inside`` selects event times; ``known`` are rows that need not be read."""
        self._parts = parts
        self._functions = functions or PlainFunctions()
        self._known_rows = known
        self.records = records
        self._batch = batch
        self._pinned = pinned
        self._inside = inside
        self._known: dict[str, DataFrame] = {}
        self._results: dict[str, DataFrame] = {}
        self.judged: dict[str, Judged] = {}  # results of functions with rules
        self._verdicts: dict[str, Verdict] = {}
        self._kept: list[Kept] = []

    def of(self, name: str) -> "DataFrame":
        """The result of a step or sink, without rows that are quarantined."""
        if name not in self._results:
            node = self._parts.nodes[name]
            given = {one: self._input(one) for one in node.parameters}
            made = call(node, given, self._functions)
            self._results[name] = self._passed(node, made)
        return self._results[name]

    def verdict(self, name: str) -> Verdict:
        """How the result of a function with rules was judged."""
        if self._parts.nodes[name].is_sink:
            self.of(name)
        else:
            self._input(name)
        return self._verdicts[name]

    def release(self) -> None:
        for kept in self._kept:
            kept.release()
        for judged in self.judged.values():
            judged.release()

    def _passed(self, node: Node, made: "DataFrame") -> "DataFrame":
        if not node.rules:
            return made
        self.judged[node.name] = judged = Judged(node, made)
        self._verdicts[node.name] = verdict = judged.verdict()
        verdict.check()
        return judged.rows

    def _input(self, name: str) -> "DataFrame":
        if name not in self._known:
            self._known[name] = self._found(self._parts.nodes[name])
        return self._known[name]

    def _found(self, node: Node) -> "DataFrame":
        if node.kind == "source":
            return self._passed(node, self._source(node))
        if node.kind == "table":
            return self._table(node.name)
        made = self.of(node.name)
        if node.name in self._parts.shared and not node.rules:
            kept = Kept(made)
            self._kept.append(kept)
            return kept.rows
        return made

    def _source(self, node: Node) -> "DataFrame":
        (source,) = (one for one in self._parts.sources if one.name == node.name)

        def rows(records: "DataFrame") -> "DataFrame":
            found = rows_of(records, source)
            if self._inside is not None and source.event_time:
                found = found.where(self._inside(F.col(source.event_time)))
            return found

        given = {"records": self.records}
        found = self._functions.call(f"{node.name}/rows", rows, given, version="decoded")
        return call(node, {node.parameters[0]: found}, self._functions)

    def _table(self, name: str) -> "DataFrame":
        def read() -> "DataFrame":
            return self._parts.tables[name].rows(
                self.records.sparkSession,
                self._parts.schemas[name],
                before=self._batch,
                version=self._pinned.get(name),
            )

        if self._known_rows is None:
            return read()
        file_bytes = self._parts.tables[name].file_bytes
        return self._known_rows.frame(name, self.records.sparkSession, read, file_bytes)


class FunctionFailed(PipelineError):
    """Spark could not compute the rows of a function."""

    def __init__(self, node: Node, text: str) -> None:
        super().__init__(str(node.mistake(text)))
        self.node = node
        self.text = text


@contextmanager
def naming(node: Node) -> Iterator[None]:
    """Name the function whose rows Spark could not compute."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as failed:
        broken = broken_file(str(failed))
        if broken is not None:
            raise broken from failed
        raise FunctionFailed(node, python_error(str(failed))) from failed
