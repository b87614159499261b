"""A shipped pipeline file, run as streams on a broker: what ``Batches`` does, with everything real.

with streamed(spark, "activity", directory) as job:
    for batch in arrivals(events, 2, seed=1):
        job.run(batch)  # sends the events, and runs the file until all are processed
    job.table("page_minutes")
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import functions as F

from headrace.pipeline.analysis import analyze
from headrace.pipeline.loading import load
from headrace.pipeline.runner.backfill import Span, backfill
from headrace.pipeline.runner.fanout import job_table
from headrace.pipeline.runner.run import run_once
from headrace.pipeline.runner.settings import RunSettings
from headrace.testing import Broker
from tests.spark.batches import Batches, arrivals, small_data, sorted_rows
from tests.spark.kit import Topics


@contextmanager
def streamed(spark: Any, file: str, directory: Path) -> Iterator["Streamed"]:
    topics = {node.declared.topic: 2 for node in load(file).nodes if node.kind == "source"}
    # Tests use old timestamps; retention must not delete such records.
    with Broker(process=True, topics=topics, config={"log.retention.ms": -1}) as broker:
        yield Streamed(spark, file, broker.bootstrap_servers, directory)


def with_constants(file: ModuleType, directory: Path, constants: Mapping[str, str]) -> str:
    """A copy of a shipped file with other constants, which are given as Python.

    A run imports its file again, so a constant that a test sets in the module would be lost.
    """
    assert file.__file__ is not None
    path = Path(file.__file__)
    text = path.read_text()
    for name, value in constants.items():
        declared = rf"^{name}: Final = (?:\((?:\n.*)*?\n\)|.*)$"
        text, count = re.subn(declared, f"{name}: Final = {value}", text, flags=re.MULTILINE)
        assert count == 1, name
    copy = directory / path.name
    copy.write_text(text)
    return str(copy)


@contextmanager
def finished_stream(
    spark: Any, file: str, events: Mapping[str, pa.Table], directory: Path
) -> Iterator["Streamed"]:
    """A pipeline file after two runs as streams."""
    with streamed(spark, file, directory) as job:
        for batch in arrivals(events, 2, seed=2):
            job.run(batch)
        yield job


@contextmanager
def finished_job(
    spark: Any,
    file: ModuleType,
    events: Mapping[str, pa.Table],
    batches: int | Literal["streamed"],
    directory: Path,
) -> Iterator["Batches | Streamed"]:
    """A shipped job after so many batches, of which the last ran twice; or two runs as streams."""
    if batches == "streamed":
        name = file.__name__.rpartition(".")[2]
        with finished_stream(spark, name, events, directory) as streams:
            yield streams
    else:
        with small_data(spark):
            job = Batches(spark, file)
            for batch in arrivals(events, batches, seed=batches):
                job.run(batch)
            job.run_last_again()
            yield job


class Streamed:
    def __init__(self, spark: Any, file: str, bootstrap: str, warehouse: Path) -> None:
        self._spark = spark
        self._file = file
        self._topics = Topics(bootstrap)
        self._settings = RunSettings(warehouse, {"kafka.bootstrap.servers": bootstrap})

    def run(self, events: Mapping[str, pa.Table]) -> None:
        """Send events in the order of their arrival, then process them."""
        producer = Producer({"bootstrap.servers": self._topics.bootstrap})
        failures: list[Any] = []

        def sent(error: Any, _: Any) -> None:
            if error is not None:
                failures.append(error)

        for topic, rows in events.items():
            for row in rows.to_pylist():
                arrived = row.pop("_arrived")
                row["at"] = row["at"].isoformat()
                producer.produce(
                    topic,
                    json.dumps(row),
                    key=row["event_id"],
                    timestamp=int(arrived.timestamp() * 1000),
                    on_delivery=sent,
                )
        assert producer.flush(60) == 0
        assert not failures, failures[0]
        for done in run_once([self._file], self._spark, self._settings):
            assert done.dead_letters == 0

    def table(self, name: str) -> Any:
        """A table as people read it."""
        (node,) = (node for node in load(self._file).nodes if node.name == name)
        return job_table(node, self._settings).shown(self._spark)

    def sent(self, topic: str) -> list[dict[str, Any]]:
        """The rows that were sent to a topic, those of a key in their order.

        A tombstone is a row with its key and ``_deleted`` = true, as its function returned it.
        """
        nodes = load(self._file).nodes
        (node,) = (node for node in nodes if (node.kind, node.declared.topic) == ("topic", topic))
        schema, key = analyze(nodes, self._spark)[node.name], node.option("key")
        messages = [(one.key(), one.value()) for one in self._topics.read(topic)]
        records = self._spark.createDataFrame(messages, "key binary, value binary").coalesce(1)
        rows = records.select(
            F.col("key").cast("string").cast(schema[key].dataType).alias("key"),
            F.from_json(F.col("value").cast("string"), schema).alias("row"),
        ).toArrow()
        return [self._row(one, key, "_deleted" in schema.fieldNames()) for one in rows.to_pylist()]

    @staticmethod
    def _row(sent: dict[str, Any], key: str, may_be_deleted: bool) -> dict[str, Any]:
        if sent["row"] is None:
            return {key: sent["key"], "_deleted": True}
        return sent["row"] | ({"_deleted": False} if may_be_deleted else {})

    def check_backfill(self) -> None:
        """All tables, computed again from the topics in one batch, have the rows of the stream."""
        names = [node.name for node in load(self._file).nodes if node.kind == "table"]
        before = {name: sorted_rows(self.table(name).toArrow()) for name in names}
        done = list(backfill(self._file, self._spark, self._settings, Span()))
        assert sorted(one.table for one in done) == sorted(names)
        for name in names:
            assert sorted_rows(self.table(name).toArrow()) == before[name], name
