"""A Spark job with Delta's own jar: count the rows of a table, then append one.

python count_delta.py JARS TABLE, with the PySpark that the jar needs. It prints a line of JSON.
"""

import json
import os
import sys

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import SparkSession

_, jars, table = sys.argv
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jars)
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
rows = spark.read.format("delta").load(table)
found = {
    "rows": rows.count(),
    "distinct": rows.select("_topic_id", "_partition", "_offset").distinct().count(),
    "pages": rows.where("page is not null").count(),
    "days": sorted(str(row[0]) for row in rows.select("event_date").distinct().collect()),
}
rows.where("_offset = 0").write.format("delta").mode("append").save(table)
print(json.dumps(found))
spark.stop()
