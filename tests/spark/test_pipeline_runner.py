"""Pipeline files run as streams: exactly once over restarts, late events, refused changes."""

import json
import shutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.client.cluster import ClientSettings
from headrace.pipeline.errors import BadPipeline, RunRefused
from headrace.pipeline.loading import load
from headrace.pipeline.quality.audit import audit
from headrace.pipeline.quality.balance import totals
from headrace.pipeline.runner.backfill import Span, backfill
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.runner.examples import run_examples
from headrace.pipeline.runner.fanout import job_table
from headrace.pipeline.runner.inspection import read_state, read_status
from headrace.pipeline.runner.run import run
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.tables import BatchName, JobTable, Rules
from headrace.pipeline.warehouse.load import Load
from headrace.pipeline.warehouse.settings import LoadSettings
from headrace.spark.cluster import Cluster
from headrace.spark.failures import PipelineError
from headrace.testing import Broker
from tests.spark.kit import failing_table

pytestmark = pytest.mark.spark

HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)
SCHEMA = "event_id string, at timestamp, page string, visitor long"
HEADER = """
from pathlib import Path
from pyspark.sql import functions as F
from headrace.pipeline import source, step, table, topic

@source("{topic}", schema="{schema}",
        event_time="at", event_id="event_id", late="{late}")
def views(records):
    return records
"""
COUNTS = """
@step
def shop_views(views):
    return "select * from views where page like '/shop/%'"

@table(key=["page", "minute"], merge={"views": "sum", "visitors": "hll"})
def page_minutes(shop_views):
    return shop_views.groupBy("page", F.date_trunc("minute", "at").alias("minute")).agg(
        F.count("*").alias("views"), F.hll_sketch_agg("visitor").alias("visitors"))
"""
LAST_PAGES = """
@step
def moves(views, last_pages):
    newest = views.groupBy("visitor").agg(F.max_by("page", "at").alias("page"),
                                          F.count("*").alias("views"))
    before = last_pages.select("visitor", F.col("views").alias("before"))
    return newest.join(before, "visitor", "left").select(
        "visitor", "page", (F.col("views") + F.coalesce("before", F.lit(0))).alias("views"))

@table(key=["visitor"], schema="visitor long, page string, views long")
def last_pages(moves):
    if Path("{failing}").exists() and moves.head(1):
        raise OSError("the disk is on fire")
    return moves

@topic("{out}", key="visitor", compacted=True)
def announced(moves):
    return moves
"""


def rows_of(table: JobTable, spark: Any) -> list[dict[str, Any]]:
    """A table as people read it."""
    return sorted(table.shown(spark).toArrow().to_pylist(), key=str)


