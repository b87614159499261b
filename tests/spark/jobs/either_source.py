"""A job that runs with Spark's Kafka jar or with Headrace: only the format differs.

    either_source.py FORMAT JARS WHAT OUTPUT OPTIONS      OPTIONS is a JSON object

WHAT is ``read`` (all rows as JSON lines into OUTPUT), ``write`` (a thousand rows with keys) or
``stream`` (AvailableNow into JSON lines under OUTPUT/rows, with the checkpoint OUTPUT/checkpoint).
"""

import json
import os
import sys
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import SparkSession

ROW = (
    "hex(key) AS key", "hex(value) AS value", "topic", "partition", "offset",
    "unix_millis(timestamp) AS ms", "timestampType", "to_json(headers) AS headers",
)  # fmt: skip


def main(source: str, jars: str, what: str, output: str, options: str) -> None:
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
    )
    if jars:
        builder = builder.config("spark.jars", jars)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    given = json.loads(options)
    if what == "read":
        rows = spark.read.format(source).options(**given).load().selectExpr(*ROW)
        lines = sorted(rows.toJSON().collect())
        Path(output).write_text("\n".join(lines))
    elif what == "write":
        frame = spark.range(1000).selectExpr(
            "CAST(id AS STRING) AS key", "concat('value ', id) AS value"
        )
        frame.write.format(source).options(**given).mode("append").save()
    else:
        query = (
            spark.readStream.format(source)
            .options(**given)
            .load()
            .selectExpr("CAST(value AS STRING) AS value")
            .writeStream.format("json")
            .option("checkpointLocation", f"{output}/checkpoint")
            .trigger(availableNow=True)
            .start(f"{output}/rows")
        )
        query.awaitTermination()
    spark.stop()


main(*sys.argv[1:])
