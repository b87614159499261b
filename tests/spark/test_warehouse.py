"""The warehouse load on Spark, from a topic to a table that other programs read."""

import json
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import duckdb
import polars
import pytest
from deltalake import DeltaTable

from headrace.client.cluster import ClientSettings
from headrace.model.dead_letters import DEAD_LETTER_TOPIC, HEADER_PREFIX
from headrace.pipeline.errors import LoadStopped, SchemaRefused
from headrace.pipeline.quality.audit import Lost, audit
from headrace.pipeline.quality.balance import totals
from headrace.pipeline.warehouse.load import Load
from headrace.pipeline.warehouse.offsets import Decision
from headrace.pipeline.warehouse.planning import Limits
from headrace.pipeline.warehouse.rows import EventTime
from headrace.pipeline.warehouse.settings import LoadSettings
from headrace.pipeline.warehouse.spark_reader import read_table
from headrace.pipeline.warehouse.table import open_table
from headrace.pipeline.warehouse.tasks import Job
from headrace.spark.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = "user BIGINT, page STRING, at BIGINT"
NOW_MS = int(time.time() * 1000)


def views(count, first=0):
    return [
        (f"user-{n}", json.dumps({"user": n, "page": f"/page/{n % 7}", "at": NOW_MS}))
        for n in range(first, first + count)
    ]


@pytest.fixture
def table(tmp_path):
    return tmp_path / "views"


@pytest.fixture
def settings(bootstrap, table):
    def made(*topics, schema=SCHEMA, **more):
        source = {"kafka.bootstrap.servers": bootstrap, "value.format": "json"}
        source["value.schema"] = schema
        return LoadSettings(topics, table, source, **more)

    return made


@pytest.fixture
def load(spark):
    """Load once; returns the finished batches."""

    def run(settings):
        done = []
        loader = Load(spark, settings)
        try:
            loader.once(done.append)
        finally:
            loader.close()
        return done

    return run


def check_each_once(table):
    """The check of docs/warehouse.md, in SQL; the number of rows."""
    views = DeltaTable(str(table)).to_pyarrow_dataset()  # noqa: F841 - DuckDB finds it by name
    total, distinct = duckdb.sql(
        "select count(*), count(distinct (_topic_id, _partition, _offset)) from views"
    ).fetchall()[0]
    assert total == distinct
    return total


def dead_letters(table):
    return DeltaTable(str(table / "_dead_letters")).to_pyarrow_table().to_pylist()


def test_a_load_from_an_empty_directory_to_a_query(topics, settings, load, table):
    topic = topics.create("views", 3)
    for partition in range(3):
        topics.send(topic, views(400), partition, headers=[("origin", b"test")])
    (batch,) = load(settings(topic, limits=Limits(task_bytes_min=10_000)))
    assert batch.row_count == 1_200

    assert check_each_once(table) == 1_200
    rows = polars.scan_delta(str(table)).filter(polars.col("user") == 5).collect()
    assert rows["page"].to_list() == ["/page/5"] * 3
    row = rows.sort("_partition").row(0, named=True)
    assert row["_topic"] == topic and row["_partition"] == 0 and row["_offset"] == 5
    assert row["_key"] == b"user-5"
    assert row["_headers"] == [{"key": "origin", "value": b"test"}]
    assert abs(row["_timestamp"].timestamp() * 1000 - NOW_MS) < 3_600_000
    assert row["_loaded_at"] >= row["_timestamp"]
    assert row["event_date"] == row["_timestamp"].date()

    topics.send(topic, views(10, first=400))
    (batch,) = load(settings(topic))
    assert batch.row_count == 10
    assert load(settings(topic)) == []
    assert check_each_once(table) == 1_210


def test_spark_reads_the_table_from_its_list_of_files(spark, topics, settings, load, table):
    topic = topics.create("views")
    load(settings(topic))
    assert read_table(spark, open_table(table)).count() == 0
    topics.send(topic, views(50))
    load(settings(topic))
    found = read_table(spark, open_table(table))
    assert found.count() == 50
    assert found.select("_topic_id", "_partition", "_offset").distinct().count() == 50
    assert found.select("event_date").distinct().count() == 1
    assert found.columns == open_table(table).handle.to_pyarrow_table().schema.names


