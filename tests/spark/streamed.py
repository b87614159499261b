"""A shipped pipeline file, run as streams on a broker: what ``Batches`` does, with everything real.

with streamed(spark, "activity", directory) as job:
    for batch in arrivals(events, 2, seed=1):
        job.run(batch)  # sends the events, and runs the file until all are processed
    job.table("page_minutes")
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pyarrow as pa
from confluent_kafka import Producer

from headrace.pipeline.loading import load
from headrace.pipeline.runner.fanout import job_table
from headrace.pipeline.runner.run import run_once
from headrace.pipeline.runner.settings import RunSettings
from headrace.testing import Broker
from tests.spark.batches import Batches, arrivals, small_data
from tests.spark.kit import Topics


@contextmanager
def streamed(spark: Any, file: str, directory: Path) -> Iterator["Streamed"]:
    topics = {node.declared.topic: 2 for node in load(file).nodes if node.kind == "source"}
    # Tests use old timestamps; retention must not delete such records.
    with Broker(process=True, topics=topics, config={"log.retention.ms": -1}) as broker:
        yield Streamed(spark, file, broker.bootstrap_servers, directory)


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
        with streamed(spark, file.__name__.rpartition(".")[2], directory) as streams:
            for batch in arrivals(events, 2, seed=2):
                streams.run(batch)
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
        for topic, rows in events.items():
            for row in rows.to_pylist():
                arrived = row.pop("_arrived")
                row["at"] = row["at"].isoformat()
                producer.produce(
                    topic,
                    json.dumps(row),
                    key=row["event_id"],
                    timestamp=int(arrived.timestamp() * 1000),
                )
        assert producer.flush(60) == 0
        for done in run_once([self._file], self._spark, self._settings):
            assert done.dead_letters == 0

    def table(self, name: str) -> Any:
        """A table as people read it."""
        (node,) = (node for node in load(self._file).nodes if node.name == name)
        return job_table(node, self._settings).shown(self._spark)

    def sent(self, topic: str) -> list[dict[str, Any]]:
        """The values of a topic; a field ``since`` is a time."""
        values = [json.loads(message.value()) for message in self._topics.read(topic)]
        return [value | {"since": datetime.fromisoformat(value["since"])} for value in values]
