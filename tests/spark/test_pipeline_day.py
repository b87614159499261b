"""A generated day through the shipped jobs, as one batch and as up to 1,000 batches with restarts.

The day has late, repeated and broken events. Exact columns are equal to the byte, however the day
is cut, and DuckDB computes the same sums from the records.
"""

from datetime import date
from itertools import islice

import duckdb
import pyarrow as pa
import pytest

from headrace.pipeline.events import SCHEMAS
from headrace.pipeline.generate.sending import generate_day
from headrace.pipeline.loading import load
from headrace.pipeline.runner.fanout import job_table
from headrace.pipeline.runner.run import run
from headrace.pipeline.runner.settings import RunSettings
from headrace.testing import Broker
from tests.spark.kit import Topics

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.torture,
    pytest.mark.timeout(0),
]

JOBS = ("activity", "feed", "ranking", "security", "operations")
EVENTS = 20_000
BATCHES_PER_ROUND = 50
RESTARTS = 3
SKETCHES = ("hll", "kll")


@pytest.fixture(scope="module")
def day():
    """A broker with the events of a day: its address, and the records by topic."""
    with Broker(process=True) as broker:
        address = broker.bootstrap_servers
        generate_day(address, date(2026, 3, 7), events=EVENTS, seed=5)
        topics = Topics(address)
        yield address, {topic: topics.read(topic) for topic in SCHEMAS}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.long
def test_a_day_in_any_batches_gives_the_same_rows(spark, torture_rounds, request, tmp_path, job):
    address, sent = request.getfixturevalue("day")
    batches = BATCHES_PER_ROUND * torture_rounds
    source = {"kafka.bootstrap.servers": address}
    whole, cut = (RunSettings(tmp_path / name, source, once=True) for name in ("one", "many"))
    nodes = load(job).nodes
    names = [node.declared.topic for node in nodes if node.kind == "source"]
    count = max(1, sum(len(sent[topic]) for topic in names) // batches)
    in_one = list(run([job], spark, whole))
    many = 0
    for _ in range(RESTARTS):
        # Stopped after some batches; the next run continues.
        started = run([job], spark, cut._replace(batch_records_max=count))
        many += len(list(islice(started, batches // (RESTARTS + 1))))
        started.close()
    many += len(list(run([job], spark, cut._replace(batch_records_max=count))))
    for node in nodes:
        if node.kind == "table":
            assert exact_rows(node, spark, cut) == exact_rows(node, spark, whole), node.name
    if job == "activity":
        check_views(spark, cut, sent["page-views"])
    print(f"{job}: {len(in_one)} batches and {many} give the same rows")


def exact_rows(node, spark, settings):
    """Without columns that are estimates."""
    rows = job_table(node, settings).shown(spark)
    sketches = [name for name, rule in node.option("merge").items() if rule in SKETCHES]
    kept = [
        name
        for name in rows.columns
        if not any(name == one or name.startswith(f"{one}_p") for one in sketches)
    ]
    return sorted(repr(row) for row in rows.select(*kept).toArrow().to_pylist())


def check_views(spark, settings, records):
    (node,) = (node for node in load("activity").nodes if node.name == "page_days")
    found = {
        (row.page, row.day.isoformat()): row.views
        for row in job_table(node, settings).shown(spark).collect()
        if row.views
    }
    events = pa.table(  # noqa: F841 - DuckDB finds it by name
        {
            "text": [one.value().decode(errors="replace") for one in records],
            "sent": [one.timestamp()[1] for one in records],
        }
    )
    expected = duckdb.sql("""
        with parsed as (
            select try_cast(text as json) as value, make_timestamp(sent * 1000) as sent
            from events),
        known as (
            select value->>'event_id' as id, value->>'page' as page, sent,
                try_cast(value->>'at' as timestamptz) at time zone 'UTC' as happened
            from parsed where value is not null)
        select page, strftime(happened, '%Y-%m-%d'), count(distinct id)
        from known where happened <= sent + interval 10 minutes
        group by all""").fetchall()
    assert found == {(page, day): count for page, day, count in expected}
