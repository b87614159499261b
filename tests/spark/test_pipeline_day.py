"""A generated day through the shipped jobs, as one batch and as up to 1,000 batches with restarts.

The day has late, repeated and broken events. Exact columns are equal to the byte, however the day
is cut, and estimates are within the error of their sketches. DuckDB computes the same from the
records for a table of each job, and for every column that is an estimate.
"""

from contextlib import contextmanager
from datetime import date
from itertools import islice

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from headrace.pipeline.events import SCHEMAS
from headrace.pipeline.generate.sending import generate_day
from headrace.pipeline.jobs import security
from headrace.pipeline.loading import load
from headrace.pipeline.runner.fanout import job_table
from headrace.pipeline.runner.run import run
from headrace.pipeline.runner.settings import RunSettings
from headrace.testing import Broker
from tests.spark.batches import sorted_rows
from tests.spark.kit import Topics
from tests.spark.test_jobs_activity import HLL_ERROR
from tests.spark.test_jobs_operations import RANK_ERROR
from tests.spark.test_jobs_ranking import expected_scores

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
    with parsed(sent) as events:
        CHECKS[job](lambda name: table_of(job, name, spark, cut), events)
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


def table_of(job, name, spark, settings):
    (node,) = (node for node in load(job).nodes if node.name == name)
    return job_table(node, settings).shown(spark).toArrow()


# --- what DuckDB computes -------------------------------------------------------------------------

_TYPES = {"long": "bigint", "int": "integer", "string": "varchar", "timestamp": "timestamptz"}


@contextmanager
def parsed(sent):
    """A database with a table per topic: each event once, without broken ones."""
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        for topic, records in sent.items():
            fields = [column.split() for column in SCHEMAS[topic].split(", ")]
            read = {
                name: f"try_cast(value->>'{name}' as {_TYPES.get(kind, kind)})"
                for name, kind in fields
            }
            columns = ", ".join(f'{text} as "{name}"' for name, text in read.items())
            is_right = " and ".join(
                f"(value->>'{name}' is null or {text} is not null)" for name, text in read.items()
            )
            rows = {
                "text": [one.value().decode(errors="replace") for one in records],
                "sent_ms": [one.timestamp()[1] for one in records],
            }
            database.register("records", pa.table(rows))
            database.execute(f"""
                create table "{topic.replace("-", "_")}" as
                with parsed as (
                    select try_cast(text as json) as value,
                        make_timestamp(sent_ms * 1000) at time zone 'UTC' as sent
                    from records),
                right_ones as (select {columns}, sent from parsed
                    where value is not null and {is_right})
                select * from right_ones where "at" <= sent + interval 10 minutes
                qualify row_number() over (partition by event_id order by sent) = 1""")
            database.unregister("records")
        yield database


def answer(events, query):
    return events.sql(query).to_arrow_table()


def check_activity(table, events):
    """Views, searches and visitors of pages; visitors of all that has them."""

    def of_pages(window, start):
        return f"""
            select page, {window}, coalesce(views, 0)::bigint as views,
                coalesce(searches, 0)::bigint as searches, coalesce(visitors, 0) as visitors
            from (select page, {start} as {window}, count(*) as views,
                    count(distinct visitor) as visitors from page_views group by all)
            full join (select page, {start} as {window}, count(*) as searches
                    from searches group by all) using (page, {window})"""

    queries = {
        "page_minutes": of_pages("minute", "date_trunc('minute', \"at\")"),
        "page_days": of_pages("day", '"at"::date'),
        "content_days": """
            select item, author, "at"::date as day, count(*) as views,
                count(distinct visitor) as visitors
            from page_views where item is not null group by all""",
        "profile_visits": """
            select profile as member, "at"::date as day, count(*) as visits,
                count(distinct visitor) as visitors
            from page_views where profile is not null and profile is distinct from member
            group by all""",
    }
    for name, query in queries.items():
        found, true = (sorted_rows(one) for one in (table(name), answer(events, query)))
        assert [row[:-1] for row in found] == [row[:-1] for row in true], name
        for row, (*_, visitors) in zip(found, true, strict=True):
            assert abs(row[-1] - visitors) <= HLL_ERROR * visitors, (name, row)


