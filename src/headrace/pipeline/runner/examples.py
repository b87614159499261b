"""Runs the examples of a pipeline file: given rows through all functions, against expected rows.

Given rows are sent to the topics of a broker as JSON, batch by batch. They are read from there, and
pass through the same decoding, deduplication, tables and topics as those of a stream. They are read
by Spark's batch source: starting a streaming query for every batch would take longer than all else.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.arrow.encoding import EncodedBatch
from headrace.model.dead_letters import DEAD_LETTER_CONFIGS, DEAD_LETTER_TOPIC
from headrace.model.ids import TopicPartition
from headrace.pipeline.analysis import analyze
from headrace.pipeline.errors import BadPipeline
from headrace.pipeline.graph import Node, queries
from headrace.pipeline.loading import PipelineFile, mistake_of
from headrace.pipeline.runner.fanout import Contents, Fanout, job_table
from headrace.pipeline.runner.history import Ends, records_of_topics
from headrace.pipeline.runner.records import arrived, deduplicated, source_rows
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.runner.streams import prepared
from headrace.pipeline.tables import DELETED, BatchName
from headrace.records.record import Record, build_batch
from headrace.spark.cluster import LATEST, Cluster
from headrace.spark.options import parse_source
from headrace.spark.producing import BatchSender, new_identity

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

Rows = Mapping[str, Sequence[Mapping[str, Any]]]  # by function
# Starts an empty broker, and gives its address for as long as the context lasts.
StartBroker = Callable[[], AbstractContextManager[str]]


class Outcome(NamedTuple):
    example: str
    problems: tuple[str, ...]
    seconds: float


def run_examples(
    file: PipelineFile, spark: "SparkSession", start_broker: StartBroker
) -> Iterator[Outcome]:
    """One outcome per example. Raises BadPipeline for mistakes of the file."""
    session = prepared(spark)
    schemas = analyze(file.nodes, session)
    for example in file.examples:
        began_at = time.monotonic()
        with (
            tempfile.TemporaryDirectory(prefix="headrace-example-") as scratch,
            start_broker() as address,
        ):
            settings = RunSettings(Path(scratch), {"kafka.bootstrap.servers": address})
            problems = _Trial(file, schemas, session, settings).run(example)
        yield Outcome(example.name, tuple(problems), time.monotonic() - began_at)


class _Trial:
    """One example, in a warehouse and on a broker of its own."""

    def __init__(
        self,
        file: PipelineFile,
        schemas: Mapping[str, StructType],
        spark: "SparkSession",
        settings: RunSettings,
    ) -> None:
        self._nodes = {node.name: node for node in file.nodes}
        self._schemas = schemas
        self._spark = spark
        self._settings = settings
        self._queries = queries(file.nodes)
        self._fanouts = [
            Fanout(file.name, self._nodes, query, schemas, settings) for query in self._queries
        ]

    def run(self, example: Node) -> list[str]:
        given, expected = self._parts(example)
        batches = [given] if isinstance(given, Mapping) else list(given) or [{}]
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
        ends = self._send(batches)
        for query, fanout in zip(self._queries, self._fanouts, strict=True):
            topics = {source.topic for source in fanout.sources}
            ours = [{one: end for one, end in some.items() if one.topic in topics} for some in ends]
            first = dict.fromkeys(ours[-1], 0)
            records = arrived(records_of_topics(self._spark, self._settings, first, ours[-1]))
            rows = deduplicated(records, fanout.sources).persist()
            for number, end in enumerate(ours):
                before = ours[number - 1] if number else first
                batch = rows.where(_is_between(before, end))
                name = BatchName(f"example-{query.name}", number)
                contents = Contents(ends=end, record_count=sum(end.values()))
                fanout.run(batch, name, contents=contents)
            rows.unpersist()
        return [problem for name in expected for problem in self._compare(name, expected[name])]

    def _parts(self, example: Node) -> tuple[Any, Rows]:
        try:
            given, expected = example.function()
        except Exception as failed:
            raise BadPipeline([mistake_of(failed, example.place)]) from failed
        return given, expected

    def _send(self, batches: Sequence[Rows]) -> list[dict[TopicPartition, int]]:
        """Send given rows to their topics, each of one partition. Returns the ends of batches."""
        sources = [node for node in self._nodes.values() if node.kind == "source"]
        ends = [{TopicPartition(node.declared.topic, 0): 0 for node in sources}]
        cluster = self._cluster()
        try:
            cluster.create_topic(DEAD_LETTER_TOPIC, 1, DEAD_LETTER_CONFIGS)
            for node in (*(one for one in self._nodes.values() if one.kind == "topic"), *sources):
                is_compacted = node.kind == "topic" and node.option("compacted")
                policy = {"cleanup.policy": "compact"} if is_compacted else {}
                cluster.create_topic(node.declared.topic, 1, policy)
            with BatchSender(cluster, new_identity(cluster)) as sender:
                for batch in batches:
                    sent = [self._batch(name, rows) for name, rows in batch.items() if rows]
                    sender.send(sent)
                    end = dict(ends[-1])
                    for one in sent:
                        end[one.place] += one.record_count
                    ends.append(end)
                sender.flush()
        finally:
            cluster.close()
        return ends[1:]

    def _batch(self, name: str, rows: Sequence[Mapping[str, Any]]) -> EncodedBatch:
        source = source_rows(self._nodes[name])
        records = []
        for number, row in enumerate(rows):
            text = json.dumps(row, default=_json)
            at_ms = round(_time(row.get(source.event_time)).timestamp() * 1000)
            records.append(Record(number, at_ms, None, text.encode(), ()))
        return EncodedBatch(TopicPartition(source.topic, 0), len(records), build_batch(records))

    def _cluster(self) -> Cluster:
        options = {**self._settings.source, "subscribe": "unused"}
        return Cluster(parse_source(options, streaming=False).client)

    def _in_topic(self, node: Node) -> list[dict[str, Any]]:
        """The rows that were sent to a topic, in their order."""
        place = TopicPartition(node.declared.topic, 0)
        cluster = self._cluster()
        try:
            ends = cluster.list_offsets({place: LATEST}, read_committed=True)
        finally:
            cluster.close()
        schema, key = self._schemas[node.name], node.option("key")
        records = records_of_topics(self._spark, self._settings, {place: 0}, ends)
        rows = records.orderBy("offset").select(
            F.col("key").cast("string").cast(schema[key].dataType).alias("key"),
            F.from_json(F.col("value").cast("string"), schema).alias("row"),
        )
        kept = {DELETED: False} if DELETED in schema.fieldNames() else {}
        return [
            {key: one["key"], DELETED: True} if one["row"] is None else one["row"] | kept
            for one in rows.toArrow().to_pylist()
        ]

    def _compare(self, name: str, expected: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        node = self._nodes[name]
        if node.kind == "topic":
            found = self._in_topic(node)
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


def _is_between(first: Ends, ends: Ends) -> "Column":
    """Whether a record is at one of these offsets or after it, and before the end of its place."""
    inside = F.lit(False)
    for place, end in ends.items():
        here = (F.col("topic") == place.topic) & (F.col("partition") == place.partition)
        inside |= here & (F.col("offset") >= first[place]) & (F.col("offset") < end)
    return inside


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
