"""The load into a table on S3: two loads at once, dead letters, compaction, and status."""

import json
from concurrent.futures import ThreadPoolExecutor

import duckdb
import pytest
from deltalake import DeltaTable

from headrace.pipeline.errors import LoadStopped
from headrace.pipeline.warehouse.compaction import compact
from headrace.pipeline.warehouse.load import Load
from headrace.pipeline.warehouse.planning import Limits
from headrace.pipeline.warehouse.settings import LoadSettings
from headrace.pipeline.warehouse.spark_reader import read_table
from headrace.pipeline.warehouse.status import read_status
from headrace.pipeline.warehouse.storage import parse_location
from headrace.pipeline.warehouse.table import open_table
from headrace.spark.cluster import Cluster
from tests.fakes.s3_server import new_url, s3_server

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def settings_for(bootstrap, topic, location, **more):
    source = {"kafka.bootstrap.servers": bootstrap, "value.format": "json"}
    source["value.schema"] = "user BIGINT"
    return LoadSettings((topic,), location, source, **more)


def test_two_loads_at_once_lose_and_double_nothing(spark, topics, bootstrap):
    topic = topics.create("s3", 2)
    for partition in range(2):
        topics.send(topic, [json.dumps({"user": n}) for n in range(300)], partition)
    topics.send(topic, ["no json"])
    with s3_server() as options:
        location = parse_location(new_url(), options)

        def run(batch_bytes):
            limits = Limits(batch_bytes=batch_bytes)
            loader = Load(spark, settings_for(bootstrap, topic, location, limits=limits))
            try:
                loader.once(lambda done: None)
            finally:
                loader.close()

        with ThreadPoolExecutor() as pool:
            for finished in [pool.submit(run, size) for size in (2_000, 3_300)]:
                finished.result()
        assert check_each_once(location) == 600
        letters = DeltaTable(f"{location}/_dead_letters", storage_options=options)
        found = letters.to_pyarrow_table(columns=["_offset"]).column("_offset").to_pylist()
        assert set(found) == {300}

        table = open_table(location)
        assert read_table(spark, table).where("user < 10").count() == 20
        files = len(table.files())
        assert files > 2 and compact(table).removed == files
        assert check_each_once(location) == 600
        cluster = Cluster(settings_for(bootstrap, topic, location).source_options().client)
        try:
            first, second = read_status(table, cluster)
        finally:
            cluster.close()
        assert (first.rows, first.lag_records, first.dead_letters) == (300, 0, 1)
        assert (second.rows, second.lag_records, second.dead_letters) == (300, 0, 0)


def check_each_once(location):
    """The number of rows."""
    table = DeltaTable(location.url, storage_options=location.storage_options)
    views = table.to_pyarrow_dataset()  # noqa: F841 - DuckDB finds it by name
    total, distinct = duckdb.sql(
        "select count(*), count(distinct (_topic_id, _partition, _offset)) from views"
    ).fetchall()[0]
    assert total == distinct
    return total


def test_a_server_that_ignores_conditional_puts_is_refused_at_start(spark, topics, bootstrap):
    topic = topics.create("refused")
    topics.send(topic, ["{}"])
    with s3_server(ignore_conditions=True) as options:
        location = parse_location(new_url(), options)
        with pytest.raises(LoadStopped, match="ignores conditional puts"):
            Load(spark, settings_for(bootstrap, topic, location))
        assert open_table(location) is None
