"""Computes tables again from what their queries have read, as one batch, and replaces the rows.

Only the records that a query has processed are read, and the query cannot run meanwhile: so it goes
on afterwards where it was, and every record counts once.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

from headrace.model.dead_letters import retry_topic
from headrace.model.ids import TopicPartition
from headrace.pipeline.analysis import time_column
from headrace.pipeline.errors import RunRefused
from headrace.pipeline.graph import Query, inputs_of
from headrace.pipeline.loading import load
from headrace.pipeline.runner.claim import claim
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.runner.fanout import Fanout, job_table
from headrace.pipeline.runner.history import records_before, with_retries_before
from headrace.pipeline.runner.planning import Plan, done_offsets, make_plan
from headrace.pipeline.runner.records import deduplicated
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.runner.streams import prepared
from headrace.pipeline.tables import BatchName
from headrace.pipeline.warehouse.storage import location_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class Span(NamedTuple):
    """Event times from ``since`` to before ``until``; None has no limit."""

    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_everything(self) -> bool:
        return self.since is None and self.until is None

    def holds(self, time: "Column") -> "Column":
        inside = F.lit(True)
        if self.since is not None:
            inside &= time >= F.lit(self.since)
        if self.until is not None:
            inside &= time < F.lit(self.until)
        return inside


class Recomputed(NamedTuple):
    table: str
    rows: int | None  # None: not computed
    reason: str = ""


def backfill(
    file: str, spark: "SparkSession", settings: RunSettings, span: Span
) -> Iterator[Recomputed]:
    """Replace the rows of all tables, or those of a span of event time."""
    session = prepared(spark)
    loaded = load(file)
    directory = PipelineDirectory(settings.state(loaded.name))
    with directory.locked():
        plan = make_plan(loaded, session, settings)
        plan.check(settings)
        if settings.state_directory is not None:
            warehouse = location_of(settings.warehouse)
            ours = claim(warehouse, directory, plan.declaration, takes_over=False)
            settings = settings._replace(claim=ours)
        for query in plan.queries:
            last = directory.last_batch(query.name)
            if last < 0:
                raise RunRefused(f"query {query.name} of {loaded.name} has not run yet; run it")
            ends = done_offsets(directory, query)
            yield from _backfill(plan, query, session, settings, span, last, ends)


def _backfill(
    plan: Plan,
    query: Query,
    spark: "SparkSession",
    settings: RunSettings,
    span: Span,
    last: int,
    ends: dict[TopicPartition, int],
) -> Iterator[Recomputed]:
    fanout = Fanout(plan.file.name, plan.nodes, query, plan.schemas, settings)
    sources = fanout.sources
    history = records_before(spark, settings, sources, ends)
    retries = retry_topic(plan.file.name)
    history = with_retries_before(spark, settings, history, retries, sources, ends)
    records = deduplicated(history, sources).persist()
    name = BatchName(plan.directory.ensure_query_id(query.name), last)
    try:
        for table in query.tables:
            yield _recompute(plan, fanout, table, records, settings, span, name)
    finally:
        records.unpersist()


def _recompute(
    plan: Plan,
    fanout: Fanout,
    table: str,
    records: "DataFrame",
    settings: RunSettings,
    span: Span,
    batch: BatchName,
) -> Recomputed:
    node = plan.nodes[table]
    target = job_table(node, settings)
    if span.is_everything:
        with fanout.computed(records, batch, table, None) as rows:
            return Recomputed(table, target.replace(rows, None, batch))
    column = time_column(plan.schemas[table], node.option("key"))
    if column is None:
        return Recomputed(table, None, "its key has no time; leave out --since and --until")
    if any(plan.nodes[one].kind == "table" for one in inputs_of(table, plan.nodes)):
        return Recomputed(table, None, "it reads a table; leave out --since and --until")
    with fanout.computed(records, batch, table, span.holds) as computed:
        rows = computed.persist()
        try:
            time = F.col(column).cast("timestamp")
            if not rows.where(~span.holds(time)).isEmpty():
                raise RunRefused(
                    f"--since or --until cuts a window of {table} ({column}) in two; use the "
                    "start of a window"
                )
            return Recomputed(table, target.replace(rows, ~span.holds(time), batch))
        finally:
            rows.unpersist()
