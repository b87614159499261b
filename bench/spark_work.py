"""A Spark session that runs jobs on request, with our source or with Spark's own Kafka jar.

    python spark_work.py FORMAT JARS        FORMAT is headrace or kafka

Reads one JSON line per job and prints one per result, until its input ends. It runs in two
environments (the jar needs an older PySpark), so its head imports nothing from the project.
"""

import datetime
import json
import os
import shutil
import statistics
import sys
import time
from typing import Any

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import SparkSession


class Work:
    """The session, with one method per job."""

    query: Any
    queries: list[Any]
    topic: str

    def __init__(self, source: str, jars: str) -> None:
        builder = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "2g")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.streaming.numRecentProgressUpdates", "100000")
        )
        if jars:
            builder = builder.config("spark.jars", jars)
        self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")
        self.source = source

    def _read(self, told: dict[str, Any], **more: str) -> Any:
        reader = self.spark.read.format(self.source).option("subscribe", told["topic"])
        reader = reader.option("kafka.bootstrap.servers", told["address"])
        return reader.options(**more)

    def read(self, told: dict[str, Any]) -> None:
        """Read every row and discard it."""
        self._read(told).load().write.format("noop").mode("overwrite").save()

    def json(self, told: dict[str, Any]) -> None:
        """Group and count the rows by one field of their values."""
        if self.source == "headrace":
            typed = {"value.format": "json", "value.bad": "fail"}
            frame = self._read(told, **typed).schema("value STRUCT<page: STRING>").load()
            pages = frame.selectExpr("value.page AS page")
        else:
            pages = (
                self._read(told)
                .load()
                .selectExpr("get_json_object(CAST(value AS STRING), '$.page') AS page")
            )
        pages.groupBy("page").count().write.format("noop").mode("overwrite").save()

    def parquet(self, told: dict[str, Any]) -> None:
        """Write every row to Parquet files."""
        self._read(told).load().write.mode("overwrite").parquet(told["directory"])
        shutil.rmtree(told["directory"], ignore_errors=True)

    def load(self, told: dict[str, Any]) -> None:
        """Load every row into a Delta table. Only our environment has the package."""
        from pathlib import Path

        from headrace.pipeline.warehouse.load import Load
        from headrace.pipeline.warehouse.settings import LoadSettings

        table = Path(told["directory"])
        source = {"kafka.bootstrap.servers": told["address"]}
        loader = Load(self.spark, LoadSettings((told["topic"],), table, source))
        try:
            loader.once(lambda done: None)
        finally:
            loader.close()
        shutil.rmtree(table)

    def write(self, told: dict[str, Any]) -> None:
        """Write rows of 160 bytes with keys to a topic."""
        frame = self.spark.range(0, told["rows"], 1, 4).selectExpr(
            "CAST(id AS STRING) AS key", "repeat(CAST(id % 10 AS STRING), 150) AS value"
        )
        writer = frame.write.format(self.source).mode("append").option("topic", told["topic"])
        writer = writer.option("kafka.bootstrap.servers", told["address"])
        writer = writer.option("kafka.compression.type", "lz4")
        writer.options(**told.get("options", {})).save()

    def stream(self, told: dict[str, Any]) -> None:
        """Start a stream into a memory sink; ``seen`` stops it."""
        reader = self.spark.readStream.format(self.source).option("subscribe", told["topic"])
        frame = reader.option("kafka.bootstrap.servers", told["address"]).load()
        self.topic = told["topic"]
        self.query = (
            frame.selectExpr("partition", "offset", "unix_millis(timestamp) AS ms")
            .writeStream.format("memory")
            .queryName("seen")
            .start()
        )
        while self.query.lastProgress is None:
            time.sleep(0.05)

    def readers(self, told: dict[str, Any]) -> None:
        """Start streams that read one topic and discard its rows; ``read_all`` stops them."""
        reader = self.spark.readStream.format(self.source).option("subscribe", told["topic"])
        reader = reader.option("startingOffsets", "earliest")
        frame = reader.option("kafka.bootstrap.servers", told["address"]).load()
        self.queries = []
        for _ in range(told["streams"]):
            # One after the other: each starts Python processes, and Spark gives them 15 s.
            query = frame.writeStream.format("noop").start()
            self.queries.append(query)
            while query.lastProgress is None:
                if query.exception() is not None:
                    raise query.exception()
                time.sleep(0.05)

    def read_all(self, told: dict[str, Any]) -> dict[str, int]:
        """Wait until every stream has read what there is; return the rows that they read."""
        rows = 0
        for query in self.queries:
            query.processAllAvailable()
            rows += sum(progress["numInputRows"] for progress in query.recentProgress)
            query.stop()
        return {"rows": rows}

    def seen(self, told: dict[str, Any]) -> dict[str, float]:
        """Stop the stream; return how long its rows took to be seen.

        A row is seen when the batch that holds it is done, according to the query's progress.
        """
        self.query.processAllAvailable()
        rows = self.spark.table("seen").collect()
        ends = []
        for progress in self.query.recentProgress:
            fields = json.loads(progress.json) if hasattr(progress, "json") else progress
            offsets = fields["sources"][0]["endOffset"]
            offsets = json.loads(offsets) if isinstance(offsets, str) else offsets
            if offsets:
                began = _milliseconds(fields["timestamp"])
                done = began + fields["durationMs"]["triggerExecution"]
                ends.append((offsets[self.topic], done))
        self.query.stop()
        took = sorted(_seen_at(ends, row.partition, row.offset) - row.ms for row in rows)
        quantiles = statistics.quantiles(took, n=100)
        with_rows = len({_seen_at(ends, row.partition, row.offset) for row in rows})
        return {
            "rows": len(rows),
            "batches": with_rows,
            "p50_ms": quantiles[49],
            "p99_ms": quantiles[98],
        }


def _seen_at(ends: list[tuple[dict[str, int], float]], partition: int, offset: int) -> float:
    return next(done for offsets, done in ends if offsets[str(partition)] > offset)


def _milliseconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000


def main(source: str, jars: str) -> None:
    work = Work(source, jars)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        began = time.perf_counter()
        answer = getattr(work, told["what"])(told) or {}
        print(json.dumps({"seconds": time.perf_counter() - began, **answer}), flush=True)
    work.spark.stop()


main(*sys.argv[1:])
