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
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from headrace.model.dead_letters import retry_topic
from headrace.model.ids import TopicPartition
from headrace.pipeline.graph import Node, Query, sources_of
from headrace.pipeline.planned import Functions, PlainFunctions, PlannedFunctions
from headrace.pipeline.runner import retries
from headrace.pipeline.runner.bad_records import BadRecords
from headrace.pipeline.runner.dead_letters import FEW_ROWS, DeadLetters
from headrace.pipeline.runner.expectations import (
    EXPECTATIONS_SCHEMA,
    Verdict,
    expectations_table,
    row_records,
    rule_counts,
)
from headrace.pipeline.runner.gathered import gathered
from headrace.pipeline.runner.history import RecordsGone, records_since, with_retries_before
from headrace.pipeline.runner.inputs import FunctionFailed, Inputs, Parts, naming
from headrace.pipeline.runner.isolation import RECORDS_MAX, Isolated, NotIsolated, isolate
from headrace.pipeline.runner.kept import Kept
from headrace.pipeline.runner.known_rows import KnownRows
from headrace.pipeline.runner.records import (
    ATTEMPT,
    BAD_FATES,
    FATE,
    SINKS,
    TOPIC_ID,
    SourceRows,
    as_letters,
    decoded,
    deduplicated,
    letters_of,
    source_rows,
    with_retries,
)
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.runner.windows import (
    Touched,
    check_starts,
    event_times,
    in_a_window,
    touched,
    with_deleted,
)
from headrace.pipeline.tables import (
    DELETED,
    FOLD_FILES,
    NO_VERSION,
    BatchName,
    JobTable,
    Rules,
    collected,
)
from headrace.pipeline.warehouse.bad_share import BadShare
from headrace.spark.failures import PipelineError
from headrace.spark.sink import write_frame, write_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger("headrace.pipeline")

# Records of a batch whose functions are planned once, and whose rows the driver writes.
_SMALL_BATCH = 300_000
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

# The bytes of a record batch beside key and value; max.message.bytes of a topic counts them.
_RECORD_OVERHEAD = 200
_RECORD_SIZE_MAX = 1 << 20  # Kafka's default
_REFUSED = "_refused"


class Done(NamedTuple):
    """What was written to a table or topic, and what it would have refused."""

    rows: int
    dead_letters: int = 0


# All records of the query up to the end of a batch, each event once: for its windows.
Processed = Callable[["SparkSession", BatchName, "Contents", Touched], "DataFrame"]


class Written(NamedTuple):
    """What a batch did."""

    rows: int  # read, without repeated events
    late: int  # of these: recomputed, or kept as dead letters
    dropped: int  # late, and only counted
    dead_letters: int
    expectations: Mapping[str, int]  # rows that broke a rule, by function and rule
    written: Mapping[str, int]  # rows by table or topic function
    seconds: float


class Contents(NamedTuple):
    """What the offsets of a batch say about its records."""

    topic_ids: Mapping[str, str] = {}
    has_retries: bool = False
    ends: Mapping[TopicPartition, int] = {}
    record_count: int | None = None  # at most; None: unknown

    @property
    def is_small(self) -> bool:
        # Retries are few, and only some of the sinks lack them.
        is_known = self.record_count is not None and not self.has_retries
        return is_known and (self.record_count or 0) <= _SMALL_BATCH


