"""Pipelines with tables on S3: the rows of a directory, each event once, one run at a time."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.pipeline.errors import LoadStopped, RunRefused
from headrace.pipeline.loading import load
from headrace.pipeline.quality.dead_letters import letter_tables
from headrace.pipeline.quality.letters import Wanted
from headrace.pipeline.runner.backfill import Span, backfill
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.runner.fanout import job_table
from headrace.pipeline.runner.inspection import read_status
from headrace.pipeline.runner.run import run
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.sql import SqlSettings, find_views, make_frame
from headrace.pipeline.tables import BatchName, JobTable, Rules
from headrace.pipeline.warehouse.load import Load
from headrace.pipeline.warehouse.settings import LoadSettings
from headrace.pipeline.warehouse.storage import parse_location
from headrace.spark.failures import PipelineError
from tests.fakes.s3_server import new_url, s3_server
from tests.spark.kit import failing_table

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)
SCHEMA = "event_id string, at timestamp, page string, visitor long"
FILE = """
from pyspark.sql import functions as F
from headrace.pipeline import source, step, table, topic

@source("{views}", schema="{schema}", event_time="at", event_id="event_id")
def views(records):
    return records

@table(key=["page", "minute"], merge={"views": "sum", "visitors": "hll"})
def page_minutes(views):
    return views.groupBy("page", F.date_trunc("minute", "at").alias("minute")).agg(
        F.count("*").alias("views"), F.hll_sketch_agg("visitor").alias("visitors"))

@table(key=["minute"], window="1 minute")
def exact(views):
    return views.groupBy(F.date_trunc("minute", "at").alias("minute")).agg(
        F.countDistinct("visitor").alias("visitors"),
        F.array_sort(F.collect_set(F.struct("page", "visitor"))).alias("seen"))

@step
def moves(views, last_pages):
    newest = views.groupBy("visitor").agg(F.max_by("page", "at").alias("page"),
                                          F.count("*").alias("views"))
    before = last_pages.select("visitor", F.col("views").alias("before"))
    return newest.join(before, "visitor", "left").select(
        "visitor", "page", (F.col("views") + F.coalesce("before", F.lit(0))).alias("views"))

@table(key=["visitor"], schema="visitor long, page string, views long")
def last_pages(moves):
    return moves