def test_spark_reads_partition_values_that_no_directory_shows(spark, topics, settings, load, table):
    topic = topics.create("odd")
    pages = ["/a b", "plain", "7", "é%41", None]
    topics.send(topic, [json.dumps({"user": n, "page": page}) for n, page in enumerate(pages)])
    load(settings(topic, partition_by=("event_date", "page")))
    found = read_table(spark, open_table(table))
    assert [row.page for row in found.orderBy("user").collect()] == pages
    assert DeltaTable(str(table)).to_pyarrow_table().sort_by("user")["page"].to_pylist() == pages
    assert [row["_headers"] for row in found.collect()] == [None] * len(pages)


def test_a_load_killed_between_write_and_commit_lands_once(
    topics, settings, load, table, monkeypatch
):
    topic = topics.create("killed", 2)
    for partition in range(2):
        topics.send(topic, views(100), partition)
    run = Job.run

    def run_and_die(job, spark):
        run(job, spark)
        raise SystemExit("killed after the files were written")

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Job, "run", run_and_die)
        load(settings(topic))
    assert len(list(table.rglob("part-*.parquet"))) > 0
    assert DeltaTable(str(table)).file_uris() == []
    load(settings(topic))
    assert check_each_once(table) == 200


def test_two_loads_at_once_land_each_record_once(spark, topics, settings, table):
    topic = topics.create("racing", 2)
    for partition in range(2):
        topics.send(topic, views(300), partition)
    sizes = (Limits(batch_bytes=5_000), Limits(batch_bytes=8_000))
    decisions = Counter()

    def run(limits):
        loader = Load(spark, settings(topic, limits=limits))
        try:
            loader.once(lambda batch: decisions.update([batch.decision]))
        finally:
            loader.close()

    with ThreadPoolExecutor() as pool:
        for finished in [pool.submit(run, limits) for limits in sizes]:
            finished.result()
    assert decisions[Decision.COMMIT] > 2
    assert check_each_once(table) == 600


def test_small_loads_of_one_large_batch_do_not_shrink(spark, topics, settings, table):
    """A fetch returns the whole batch each time; its size is not that of the loaded records."""
    topic = topics.create("shrinking")
    topics.send(topic, views(300))
    loader = Load(spark, settings(topic, limits=Limits(batch_bytes=10_000)))
    batches = []
    try:
        loader.once(batches.append)
    finally:
        loader.close()
    first, *others, _ = [batch.row_count for batch in batches]
    assert others and min(others) >= first
    assert check_each_once(table) == 300


def test_a_load_that_keeps_running_commits_by_age(spark, topics, settings, table):
    topic = topics.create("running")
    topics.send(topic, views(10))
    loader = Load(spark, settings(topic, limits=Limits(batch_age_s=0.2)))
    batches = []

    def wait(seconds):
        time.sleep(seconds)
        if len(batches) == 1:
            topics.send(topic, views(5, first=10))
        return len(batches) > 1

    try:
        loader.keep_loading(batches.append, wait)
    finally:
        loader.close()
    assert check_each_once(table) == sum(batch.row_count for batch in batches)
    assert batches[0].row_count == 10 and batches[1].row_count >= 5


def test_bad_values_and_times_out_of_range_are_dead_letters(topics, settings, load, table):
    topic = topics.create("letters", message_timestamp_after_max_ms=(1 << 63) - 1)
    topics.send(topic, views(96))
    year_2100 = 4_102_444_800_000
    bad = ["no json", json.dumps({"user": "x"}), None, json.dumps({"user": 1, "at": year_2100})]
    topics.send(topic, [*bad, json.dumps({"user": 2, "at": 0})])
    topics.send(topic, views(1), timestamp=year_2100)
    with pytest.raises(LoadStopped, match=r"4 of the last 102 records .* offset 96 of .*-0: "):
        load(settings(topic, event_time=EventTime("at"), bad_share_max=0.03))
    assert DeltaTable(str(table)).file_uris() == []
    load(settings(topic, event_time=EventTime("at")))
    found = {letter["_offset"]: letter for letter in dead_letters(table)}
    stages = {offset: letter["stage"] for offset, letter in found.items()}
    # The event at offset 101 is from now; only the timestamp of its record is from 2100.
    assert stages == {96: "decode", 97: "decode", 99: "event-time", 100: "event-time"}
    assert found[96]["value"] == b"no json" and found[96]["_offset_end"] == 97
    assert check_each_once(table) == 98
    sent = [dict(letter.headers()) for letter in topics.read(DEAD_LETTER_TOPIC)]
    ours = [one for one in sent if one[f"{HEADER_PREFIX}topic"] == topic.encode()]
    assert sorted(int(one[f"{HEADER_PREFIX}offset"]) for one in ours) == [96, 97, 99, 100]
    assert {one[f"{HEADER_PREFIX}table"] for one in ours} == {str(table).encode()}


