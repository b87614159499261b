"""Rules of a pipeline file: rows that break them are counted, quarantined, or stop the run."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from headrace.pipeline.errors import BadPipeline, ExpectationFailed, TooManyBadRecords
from headrace.pipeline.loading import load
from headrace.pipeline.runner.backfill import Span, backfill
from headrace.pipeline.runner.fanout import job_table
from headrace.pipeline.runner.inspection import RuleStatus, read_status
from headrace.pipeline.runner.run import run
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.warehouse.table import open_table
from headrace.spark.failures import PipelineError
from tests.spark.kit import failing_table

pytestmark = pytest.mark.spark

HEADER = """
from pyspark.sql import functions as F
from headrace.pipeline import expect, source, step, table, topic
"""
VIEWS = """
@expect("short", "length(page) < 10")
@expect("known", "page <> '/secret'", action="quarantine")
@expect("has_visitor", "visitor > 0", "quarantine")
@source("{topic}", schema="page string, visitor long")
def views(records):
    return records
"""
PAGES = """
@expect("few", "views < 3", action="quarantine")
@table(key=["page"], merge={"views": "sum"})
def pages(views):
    return views.groupBy("page").agg(F.count("*").alias("views"))
"""
VISITORS = """
@table(key=["visitor"], trigger="{trigger}")
def visitors(views):
    return views.select("visitor").distinct()
"""
STRICT = """
@expect("whole", "visitor % 2 = 0", action="fail")
@source("{topic}", schema="page string, visitor long")
def views(records):
    return records