"""
TABLES = ("page_minutes", "exact", "last_pages")


@pytest.fixture(scope="module")
def s3():
    with s3_server() as options:
        yield options


class Site:
    """A topic of page views, and a pipeline file."""

    def __init__(self, spark, topics, directory):
        self.spark = spark
        self.directory = directory
        self.topic = topics.create("views", 2)
        self._topics = topics
        self.file = directory / "site.py"
        text = FILE.replace("{views}", self.topic)
        self.file.write_text(text.replace("{schema}", SCHEMA))

    def view(self, number, page, visitor, minute=0.0, arrives=0.0):
        at = HOUR + timedelta(minutes=minute)
        value = {"event_id": str(number), "at": at.isoformat(), "page": page, "visitor": visitor}
        self.send(json.dumps(value), at + timedelta(minutes=arrives), visitor % 2)

    def send(self, value, arrives=HOUR, partition=0):
        timestamp = int(arrives.timestamp() * 1000)
        self._topics.send(self.topic, [value], partition, timestamp=timestamp)

    def settings(self, warehouse, state=None):
        source = {"kafka.bootstrap.servers": self._topics.bootstrap}
        return RunSettings(warehouse, source, once=True, state_directory=state)

    def on_s3(self, options, name="state"):
        return self.settings(parse_location(new_url(), options), self.directory / name)

    def run(self, settings, **changed):
        return list(run([str(self.file)], self.spark, settings._replace(**changed)))

    def rows(self, settings):
        """All tables as people read them."""
        nodes = {node.name: node for node in load(str(self.file)).nodes}
        found = {}
        for name in TABLES:
            table = job_table(nodes[name], settings)
            found[name] = sorted(table.shown(self.spark).toArrow().to_pylist(), key=str)
        return found


@pytest.fixture
def site(spark, topics, tmp_path):
    return Site(spark, topics, tmp_path)


def letters(site, settings):
    rules = Rules(("topic", "partition", "offset", "stage"))
    rows = JobTable(settings.table("_dead_letters"), rules).shown(site.spark).collect()
    return [(row.stage, bytes(row.value)) for row in rows]


def test_the_rows_are_those_of_a_directory(site, topics, s3):
    places = site.settings(site.directory / "warehouse"), site.on_s3(s3)
    for number in range(20):
        site.view(number, f"/{number % 3}", visitor=number % 5, minute=number / 8)
    site.view(7, "/1", visitor=2, minute=7 / 8)  # doubled
    site.send("no json")
    for settings in places:
        # The second batch reads what the first wrote.
        assert len(site.run(settings, batch_records_max=15)) >= 2
    there, here = (site.rows(settings) for settings in places)
    assert here == there
    assert sum(row["views"] for row in here["page_minutes"]) == 20
    assert letters(site, places[1]) == [("decode", b"no json")]
    (named,) = letter_tables(places[1].warehouse)
    assert [letter.stage for letter in named.read(Wanted())] == ["decode"]

    # The next run goes on, and a late event changes the rows of its window.
    site.view(20, "/0", visitor=9, minute=6)
    site.view(21, "/2", visitor=77, minute=0, arrives=30)
    for settings in places:
        assert sum(done.rows for done in site.run(settings)) == 2
    there, here = (site.rows(settings) for settings in places)
    assert here == there
    assert 77 in [one["visitor"] for one in here["exact"][0]["seen"]]

    (done,) = {tuple(backfill(str(site.file), site.spark, settings, Span())) for settings in places}
    assert sorted(one.table for one in done) == sorted(TABLES)
    assert [site.rows(settings) for settings in places] == [here, here]

    # SQL shows one row per key in both.
    query = "select sum(views) as views, count(*) as keys from page_minutes"
    answers = []
    for settings in places:
        views = find_views(settings.warehouse, ())
        assert {*TABLES, "dead_letters", "reads"} <= set(views)
        frame = make_frame(site.spark, query, views, SqlSettings(settings.warehouse, {}))
        answers.append(frame.collect())
    assert answers[0] == answers[1] and answers[0][0].views == 22

    # Of a topic that an older version of the file read.
    old = topics.create("old")
    topics.send(old, ["unread"])
    consumer = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": "headrace-site-10s"})
    consumer.commit(offsets=[TopicPartition(old, 0, 0)], asynchronous=False)
    consumer.close()
    told = read_status(str(site.file), places[1])
    assert not told.is_running and {query.lag for query in told.queries} == {0}
    assert {one.table: one.rows for one in told.tables}["last_pages"] == 7


def test_a_backfill_reads_the_raw_table_beside_the_tables(site, topics, s3):
    settings = site.on_s3(s3)
    for number in range(10):
        site.view(number, f"/{number % 3}", visitor=number, minute=number)
    site.run(settings)
    expected = site.rows(settings)
    values = {"value.format": "json", "value.schema": SCHEMA}
    raw = settings.raw_table(site.topic)
    loader = Load(site.spark, LoadSettings((site.topic,), raw, {**settings.source, **values}))
    try:
        loader.once(lambda done: None)
    finally:
        loader.close()
    for partition in range(2):
        topics.delete_records(site.topic, partition, 4)
    list(backfill(str(site.file), site.spark, settings, Span()))
    assert site.rows(settings) == expected


def forget_last_commit(directory):
    """What a kill after the last effect of a batch leaves: Spark did not record it."""
    last = directory.last_batch("10s")
    for name in (str(last), f".{last}.crc"):
        (directory.checkpoint("10s") / "commits" / name).unlink()


@pytest.mark.long
def test_a_batch_that_is_killed_anywhere_counts_once(site, s3):
    settings = site.on_s3(s3)
    site.view(1, "/a", visitor=1)
    site.run(settings)
    site.view(2, "/a", visitor=2)
    # page_minutes has the batch, and last_pages has not.
    with failing_table("last_pages"), pytest.raises(PipelineError, match="the disk is full"):
        site.run(settings)
    written = {name: rows for done in site.run(settings) for name, rows in done.written.items()}
    assert (written["page_minutes"], written["last_pages"]) == (0, 1)
    expected = site.rows(settings)
    assert [row["views"] for row in expected["page_minutes"]] == [2]
    assert expected["last_pages"] == [
        {"visitor": 1, "page": "/a", "views": 1},
        {"visitor": 2, "page": "/a", "views": 1},
    ]

    # All tables have the batch, and Spark did not record that it is done.
    directory = PipelineDirectory(settings.state("site"))
    forget_last_commit(directory)
    (again,) = site.run(settings)
    assert set(again.written.values()) == {0}
    assert site.rows(settings) == expected

    # A checkpoint from a backup would read records again, in other batches.
    forget_last_commit(directory)
    forget_last_commit(directory)
    with pytest.raises(RunRefused, match=r"page_minutes has batch 1 .* is older than the table"):
        site.run(settings)


@pytest.mark.long
def test_one_run_at_a_time_with_any_state_directory(site, s3):
    first = site.on_s3(s3, "first")
    second = first._replace(state_directory=site.directory / "second")
    site.view(1, "/a", visitor=1)
    site.run(first)
    running = run([str(site.file)], site.spark, first._replace(once=False))
    site.view(2, "/a", visitor=1)
    next(running)
    with pytest.raises(RunRefused, match="already has rows"):
        site.run(second)
    site.run(second, reset=True)
    expected = site.rows(second)
    assert [row["views"] for row in expected["page_minutes"]] == [2]

    site.view(3, "/b", visitor=1)
    with pytest.raises(RunRefused, match="another run of"):
        list(running)
    assert site.rows(first) == expected
    with pytest.raises(RunRefused, match=rf"belong to the state in {second.state_directory}"):
        site.run(first)
    site.run(second)
    assert site.rows(second)["last_pages"] == [{"visitor": 1, "page": "/b", "views": 3}]

    elsewhere = second._replace(warehouse=parse_location(new_url(), s3))
    with pytest.raises(RunRefused, match="is the state of site in another warehouse"):
        site.run(elsewhere)


def test_rows_are_folded_and_older_versions_are_read(spark, s3):
    table = JobTable(parse_location(new_url(), s3), Rules(("page",), {"views": "sum"}))
    schema = spark.createDataFrame([], "page string, views long").schema

    def rows(**how):
        return {row.page: row.views for row in table.rows(spark, schema, **how).collect()}

    for number in range(3):
        batch = spark.createDataFrame([("/a", 1), (f"/{number}", 10)], schema).coalesce(1)
        table.append(batch, BatchName("query", number))
    assert table.append(batch, BatchName("query", 2)).is_repeated
    before = table.version()
    assert table.fold(spark, files_min=3)
    assert rows() == rows(version=before) == {"/a": 3, "/0": 10, "/1": 10, "/2": 10}
    assert rows(before=BatchName("query", 2)) == {"/a": 2, "/0": 10, "/1": 10}


def test_a_server_that_ignores_conditional_puts_is_refused_at_start(site):
    site.view(1, "/a", visitor=1)
    with s3_server(ignore_conditions=True) as options:
        settings = site.on_s3(options)
        with pytest.raises(LoadStopped, match="ignores conditional puts"):
            site.run(settings)
        assert not Path(settings.state("site"), "queries", "10s").exists()