def check_feed(table, events):
    true = answer(
        events,
        """select member, followed, max("at") as since,
            arg_max(event_id, ("at", event_id)) as event_id,
            arg_max(action, ("at", event_id)) = 'follow' as follows
        from follows group by all""",
    )
    assert len(true) > 0
    assert sorted_rows(table("following")) == sorted_rows(true)


def check_ranking(table, events):
    topics = ("votes", "ratings", "impressions", "clicks")
    given = {
        topic: answer(
            events, f"select * from {topic} where category is not null and item is not null"
        )
        for topic in topics
    }
    assert sorted_rows(table("item_scores")) == sorted_rows(expected_scores(given))


def check_security(table, events):
    limits = pa.Table.from_pylist([rule._asdict() for rule in security.RULES])
    events.register("limits", limits)
    true = answer(
        events,
        """
        with observed as (
            select if(regexp_matches(coalesce(agent, ''), '(?i)bot|crawler|spider'), 'crawler',
                'scraper') as kind, client, "at", sent, page as target
            from page_views where referrer is null
            union all select 'spam', client, "at", sent, text from posts
            union all select 'login-guessing', client, "at", sent, account from logins
                where not succeeded
            union all select 'api-limit', client, "at", sent, endpoint from api_calls),
        known as (
            select kind, client, time_bucket(interval 10 seconds, "at") as bucket,
                coalesce(target, '') as target
            from observed where client is not null and "at" >= sent - interval 10 minutes),
        windows as (
            select one.kind, one.client, one.bucket, count(*) as events,
                count(distinct other.target) as targets
            from (select distinct kind, client, bucket from known) as one join known as other
                on one.kind = other.kind and one.client = other.client
                and other.bucket between one.bucket - interval 50 seconds and one.bucket
            group by all)
        select kind || '/' || client || '/' || strftime(bucket, '%Y-%m-%d') as incident_id,
            min(bucket) as since, max(bucket) + interval 10 seconds as until,
            max(windows.events) as events
        from windows join limits using (kind)
        where windows.events >= limits.events and windows.targets >= limits.targets
        group by all""",
    )
    assert len(true) > 0
    found = table("incidents").to_pylist()
    rows = [
        (row["incident_id"], row["since"], row["until"], row["evidence"]["events"]) for row in found
    ]
    assert sorted(rows) == sorted_rows(true)


def check_operations(table, events):
    """Requests and errors, and percentiles of the durations."""
    true = answer(
        events,
        """select service, host, date_trunc('minute', "at") as minute, count(*) as requests,
            count(*) filter (status >= 500) as errors,
            count(*) filter (duration_ms >= 1000) as slow, list(duration_ms) as durations
        from requests group by all""",
    )
    found, exact = table("service_minutes"), true.column_names[:-1]
    assert sorted_rows(found.select(exact)) == sorted_rows(true.select(exact))
    durations = {tuple(row[:3]): np.sort(row[-1]) for row in sorted_rows(true)}
    for row in found.to_pylist():
        sample = durations[row["service"], row["host"], row["minute"]]
        for percent in (50, 95, 99):
            estimate = row[f"duration_p{percent}"]
            below = np.searchsorted(sample, estimate, "left") / len(sample)
            up_to = np.searchsorted(sample, estimate, "right") / len(sample)
            assert below - RANK_ERROR <= percent / 100 <= up_to + RANK_ERROR


CHECKS = {
    "activity": check_activity,
    "feed": check_feed,
    "ranking": check_ranking,
    "security": check_security,
    "operations": check_operations,
}
