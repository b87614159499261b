"""The activity job: the same events in any batches give what DuckDB computes from all of them."""

from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from headrace.pipeline.jobs import activity
from tests.spark.batches import (
    Batches,
    computed_by_duckdb,
    sorted_rows,
)
from tests.spark.streamed import finished_job

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BATCHES = (1, 7, "streamed")

DAY = datetime(2026, 3, 7, 22, tzinfo=UTC)  # two days: the events go on past midnight
HLL_ERROR = 0.05  # three times the standard error of 1.6 %


def events(seed, views=6000, visitors=1500):
    """Page views, searches and clicks of visitors who come in bursts, over four hours."""
    dice = np.random.default_rng(seed)

    def visits(topic, count):
        visitor = dice.integers(0, visitors, count)
        burst = dice.integers(0, 4, count) * 3_600_000 + visitor * 13_007 % 2_700_000
        spent = dice.exponential(400_000, count).astype(np.int64)
        at = np.datetime64(DAY.replace(tzinfo=None), "ms") + burst + spent
        signed_in = dice.random(count) < 0.4
        return {
            "event_id": [f"{topic}-{number}" for number in range(count)],
            "at": pa.array(at).cast(pa.timestamp("us", "UTC")),
            "visitor": [f"v{number}" for number in visitor],
            "member": pa.array(np.where(signed_in, visitor, 0), mask=~signed_in),
        }

    def sometimes(values, share):
        return pa.array(values, mask=dice.random(len(values)) >= share)

    pages = np.array([f"/page/{number}" for number in range(20)])
    page_views = visits("view", views) | {
        "client": ["10.0.0.1"] * views,
        "page": pages[dice.zipf(1.6, views) % 20],
        "item": sometimes(dice.integers(0, 30, views), 0.5),
        "author": dice.integers(0, 5, views),
        "profile": sometimes(dice.integers(0, visitors, views) % 40, 0.3),
        "referrer": ["/"] * views,
        "agent": ["browser"] * views,
    }
    count = views // 5
    searches = visits("search", count) | {
        "page": pages[dice.integers(0, 25, count) % 20],
        "query": ["shoes"] * count,
        "results": pa.array(dice.integers(0, 9, count), pa.int32()),
    }
    clicks = visits("click", count) | {
        "item": dice.integers(0, 30, count),
        "category": ["shoes"] * count,
        "position": pa.array(dice.integers(0, 9, count), pa.int32()),
    }
    rows = {"page-views": page_views, "searches": searches, "clicks": clicks}
    return {topic: pa.table(columns) for topic, columns in rows.items()}


@pytest.fixture(scope="module")
def raw():
    return events(seed=14)


@pytest.fixture(scope="module")
def job(batches, spark, raw, tmp_path_factory):
    directory = tmp_path_factory.mktemp("warehouse")
    with finished_job(spark, activity, raw, batches, directory) as job:
        yield job


@pytest.fixture
def expected(raw):
    """Rows that DuckDB computes from all events."""
    return partial(computed_by_duckdb, raw)


def check(table, expected):
    """Exact columns are equal; visitors are within the error of their sketch."""
    ours = table.toArrow()
    assert ours.column_names == expected.column_names
    exact = [name for name in ours.column_names if name != "visitors"]
    assert sorted_rows(ours.select(exact)) == sorted_rows(expected.select(exact))
    for row, true in zip(sorted_rows(ours), sorted_rows(expected), strict=True):
        assert abs(row[-1] - true[-1]) <= HLL_ERROR * true[-1]


@pytest.mark.parametrize(("table", "window"), [("page_minutes", "minute"), ("page_days", "day")])
def test_pages(job, expected, table, window):
    start = f"date_trunc('{window}', time)" if window == "minute" else "time::date"
    check(
        job.table(table),
        expected(f"""
            select page, {window}, coalesce(views, 0)::bigint as views,
                coalesce(searches, 0)::bigint as searches, coalesce(visitors, 0) as visitors
            from (select page, {start} as {window}, count(*) as views,
                    count(distinct visitor) as visitors from page_views group by all)
            full join (select page, {start} as {window}, count(*) as searches
                    from searches group by all) using (page, {window})
        """),
    )


def test_content(job, expected):
    check(
        job.table("content_days"),
        expected("""
            select item, author, time::date as day, count(*) as views,
                count(distinct visitor) as visitors
            from page_views where item is not null group by all
        """),
    )


def test_profiles(job, expected):
    check(
        job.table("profile_visits"),
        expected("""
            select profile as member, time::date as day, count(*) as visits,
                count(distinct visitor) as visitors
            from page_views where profile is not null and profile is distinct from member
            group by all
        """),
    )


def test_sessions(job, expected):
    ours = job.table("sessions").drop("entry_at", "exit_at").toArrow()
    true = expected("""
        with visits as (
            select visitor, member, time, page, 1 as views from page_views
            union all select visitor, member, time, page, 0 from searches
            union all select visitor, member, time, null, 0 from clicks
        ),
        gaps as (
            select *, time - lag(time) over (partition by visitor order by time)
                > interval 30 minutes as opens
            from visits
        ),
        numbered as (
            select *, count(*) filter (opens) over (partition by visitor order by time) as number
            from gaps
        )
        select visitor || '-' || epoch_ms(min(time)) as session_id, visitor, max(member) as member,
            min(time) as started, max(time) as ended,
            (epoch_us(max(time)) - epoch_us(min(time))) // 1000000 as seconds,
            sum(views)::bigint as views,
            first(page order by time, page) filter (page is not null) as entry,
            last(page order by time, page) filter (page is not null) as exit, min(time)::date as day
        from numbered group by visitor, number
    """)
    assert ours.column_names == true.column_names
    assert sorted_rows(ours) == sorted_rows(true)
    assert len({row["visitor"] for row in true.to_pylist()}) < len(true)


def test_late_visits_join_sessions_and_start_them_earlier(spark):
    job = Batches(spark, activity, only=["sessions"])
    schema = events(seed=1, views=5)["page-views"].schema

    def sessions_after(*minutes):
        """Visits of one visitor, at these minutes, to pages that are named after them."""
        views = [
            {
                "event_id": str(minute),
                "at": DAY + timedelta(minutes=minute),
                "visitor": "v",
                "page": f"/{minute}",
            }
            for minute in minutes
        ]
        job.run({"page-views": pa.Table.from_pylist(views, schema)})
        rows = job.table("sessions").orderBy("started").collect()
        return [(row.entry, row.exit, row.views, row.seconds // 60) for row in rows]

    assert sessions_after(40) == [("/40", "/40", 1, 0)]
    assert sessions_after(100) == [("/40", "/40", 1, 0), ("/100", "/100", 1, 0)]
    assert sessions_after(70) == [("/40", "/100", 3, 60)]  # 30 minutes are not a gap
    assert sessions_after(35, 131) == [("/35", "/100", 4, 65), ("/131", "/131", 1, 0)]
    assert sessions_after(110) == [("/35", "/131", 6, 96)]
