"""Run the functions of a pipeline file batch by batch, with its tables in memory.

    job = Batches(spark, activity)
    for batch in arrivals(events, 7, seed=1):  # events: topic -> Arrow table
        job.run(batch)
    job.table("page_minutes")      # one row per key, merged: a DataFrame
    job.sent("operations-alerts")  # the rows of a topic in order, as dicts

Deduplication by event ID is done here, as the runner does it. A table that a function reads has
the rows of earlier batches only, so a batch may run again with its number.
"""

import inspect
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from headrace.pipeline.definition import declared

MERGES = {
    "sum": F.sum,
    "min": F.min,
    "max": F.max,
    "hll": F.hll_union_agg,
    "kll": F.kll_merge_agg_double,
}
MICROSECOND = timedelta(microseconds=1)
PERCENTILES = (50, 95, 99)


# With small data Spark spends its time on compiling code and on planning stage by stage.
_FOR_SMALL_DATA = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}


@contextmanager
def small_data(spark: Any) -> Iterator[None]:
    """Settings of a session for many small batches."""
    before = {name: spark.conf.get(name) for name in _FOR_SMALL_DATA}
    for name, value in _FOR_SMALL_DATA.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def arrivals(
    events: Mapping[str, pa.Table],
    batches: int,
    *,
    seed: int,
    lateness: timedelta = timedelta(minutes=10),
    doubled: float = 0.02,
) -> list[dict[str, pa.Table]]:
    """Cut events into batches of uneven size, in the order of their arrival.

    Each event arrives up to ``lateness`` after it happened, unless its column ``_arrived`` says
    when; some arrive twice.
    """
    dice = np.random.default_rng(seed)
    arrived = {}
    for topic, table in events.items():
        delay = dice.integers(0, lateness // MICROSECOND, len(table), endpoint=True)
        known = "_arrived" in table.column_names
        time = micros(table["_arrived"]) if known else micros(table["at"]) + delay
        twice = np.flatnonzero(dice.random(len(table)) < doubled)
        again = dice.integers(0, lateness // MICROSECOND, len(twice))
        table = table.take(np.concatenate([np.arange(len(table)), twice]))
        arrived[topic] = (table, np.concatenate([time, time[twice] + again]))
    times = np.concatenate([time for _, time in arrived.values()])
    ends = np.sort(dice.choice(times, batches - 1, replace=False)) if len(times) else []
    cut: list[dict[str, pa.Table]] = [{} for _ in range(batches)]
    for topic, (table, time) in arrived.items():
        order = np.argsort(time, kind="stable")
        places = np.concatenate([[0], np.searchsorted(time[order], ends), [len(order)]])
        for number, batch in enumerate(cut):
            chosen = order[places[number] : places[number + 1]]
            rows = table.take(chosen)
            if "_arrived" in rows.column_names:
                rows = rows.drop_columns("_arrived")
            at = pa.array(time[chosen]).cast(pa.timestamp("us", "UTC"))
            batch[topic] = rows.append_column("_arrived", at)
    return cut


def micros(times: pa.ChunkedArray) -> Any:
    return times.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()


class Batches:
    """The state of one pipeline file: what each batch appended to its tables and topics."""

    def __init__(self, spark: Any, file: ModuleType, only: Collection[str] = ()) -> None:
        """``only`` names the functions of tables and topics to run; all, if it is empty."""
        self._spark = spark
        self._functions = {
            name: function for name, function in vars(file).items() if declared(function)
        }
        self._sinks = [
            name
            for name, function in self._functions.items()
            if function.declared.kind in ("table", "topic") and (not only or name in only)
        ]
        # Name of a table or function of a topic -> number of the batch -> its rows.
        self.rows: dict[str, dict[int, pa.Table]] = {}
        self._seen: dict[str, set[str]] = {}
        self._inputs: list[dict[str, Any]] = []
        self._collected: dict[Any, pa.Table] = {}  # the rows of steps in one batch

    def run(self, events: Mapping[str, pa.Table]) -> None:
        """Run the next batch: rows by topic; a topic that is not named has none."""
        self._inputs.append(self._sources(events))
        self._run(len(self._inputs) - 1)

    def run_last_again(self) -> None:
        """Run the last batch once more, as after a kill between its effects and its commit."""
        number = len(self._inputs) - 1
        before = {name: rows[number] for name, rows in self.rows.items() if number in rows}
        self._run(number)
        for name, rows in before.items():
            if not self._options(name).get("merge"):  # sketches draw lots
                assert sorted_rows(self.rows[name][number]) == sorted_rows(rows), name
            self.rows[name][number] = rows  # its transaction drops the second

    def table(self, name: str) -> Any:
        """All rows of a table, one per key; sketches are shown as a reader sees them."""
        merge = self._options(name).get("merge")
        if not merge:
            return self._before(name, len(self._inputs))
        shown = []
        rows = self._merged(name, len(self._inputs))
        for column in rows.columns:
            match merge.get(column):
                case "hll":
                    shown.append(F.hll_sketch_estimate(column).alias(column))
                case "kll":
                    shown += [
                        F.kll_sketch_get_quantile_double(column, F.lit(p / 100)).alias(
                            f"{column}_p{p}"
                        )
                        for p in PERCENTILES
                    ]
                case _:
                    shown.append(F.col(column))
        return rows.select(*shown)

    def sent(self, topic: str) -> list[dict[str, Any]]:
        """Rows sent to a topic, batch by batch."""
        (name,) = (
            name
            for name, function in self._functions.items()
            if function.declared.kind == "topic" and function.declared.topic == topic
        )
        batches = self.rows.get(name, {})
        return [row for number in sorted(batches) for row in batches[number].to_pylist()]

    def _options(self, name: str) -> dict[str, Any]:
        return self._functions[name].declared.options

    def _sources(self, events: Mapping[str, pa.Table]) -> dict[str, Any]:
        """A DataFrame per source, without events that came before."""
        inputs = {}
        for name, function in self._functions.items():
            if function.declared.kind != "source":
                continue
            topic, schema = function.declared.topic, self._options(name)["schema"]
            rows = events.get(topic)
            if rows is None:
                inputs[name] = self._spark.createDataFrame([], schema)
                continue
            names = self._spark.createDataFrame([], schema).columns
            fresh = self._fresh(topic, rows).select(names)
            inputs[name] = function(self._spark.createDataFrame(fresh, schema))
        return inputs

    def _fresh(self, topic: str, rows: pa.Table) -> pa.Table:
        seen = self._seen.setdefault(topic, set())
        places = []
        for place, event_id in enumerate(rows["event_id"].to_pylist()):
            if event_id not in seen:
                seen.add(event_id)
                places.append(place)
        return rows.take(pa.array(places, pa.int64()))

    def _run(self, number: int) -> None:
        known = dict(self._inputs[number])
        for name in self._sinks:
            rows = self._arrow(self._call(name, number, known))
            self.rows.setdefault(name, {})[number] = rows
        self._collected.clear()

    def _arrow(self, frame: Any) -> pa.Table:
        """The rows of a frame. Those of a step are known."""
        return self._collected[frame] if frame in self._collected else frame.toArrow()

    def _call(self, name: str, number: int, known: dict[str, Any]) -> Any:
        function = self._functions[name]
        given = {p: self._input(p, number, known) for p in inspect.signature(function).parameters}
        result = function(**given)
        if not isinstance(result, str):
            return result
        for parameter, frame in given.items():
            frame.createOrReplaceTempView(parameter)
        return self._spark.sql(result)

    def _input(self, name: str, number: int, known: dict[str, Any]) -> Any:
        if name not in known:
            is_table = self._functions[name].declared.kind == "table"
            known[name] = (
                self._before(name, number) if is_table else self._step(name, number, known)
            )
        return known[name]

    def _step(self, name: str, number: int, known: dict[str, Any]) -> Any:
        """The rows of a step, computed once."""
        rows = self._call(name, number, known)
        collected = rows.toArrow()
        frame = self._spark.createDataFrame(collected, rows.schema)
        self._collected[frame] = collected
        return frame

    def _before(self, name: str, number: int) -> Any:
        """The rows of a table before a batch, one per key."""
        options = self._options(name)
        if not any(batch < number for batch in self.rows.get(name, ())):
            return self._spark.createDataFrame([], options["schema"])
        if options.get("merge"):
            return self._merged(name, number)
        rows = self._appended(name, number)
        if "_deleted" not in rows.column_names:
            rows = rows.append_column("_deleted", pa.nulls(len(rows), pa.bool_()))
        latest = duckdb.sql(
            f"""select * exclude (_batch, _deleted) from rows
            qualify row_number() over (partition by {", ".join(options["key"])}
                                       order by _batch desc) = 1 and _deleted is not true"""
        ).arrow()
        found, schema = pa.table(latest), options.get("schema") or None
        # Spark cannot read an Arrow table without chunks.
        return self._spark.createDataFrame(found if len(found) or not schema else [], schema)

    def _merged(self, name: str, number: int) -> Any:
        options = self._options(name)
        rows = self._spark.createDataFrame(self._appended(name, number))
        merged = rows.groupBy(*options["key"]).agg(
            *(MERGES[rule](column).alias(column) for column, rule in options["merge"].items())
        )
        return merged.select(*(c for c in rows.columns if c != "_batch"))

    def _appended(self, name: str, number: int) -> pa.Table:
        parts = [
            rows.append_column("_batch", pa.array(np.full(len(rows), batch)))
            for batch, rows in sorted(self.rows[name].items())
            if batch < number
        ]
        # In one chunk: Spark ends at an empty one.
        return pa.concat_tables(parts).combine_chunks()


def sorted_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of a table in a fixed order, to compare them."""
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def computed_by_duckdb(raw: Mapping[str, pa.Table], query: str) -> pa.Table:
    """The result of ``query`` over all events, by topic; their column ``at`` is ``time`` there."""
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        for topic, rows in raw.items():
            columns = ["time" if name == "at" else name for name in rows.column_names]
            database.register(topic.replace("-", "_"), rows.rename_columns(columns))
        return database.sql(query).to_arrow_table()
