"""What a pipeline holds, without running it: queries, lag, tables; and the state of its streams."""

import json
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F

from headrace.pipeline.errors import RunRefused
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.runner.expectations import EXPECTATIONS
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.runner.streams import group_of
from headrace.pipeline.warehouse.storage import Location, for_spark
from headrace.pipeline.warehouse.table import open_table
from headrace.spark.cluster import LATEST, Cluster
from headrace.spark.options import parse_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_STATE_EXAMPLES = 3


class QueryStatus(NamedTuple):
    query: str
    group: str
    last_batch: int | None
    lag: int | None  # None: nothing was committed


class TableStatus(NamedTuple):
    table: str
    query: str
    rows: int  # before they merge
    files: int
    bytes: int
    last_commit_ms: int | None


class RuleStatus(NamedTuple):
    """The rows of a function that a rule was applied to, in all batches and in the newest."""

    function: str
    rule: str
    rows: int
    failed: int
    last_batch: int
    last_rows: int
    last_failed: int


class PipelineStatus(NamedTuple):
    pipeline: str
    is_running: bool
    queries: tuple[QueryStatus, ...]
    tables: tuple[TableStatus, ...]
    expectations: tuple[RuleStatus, ...]


class StateStatus(NamedTuple):
    """One stateful operator of a query."""

    query: str
    operator: str
    keys: int
    bytes: int  # of its files
    batch: int
    examples: tuple[Mapping[str, Any], ...]  # the first keys, in their order, with their values


def pipeline_name(file: str) -> str:
    return Path(file).stem


def read_status(file: str, settings: RunSettings) -> PipelineStatus:
    """From the warehouse and the cluster; the file is not loaded."""
    name = pipeline_name(file)
    directory, recorded = _recorded(name, settings)
    options = parse_source({**settings.source, "subscribe": "unused"}, streaming=False)
    cluster = Cluster(options.client)
    try:
        queries = tuple(
            _query(cluster, name, query, directory) for query in sorted(recorded["queries"])
        )
    finally:
        cluster.close()
    tables = tuple(
        _table(table, entry["query"], settings.table(table))
        for table, entry in sorted(recorded["declaration"]["table"].items())
    )
    rules = tuple(_rules(name, settings.table(EXPECTATIONS)))
    return PipelineStatus(name, directory.is_running(), queries, tables, rules)


def read_state(file: str, spark: "SparkSession", settings: RunSettings) -> list[StateStatus]:
    """What Spark keeps between batches; the rows of tables are what functions keep."""
    directory, recorded = _recorded(pipeline_name(file), settings)
    found = []
    for query in sorted(recorded["queries"]):
        checkpoint = directory.checkpoint(query)
        batch = directory.last_batch(query)
        if batch < 0 or not (checkpoint / "state").is_dir():
            continue
        for operator in spark.read.format("state-metadata").load(for_spark(checkpoint)).collect():
            number = operator["operatorId"]
            kept = (
                spark.read.format("statestore")
                .option("operatorId", number)
                .load(for_spark(checkpoint))
            )
            first = (
                kept.orderBy("key")
                .limit(_STATE_EXAMPLES)
                .select(F.to_json(F.struct("key", "value")))
            )
            files = (checkpoint / "state" / str(number)).rglob("*")
            found.append(
                StateStatus(
                    query,
                    operator["operatorName"],
                    kept.count(),
                    sum(file.stat().st_size for file in files if file.is_file()),
                    batch,
                    tuple(json.loads(row[0]) for row in first.collect()),
                )
            )
    return found


def _recorded(name: str, settings: RunSettings) -> tuple[PipelineDirectory, dict[str, Any]]:
    directory = PipelineDirectory(settings.state(name))
    recorded = directory.recorded()
    if recorded is None:
        raise RunRefused(
            f"{name} has not run in the warehouse {settings.warehouse}: there is no "
            f"{directory.path}"
        )
    return directory, recorded


def _query(cluster: Cluster, name: str, query: str, directory: PipelineDirectory) -> QueryStatus:
    group = group_of(name, query)
    batch = directory.last_batch(query)
    if batch < 0:
        return QueryStatus(query, group, None, group_lag(cluster, group))
    return QueryStatus(
        query, group, batch, group_lag(cluster, group, directory.offsets(query, batch))
    )


def group_lag(cluster: Cluster, group: str, topics: Container[str] | None = None) -> int | None:
    """The records that the topics hold beyond a group's offsets; None if it has none.

    With ``topics``, only of these: a group keeps the offsets of topics that its query used to read.
    """
    committed = {
        place: offset
        for place, offset in cluster.committed_offsets(group).items()
        if topics is None or place.topic in topics
    }
    if not committed:
        return None
    ends = cluster.list_offsets(dict.fromkeys(committed, LATEST), read_committed=True)
    return sum(max(0, end - committed[place]) for place, end in ends.items())


def _rules(pipeline: str, location: Location) -> Iterator[RuleStatus]:
    table = open_table(location)
    if table is None:
        return
    rows = table.read().to_pylist()
    rules: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["pipeline"] == pipeline:
            rules.setdefault((row["function"], row["rule"]), []).append(row)
    for (function, rule), batches in sorted(rules.items()):
        last = max(batches, key=lambda row: (row["_written_at"], row["_batch"]))
        total, failed = (sum(row[name] for row in batches) for name in ("rows", "failed"))
        yield RuleStatus(
            function, rule, total, failed, last["_batch"], last["rows"], last["failed"]
        )


def _table(name: str, query: str, location: Location) -> TableStatus:
    table = open_table(location)
    if table is None:
        return TableStatus(name, query, 0, 0, 0, None)
    files = pa.table(table.handle.get_add_actions(flatten=True)).to_pylist()
    return TableStatus(
        name,
        query,
        sum(file["num_records"] for file in files),
        len(files),
        sum(file["size_bytes"] for file in files),
        max((file["modification_time"] for file in files), default=None),
    )
