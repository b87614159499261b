"""Two source clusters copied into one topic: the load has the records of both, each once."""

import json
from collections import Counter

import pytest
from deltalake import DeltaTable

from headrace.pipeline.warehouse.load import Load
from headrace.pipeline.warehouse.settings import LoadSettings
from headrace.testing import Broker
from tests.spark.kit import Topics

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RECORDS = 300


def copy(spark, source, target, topic, batch):
    """One batch of a copy, which Spark may run again under its number."""
    records = (
        spark.read.format("headrace")
        .option("kafka.bootstrap.servers", source)
        .option("subscribe", "orders")
        .load()
        .where(f"offset >= {batch * RECORDS} and offset < {(batch + 1) * RECORDS}")
    )
    (
        records.select("key", "value")
        .write.format("headrace")
        .mode("append")
        .option("kafka.bootstrap.servers", target)
        .option("topic", topic)
        .option("delivery", "exactly-once")
        .option("delivery.id", f"copy of {source}")
        .option("delivery.batch", batch)
        .save()
    )


def test_each_record_of_both_clusters_is_loaded_once(spark, topics, bootstrap, tmp_path):
    target = topics.create("orders", 2)
    settings = LoadSettings(
        (target,),
        tmp_path / "orders",
        {
            "kafka.bootstrap.servers": bootstrap,
            "value.format": "json",
            "value.schema": "cluster STRING, number BIGINT",
        },
    )
    with Broker(topics={"orders": 1}) as east, Broker(topics={"orders": 1}) as west:
        clusters = {"east": east.bootstrap_servers, "west": west.bootstrap_servers}
        for name, address in clusters.items():
            values = [json.dumps({"cluster": name, "number": n}) for n in range(2 * RECORDS)]
            Topics(address).send("orders", values)
        for batch in range(2):
            for address in clusters.values():
                copy(spark, address, bootstrap, target, batch)
                copy(spark, address, bootstrap, target, batch)  # as after a kill
            loader = Load(spark, settings)
            try:
                loader.once(lambda done: None)
            finally:
                loader.close()
    rows = DeltaTable(str(tmp_path / "orders")).to_pyarrow_table(columns=["cluster", "number"])
    assert Counter((row["cluster"], row["number"]) for row in rows.to_pylist()) == Counter(
        (name, number) for name in clusters for number in range(2 * RECORDS)
    )