class _Count(NamedTuple):
    """Records of one topic with one fate, by the minute of their timestamps."""

    topic: str
    fate: str | None
    is_retry: bool
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
        processed: Processed | None = None,
    ) -> None:
        """``counted`` are the functions whose events and broken rules this query counts."""
        self._counted = counted
        self._processed = processed or self._records_since
        self._reads = _reads_table(settings)
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
        shared = {name for name, count in uses.items() if count > 1}
        self._parts = Parts(nodes, self.sources, self._tables, schemas, shared)
        self._known = KnownRows(
            {
                name: table_rules(nodes[name])
                for name in query.inputs
                if name in query.tables and not nodes[name].option("window")
            }
        )
        self._planned: PlannedFunctions | None = None
        self._expectations = expectations_table(settings)
        self._letters = DeadLetters(pipeline, settings)
        self._retries = retries.Retries(pipeline, query.name, settings)
        self._bad_shares = {
            name: BadShare(settings.bad_share_max)
            for name in (*query.sources, *query.steps, *query.sinks)
            if nodes[name].rules
        }
        self._bad_records = BadRecords(self.sources, settings.bad_share_max)

    def run(
        self,
        records: "DataFrame",
        batch: BatchName,
        pinned: Mapping[str, int] | None = None,
        contents: Contents | None = None,
    ) -> Written:
        """Write one batch of deduplicated records. ``pinned`` are versions of other tables."""
        began_at = time.monotonic()
        contents = contents or Contents()
        if contents.has_retries:
            named = with_retries(records, retry_topic(self._pipeline), self.sources)
            records = self._retries.not_landed(named, batch)
        functions = self._functions(records.sparkSession, contents)
        kept = Kept(self._decoded(records, contents.topic_ids, functions))
        try:
            written = self._run(_Batch(kept.rows, batch, pinned or {}, contents, functions))
            if contents.has_retries:
                self._retries.landed(kept.rows, batch)
        finally:
            kept.release()
            functions.release()
        return written._replace(seconds=time.monotonic() - began_at)

    def _functions(self, spark: "SparkSession", contents: Contents) -> Functions:
        if not contents.is_small:
            self._known.forget()
            return PlainFunctions()
        if self._planned is None:
            self._planned = PlannedFunctions(spark)
        return self._planned

    def _decoded(
        self, records: "DataFrame", topic_ids: Mapping[str, str], functions: Functions
    ) -> "DataFrame":
        return functions.call(
            "decoded",
            lambda records: decoded(_with_topic_ids(records, topic_ids), self.sources),
            {"records": records},
            version=tuple(sorted(topic_ids.items())),
            tasks=0,
        )

    def _run(self, batch: "_Batch") -> Written:
        rows = batch.rows
        known = self._known if batch.contents.is_small else None
        inputs = Inputs(
            self._parts, rows, batch.name, batch.pinned, functions=batch.functions, known=known
        )
        try:
            counts = _counts(rows, batch.functions)
            late, dropped = self._late(counts)
            bad = _bad_by_topic(counts)
            self._bad_records.check(rows, bad)
            try:
                verdicts = self._judge(inputs)
            except FunctionFailed as failed:
                return self._run_without_bad(batch, failed)
            told = [one for one in verdicts if one.node.name in self._counted]
            letters = self._letter_count(counts)
            if batch.contents.is_small:
                batch = batch._replace(few=self._few(inputs, letters, batch))
            letters += self._write_letters(inputs, letters, told, batch)
            topics = {one.topic for one in self.sources if one.name in self._counted}
            read = [one for one in counts if one.topic in topics]
            self._reads.append_few(_reads(self._pipeline, read), batch.name)
            if self._bad_shares:
                self._expectations.append_few(rule_counts(self._pipeline, told), batch.name)
            written = {}
            for name in self._query.sinks:
                done = self._write_sink(name, inputs, batch)
                written[name] = done.rows
                letters += done.dead_letters
        finally:
            inputs.release()
        self._known.batch_ended()
        self._bad_records.add(bad)
        for one in verdicts:
            self._bad_shares[one.node.name].add(one.quarantined, one.rows)
        total = sum(one.events for one in counts)
        failed_rules = {
            f"{one.node.name}.{rule}": count for one in told for rule, count in one.failed.items()
        }
        return Written(total, late, dropped, letters, failed_rules, written, 0.0)

    def _inputs(self, batch: "_Batch", rows: "DataFrame") -> Inputs:
        """For a part of the batch."""
        return Inputs(self._parts, rows, batch.name, batch.pinned)

    # --- records for which a function fails ------------------------------------------------

    def _run_without_bad(self, batch: "_Batch", failed: "FunctionFailed") -> Written:
        """Run the batch without the records for which a function with rules fails."""
        name = failed.node.name
        found = self._isolated(batch, batch.rows, failed, lambda inputs: inputs.verdict(name))
        try:
            self._write_failed(found, failed.node, self._query.sinks, batch.name)
            written = self._run(batch._replace(rows=found.good))
        finally:
            found.release()
        letters = written.dead_letters + found.count
        return written._replace(rows=written.rows + found.count, dead_letters=letters)

    def _write_sink(self, name: str, inputs: Inputs, batch: "_Batch") -> "Done":
        """Write a table or topic, without the records for which its functions fail."""
        node = self._nodes[name]
        rows = batch.rows
        ours = inputs
        if batch.contents.has_retries:
            rows = rows.where(F.col(SINKS).isNull() | F.array_contains(F.split(SINKS, ","), name))
            ours = self._inputs(batch, rows)
        try:
            return self._write_made(node, ours, rows, batch)
        except FunctionFailed as failed:
            found = self._isolated(batch, rows, failed, lambda inputs: _compute(inputs.of(name)))
        finally:
            if ours is not inputs:
                ours.release()
        without = self._inputs(batch, found.good)
        try:
            self._write_failed(found, node, [name], batch.name)
            done = self._write_made(node, without, found.good, batch)
            return done._replace(dead_letters=done.dead_letters + found.count)
        finally:
            without.release()
            found.release()

    def _write_made(self, node: Node, inputs: Inputs, rows: "DataFrame", batch: "_Batch") -> "Done":
        with naming(node):
            made = inputs.of(node.name)
            if node.declared.options.get("window"):
                return self._write_windows(node, made, rows, batch)
            if batch.contents.is_small:
                return self._write_few(node, made, batch)
            return self._write(node.name, made, batch.name)

    # --- small batches -----------------------------------------------------------------------

    def _few(self, inputs: Inputs, letters: int, batch: "_Batch") -> Mapping[str, pa.Table]:
        """What the batch writes: rows by table, records by topic, and its dead letters.

        Nothing if a function fails. Then each is computed alone, which tells the one that fails.
        """
        frames: dict[str, DataFrame] = {}
        try:
            if letters:
                frames |= self._letters.frames(self._bad(inputs, batch.functions), batch.functions)
            for name in self._query.sinks:
                if not self._nodes[name].declared.options.get("window"):
                    frames[name] = self._outgoing(self._nodes[name], inputs.of(name), batch)
            return gathered(frames, batch.functions)
        except PySparkException:
            return {}

    def _outgoing(self, node: Node, rows: "DataFrame", batch: "_Batch") -> "DataFrame":
        """Rows for a table; records for a topic, with the reason for which it would refuse them."""

        def records(rows: "DataFrame") -> "DataFrame":
            made = topic_records(rows, node.option("key"))
            return made.withColumn(_REFUSED, _refused(node, self._record_size_max(node)))

        if node.kind == "table":
            return rows
        named = f"{node.name}/records"
        return batch.functions.call(named, records, {"rows": rows}, version="sent")

    def _write_few(self, node: Node, rows: "DataFrame", batch: "_Batch") -> "Done":
        """Write rows that the driver has: starting a task would take longer."""
        found = batch.few.get(node.name)
        if found is None:
            found = collected(self._outgoing(node, rows, batch))
        if node.kind == "table":
            self._known.written(node.name, found)
            return Done(self._tables[node.name].append_few(found, batch.name).row_count)
        if found.column(_REFUSED).null_count < len(found):
            return self._send(node, rows, batch.name)
        if len(found):
            write_rows(found.drop_columns([_REFUSED]), self._sink_options(node, batch.name))
        return Done(len(found))

    # --- windows ---------------------------------------------------------------------------

    def _write_windows(
        self, node: Node, made: "DataFrame", rows: "DataFrame", batch: "_Batch"
    ) -> "Done":
        """Write the windows that these rows touch, as all events up to now make them."""
        sources = [one for one in self.sources if one.name in sources_of(node.name, self._nodes)]
        windows = touched(
            node, self._schemas[node.name], [event_times(rows, one) for one in sources]
        )
        if windows is None:
            return Done(0)
        check_starts(node, made, windows)
        try:
            records = self._processed(made.sparkSession, batch.name, batch.contents, windows)
        except RecordsGone as gone:
            return self._write_windows_in_time(node, rows, batch, str(gone))
        named = _with_topic_ids(records, batch.contents.topic_ids)
        history = decoded(self._without_failed(named, node.name), self.sources)
        inputs = Inputs(self._parts, history, batch.name, batch.pinned, inside=windows.inside)
        whole = Kept(windows.rows(inputs.of(node.name)))
        try:
            table = self._tables[node.name]
            before = table.rows(made.sparkSession, self._schemas[node.name], before=batch.name)
            changed = with_deleted(whole.rows, before, windows, node.option("key"))
            return self._write(node.name, changed, batch.name)
        finally:
            whole.release()
            inputs.release()

    def _write_windows_in_time(
        self, node: Node, rows: "DataFrame", batch: "_Batch", gone: str
    ) -> "Done":
        """The same without late records, whose windows are gone: these are dead letters."""
        is_late = (F.col(FATE) == "late") | (F.col(ATTEMPT) > 0)
        late = rows.where(is_late)
        count = late.count()
        if not count:
            raise PipelineError(
                f"{node.mistake(gone)}. Load the topic into a raw table before retention deletes "
                "its records (headrace pipeline load), or run the pipeline with --from latest"
            )
        reason = F.lit(f"table {node.name}: its window cannot be computed again: {gone}")
        letters = as_letters(late, F.lit("late"), reason, sinks=F.lit(node.name))
        self._letters.write(letters, batch.name, f"late/{node.name}")
        others = rows.where(~F.coalesce(is_late, F.lit(False)))
        inputs = self._inputs(batch, others)
        try:
            done = self._write_windows(node, inputs.of(node.name), others, batch)
            return done._replace(dead_letters=done.dead_letters + count)
        finally:
            inputs.release()

    def _records_since(
        self, spark: "SparkSession", batch: BatchName, contents: Contents, windows: Touched
    ) -> "DataFrame":
        ends = contents.ends
        found = records_since(spark, self._settings, self.sources, ends, windows.arrived_since_ms)
        retried = retry_topic(self._pipeline)
        found = with_retries_before(spark, self._settings, found, retried, self.sources, ends)
        return deduplicated(found, self.sources)

    def _without_failed(self, records: "DataFrame", sink: str) -> "DataFrame":
        """Without records that are dead letters because a function failed for them."""
        failed = self._letters.failed(records.sparkSession, sink)
        if failed is None:
            return records
        place = ("topic", "partition", "offset", "attempt")
        known = failed.select(*(F.col(name).alias(f"_failed_{name}") for name in place))
        same = [F.col(name) == F.col(f"_failed_{name}") for name in place[:3]]
        same.append(F.col(ATTEMPT) == F.col("_failed_attempt"))
        return records.join(F.broadcast(known), same, "left_anti")

    def _isolated(
        self,
        batch: "_Batch",
        rows: "DataFrame",
        failed: "FunctionFailed",
        compute: "Callable[[Inputs], object]",
    ) -> Isolated:
        """Raises what failed, unless it fails for a few records only."""

        def fails(some: "DataFrame") -> str | None:
            inputs = self._inputs(batch, some)
            try:
                with naming(failed.node):
                    compute(inputs)
            except FunctionFailed as again:
                return again.text
            finally:
                inputs.release()
            return None

        log.warning("%s. Looking for the records for which it fails", failed)
        try:
            found = isolate(rows, fails)
        except NotIsolated as many:
            more = f" (for more than {RECORDS_MAX} records)" if many.found else ""
            raise PipelineError(f"{failed}{more}") from failed
        if not found.count:
            found.release()
            raise PipelineError(str(failed)) from failed
        return found

    def _write_failed(
        self, found: Isolated, node: Node, sinks: Sequence[str], batch: BatchName
    ) -> None:
        reason = F.concat(F.lit(f"{node.kind} {node.name}: "), found.reason())
        lacking = F.coalesce(F.col(SINKS), F.lit(",".join(sinks)))
        letters = as_letters(found.bad, F.lit("step"), reason, sinks=lacking)
        self._letters.write(letters, batch, f"step/{node.name}")

    def fold(self, spark: "SparkSession") -> None:
        read = set(self._query.inputs) - set(self._known.names)
        limits = {
            self._tables[name]: _FOLD_FILES_READ if name in read else FOLD_FILES
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
        inputs = Inputs(self._parts, decoded(records, self.sources), batch, pinned, inside=inside)
        try:
            rows = inputs.of(name)
            if self._nodes[name].option("window"):
                rows = in_a_window(self._nodes[name], rows)
            yield rows
        finally:
            inputs.release()

    def _late(self, counts: Sequence[_Count]) -> tuple[int, int]:
        """Late records that count or are dead letters, and dropped ones."""
        dropping = {source.topic for source in self.sources if source.late == "drop"}
        late = [one for one in counts if one.fate == "late"]
        dropped = sum(one.events for one in late if one.topic in dropping)
        return sum(one.events for one in late) - dropped, dropped

    def _judge(self, inputs: Inputs) -> list[Verdict]:
        """Raises ExpectationFailed. Nothing of the batch is written before this."""
        verdicts = []
        for name, share in self._bad_shares.items():
            with naming(self._nodes[name]):
                verdict = inputs.verdict(name)
            verdict.check_share(share, self._settings.bad_share_max)
            verdicts.append(verdict)
        return verdicts

    @property
    def _counted_sources(self) -> list[SourceRows]:
        """Another query of the pipeline may read the same records."""
        return [source for source in self.sources if source.name in self._counted]

    def _letter_count(self, counts: Sequence[_Count]) -> int:
        """The records that are no rows."""
        topics = {source.topic for source in self._counted_sources}
        kept = {one.topic for one in self._counted_sources if one.late != "deadletter"}
        return sum(
            one.events
            for one in counts
            if one.topic in topics
            and one.fate is not None
            and not (one.fate == "late" and one.topic in kept)
        )

    def _bad(self, inputs: Inputs, functions: Functions) -> "DataFrame":
        ours = self._counted_sources
        given = {"records": inputs.records}
        return functions.call(
            "letters", lambda records: letters_of(records, ours), given, version="sources"
        )

    def _write_letters(
        self, inputs: Inputs, bad: int, verdicts: Sequence[Verdict], batch: "_Batch"
    ) -> int:
        """Write the ``bad`` records and the quarantined rows; returns how many are quarantined."""
        quarantined = [one for one in verdicts if one.quarantined]
        if FEW_ROWS in batch.few and not quarantined:
            self._letters.write_few(batch.few, batch.name)
            return 0
        frames = [self._bad(inputs, PlainFunctions())] if bad else []
        for one in quarantined:
            frames.append(inputs.judged[one.node.name].letters(inputs.records, batch.name))
        if frames:
            joined = reduce(lambda one, other: one.unionAll(other), frames)
            self._letters.write(joined, batch.name)
        return sum(one.quarantined for one in quarantined)

    def _write(self, name: str, rows: "DataFrame", batch: BatchName) -> "Done":
        if name in self._query.tables:
            return Done(self._tables[name].append(rows, batch).row_count)
        return self._send(self._nodes[name], rows, batch)

    def _send(self, node: Node, rows: "DataFrame", batch: BatchName) -> "Done":
        """Write to a topic in one transaction, whose marker names the query and the batch.

        Records that the topic would refuse are dead letters.
        """
        kept = Kept(topic_records(rows, node.option("key")))
        try:
            refused = _refused(node, self._record_size_max(node))
            count, bad = kept.rows.agg(F.count("*"), F.count(refused)).head() or (0, 0)
            if bad:
                records = row_records(
                    kept.rows.where(refused.isNotNull()).select(
                        F.col("key").alias("_key"),
                        F.col("value").alias("_json"),
                        refused.alias("_why"),
                    ),
                    node,
                    F.col("_json"),
                    batch,
                ).withColumn("key", F.col("_key").cast("binary"))
                letters = as_letters(records, F.lit("sink"), F.col("_why"))
                self._letters.write(letters, batch, f"sink/{node.name}")
            if count > bad:
                good = kept.rows.where(refused.isNull())
                write_frame(good, self._sink_options(node, batch))
            return Done(count - bad, bad)
        finally:
            kept.release()

    def _record_size_max(self, node: Node) -> int:
        return self._settings.record_sizes.get(node.declared.topic, _RECORD_SIZE_MAX)

    def _sink_options(self, node: Node, batch: BatchName) -> dict[str, str]:
        source = self._settings.source
        name = source.get("kafka.client.id", "headrace")
        return {
            **source,
            "kafka.client.id": f"{name}-{self._pipeline}-{self._query.name}",
            "kafka.max.request.size": str(self._record_size_max(node)),
            "topic": node.declared.topic,
            "delivery": "exactly-once",
            "delivery.id": f"{batch.query}/{node.name}",
            "delivery.batch": str(batch.number),
        }


class _Batch(NamedTuple):
    """The decoded records of a batch."""

    rows: "DataFrame"
    name: BatchName
    pinned: Mapping[str, int]  # versions of other tables
    contents: Contents
    functions: Functions
    few: Mapping[str, pa.Table] = {}  # what a small batch writes


def _compute(rows: "DataFrame") -> None:
    rows.write.format("noop").mode("overwrite").save()


def _with_topic_ids(records: "DataFrame", ids: Mapping[str, str]) -> "DataFrame":
    found = F.lit(None).cast("string")
    for topic, topic_id in ids.items():
        found = F.when(F.col("topic") == topic, topic_id).otherwise(found)
    return records.withColumn(TOPIC_ID, F.coalesce(TOPIC_ID, found))


def _refused(node: Node, size_max: int) -> "Column":
    """Why the topic would refuse a record; null if it would not."""
    size = F.coalesce(F.length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0))
    refused = F.when(
        size > size_max - _RECORD_OVERHEAD,
        F.concat(
            F.lit("the record has "),
            size.cast("string"),
            F.lit(f" bytes, more than max.message.bytes of topic {node.declared.topic} allows"),
        ),
    )
    if node.option("compacted"):
        reason = f"the record has no key, which the compacted topic {node.declared.topic} needs"
        refused = refused.when(F.col("key").isNull(), reason)
    return refused