def test_schema_changes(topics, settings, load, table):
    topic = topics.create("schemas")
    topics.send(topic, views(5))
    load(settings(topic))
    topics.send(topic, ['{"user": 9, "page": "/", "at": 1, "country": "NZ"}'])
    load(settings(topic, schema=f"{SCHEMA}, country STRING"))
    found = polars.scan_delta(str(table)).sort("_offset").collect()
    assert found["country"].to_list() == [None] * 5 + ["NZ"]

    topics.send(topic, ['{"user": 10}'])
    changed = f"{SCHEMA}, country STRING".replace("user BIGINT", "user STRING")
    load(settings(topic, schema=changed))  # too few to judge a share
    (letter,) = dead_letters(table)
    assert letter["stage"] == "schema" and "'user' is long" in letter["reason"]
    assert check_each_once(table) == 6

    topics.send(topic, ['{"user": 10}'] * 100)
    with pytest.raises(SchemaRefused, match="'user' is long in the table and string"):
        load(settings(topic, schema=changed))
    assert len(dead_letters(table)) == 1
    load(settings(topic, schema=changed, bad_share_max=1.0))
    assert len(dead_letters(table)) == 101
    assert check_each_once(table) == 6


def test_a_reload_fills_a_column_that_was_added_later(spark, topics, settings, load, table):
    topic = topics.create("reload")
    topics.send(topic, views(6))
    load(settings(topic, schema="user BIGINT, at BIGINT"))
    batches = []
    loader = Load(spark, settings(topic))
    try:
        loader.again(batches.append, offset=2)
        loader.again(batches.append, since_ms=NOW_MS + 3_600_000)  # no record is that new
    finally:
        loader.close()
    assert [batch.row_count for batch in batches] == [4]
    found = polars.scan_delta(str(table)).sort("_offset").collect()
    assert found["page"].to_list() == [None, None, *(f"/page/{n}" for n in range(2, 6))]
    assert check_each_once(table) == 6
    topics.send(topic, views(2))
    load(settings(topic))
    assert check_each_once(table) == 8


def test_a_topic_created_again_keeps_its_old_rows(topics, settings, load, table):
    topic = topics.create("again")
    topics.send(topic, views(5))
    load(settings(topic))
    topics.delete(topic)
    topics.create(name=topic)
    topics.send(topic, views(3))
    load(settings(topic))
    assert check_each_once(table) == 8


def test_retention_that_is_faster_than_the_load_stops_it(topics, settings, load, table):
    topic = topics.create("lost")
    topics.send(topic, views(5))
    load(settings(topic))
    topics.send(topic, views(10))
    topics.delete_records(topic, 0, 12)
    with pytest.raises(LoadStopped, match="continues at offset 5, and the log starts at 12"):
        load(settings(topic))
    load(settings(topic, accept_loss=True))
    (lost,) = dead_letters(table)
    assert (lost["stage"], lost["_offset"], lost["_offset_end"]) == ("lost", 5, 12)
    assert check_each_once(table) == 8
    assert load(settings(topic)) == []
    found = audited(topics, topic, table.parent)
    assert found.lost == [Lost(str(table), topic, 0, 5, 12)]
    assert all(one.is_even for one in found.balances)


def audited(topics, topic, warehouse):
    cluster = Cluster(ClientSettings(topics.bootstrap))
    try:
        return audit(cluster, warehouse, [topic])
    finally:
        cluster.close()


def test_what_a_load_commits_is_counted_for_the_audit(topics, settings, load, table, tmp_path):
    topic = topics.create("counted", 3)
    for partition in range(3):
        topics.send(topic, [*views(40), ("bad", "no JSON")], partition)
    load(settings(topic, limits=Limits(task_bytes_min=1, task_bytes_max=2_000), bad_share_max=1))
    topics.send(topic, views(10))
    load(settings(topic))

    (total,) = totals(audited(topics, topic, tmp_path).balances)
    assert (total.tier, total.name) == ("table", str(table))
    assert (total.expected, total.found, total.missing, total.surplus) == (133, 133, 0, 0)

    shutil.rmtree(table)  # a table on another machine
    (total,) = totals(audited(topics, topic, tmp_path).balances)
    assert (total.tier, total.name) == ("load", str(table))
    assert (total.expected, total.found, total.missing, total.surplus) == (133, 133, 0, 0)
