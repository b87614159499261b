"""One day of a warehouse: its views, its range, and how fresh it is."""

from datetime import date, datetime, timedelta

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace.report.day import Day
from headrace.report.errors import ReportFailed
from headrace.report.views import JobTable
from tests.report.warehouse import DAY, LOADED, START, write_job

CLOCKS = ("page-views", "requests")


def test_the_default_is_the_day_that_has_ended(warehouse):
    with Day(warehouse) as day:
        assert day.date == DAY and day.is_settled
        assert (day.start, day.end) == (START, START + timedelta(days=1))
        assert day.hours == range(24) and not day.provisional_hours
        assert day.loaded_at() == LOADED


def test_an_unfinished_day(unfinished):
    with Day(unfinished, DAY, CLOCKS) as day:
        assert not day.is_settled
        assert START + timedelta(hours=14) < day.settled_until < START + timedelta(hours=15)
        assert day.hours == range(16) and day.provisional_hours == range(14, 16)
        found = day.row("""
            select count(*) filter (not today) as before, count(*) filter (by_now) as by_now,
                count(*) filter (today) as today, max("at") filter (by_now and not today) as last
            from events_page_views""")
        assert found["today"] < found["by_now"] < found["today"] + found["before"]
        assert found["last"] <= day.newest_event - timedelta(days=1)


def test_the_clock_that_is_behind_says_how_far_the_day_is(warehouse, tmp_path):
    early = pa.table({"event_id": ["a"], "at": pa.array([START], pa.timestamp("us", "UTC"))})
    write_deltalake(str(tmp_path / "raw" / "slow"), early)
    late = early.set_column(1, "at", pa.array([LOADED], pa.timestamp("us", "UTC")))
    write_deltalake(str(tmp_path / "raw" / "fast"), late)
    with Day(tmp_path, DAY, ("slow", "fast", "missing")) as day:
        assert day.newest_event == START
    with Day(tmp_path, DAY) as day:
        assert day.newest_event == LOADED and day.is_settled


def test_events_are_counted_once(warehouse):
    with Day(warehouse) as day:
        found = day.row("""
            select count(*) filter (today) as events, count(distinct event_id) as ids
            from events_page_views""")
        assert found == {"events": 6_000, "ids": 11_400}
        doubled = day.row('select count(*) as n from raw_page_views where in_day("at")')
        assert doubled["n"] > 6_000


def test_a_day_without_events_has_no_hours(warehouse):
    with Day(warehouse, date(2026, 11, 20)) as day:
        assert not day.has("events_page_views") and day.hours == range(0, day.hours.stop)
        assert (
            day.missing("events_page_views") == "The table raw/page-views has no rows for this day."
        )
        assert day.missing("events_api_calls") == "The warehouse has no table raw/api-calls."
        assert day.missing("blocked_clients") == "The warehouse has no table blocked_clients."


def test_the_newest_row_of_a_session_wins(warehouse):
    with Day(warehouse) as day:
        assert day.row("select count(*) as n from appended_sessions")["n"] == 601
        assert day.row("select count(*) as n from sessions")["n"] == 599


def test_sums_are_plain_integers(warehouse):
    with Day(warehouse) as day:
        assert day.sql("select sum(views) as views from sessions").schema.field("views").type == (
            pa.int64()
        )


def test_tables_of_other_pipelines(tmp_path):
    write_job(tmp_path, "totals", [{"shop": "a", "orders": 1}], 0, START)
    write_job(tmp_path, "totals", [{"shop": "a", "orders": 2}], 1, START)
    with Day(tmp_path, DAY) as day:
        assert day.has("appended_totals") and not day.has("totals")
    with Day(tmp_path, DAY, (), [JobTable("totals", ("shop",), {"orders": "sum"})]) as day:
        assert day.row("select * from totals") == {"shop": "a", "orders": 3}
    with pytest.raises(ReportFailed, match="has no column city, which is part of its key"):
        Day(tmp_path, DAY, (), [JobTable("totals", ("city",))])


def test_a_warehouse_without_events_needs_a_date(tmp_path):
    with pytest.raises(ReportFailed, match="no such directory"):
        Day(tmp_path / "nothing")
    with pytest.raises(ReportFailed, match="has no table with events; load topics"):
        Day(tmp_path)
    with Day(tmp_path, DAY) as day:
        assert day.newest_event is None and day.topics == [] and day.loaded_at() is None


def test_a_table_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "raw" / "broken" / "_delta_log").mkdir(parents=True)
    log = tmp_path / "raw" / "broken" / "_delta_log" / "00000000000000000000.json"
    log.write_text("no JSON")
    with pytest.raises(ReportFailed, match="cannot read the table .*broken"):
        Day(tmp_path, DAY)


@pytest.mark.parametrize("damage", ["gone", "cut", "other bytes"])
@pytest.mark.parametrize("name", ["raw/views", "totals"])
def test_a_damaged_file_is_named(tmp_path, name, damage):
    at = pa.array([START] * 100, pa.timestamp("us", "UTC"))
    for table in ("raw/views", "raw/whole", "totals"):
        write_deltalake(str(tmp_path / table), pa.table({"event_id": ["a"] * 100, "at": at}))
    (file,) = (tmp_path / name).glob("*.parquet")
    whole = file.read_bytes()
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(whole[: len(whole) // 2])
    else:
        file.write_bytes(b"PAR1" + b"\xff" * 200 + whole[204:])
    told = {"gone": "is missing", "cut": "has .* bytes", "other bytes": "cannot be read: "}[damage]
    with (
        pytest.raises(ReportFailed, match=f"{file} {told}.*Restore the file"),
        Day(tmp_path) as day,
    ):
        day.sql("select * from appended_totals")


def test_a_wrong_query_is_no_damage(warehouse):
    with Day(warehouse) as day:
        with pytest.raises(duckdb.BinderException, match="no_such_column"):
            day.sql("select no_such_column from sessions")
        with pytest.raises(duckdb.ConversionException):
            day.sql("select 'x'::int as number from sessions")


def test_dead_letters_of_a_pipeline_without_raw_tables(tmp_path):
    letter = {"topic": "orders", "partition": 0, "offset": 7, "stage": "decode", "reason": "no"}
    write_deltalake(str(tmp_path / "_dead_letters"), pa.Table.from_pylist([letter]))
    with Day(tmp_path, DAY) as day:
        found = day.row("select topic, stage, reason from dead_letters")
        assert found == {"topic": "orders", "stage": "decode", "reason": "no"}


def test_rows_without_metadata(tmp_path):
    at = pa.array([START + timedelta(hours=3)], pa.timestamp("us", "UTC"))
    write_deltalake(str(tmp_path / "raw" / "views"), pa.table({"event_id": ["a"], "at": at}))
    write_deltalake(str(tmp_path / "raw" / "lines"), pa.table({"value": ["a"]}))
    with Day(tmp_path) as day:
        assert day.topics == ["views"] and day.loaded_at() is None
        assert day.row("select hour, today from events_views") == {"hour": 3, "today": True}
        assert isinstance(day.newest_event, datetime)