def table_rules(node: Node) -> Rules:
    return Rules(tuple(node.option("key")), node.option("merge"))


def job_table(node: Node, settings: RunSettings) -> JobTable:
    return JobTable(settings.table(node.name), table_rules(node), settings.claim)


def topic_records(rows: "DataFrame", key: str) -> "DataFrame":
    """Rows as records of a topic: the key as text, the value as JSON, null for deleted keys."""
    value = F.to_json(F.struct(*(F.col(f"`{n}`") for n in rows.columns if n != DELETED)))
    if DELETED in rows.columns:
        value = F.when(~F.coalesce(F.col(DELETED), F.lit(False)), value)
    return rows.select(F.col(f"`{key}`").cast("string").alias("key"), value.alias("value"))


def _counts(rows: "DataFrame", functions: Functions) -> list[_Count]:
    """This reads the records once, and keeps them for all functions."""

    def counts(records: "DataFrame") -> "DataFrame":
        minute = F.date_trunc("minute", "timestamp").alias("minute")
        is_retry = (F.col(ATTEMPT) > 0).alias("is_retry")
        grouped = records.groupBy("topic", FATE, is_retry, minute)
        return grouped.agg(F.count("*").alias("events"))

    found = functions.call("counts", counts, {"records": rows}, version="counts", tasks=0)
    return [_Count(*row.values()) for row in found.toArrow().to_pylist()]


def _bad_by_topic(counts: Sequence[_Count]) -> dict[str, tuple[int, int]]:
    """The records of each topic that are no rows, of all its records; without retries."""
    found: dict[str, tuple[int, int]] = {}
    for one in counts:
        if not one.is_retry:
            bad, total = found.get(one.topic, (0, 0))
            bad += one.events if one.fate in BAD_FATES else 0
            found[one.topic] = (bad, total + one.events)
    return found


def _reads_table(settings: RunSettings) -> JobTable:
    return JobTable(settings.table(READS), Rules(READS_KEY, {"events": "sum"}))


def forget_counts(pipeline: str, spark: "SparkSession", settings: RunSettings) -> None:
    """A pipeline that starts over reads everything again."""
    for table, schema in (
        (_reads_table(settings), READS_SCHEMA),
        (expectations_table(settings), EXPECTATIONS_SCHEMA),
        (retries.retries_table(settings), retries.SCHEMA),
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