class Site:
    """A topic of page views, a warehouse, and a pipeline file."""

    def __init__(self, spark: Any, topics: Any, directory: Path) -> None:
        self.spark = spark
        self.topics = topics
        self.topic = topics.create("views", 2)
        self.out = topics.create("out")
        self.directory = directory
        self.failing = directory / "failing"
        self.sent: dict[str, dict[str, Any]] = {}  # values by event
        self.file = directory / "site.py"
        self.settings = RunSettings(
            directory / "warehouse", {"kafka.bootstrap.servers": topics.bootstrap}, once=True
        )

    def write(self, *parts: str, late: str = "recompute") -> None:
        text = "".join(map(textwrap.dedent, parts))
        for name, value in (
            ("topic", self.topic), ("late", late), ("out", self.out), ("failing", self.failing),
            ("schema", SCHEMA),
        ):  # fmt: skip
            text = text.replace(f"{{{name}}}", str(value))
        self.file.write_text(text)

    def view(
        self, event_id: str, page: str, visitor: int = 1, minute: float = 0, arrives: float = 0
    ) -> None:
        """One event; ``arrives`` is in minutes after it happened."""
        at = HOUR + timedelta(minutes=minute)
        value = {"event_id": event_id, "at": at.isoformat(), "page": page, "visitor": visitor}
        self.sent[event_id] = value
        self.send(json.dumps(value), at + timedelta(minutes=arrives), visitor % 2)

    def send(self, value: Any, arrives: datetime = HOUR, partition: int = 0) -> None:
        timestamp = int(arrives.timestamp() * 1000)
        self.topics.send(self.topic, [value], partition, timestamp=timestamp)

    def run(self, **settings: Any) -> list[Any]:
        return list(run([str(self.file)], self.spark, self.settings._replace(**settings)))

    def load(self, schema: str = SCHEMA) -> Path:
        """Load the topic into its raw table; without a schema, the values as they are."""
        values = {"value.format": "json", "value.schema": schema} if schema else {}
        table = self.settings.warehouse / "raw" / self.topic
        load = Load(
            self.spark, LoadSettings((self.topic,), table, {**self.settings.source, **values})
        )
        load.once(lambda progress: None)
        load.close()
        return table

    def rows(self, name: str) -> list[dict[str, Any]]:
        """A table as people read it."""
        (node,) = (node for node in load(str(self.file)).nodes if node.name == name)
        return rows_of(job_table(node, self.settings), self.spark)

    def counts(self) -> dict[tuple[str, int], tuple[int, int]]:
        return {
            (row["page"], row["minute"].minute): (row["views"], row["visitors"])
            for row in self.rows("page_minutes")
        }


