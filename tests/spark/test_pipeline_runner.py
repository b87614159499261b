"""Pipeline files run as streams: exactly once over restarts, late events, refused changes."""

import json
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.pipeline.errors import BadPipeline, RunRefused
from headrace.pipeline.loading import load
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.runner.fanout import job_table
from headrace.pipeline.runner.run import run
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.tables import JobTable, Rules
from headrace.spark.failures import PipelineError

pytestmark = pytest.mark.spark

HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)
HEADER = """
from pathlib import Path
from pyspark.sql import functions as F
from headrace.pipeline import source, step, table, topic

@source("{topic}", schema="event_id string, at timestamp, page string, visitor long",
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


class Site:
    """A topic of page views, a warehouse, and a pipeline file."""

    def __init__(self, spark: Any, topics: Any, directory: Path) -> None:
        self.spark = spark
        self.topics = topics
        self.topic = topics.create("views", 2)
        self.out = topics.create("out")
        self.directory = directory
        self.failing = directory / "failing"
        self.file = directory / "site.py"
        self.settings = RunSettings(
            directory / "warehouse", {"kafka.bootstrap.servers": topics.bootstrap}, once=True
        )

    def write(self, *parts: str, late: str = "recompute") -> None:
        text = textwrap.dedent("".join(parts))
        for name, value in (
            ("topic", self.topic), ("late", late), ("out", self.out), ("failing", self.failing)
        ):  # fmt: skip
            text = text.replace(f"{{{name}}}", str(value))
        self.file.write_text(text)

    def view(
        self, event_id: str, page: str, visitor: int = 1, minute: int = 0, arrives: int = 0
    ) -> None:
        """One event; ``arrives`` is in minutes after it happened."""
        at = HOUR + timedelta(minutes=minute)
        value = {"event_id": event_id, "at": at.isoformat(), "page": page, "visitor": visitor}
        self.send(json.dumps(value), at + timedelta(minutes=arrives), visitor % 2)

    def send(self, value: Any, arrives: datetime = HOUR, partition: int = 0) -> None:
        timestamp = int(arrives.timestamp() * 1000)
        self.topics.send(self.topic, [value], partition, timestamp=timestamp)

    def run(self, **settings: Any) -> list[Any]:
        return list(run(str(self.file), self.spark, self.settings._replace(**settings)))

    def rows(self, name: str) -> list[dict[str, Any]]:
        """A table as people read it."""
        (node,) = (node for node in load(str(self.file)).nodes if node.name == name)
        rows: list[dict[str, Any]] = (
            job_table(node, self.settings).shown(self.spark).toArrow().to_pylist()
        )
        return sorted(rows, key=str)

    def counts(self) -> dict[tuple[str, int], tuple[int, int]]:
        return {
            (row["page"], row["minute"].minute): (row["views"], row["visitors"])
            for row in self.rows("page_minutes")
        }


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
    expected[("/shop/a", 2)] = (1, 1)
    assert site.counts() == expected  # the first table has the batch
    assert [row["views"] for row in site.rows("last_pages")] == [1, 2]

    site.failing.unlink()
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
