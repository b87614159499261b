"""Ad-hoc SQL: every table of a warehouse and every topic of a cluster is a view.

A table that a pipeline keeps shows one row per key. A topic has the columns of its JSON values if
they are known, and else the value as text. In a live query topics are streams, and tables are as
they were at its start.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F

from headrace.model.spelling import did_you_mean
from headrace.pipeline.errors import BadQuery
from headrace.pipeline.events import SCHEMAS
from headrace.pipeline.runner.claim import TABLE as RUNS
from headrace.pipeline.runner.claim import claimed_tables
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.runner.settings import PIPELINES
from headrace.pipeline.tables import JobTable, Rules
from headrace.pipeline.warehouse.spark_reader import read_table
from headrace.pipeline.warehouse.storage import Location, for_spark, location_of
from headrace.pipeline.warehouse.table import Table, open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOG = "_delta_log"
_TOPIC_PREFIX = "topic_"  # of a topic with the name of a table
_WAIT_S = 0.2


class View(NamedTuple):
    name: str
    kind: str  # table or topic
    place: str  # the directory below the warehouse, or the topic


class SqlSettings(NamedTuple):
    warehouse: Path | Location
    source: Mapping[str, str]  # options of the Spark source
    schemas: Mapping[str, str] = {}  # DDL by topic, in addition to the activity events
    live: bool = False
    from_beginning: bool = False  # of the topics, for a live query


def find_views(warehouse: Path | Location, topics: Iterable[str]) -> dict[str, View]:
    """All views by name. Tables come first: a topic gives way to a table of its name."""
    found = {}
    location = location_of(warehouse)
    for place in sorted(_tables_below(location, "", location.directories())):
        found[view_name(place)] = View(view_name(place), "table", place)
    for topic in sorted(topics):
        name = view_name(topic)
        if name in found:
            name = _TOPIC_PREFIX + name
        found.setdefault(name, View(name, "topic", topic))
    return found


def view_name(place: str) -> str:
    """The name without characters that SQL would need quotes for."""
    return re.sub(r"_?[^\w]+_?", "_", place).strip("_").lower()


def _tables_below(warehouse: Location, place: str, names: Iterable[str]) -> Iterator[str]:
    """The places of tables below these directories of a place."""
    for name in names:
        if "=" not in name and name not in (PIPELINES, RUNS, _LOG):
            below = (warehouse / f"{place}{name}").directories()
            if _LOG in below:
                yield f"{place}{name}"
            yield from _tables_below(warehouse, f"{place}{name}/", below)


def make_frame(
    spark: "SparkSession", text: str, views: Mapping[str, View], settings: SqlSettings
) -> "DataFrame":
    """The result of a query. Raises BadQuery. Only the views that it names are opened."""
    opener = _Opener(spark, settings)
    words = {word.lower() for word in re.findall(r"\w+", text)}
    named = [view for name, view in views.items() if name in words]
    for view in named:
        opener.open(view).createOrReplaceTempView(view.name)
    try:
        frame = spark.sql(text)
    except (AnalysisException, ParseException) as wrong:
        raise _explained(wrong, views) from None
    if settings.live and not frame.isStreaming:
        tables = ", ".join(view.name for view in named if view.kind == "table")
        raise BadQuery(
            f"a live query reads at least one topic; this one reads {tables or 'none'}. Leave out "
            f"--live. {_known(views)}"
        )
    return frame


class _Opener:
    def __init__(self, spark: "SparkSession", settings: SqlSettings) -> None:
        self._spark = spark
        self._settings = settings
        self._warehouse = location_of(settings.warehouse)

    def open(self, view: View) -> "DataFrame":
        if view.kind == "topic":
            return self._topic(view.place)
        location = self._warehouse / view.place
        rules = self._rules(view.place)
        if rules is not None:
            return JobTable(location, rules).shown(self._spark)
        table = open_table(location)
        if table is None:
            raise BadQuery(f"the table {location} was deleted a moment ago")
        return _rows(self._spark, table)

    def _rules(self, name: str) -> Rules | None:
        """How a pipeline that ran here merges the rows of its table; None for other tables."""
        tables = claimed_tables(self._warehouse)
        if self._warehouse.is_directory:
            states = self._warehouse / PIPELINES
            for pipeline in states.directories():
                recorded = PipelineDirectory(Path(states / pipeline)).recorded() or {}
                tables = recorded.get("declaration", {}).get("table", {}) | tables
        declared = tables.get(name)
        return declared and Rules(tuple(declared["key"]), declared["merge"])

    def _topic(self, topic: str) -> "DataFrame":
        settings = self._settings
        reader: Any = self._spark.readStream if settings.live else self._spark.read
        options = {**settings.source, "subscribe": topic, "groupIdPrefix": "headrace-sql"}
        is_whole = settings.from_beginning or not settings.live
        options["startingOffsets"] = "earliest" if is_whole else "latest"
        ddl = settings.schemas.get(topic, SCHEMAS.get(topic))
        options["value.format"] = "string" if ddl is None else "json"
        if ddl is not None:
            options["value.schema"] = ddl
        rows: DataFrame = reader.format("headrace").options(**options).load()
        return rows.select(
            "value" if ddl is None else "value.*",
            F.col("key").cast("string").alias("_key"),
            F.col("partition").alias("_partition"),
            F.col("offset").alias("_offset"),
            F.col("timestamp").alias("_timestamp"),
            F.col("_bad.reason").alias("_bad"),
        )


def _rows(spark: "SparkSession", table: Table) -> "DataFrame":
    """All rows of a Delta table: the values of partition columns are in its log."""
    from pyspark.sql.pandas.types import from_arrow_schema

    if not table.location.is_directory:
        return read_table(spark, table)
    schema = from_arrow_schema(pa.schema(table.handle.schema().to_arrow()))
    in_files = from_arrow_schema(table.file_schema())
    paths: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
    for file in table.files():
        paths.setdefault(file.partition_values, []).append(for_spark(table.location / file.path))
    found = spark.createDataFrame([], schema)
    for values, files in sorted(paths.items(), key=str):
        rows = spark.read.schema(in_files).parquet(*files)
        for name, value in values:
            rows = rows.withColumn(name, F.lit(value).cast(schema[name].dataType))
        found = found.unionByName(rows)
    return found


def follow(
    frame: "DataFrame", checkpoint: Path, show: Callable[[pa.Table], bool], stop: Callable[[], bool]
) -> None:
    """Run a live query, and show the new rows of every batch, until ``show`` or ``stop`` says so.

    Of a query with an aggregation these are the groups that changed.
    """
    batches: SimpleQueue[pa.Table] = SimpleQueue()
    writer = frame.writeStream.outputMode("update").option(
        "checkpointLocation", for_spark(checkpoint)
    )
    try:
        query = writer.foreachBatch(lambda rows, _: batches.put(rows.toArrow())).start()
    except AnalysisException as wrong:
        raise BadQuery(f"this cannot be a live query: {_first_lines(wrong)}") from None
    try:
        while not stop():
            try:
                if show(batches.get(timeout=_WAIT_S)):
                    return
            except Empty:
                if not query.isActive:
                    failure = query.exception()
                    assert failure is not None, "a live query ends only if it fails"
                    raise failure from None
    finally:
        query.stop()


def _explained(wrong: AnalysisException | ParseException, views: Mapping[str, View]) -> BadQuery:
    if wrong.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
        parameters = wrong.getMessageParameters() or {}
        name = parameters.get("relationName", "").replace("`", "")
        return BadQuery(f"there is no view {name!r}{did_you_mean(name, views)}. {_known(views)}")
    return BadQuery(_first_lines(wrong))


def _known(views: Mapping[str, View]) -> str:
    if not views:
        return "There is no view: the warehouse has no tables, and the cluster has no topics"
    kinds = {
        kind: ", ".join(view.name for view in views.values() if view.kind == kind)
        for kind in ("table", "topic")
    }
    return "; ".join(f"{kind}s: {names}" for kind, names in kinds.items() if names).capitalize()


def _first_lines(wrong: Exception) -> str:
    """Spark's text without the plan and the stack trace."""
    return re.split(r";\s*\n|\n\s*JVM stacktrace|\s*SQLSTATE: \w+", str(wrong).strip())[0]
