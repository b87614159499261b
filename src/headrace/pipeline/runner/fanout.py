"""One batch of a query: its records through the functions of the file, into tables and topics.

The order is fixed: dead letters, tables, topics. Each is written at most once under the ID of the
query and the number of the batch. So a batch that was killed anywhere runs again, computes the
same, and writes only what is missing.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from headrace.pipeline.calling import call
from headrace.pipeline.graph import Node, Query
from headrace.pipeline.runner.dead_letters import dead_letters
from headrace.pipeline.runner.expectations import (
    EXPECTATIONS_SCHEMA,
    Judged,
    Verdict,
    expectations_table,
    rule_counts,
)
from headrace.pipeline.runner.kept import Kept
from headrace.pipeline.runner.records import FATE, decoded, letters_of, rows_of, source_rows
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.tables import DELETED, FOLD_FILES, NO_VERSION, BatchName, JobTable, Rules
from headrace.pipeline.warehouse.bad_share import BadShare
from headrace.spark.failures import PipelineError
from headrace.spark.sink import write_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger("headrace.pipeline")

_SMALL_BATCH = 20_000  # records
# A table that its own query reads, in every batch, is folded at fewer files than others.
_FOLD_FILES_READ = 16
# What each pipeline has read: distinct events by topic and minute of the record's timestamp.
READS = "reads"
READS_KEY = ("pipeline", "topic", "minute")
READS_SCHEMA = pa.schema(
    [
        ("pipeline", pa.string()),
        ("topic", pa.string()),
        ("minute", pa.timestamp("us", "UTC")),
        ("events", pa.int64()),
    ]
)

Send = Callable[[Node, "DataFrame", BatchName], int]


class Written(NamedTuple):
    """What a batch did."""

    rows: int  # read, without repeated events
    late: int  # of these: recomputed, or kept as dead letters
    dropped: int  # late, and only counted
    dead_letters: int
    expectations: Mapping[str, int]  # rows that broke a rule, by function and rule
    written: Mapping[str, int]  # rows by table or topic function
    seconds: float


class _Count(NamedTuple):
    """Records of one topic with one fate, by the minute of their timestamps."""

    topic: str
    fate: str | None
    minute: datetime
    events: int


class Fanout:
    """The functions of one query. Used by one thread at a time."""

    def __init__(
        self,
        pipeline: str,
        nodes: Mapping[str, Node],
        query: Query,
        schemas: Mapping[str, StructType],
        settings: RunSettings,
        *,
        counted: Container[str] = (),
        send: Send | None = None,
    ) -> None:
        """``counted`` are the functions whose events and broken rules this query counts."""
        self._counted = counted
        self._reads = _reads_table(settings)
        self._send = send or self._send_rows
        self._pipeline = pipeline
        self._nodes = nodes
        self._query = query
        self._schemas = schemas
        self._settings = settings
        self.sources = [source_rows(nodes[name]) for name in query.sources]
        self._tables = {
            name: job_table(nodes[name], settings)
            for name in dict.fromkeys((*query.tables, *query.inputs))
        }
        uses = Counter(
            name
            for user in (*query.steps, *query.sinks)
            for name in nodes[user].parameters
            if nodes[name].kind == "step"
        )
        self._shared = {name for name, count in uses.items() if count > 1}
        self._expectations = expectations_table(settings)
        self._bad_shares = {
            name: BadShare(settings.bad_share_max)
            for name in (*query.sources, *query.steps, *query.sinks)
            if nodes[name].rules
        }

    def run(
        self, records: "DataFrame", batch: BatchName, pinned: Mapping[str, int] | None = None
    ) -> Written:
        """Write one batch of deduplicated records. ``pinned`` are versions of other tables."""
        began_at = time.monotonic()
        kept = Kept(decoded(records, self.sources))
        inputs = _Inputs(self, kept.rows, batch, pinned or {})
        try:
            counts = _counts(kept.rows)
            late, dropped = self._late(counts)
            verdicts = self._judge(inputs)
            told = [one for one in verdicts if one.node.name in self._counted]
            letters = self._write_letters(inputs, counts, told, batch)
            topics = {one.topic for one in self.sources if one.name in self._counted}
            read = [one for one in counts if one.topic in topics]
            self._reads.append_few(_reads(self._pipeline, read), batch)
            if self._bad_shares:
                self._expectations.append_few(rule_counts(self._pipeline, told), batch)
            written = {}
            is_small = sum(one.events for one in counts) < _SMALL_BATCH
            for name in self._query.sinks:
                with _naming(self._nodes[name]):
                    rows = inputs.of(name)
                    # Starting a second task, and reading its file later, costs more than it saves.
                    made = rows.coalesce(1) if is_small else rows
                    written[name] = self._write(name, made, batch)
        finally:
            inputs.release()
            kept.release()
        for one in verdicts:
            self._bad_shares[one.node.name].add(one.quarantined, one.rows)
        total = sum(one.events for one in counts)
        failed = {
            f"{one.node.name}.{rule}": count for one in told for rule, count in one.failed.items()
        }
        seconds = time.monotonic() - began_at
        return Written(total, late, dropped, letters, failed, written, seconds)

    def fold(self, spark: "SparkSession") -> None:
        limits = {
            self._tables[name]: _FOLD_FILES_READ if name in self._query.inputs else FOLD_FILES
            for name in self._query.tables
        }
        limits |= dict.fromkeys((self._reads, self._expectations), FOLD_FILES)
        for table, files_min in limits.items():
            if table.fold(spark, files_min=files_min):
                log.info("Folded the rows of %s", table.name)

    def versions(self, names: Sequence[str]) -> dict[str, int]:
        """The newest versions of these tables; NO_VERSION for one without rows."""
        found = {name: self._tables[name].version() for name in names}
        return {name: NO_VERSION if one is None else one for name, one in found.items()}

    @contextmanager
    def computed(
        self,
        records: "DataFrame",
        batch: BatchName,
        name: str,
        inside: "Callable[[Column], Column] | None",
    ) -> "Iterator[DataFrame]":
        """The rows of one table for all records, not written; ``inside`` selects event times.

        The tables of this query have no rows before its one batch. Raises ExpectationFailed.
        """
        pinned = dict.fromkeys(self._query.tables, NO_VERSION)
        inputs = _Inputs(self, decoded(records, self.sources), batch, pinned, inside)
        try:
            yield inputs.of(name)
        finally:
            inputs.release()

    def _late(self, counts: Sequence[_Count]) -> tuple[int, int]:
        """Late records that count or are dead letters, and dropped ones."""
        dropping = {source.topic for source in self.sources if source.late == "drop"}
        late = [one for one in counts if one.fate == "late"]
        dropped = sum(one.events for one in late if one.topic in dropping)
        return sum(one.events for one in late) - dropped, dropped

    def _judge(self, inputs: "_Inputs") -> list[Verdict]:
        """Raises ExpectationFailed. Nothing of the batch is written before this."""
        verdicts = []
        for name, share in self._bad_shares.items():
            with _naming(self._nodes[name]):
                verdict = inputs.verdict(name)
            verdict.check_share(share, self._settings.bad_share_max)
            verdicts.append(verdict)
        return verdicts

    def _write_letters(
        self,
        inputs: "_Inputs",
        counts: Sequence[_Count],
        verdicts: Sequence[Verdict],
        batch: BatchName,
    ) -> int:
        kept = {source.topic for source in self.sources if source.late != "deadletter"}
        count = sum(
            one.events
            for one in counts
            if one.fate is not None and not (one.fate == "late" and one.topic in kept)
        )
        frames = [letters_of(inputs.records, self.sources)] if count else []
        for verdict in verdicts:
            if verdict.quarantined:
                judged = inputs.judged[verdict.node.name]
                frames.append(judged.letters(inputs.records, batch))
                count += verdict.quarantined
        if frames:
            letters = reduce(lambda one, other: one.unionAll(other), frames)
            dead_letters(letters, self._settings.warehouse, self._pipeline, batch)
        return count

    def _write(self, name: str, rows: "DataFrame", batch: BatchName) -> int:
        if name in self._query.tables:
            return self._tables[name].append(rows, batch).row_count
        return self._send(self._nodes[name], rows, batch)

    def _send_rows(self, node: Node, rows: "DataFrame", batch: BatchName) -> int:
        """Write to a topic in one transaction, whose marker names the query and the batch."""
        source = self._settings.source
        name = source.get("kafka.client.id", "headrace")
        return write_frame(
            topic_records(rows, node.option("key")),
            {
                **source,
                "kafka.client.id": f"{name}-{self._pipeline}-{self._query.name}",
                "topic": node.declared.topic,
                "delivery": "exactly-once",
                "delivery.id": f"{batch.query}/{node.name}",
                "delivery.batch": str(batch.number),
            },
        )


class _Inputs:
    """The inputs of functions in one batch, each computed when it is first needed."""

    def __init__(
        self,
        fanout: Fanout,
        records: "DataFrame",
        batch: BatchName,
        pinned: Mapping[str, int],
        inside: "Callable[[Column], Column] | None" = None,
    ) -> None:
        self._fanout = fanout
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
            node = self._fanout._nodes[name]
            made = call(node, {one: self._input(one) for one in node.parameters})
            self._results[name] = self._passed(node, made)
        return self._results[name]

    def verdict(self, name: str) -> Verdict:
        """How the result of a function with rules was judged."""
        if self._fanout._nodes[name].is_sink:
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
            self._known[name] = self._found(self._fanout._nodes[name])
        return self._known[name]

    def _found(self, node: Node) -> "DataFrame":
        if node.kind == "source":
            (source,) = (one for one in self._fanout.sources if one.name == node.name)
            rows = rows_of(self.records, source)
            if self._inside is not None and source.event_time:
                rows = rows.where(self._inside(F.col(source.event_time)))
            return self._passed(node, call(node, {node.parameters[0]: rows}))
        if node.kind == "table":
            return self._fanout._tables[node.name].rows(
                self.records.sparkSession,
                self._fanout._schemas[node.name],
                before=self._batch,
                version=self._pinned.get(node.name),
            )
        made = self.of(node.name)
        if node.name in self._fanout._shared and not node.rules:
            kept = Kept(made)
            self._kept.append(kept)
            return kept.rows
        return made


@contextmanager
def _naming(node: Node) -> Iterator[None]:
    """Name the table or topic whose rows Spark could not compute."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as failed:
        text = str(failed).strip().split("\n")[0]
        raise PipelineError(str(node.mistake(text))) from failed


