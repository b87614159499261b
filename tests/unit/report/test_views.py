"""The SQL of the views: one row per event, one row per key."""

from datetime import UTC, datetime, timedelta

import duckdb
import pyarrow as pa
import pytest

from headrace.report.views import (
    JobTable,
    events_view,
    job_view,
    letters_view,
    newest_event,
    raw_view,
    view_name,
)

START = datetime(2026, 11, 16, tzinfo=UTC)
US = pa.timestamp("us", "UTC")


@pytest.fixture
def database():
    with duckdb.connect() as opened:
        opened.execute("set timezone = 'UTC'")
        yield opened


def events(*hours, ids=None):
    """Events so many hours after the start of the day."""
    return pa.table(
        {
            "event_id": ids or [str(number) for number in range(len(hours))],
            "at": pa.array([START + timedelta(hours=hour) for hour in hours], US),
            "_timestamp": pa.array([START + timedelta(hours=min(hour, 25)) for hour in hours], US),
            "_offset": list(range(len(hours))),
        }
    )


def raw(database, table):
    database.register("source", table)
    database.execute(f"create view raw as {raw_view('source', table.column_names)}")


def test_names_in_sql():
    assert view_name("raw_", "page-views") == "raw_page_views"
    assert view_name("events_", "a.b") == "events_a_b"


def test_two_days_of_events_each_once(database):
    raw(database, events(-30, -20, 3, 3, 30, ids=["a", "b", "c", "c", "d"]))
    query = events_view("raw", START, None)
    found = database.sql(f"select event_id, today, hour, by_now from ({query}) order by all")
    assert found.fetchall() == [("b", False, 4, True), ("c", True, 3, True)]


def test_the_day_before_is_cut_at_the_time_of_the_newest_event(database):
    raw(database, events(-20, -10, 3))
    query = events_view("raw", START, START + timedelta(hours=8))
    found = database.sql(f"select event_id, by_now from ({query}) order by all")
    assert found.fetchall() == [("0", True), ("1", False), ("2", True)]


def test_events_without_an_id_are_all_counted(database):
    raw(database, events(1, 2, ids=[None, None]))
    assert len(database.sql(events_view("raw", START, None)).fetchall()) == 2


def test_an_event_from_the_future_is_not_believed(database):
    raw(database, events(20, 800))
    ((newest,),) = database.sql(newest_event("raw")).fetchall()
    assert newest == START + timedelta(hours=25, minutes=10)


def job_rows(*rows):
    names = ("key", "value", "_deleted", "_query", "_batch", "_written_at")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def test_the_newest_batch_of_a_key_wins_and_may_delete_it(database):
    table = job_rows(
        ("a", 1, False, "q", 0, START),
        ("a", 2, False, "q", 1, START + timedelta(seconds=1)),
        ("b", 3, False, "q", 1, START + timedelta(seconds=1)),
        ("b", None, True, "q", 2, START + timedelta(seconds=2)),
        ("c", 4, False, "q", 9, START),
        ("c", 5, False, "after-a-reset", 0, START + timedelta(seconds=9)),
    )
    database.register("source", table)
    query = job_view("source", table.column_names, JobTable("t", ("key",)))
    found = database.sql(f"select key, value from ({query}) order by key").fetchall()
    assert found == [("a", 2), ("c", 5)]


def test_sums_of_all_batches_merge_and_sketches_are_left_out(database):
    table = job_rows(("a", 1, None, "q", 0, START), ("a", 2, None, "q", 1, START))
    database.register("source", table)
    rules = JobTable("t", ("key",), {"value": "sum", "visitors": "hll"})
    found = database.sql(job_view("source", table.column_names, rules))
    assert found.columns == ["key", "value"] and found.fetchall() == [("a", 3)]


def test_dead_letters_of_loads_and_pipelines_have_one_shape(database):
    load = pa.table(
        {"_topic": ["t", "t"], "_partition": [0, 0], "_offset": [5, 5], "_offset_end": [6, 6],
         "stage": ["decode", "decode"], "reason": ["bad", "bad"]}
    )  # fmt: skip
    job = pa.table(
        {"topic": ["t"], "partition": [0], "offset": [5], "stage": ["late"], "pipeline": ["p"]}
    )
    database.register("load", load)
    database.register("job", job)
    both = [letters_view("load", load.column_names), letters_view("job", job.column_names)]
    found = database.sql(" union all ".join(both)).fetchall()
    assert sorted(found, key=str) == [
        ("t", 0, 5, 6, "decode", None, "bad"),
        ("t", 0, 5, None, "late", "p", None),
    ]