@contextmanager
def new_broker() -> Iterator[str]:
    with Broker(config={"log.retention.ms": -1}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def site(spark: Any, topics: Any, tmp_path: Path) -> Site:
    return Site(spark, topics, tmp_path)


def test_a_batch_that_fails_between_two_tables_is_written_once(site: Site) -> None:
    site.write(HEADER, COUNTS, LAST_PAGES)
    site.view("1", "/shop/a", visitor=1)
    site.view("2", "/shop/a", visitor=2)
    site.view("2", "/shop/a", visitor=2, arrives=1)  # doubled
    site.view("3", "/about", visitor=2, minute=1)
    site.run()
    expected = {("/shop/a", 0): (2, 2)}
    assert site.counts() == expected

    site.failing.touch()
    site.view("2", "/shop/a", visitor=2, arrives=3)  # doubled over batches
    site.view("4", "/shop/a", visitor=1, minute=2)
    with pytest.raises(PipelineError, match=r"site.py:\d+: .*the disk is on fire"):
        site.run()
    assert site.counts() == expected  # a function failed before anything was written
    site.failing.unlink()

    with failing_table("last_pages"), pytest.raises(PipelineError, match="the disk is full"):
        site.run()
    expected[("/shop/a", 2)] = (1, 1)
    assert site.counts() == expected  # the first table has the batch
    assert [row["views"] for row in site.rows("last_pages")] == [1, 2]

    site.view("5", "/shop/b", visitor=2, minute=3)
    (again, after) = site.run()
    assert again.written == {"page_minutes": 0, "last_pages": 1, "announced": 1}
    assert after.dropped_by_watermark == 0
    expected[("/shop/b", 3)] = (1, 1)
    assert site.counts() == expected
    assert site.rows("last_pages") == [
        {"visitor": 1, "page": "/shop/a", "views": 2},
        {"visitor": 2, "page": "/shop/b", "views": 3},
    ]
    sent = [json.loads(message.value()) for message in site.topics.read(site.out)]
    assert sorted((one["visitor"], one["views"]) for one in sent) == [
        (1, 1),
        (1, 2),
        (2, 2),
        (2, 3),
    ]
    group = site.topics.committed("headrace-site-10s", site.topic)
    assert sum(group.values()) == 7


def test_many_batches_and_restarts_give_what_one_batch_gives(site: Site) -> None:
    site.write(HEADER, COUNTS, LAST_PAGES)
    for number in range(12):
        site.view(str(number), f"/shop/{number % 2}", visitor=number % 3, minute=number)
        if number % 4 == 0:
            site.view(str(number), f"/shop/{number % 2}", visitor=number % 3, minute=number)
    first = site.run(batch_records_max=5)
    assert len(first) > 1
    site.view("12", "/shop/0", visitor=0, minute=12)
    site.run()
    assert [one["views"] for one in site.rows("page_minutes")] == [1] * 13
    names = ("page_minutes", "last_pages")
    in_many = {name: site.rows(name) for name in names}

    done = list(backfill(str(site.file), site.spark, site.settings, Span()))
    assert [one.table for one in done] == list(names)
    assert {name: site.rows(name) for name in names} == in_many

    # A part of the time, after which the stream goes on.
    span = Span(HOUR + timedelta(minutes=3), HOUR + timedelta(minutes=6))
    done = list(backfill(str(site.file), site.spark, site.settings, span))
    assert [(one.table, one.rows) for one in done] == [("page_minutes", 3), ("last_pages", None)]
    site.view("13", "/shop/1", visitor=1, minute=3.5)
    site.run()
    assert sum(one["views"] for one in site.rows("page_minutes")) == 14
    cut = Span(HOUR + timedelta(minutes=3, seconds=1))
    with pytest.raises(RunRefused, match="cuts a window of page_minutes"):
        list(backfill(str(site.file), site.spark, site.settings, cut))


@pytest.mark.parametrize("late", ["recompute", "deadletter", "drop"])
def test_late_events_go_where_the_file_says(site: Site, late: str) -> None:
    site.write(HEADER, COUNTS, late=late)
    site.view("1", "/shop/a", minute=30)
    site.view("2", "/shop/a", minute=0, arrives=25)  # late, by its own timestamp
    site.view("3", "/shop/a", minute=5, arrives=9)
    # Again, too late and in another partition: it is the one that came in time.
    site.view("3", "/shop/a", visitor=2, minute=5, arrives=19)
    site.view("4", "/shop/a", minute=-60 * 24 * 365 * 56, arrives=60 * 24 * 365 * 56)  # 1970
    site.send("{not json")
    site.send(json.dumps({"event_id": "5", "at": "2100-01-01T00:00:00Z", "page": "/shop/a"}))
    (done,) = site.run()
    counts = {row["minute"].isoformat()[:16]: row["views"] for row in site.rows("page_minutes")}
    in_time = {"2026-03-01T12:30": 1, "2026-03-01T12:05": 1}
    letters = JobTable(site.settings.table("_dead_letters"), Rules(("offset", "partition")))
    stages = sorted(row["stage"] for row in rows_of(letters, site.spark))
    assert done.dropped_by_watermark == 0
    if late == "recompute":
        assert counts == {**in_time, "2026-03-01T12:00": 1, "1970-03-15T12:00": 1}
        assert (done.late, done.dropped_late, stages) == (2, 0, ["decode", "event-time"])
    elif late == "deadletter":
        assert counts == in_time
        assert (done.late, done.dropped_late) == (2, 0)
        assert stages == ["decode", "event-time", "late", "late"]
    else:
        assert counts == in_time
        assert (done.late, done.dropped_late, stages) == (0, 2, ["decode", "event-time"])
    assert done.dead_letters == len(stages)
    reads = JobTable(site.settings.table("reads"), Rules(("topic", "minute"), {"events": "sum"}))
    events = {row["minute"].minute: row["events"] for row in rows_of(reads, site.spark)}
    assert events == {30: 1, 25: 1, 14: 1, 0: 3}


def test_a_change_that_would_spoil_the_rows_is_refused(site: Site) -> None:
    site.write(HEADER, COUNTS)
    site.view("1", "/shop/a")
    site.run()
    site.write(HEADER, COUNTS.replace('"page", "minute"], merge', '"minute", "page"], merge'))
    with pytest.raises(RunRefused, match=r"key was .* Run it with --reset"):
        site.run()
    site.write(HEADER, COUNTS.replace('"hll"}', '"hll"}, trigger="5 seconds"'))
    with pytest.raises(RunRefused, match=r"its query was 10s and is 5s.* --from TIME"):
        site.run()
    site.run(start={"startingOffsets": "latest"})
    assert site.counts() == {("/shop/a", 0): (1, 1)}
    site.view("2", "/shop/a")
    site.run()
    assert site.counts() == {("/shop/a", 0): (2, 1)}

    metadata = PipelineDirectory(site.settings.state("site")).checkpoint("5s") / "metadata"
    text = metadata.read_text()
    metadata.write_text('{"id": "another"}')
    with pytest.raises(RunRefused, match=r"checkpoint of query 5s of site is not the one of the"):
        site.run()
    metadata.write_text(text)
    shutil.rmtree(site.settings.state("site") / "queries")
    with pytest.raises(RunRefused, match=r"checkpoint of query 5s of site is missing"):
        site.run()
    shutil.rmtree(site.settings.state("site"))
    with pytest.raises(RunRefused, match=r"page_minutes already has rows"):
        site.run()
    site.run(reset=True)
    assert site.counts() == {("/shop/a", 0): (2, 1)}


def test_two_runs_of_one_pipeline_are_refused_and_a_run_can_be_stopped(site: Site) -> None:
    site.write(HEADER, COUNTS.replace('"hll"}', '"hll"}, trigger="100 ms"'))
    site.view("1", "/shop/a")
    running = run([str(site.file)], site.spark, site.settings._replace(once=False))
    assert next(running).rows == 1
    with pytest.raises(RunRefused, match=r"process \d+ runs the pipeline site already"):
        site.run()
    directory = PipelineDirectory(site.settings.state("site"))
    assert directory.is_running()
    status = read_status("site.py", site.settings)
    assert (status.is_running, [one.group for one in status.queries]) == (
        True,
        ["headrace-site-100ms"],
    )
    assert [(one.table, one.rows) for one in status.tables] == [("page_minutes", 1)]
    directory.ask_to_stop()
    assert list(running) == []
    assert not directory.is_running() and not directory.is_asked_to_stop()
    (state,) = read_state("site.py", site.spark, site.settings)
    assert (state.operator, state.keys) == ("dedupeWithinWatermark", 1)


def test_mistakes_that_only_spark_and_the_cluster_can_find(site: Site) -> None:
    site.write(
        HEADER,
        """
        @step
        def wrong_column(views):
            return views.select("pgae")

        @table(key=["nothing"], merge={"views": "sum", "page": "hll"})
        def wrong_table(views):
            made = views.select("page", "visitor", F.lit(None).alias("empty"))
            return made.withColumn("views", F.lit("x"))

        @table(key=["visitor"])
        def reads_itself(views, reads_itself):
            return views

        @topic("{out}", key="nothing")
        def wrong_topic(views):
            return 7

        @table(key=["page"])
        def wrong_sql(wrong_column, views):
            return "selec page from views"
        """,
    )
    with pytest.raises(BadPipeline) as bad:
        site.run()
    found = {str(one).partition("site.py:")[2] for one in bad.value.mistakes}
    for line, text in (
        (13, "pgae"),
        (15, "key names 'nothing'; the columns are page, visitor, empty, views"),
        (15, "merge of 'views' is 'sum' of string"),
        (15, "merge of 'page' is 'hll', which needs hll_sketch_agg"),
        (15, "column 'visitor' is neither in key nor in merge"),
        (15, "column 'empty' has no type"),
        (20, "reads_itself reads it before its columns are known"),
        (24, "returns int"),
    ):
        assert any(one.startswith(f"{line}:") and text in one for one in found), (line, text, found)
    site.write(HEADER.replace("{topic}", "no-such-topic"), COUNTS)
    with pytest.raises(BadPipeline, match=r"site.py:6: .*'no-such-topic' does not exist"):
        site.run()


def test_examples_of_a_file(site: Site) -> None:
    site.write(
        HEADER.replace("table, topic", "table, topic, example"),
        COUNTS,
        LAST_PAGES,
        """
        @example
        def right():
            view = {"event_id": "1", "at": "2026-03-01T12:00:30Z", "page": "/shop/a", "visitor": 7}
            again = {**view, "event_id": "2"}
            return [{"views": [view, view]}, {"views": [view, again]}], {
                "page_minutes": [{"minute": "2026-03-01T12:00:00Z", "views": 2, "visitors": 1}],
                "last_pages": [{"visitor": 7, "page": "/shop/a", "views": 2}],
                "announced": [{"visitor": 7, "views": 1}, {"visitor": 7, "views": 2}],
            }

        @example
        def wrong():
            return {"views": []}, {"page_minutes": [{"views": 1}]}
        """,
    )
    right, wrong = run_examples(load(str(site.file)), site.spark, new_broker)
    assert (right.example, right.problems) == ("right", ())
    assert wrong.problems == ("table page_minutes lacks {'views': 1}",)


def test_a_table_of_another_query_is_read_at_one_version(site: Site) -> None:
    site.write(
        HEADER,
        COUNTS,
        """
        @table(key=["page"], trigger="5 seconds")
        def known(views, page_minutes):
            minutes = page_minutes.groupBy("page").agg(F.count("*").alias("minutes"))
            return views.select("page").distinct().join(minutes, "page", "left")
        """,
    )
    site.view("1", "/shop/a")
    assert sorted(done.query for done in site.run()) == ["10s", "5s"]
    site.view("2", "/shop/a")
    site.run()
    assert site.rows("known") == [{"page": "/shop/a", "minutes": 1}]
    pinned = site.settings.state("site") / "queries" / "5s" / "inputs" / "1.json"
    assert json.loads(pinned.read_text())["page_minutes"] >= 1


# Each kind of result, for windows of ten minutes: rows that merge, and rows that do not.
KINDS = """
TEN = F.expr("timestamp_seconds(unix_seconds(at) div 600 * 600)").alias("ten")

@table(key=["ten"], merge={"views": "sum", "first": "min", "last": "max", "guests": "hll",
                           "visitor": "kll"})
def merged(views):
    return views.groupBy(TEN).agg(
        F.count("*").alias("views"), F.min("at").alias("first"), F.max("at").alias("last"),
        F.hll_sketch_agg("visitor").alias("guests"),
        F.kll_sketch_agg_double(F.col("visitor").cast("double")).alias("visitor"))

@table(key=["ten"], window="10 minutes")
def exact(views):
    return views.groupBy(TEN).agg(
        F.countDistinct("visitor").alias("visitors"), F.min_by("page", "at").alias("entry"),
        F.max_by("page", "at").alias("exit"), F.median("visitor").alias("middle"))

@table(key=["ten", "page"], window="10 minutes")
def top_pages(views):
    counts = views.groupBy(TEN, "page").agg(F.count("*").alias("views"))
    counts.createOrReplaceTempView("page_counts")
    return views.sparkSession.sql("select * from page_counts qualify row_number() over ("
                                  "partition by ten order by views desc, page) <= 2")
"""
EXPECTED = {
    "merged": """select ten, count(*) as views, min(happened) as first,
        max(happened) as last, count(distinct visitor) as guests,
        quantile_disc(visitor, 0.5)::double as visitor_p50 from events group by ten""",
    "exact": """select ten, count(distinct visitor) as visitors,
        min_by(page, happened) as entry, max_by(page, happened) as exit,
        median(visitor) as middle from events group by ten""",
    "top_pages": """select ten, page, count(*) as views from events group by ten, page
        qualify row_number() over (partition by ten order by views desc, page) <= 2""",
}


def assert_as_in_duckdb(site: Site, *names: str) -> None:
    """Tables have DuckDB's answer from the events, each once."""
    rows = pa.Table.from_pylist(list(site.sent.values()))
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("sent", rows)
        connection.execute("""create view events as
            select *, time_bucket(interval 10 minutes, happened) as ten
            from (select *, "at"::timestamptz as happened from sent)""")
        for name in names:
            expected = connection.sql(EXPECTED[name]).to_arrow_table().to_pylist()
            found = [{column: row[column] for column in expected[0]} for row in site.rows(name)]
            assert sorted(found, key=str) == sorted(expected, key=str), name


def test_late_events_change_their_windows_as_if_they_had_come_in_time(site: Site) -> None:
    site.write(HEADER, KINDS)
    for number, page in enumerate("aabbc"):
        site.view(f"{number}", f"/{page}", visitor=number, minute=number)
    site.view("moves the watermark", "/d", minute=55)
    site.run()
    assert_as_in_duckdb(site, *EXPECTED)

    site.view("late", "/c", visitor=4, minute=0.5, arrives=60)
    site.view("late, too", "/c", visitor=9, minute=8, arrives=61)
    # Sent with an old timestamp, which is behind the watermark.
    site.view("behind", "/e", visitor=3, minute=-20)
    site.view("behind, too", "/c", visitor=3, minute=9)
    (done,) = site.run()
    assert (done.rows, done.late, done.dropped_by_watermark) == (4, 2, 0)
    assert_as_in_duckdb(site, *EXPECTED)
    pages = {
        row["page"] for row in site.rows("top_pages") if row["ten"] == HOUR.replace(tzinfo=UTC)
    }
    assert pages == {"/a", "/c"}  # /b left

    # An event that comes again long after the first is in windows once.
    site.view("late", "/c", visitor=4, minute=0.5, arrives=90)
    site.view("0", "/a", visitor=0, minute=0, arrives=90)
    site.run()
    assert_as_in_duckdb(site, "exact", "top_pages")
    list(backfill(str(site.file), site.spark, site.settings, Span()))
    assert_as_in_duckdb(site, *EXPECTED)

    # What a query reads is published by partition and minute, also what it drops as repeated.
    cluster = Cluster(ClientSettings(site.topics.bootstrap))
    try:
        found = audit(cluster, site.settings.warehouse, [site.topic]).balances
    finally:
        cluster.close()
    (total,) = totals(found)
    assert (total.tier, total.name) == ("job", "site/10s")
    assert (total.expected, total.found, total.missing, total.surplus) == (12, 12, 0, 0)


def test_windows_of_records_that_the_topic_lost_come_from_the_raw_table(site: Site) -> None:
    site.write(HEADER, KINDS)
    for number, page in enumerate("aabb"):
        site.view(f"{number}", f"/{page}", visitor=2 * number, minute=number)
    site.view("in the topic", "/d", minute=1, visitor=1)
    site.run()
    assert_as_in_duckdb(site, *EXPECTED)
    table = site.load()
    site.topics.delete_records(site.topic, 0, 3)
    site.view("late", "/c", visitor=3, minute=5, arrives=60)
    site.run()
    assert_as_in_duckdb(site, *EXPECTED)

    # Neither here nor there: the event is a dead letter of these tables, and nothing is stuck.
    shutil.rmtree(table)
    site.view("late, too", "/c", visitor=3, minute=6, arrives=60)
    site.view("in time", "/a", visitor=3, minute=70)
    (done,) = site.run()
    assert (done.late, done.dead_letters) == (1, 2)
    assert_as_in_duckdb(site, "merged")
    del site.sent["late, too"]
    assert_as_in_duckdb(site, "exact", "top_pages")
    letters = JobTable(
        site.settings.table("_dead_letters"), Rules(("offset", "partition", "sinks"))
    )
    found = {row["sinks"]: row["reason"] for row in rows_of(letters, site.spark)}
    assert found.keys() == {"exact", "top_pages"}
    assert "neither in the raw table nor in the topic" in found["exact"]


def test_events_in_time_stop_the_run_if_records_of_their_window_are_lost(site: Site) -> None:
    site.write(HEADER, KINDS)
    site.view("1", "/a", visitor=2)
    site.run()
    before = site.rows("exact")
    site.topics.delete_records(site.topic, 0, 1)
    site.view("2", "/b", visitor=2, minute=1)
    with pytest.raises(
        PipelineError,
        match=rf"site.py:\d+: table exact: the records of {site.topic}-0 from offset 0 to 1 are "
        r"neither in the raw table nor in the topic.* \(headrace pipeline load\).* --from latest",
    ):
        site.run()
    assert site.rows("exact") == before
    site.run(start={"startingOffsets": "latest"})
    site.view("3", "/c", visitor=2, minute=20)
    site.run()
    assert [row["entry"] for row in site.rows("exact")] == ["/a", "/c"]


# --- raw tables ---------------------------------------------------------------------------------


@pytest.mark.parametrize("late", ["recompute", "drop"])
def test_reset_brings_back_what_only_the_raw_table_has(
    site: Site, late: str, caplog: pytest.LogCaptureFixture
) -> None:
    site.write(HEADER, COUNTS, LAST_PAGES, KINDS, late=late)
    site.view("1", "/shop/a", visitor=2)
    site.view("2", "/shop/b", visitor=2, minute=1.123457)  # to the microsecond
    site.view("3", "/shop/a", visitor=2, minute=0.5, arrives=9)
    site.view("4", "/shop/c", visitor=2, minute=2)
    # The topic will keep these: the second would be late if it were the first.
    site.view("4", "/shop/c", visitor=2, minute=2, arrives=4)
    site.view("3", "/shop/a", visitor=2, minute=0.5, arrives=12)
    site.view("5", "/shop/a", visitor=3, minute=5)
    site.run()
    names = ("page_minutes", "last_pages", *EXPECTED)
    before = {name: site.rows(name) for name in names}
    assert_as_in_duckdb(site, *EXPECTED)
    raw = site.load()
    site.topics.delete_records(site.topic, 0, 4)

    older, *streamed = site.run(reset=True)
    assert (older.batch, older.rows) == (None, 2 if late == "recompute" else 3)
    assert [one.batch for one in streamed] == [0]
    assert {name: site.rows(name) for name in names} == before
    if late == "drop":
        return
    site.view("6", "/shop/b", visitor=2, minute=6)
    site.run()
    assert_as_in_duckdb(site, *EXPECTED)
    assert [row["views"] for row in site.rows("last_pages")] == [5, 1]

    # What is nowhere is told.
    shutil.rmtree(raw)
    site.write(HEADER, LAST_PAGES, late=late)
    caplog.clear()
    assert [one.batch for one in site.run(reset=True)] == [0]
    assert f"The records of {site.topic}-0 from offset 0 to 3 are neither in" in caplog.text
    assert [row["views"] for row in site.rows("last_pages")][0] < 5


@pytest.mark.parametrize("is_parsed", [True, False])
def test_backfill_reads_raw_tables(site: Site, is_parsed: bool) -> None:
    schema = f"{SCHEMA}, value int"
    site.write(
        HEADER.replace("{schema}", schema),
        """
        @table(key=["visitor"], merge={"total": "sum", "last": "max"})
        def totals(views):
            return views.groupBy("visitor").agg(
                F.sum(F.col("value").cast("long")).alias("total"), F.max("at").alias("last"))
        """,
    )
    for number in range(4):
        at = HOUR + timedelta(microseconds=number)
        value = {"event_id": str(number), "at": at.isoformat(), "visitor": 2, "value": number}
        site.send(json.dumps(value), at)
    site.run()
    before = site.rows("totals")
    last = HOUR + timedelta(microseconds=3)
    assert before == [{"visitor": 2, "total": 6, "last": last}]
    site.load(schema if is_parsed else "")
    site.topics.delete_records(site.topic, 0, 3)
    (done,) = backfill(str(site.file), site.spark, site.settings, Span())
    assert (done.table, done.rows, site.rows("totals")) == ("totals", 1, before)


# --- bad input ----------------------------------------------------------------------------------


def test_an_empty_topic_and_one_that_vanishes(site: Site) -> None:
    site.write(HEADER, COUNTS.replace('"hll"}', '"hll"}, trigger="100 ms"'))
    assert sum(done.rows for done in site.run()) == 0
    running = run([str(site.file)], site.spark, site.settings._replace(once=False))
    site.view("1", "/shop/a")
    assert next(running).rows == 1
    site.topics.delete(site.topic)
    with pytest.raises(PipelineError, match=f"{site.topic}.* no longer exists"):
        list(running)
    assert site.counts() == {("/shop/a", 0): (1, 1)}
    with pytest.raises(BadPipeline, match=rf"site.py:\d+: .*'{site.topic}' does not exist"):
        site.run()


def test_a_table_of_another_program_or_pipeline_is_refused(site: Site) -> None:
    site.write(HEADER, COUNTS)
    site.view("1", "/shop/a")
    place = Path(site.settings.table("page_minutes"))
    theirs = pa.table({"page": ["/"], "minute": [1], "views": [1]})
    write_deltalake(place, theirs)
    for reset in (False, True):
        with pytest.raises(RunRefused, match=r"page_minutes is a Delta table that no pipeline"):
            site.run(reset=reset)
    assert DeltaTable(place).to_pyarrow_table() == theirs
    shutil.rmtree(place)

    # A table of another pipeline, where one is added to a file that has run.
    site.run()
    rows = site.spark.sql("select 'ann' as visitor, 1 as page, 2L as views").coalesce(1)
    others = JobTable(site.settings.table("last_pages"), Rules(("visitor",)))
    others.append(rows, BatchName("another", 0))
    site.write(HEADER, COUNTS, LAST_PAGES)
    with pytest.raises(
        RunRefused,
        match=r"site.py:\d+: table last_pages: its rows do not fit .*/last_pages: column 'visitor' "
        r"is string in the table and long in the batch; column 'page' is integer .* --reset",
    ):
        site.run()
    site.run(reset=True)
    assert site.rows("last_pages") == [{"visitor": 1, "page": "/shop/a", "views": 1}]

    in_double = COUNTS.replace('F.count("*")', 'F.count("*").cast("double")')
    site.write(HEADER, in_double, LAST_PAGES)
    with pytest.raises(RunRefused, match=r"column views was bigint and is double.* --reset"):
        site.run()


def test_a_full_disk_and_a_broken_file(site: Site, small_disk: Any) -> None:
    site.settings = site.settings._replace(warehouse=small_disk.path / "warehouse")
    site.write(HEADER, LAST_PAGES)
    site.view("1", "/shop/a")
    site.run()
    expected = site.rows("last_pages")
    small_disk.fill()
    site.view("2", "/shop/b")
    with pytest.raises(PipelineError, match="No space left on device"):
        site.run()
    small_disk.empty()
    assert site.rows("last_pages") == expected
    site.run()
    assert site.rows("last_pages") == [{"visitor": 1, "page": "/shop/b", "views": 2}]

    path = next(Path(site.settings.table("last_pages")).glob("*.parquet"))
    content = path.read_bytes()
    path.write_bytes(content[:40])
    site.view("3", "/shop/c")
    with pytest.raises(PipelineError, match=f"{path.name} cannot be read.* or use --reset"):
        site.run()
    path.write_bytes(content)
    site.run()
    assert [row["views"] for row in site.rows("last_pages")] == [3]