def job_table(node: Node, settings: RunSettings) -> JobTable:
    return JobTable(
        settings.table(node.name), Rules(tuple(node.option("key")), node.option("merge"))
    )


def topic_records(rows: "DataFrame", key: str) -> "DataFrame":
    """Rows as records of a topic: the key as text, the value as JSON, null for deleted keys."""
    value = F.to_json(F.struct(*(F.col(f"`{n}`") for n in rows.columns if n != DELETED)))
    if DELETED in rows.columns:
        value = F.when(~F.coalesce(F.col(DELETED), F.lit(False)), value)
    return rows.select(F.col(f"`{key}`").cast("string").alias("key"), value.alias("value"))


def _counts(rows: "DataFrame") -> list[_Count]:
    """This reads the records once, and keeps them for all functions."""
    minute = F.date_trunc("minute", "timestamp").alias("minute")
    found = rows.groupBy("topic", FATE, minute).agg(F.count("*").alias("events"))
    return [_Count(*row.values()) for row in found.toArrow().to_pylist()]


def _reads_table(settings: RunSettings) -> JobTable:
    return JobTable(settings.table(READS), Rules(READS_KEY, {"events": "sum"}))


def forget_counts(pipeline: str, spark: "SparkSession", settings: RunSettings) -> None:
    """A pipeline that starts over reads everything again."""
    for table, schema in (
        (_reads_table(settings), READS_SCHEMA),
        (expectations_table(settings), EXPECTATIONS_SCHEMA),
    ):
        if table.version() is not None:
            none = spark.createDataFrame([], from_arrow_schema(schema))
            table.replace(none, F.col("pipeline") != pipeline, BatchName("reset", 0))


def _reads(pipeline: str, counts: Sequence[_Count]) -> pa.Table:
    events: Counter[tuple[str, datetime]] = Counter()
    for one in counts:
        events[one.topic, one.minute] += one.events
    rows = [(pipeline, topic, minute, count) for (topic, minute), count in sorted(events.items())]
    columns = zip(*rows, strict=True) if rows else [()] * len(READS_SCHEMA)
    return pa.table([list(column) for column in columns], schema=READS_SCHEMA)
