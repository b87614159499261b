"""A job for the cluster tests: reports which executor read which partition, and the row count.

    where_read.py MASTER BOOTSTRAP TOPIC       prints one JSON document

It also copies the topic, as a batch into TOPIC-copy and as a stream into TOPIC-streamed, exactly
once each. MASTER may be the address of a Spark Connect server, ``sc://…``.
"""

import json
import os
import sys
import tempfile

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import SparkSession


def with_place(batches):
    import os

    import pyarrow as pa

    # A standalone executor runs in its own directory, named by its number.
    for batch in batches:
        place = pa.array([os.getcwd()] * batch.num_rows)
        yield pa.RecordBatch.from_arrays(
            [batch.column("partition"), place], names=["partition", "place"]
        )


def _stream(spark, bootstrap: str, topic: str) -> None:
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            spark.readStream.format("headrace")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
            .select("value")
            .writeStream.format("headrace")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", f"{topic}-streamed")
            .option("delivery", "exactly-once")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def main(master: str, bootstrap: str, topic: str) -> None:
    builder = SparkSession.builder.appName("headrace-where")
    if master.startswith("sc://"):
        spark = builder.remote(master).getOrCreate()
    else:
        spark = (
            builder.master(master)
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.cores.max", "2")
            .getOrCreate()
        )
    frame = (
        spark.read.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("minPartitions", "4")
        .load()
    )
    rows = frame.mapInArrow(with_place, "partition INT, place STRING").groupBy("place").count()
    places = {row.place: row["count"] for row in rows.collect()}
    _stream(spark, bootstrap, topic)
    frame.selectExpr("value").write.format("headrace").mode("append").option(
        "kafka.bootstrap.servers", bootstrap
    ).option("topic", f"{topic}-copy").option("delivery", "exactly-once").save()
    print(json.dumps({"rows": sum(places.values()), "places": sorted(places)}), flush=True)
    spark.stop()


main(*sys.argv[1:])
