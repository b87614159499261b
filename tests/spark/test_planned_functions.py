"""Functions that Spark plans once, and rows that are kept for several functions."""

from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F

from headrace.pipeline.planned import PlannedFunctions
from headrace.pipeline.runner.gathered import gathered
from headrace.pipeline.runner.kept import Kept

pytestmark = pytest.mark.spark

VIEWS = "page string, views long"


@pytest.fixture
def functions(spark):
    return PlannedFunctions(spark)


def views(spark, *rows):
    return spark.createDataFrame(rows, VIEWS)


def rows_of(frame):
    return sorted(tuple(row) for row in frame.collect())


def test_kept_rows_differ_from_each_other(spark):
    # Spark uses one object for all rows of a task.
    kept = Kept(spark.range(0, 5000, 1, 1).select("id", F.col("id").cast("string").alias("text")))
    try:
        assert [(row.id, row.text) for row in kept.rows.collect()] == [
            (n, str(n)) for n in range(5000)
        ]
    finally:
        kept.release()


def test_kept_rows_are_computed_once(spark):
    kept = Kept(spark.range(100).select("id", F.rand().alias("random")))
    try:
        assert rows_of(kept.rows) == rows_of(kept.rows)
    finally:
        kept.release()


def test_a_plan_computes_the_rows_of_every_batch(spark, functions):
    called = []

    def totals(views):
        called.append(1)
        return views.groupBy("page").agg(F.sum("views").alias("views"))

    for number in range(4):
        given = {"views": views(spark, ("/a", number), ("/a", 1), ("/b", 5))}
        found = functions.call("totals", totals, given, version="the same")
        assert rows_of(found) == [("/a", number + 1), ("/b", 5)]
    assert len(called) == 1


def test_a_function_that_returns_something_else_is_planned_again(spark, functions):
    for limit in (1, 3):
        found = functions.call(
            "few",
            lambda views, limit=limit: views.where(F.col("views") > limit),
            {"views": views(spark, ("/a", 2), ("/b", 4))},
        )
        assert rows_of(found) == [("/a", 2), ("/b", 4)][limit // 2 :]


def test_sql_is_planned_again_only_if_its_text_changes(spark, functions):
    text = (
        "select page, views * {} as views from views where views > (select min(views) from views)"
    )
    for factor in (1, 1, 2):
        for most in (3, 7):  # a subquery has the rows of its own batch
            given = {"views": views(spark, ("/a", 1), ("/b", most))}
            found = functions.call("sql", lambda views, n=factor: text.format(n), given)
            assert rows_of(found) == [("/b", most * factor)]


def test_a_clock_is_read_for_every_batch(spark, functions):
    seen = set()
    for _ in range(3):
        given = {"views": views(spark, ("/a", 1))}
        found = functions.call(
            "now", lambda views: "select current_timestamp() as now from views", given
        )
        seen.add(found.head().now)
    assert len(seen) == 3


def test_a_join_of_two_inputs_and_a_frame_that_is_passed_on(spark, functions):
    def joined(views, known):
        return views.join(known.withColumnRenamed("views", "before"), "page", "left")

    for number in range(3):
        given = {"views": views(spark, ("/a", 1)), "known": views(spark, ("/a", number))}
        assert rows_of(functions.call("joined", joined, given)) == [("/a", 1, number)]
    given = views(spark, ("/a", 9))
    assert rows_of(functions.call("same", lambda views: views, {"views": given})) == [("/a", 9)]


def test_another_schema_is_planned_again(spark, functions):
    for schema in (VIEWS, "page string, views int, agent string"):
        rows = spark.createDataFrame([("/a", 1, "x")[: schema.count(",") + 1]], schema)
        found = functions.call("all", lambda views: views.where("views > 0"), {"views": rows})
        assert found.columns == rows.columns
        assert rows_of(found) == rows_of(rows)


def test_several_frames_are_computed_by_one_job(spark, functions):
    # What a frame refers to, and its types, do not meet those of the others.
    times = "page string, at timestamp, all array<struct<page: string, at: timestamp>>"
    context = spark.sparkContext
    for number in range(3):
        context.setJobGroup(f"gathered-{number}", "")
        at = datetime(2026, 3, 1, number, tzinfo=UTC)
        frames = {
            "views": views(spark, ("/a", number), (None, None)),
            "none": views(spark),
            "times/rows": spark.createDataFrame([("/b", at, [("/c", at)])], times),
        }
        found = gathered(frames, functions)
        assert list(found) == list(frames)
        assert found["views"].to_pylist() == [
            {"page": "/a", "views": number},
            {"page": None, "views": None},
        ]
        assert found["none"].to_pylist() == []
        assert found["none"].schema == found["views"].schema
        assert found["times/rows"].to_pylist() == [
            {"page": "/b", "at": at, "all": [{"page": "/c", "at": at}]}
        ]
        assert len(context.statusTracker().getJobIdsForGroup(f"gathered-{number}")) == 1
    context.setJobGroup("", "")


def test_joins_and_groups_of_all_batches_use_one_stage(spark, functions):
    text = """
        with pages as (select page, sum(views) as views from views group by page)
        select one.page, one.views, other.views as again, (one.page is null) as is_total
        from (select * from pages union all select null, sum(views) from pages) as one
        left join pages as other on one.page = other.page
    """
    context = spark.sparkContext
    for number, rows in enumerate([[("/a", 1), ("/a", 2)], [], [("/a", 4), ("/b", 5)]]):
        context.setJobGroup(f"stages-{number}", "")
        totals = {}
        for page, count in rows:
            totals[page] = totals.get(page, 0) + count
        found = functions.call("totals", lambda views: text, {"views": views(spark, *rows)})
        expected = [(page, count, count, False) for page, count in totals.items()]
        expected.append((None, sum(totals.values()) if rows else None, None, True))
        assert sorted(map(tuple, found.collect()), key=str) == sorted(expected, key=str)
        tracker = context.statusTracker()
        (job,) = tracker.getJobIdsForGroup(f"stages-{number}")
        assert len(tracker.getJobInfo(job).stageIds) == 1
        functions.release()
    context.setJobGroup("", "")


def test_rows_that_a_function_reads_twice_are_computed_once(spark, functions):
    calls = spark.sparkContext.accumulator(0)
    text = "select page, views from marked union all select page, views + 1 from marked"

    def counted(page):
        calls.add(1)
        return page

    for number in (1, 2):
        given = {"views": views(spark, ("/a", number))}
        marked = functions.call(
            "marked", lambda views: views.withColumn("page", F.udf(counted)("page")), given
        )
        found = functions.call("twice", lambda marked: text, {"marked": marked})
        assert rows_of(found) == [("/a", number), ("/a", number + 1)]
        assert calls.value == number
        functions.release()


def test_a_join_that_broadcasts_has_the_rows_of_its_batch(spark, functions):
    text = """
        select one.page, other.page as larger
        from views as one left join views as other on one.views < other.views
    """
    for most in (3, 7, 9):
        given = {"views": views(spark, ("/a", 1), (f"/{most}", most))}
        found = functions.call("larger", lambda views: text, given)
        assert sorted(map(tuple, found.collect()), key=str) == sorted(
            [("/a", f"/{most}"), (f"/{most}", None)], key=str
        )
        functions.release()
