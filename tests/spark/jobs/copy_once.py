"""A job for the kill tests: copies one topic into another, exactly once, until it is complete.

copy_once.py MASTER BOOTSTRAP SOURCE TARGET CHECKPOINT
"""

import os
import sys

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import SparkSession


def main(master: str, bootstrap: str, source: str, target: str, checkpoint: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .appName("headrace-copy-once")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.cores.max", "2")
        .config("spark.task.maxFailures", "20")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    query = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "8000")
        .load()
        .select("key", "value")
        .writeStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.transaction.timeout.ms", "10000")
        .option("topic", target)
        .option("delivery", "exactly-once")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    print("STARTED", flush=True)
    query.awaitTermination()
    print("COPIED", flush=True)
    spark.stop()


main(*sys.argv[1:])