"""


class Site:
    """A topic of page views, a warehouse, and a pipeline file."""

    def __init__(self, spark: Any, topics: Any, directory: Path) -> None:
        self.spark = spark
        self.topics = topics
        self.topic = topics.create("views", 1)
        self.file = directory / "site.py"
        self.settings = RunSettings(
            directory / "warehouse", {"kafka.bootstrap.servers": topics.bootstrap}, once=True
        )

    def write(self, *parts: str, trigger: str = "10 seconds") -> None:
        text = "".join(map(textwrap.dedent, (HEADER, *parts)))
        for name, value in (("topic", self.topic), ("trigger", trigger)):
            text = text.replace(f"{{{name}}}", str(value))
        self.file.write_text(text)

    def view(self, *views: tuple[str, int | None]) -> None:
        values = [json.dumps({"page": page, "visitor": visitor}) for page, visitor in views]
        pairs = [("k", value) for value in values]
        self.topics.send(self.topic, pairs, 0, headers=[("h", b"1")])

    def run(self, **settings: Any) -> list[Any]:
        return list(run([str(self.file)], self.spark, self.settings._replace(**settings)))

    def rows(self, name: str) -> list[Any]:
        """A table as people read it."""
        (node,) = (node for node in load(str(self.file)).nodes if node.name == name)
        rows = job_table(node, self.settings).shown(self.spark).toArrow().to_pylist()
        return sorted(tuple(row.values()) for row in rows)

    def letters(self) -> list[dict[str, Any]]:
        """All that was written, also what is there twice."""
        table = open_table(self.settings.table("_dead_letters"))
        rows = table.handle.to_pyarrow_dataset().to_table().to_pylist() if table else []
        return sorted(rows, key=lambda row: (row["topic"], row["offset"]))

    def tables(self) -> list[str]:
        found = self.settings.warehouse.iterdir()
        return sorted(path.name for path in found if (path / "_delta_log").is_dir())


@pytest.fixture
def site(spark: Any, topics: Any, tmp_path: Path) -> Site:
    return Site(spark, topics, tmp_path)


def test_rows_that_break_rules_are_counted_and_quarantined_once(site: Site) -> None:
    site.write(VIEWS, PAGES, VISITORS)
    site.view(("/a", 2), ("/a-very-long-page", 4), ("/secret", -1), ("/b", None))
    site.view(("/many", 1), ("/many", 1), ("/many", 1))
    with failing_table("visitors"), pytest.raises(PipelineError, match="the disk is full"):
        site.run()
    assert len(site.letters()) == 3
    (done,) = site.run()  # the same batch again

    counts = {"views.short": 1, "views.known": 1, "views.has_visitor": 2, "pages.few": 1}
    assert done.expectations == counts
    assert (done.rows, done.dead_letters) == (7, 3)
    assert site.rows("pages") == [("/a", 1), ("/a-very-long-page", 1)]
    assert site.rows("visitors") == [(1,), (2,), (4,)]
    of_pages, secret, nobody = site.letters()
    assert [(one["stage"], one["rule"], one["pipeline"]) for one in site.letters()] == [
        ("expectation", "few", "site"),
        ("expectation", "known", "site"),
        ("expectation", "has_visitor", "site"),
    ]
    assert (of_pages["topic"], of_pages["partition"]) == ("pages", -1)
    assert json.loads(of_pages["value"]) == {"page": "/many", "views": 3}
    assert (secret["topic"], secret["partition"], secret["offset"]) == (site.topic, 0, 2)
    assert (secret["key"], secret["headers"]) == (b"k", [{"key": "h", "value": b"1"}])
    assert json.loads(secret["value"]) == {"page": "/secret", "visitor": -1}
    assert (nobody["offset"], nobody["reason"]) == (3, "views: visitor > 0 is not true")

    site.view(("/secret", 6))
    site.run()
    assert read_status("site.py", site.settings).expectations == (
        RuleStatus("pages", "few", 3, 1, 0, 3, 1),
        RuleStatus("views", "has_visitor", 8, 2, 1, 1, 0),
        RuleStatus("views", "known", 8, 2, 1, 1, 1),
        RuleStatus("views", "short", 8, 1, 1, 1, 0),
    )
    list(backfill(str(site.file), site.spark, site.settings, Span()))
    assert site.rows("visitors") == [(1,), (2,), (4,)]
    assert len(site.letters()) == 4


def test_two_queries_count_the_rows_of_a_source_once(site: Site) -> None:
    site.write(VIEWS, PAGES, VISITORS, trigger="5 seconds")
    site.view(("/a", 2), ("/secret", 4))
    first, second = sorted(site.run(), key=lambda done: done.query, reverse=True)
    assert (first.query, first.expectations["views.known"], first.dead_letters) == ("5s", 1, 1)
    assert (second.query, second.expectations, second.dead_letters) == ("10s", {"pages.few": 0}, 0)
    assert (site.rows("pages"), site.rows("visitors")) == ([("/a", 1)], [(2,)])


def test_a_rule_that_fails_stops_the_run_before_anything_is_written(site: Site) -> None:
    site.write(STRICT, PAGES)
    site.view(("/a", 2), ("/b", 3), ("/c", None))
    site.topics.send(site.topic, ["{not json"], 0)
    with pytest.raises(
        ExpectationFailed,
        match=rf"site.py:5: source views: rule 'whole': visitor % 2 = 0 is not true for 2 of 3 "
        rf"rows, first for {site.topic}:0, offset 1\. Nothing of this batch was written",
    ):
        site.run()
    assert site.tables() == []
    site.write(STRICT.replace("return records", 'return records.where("visitor = 2")'), PAGES)
    (done,) = site.run()
    assert (done.expectations["views.whole"], done.dead_letters) == (0, 1)
    assert site.rows("pages") == [("/a", 1)]

    site.write(STRICT.replace('"fail"', '"warn"'), PAGES.replace('"quarantine"', '"fail"'))
    site.view(*[("/b", 2)] * 3)
    with pytest.raises(ExpectationFailed, match=r'first for {"page":"/b","views":3}'):
        site.run()
    assert site.rows("pages") == [("/a", 1)]


def test_too_many_bad_rows_stop_the_run(site: Site) -> None:
    site.write(VIEWS, VISITORS)
    site.view(*[("/secret", 1)] * 6, *[("/a", 1)] * 94)
    with pytest.raises(
        ExpectationFailed,
        match=r"source views: 6 of 100 rows would be quarantined \(known 6\), more than 5%\. "
        r"Nothing of this batch was written\..*--bad-max",
    ):
        site.run()
    assert site.tables() == []
    (done,) = site.run(bad_share_max=0.06)
    assert done.dead_letters == len(site.letters()) == 6


def test_a_producer_of_garbage_stops_the_run_before_its_records_are_dead_letters(
    site: Site,
) -> None:
    timed = """
    @source("{topic}", schema="page string, visitor long, at timestamp", event_time="at")
    def views(records):
        return records
    """
    site.write(timed, PAGES.replace("@expect", "# @expect"))
    now = 1_772_366_400_000  # 2026-03-01 12:00 UTC
    views = [json.dumps({"page": "/a", "at": "2026-03-01T12:00:00Z"})] * 93
    late = [json.dumps({"page": "/late", "at": "2026-01-01T00:00:00Z"})] * 20  # these count
    ahead = json.dumps({"page": "/a", "at": "2100-01-01T00:00:00Z"})
    bad = ["{not json", json.dumps({"visitor": "text"}), None, ahead, ahead, "", "[]"]
    site.topics.send(site.topic, [*views, *bad, *late], 0, timestamp=now)
    with pytest.raises(
        TooManyBadRecords,
        match=rf"7 of the last 120 records of topic {site.topic} \(5\.8%\) would be dead letters, "
        rf"more than 5%\. The first is offset 93 of {site.topic}-0: the value is not JSON of .*"
        r"Nothing of this batch was written\..*--bad-max",
    ):
        site.run()
    assert site.tables() == []
    assert not any(site.topics.committed("headrace-site-10s", site.topic).values())
    (done,) = site.run(bad_share_max=0.06)
    assert (done.late, done.dead_letters, len(site.letters())) == (20, 7, 7)
    assert site.rows("pages") == [("/a", 93), ("/late", 20)]


def test_small_batches_of_garbage_are_judged_together(site: Site) -> None:
    source = VIEWS[VIEWS.index("@source") :]
    site.write(
        source, PAGES.replace("@expect", "# @expect").replace("key", 'trigger="100 ms", key')
    )
    views = [json.dumps({"page": "/a"})] * 56
    running = run([str(site.file)], site.spark, site.settings._replace(once=False))
    site.topics.send(site.topic, [*views, *["{not json"] * 4])
    assert next(running).rows <= 60
    site.topics.send(site.topic, [*["{not json"] * 4, *views])
    with pytest.raises(TooManyBadRecords, match="8 of the last 1"):
        list(running)


def test_mistakes_in_rules_that_spark_finds(site: Site) -> None:
    site.write(
        """
        @expect("column", "pgae is not null")
        @expect("syntax", "page is is null")
        @expect("type", "visitor + 1")
        @expect("total", "sum(visitor) > 1")
        @source("{topic}", schema="page string, visitor long")
        def views(records):
            return records.select("page", "visitor")
        """,
        PAGES,
    )
    with pytest.raises(BadPipeline) as bad:
        site.run()
    found = [str(one).partition("site.py:")[2] for one in bad.value.mistakes]
    for start, text in (
        ("5: source views: rule 'column': ", "pgae"),
        ("6: source views: rule 'syntax': ", "yntax error"),
        ("7: source views: rule 'type': ", "visitor + 1 is bigint; use a condition"),
        ("8: source views: rule 'total': ", "GROUP BY"),
        ("5: source views: ", "lose their column '_record'"),
    ):
        assert any(one.startswith(start) and text in one for one in found), (start, found)
