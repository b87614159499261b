"""Job tables: batches append, a batch that runs again sees and writes nothing of its own."""

import pytest
from pyspark.sql import functions as F

from headrace.pipeline import tables
from headrace.pipeline.errors import CommitRefused
from headrace.pipeline.tables import BatchName, JobTable, Rules
from headrace.pipeline.warehouse.table import open_table

pytestmark = pytest.mark.spark

SCHEMA = "page string, views long"


def batch(number):
    return BatchName("query", number)


@pytest.fixture
def appended(spark, tmp_path):
    """A table of sums after three batches: /a is in each, /0, /1 and /2 are in one."""
    table = JobTable(tmp_path / "pages", Rules(("page",), {"views": "sum"}))
    for number in range(3):
        rows = spark.createDataFrame([("/a", 1), (f"/{number}", 10)], SCHEMA)
        assert table.append(rows.coalesce(1), batch(number)).row_count == 2
    return table


def rows_of(table, spark, **how):
    schema = spark.createDataFrame([], SCHEMA).schema
    return {row.page: row.views for row in table.rows(spark, schema, **how).collect()}


def test_a_batch_that_runs_again_does_not_see_its_rows(appended, spark):
    everything = {"/a": 3, "/0": 10, "/1": 10, "/2": 10}
    assert rows_of(appended, spark) == everything
    assert rows_of(appended, spark, before=batch(3)) == everything
    assert rows_of(appended, spark, before=BatchName("another", 0)) == everything
    assert rows_of(appended, spark, before=batch(2)) == {"/a": 2, "/0": 10, "/1": 10}


def test_a_batch_that_runs_again_is_dropped(appended, spark):
    rows = spark.createDataFrame([("/a", 1)], SCHEMA)
    assert appended.append(rows, batch(2)) == (0, True)
    assert rows_of(appended, spark)["/a"] == 3


def test_folding_keeps_the_newest_batch_apart(appended, spark):
    assert appended.fold(spark, files_min=3)
    assert rows_of(appended, spark) == {"/a": 3, "/0": 10, "/1": 10, "/2": 10}
    assert rows_of(appended, spark, before=batch(2)) == {"/a": 2, "/0": 10, "/1": 10}
    assert appended.append(spark.createDataFrame([("/a", 1)], SCHEMA), batch(2)).is_repeated
    assert not appended.fold(spark, files_min=100)


def test_a_table_that_changes_meanwhile_is_not_replaced(appended, spark, monkeypatch):
    write_files = tables.write_files

    def write_and_fold(*args, **more):
        monkeypatch.setattr(tables, "write_files", write_files)
        written = write_files(*args, **more)
        other = JobTable(appended.location, Rules(("page",), {"views": "sum"}))
        assert other.fold(spark, files_min=3)
        return written

    rows = spark.createDataFrame([("/a", 7)], SCHEMA)
    monkeypatch.setattr(tables, "write_files", write_and_fold)
    with pytest.raises(CommitRefused, match="changed while its rows were computed again"):
        appended.replace(rows, None, batch(3))
    assert rows_of(appended, spark) == {"/a": 3, "/0": 10, "/1": 10, "/2": 10}
    assert appended.replace(rows, None, batch(3)) == 1
    assert rows_of(appended, spark) == {"/a": 7}


def test_folding_forgets_deleted_keys(spark, tmp_path):
    table = JobTable(tmp_path / "pages", Rules(("page",)))
    for number, deleted in enumerate((False, False, True, False)):
        rows = [("/a", number, deleted), (f"/{number}", number, False)]
        rows = spark.createDataFrame(rows, f"{SCHEMA}, _deleted boolean")
        table.append(rows.where(f"page <> '/a' or {number} < 3").coalesce(1), batch(number))
    assert table.fold(spark, files_min=4)
    assert rows_of(table, spark) == {"/0": 0, "/1": 1, "/2": 2, "/3": 3}
    files = [str(table.location / name) for name in open_table(table.location).paths()]
    assert spark.read.parquet(*files).count() == 4


def rewritten_meanwhile(monkeypatch, table, spark, times):
    """Another program folds the table this many times while files for it are written."""
    write_files, rest = tables.write_files, list(range(times))

    def interrupted(*arguments):
        written = write_files(*arguments)
        if rest:
            rest.pop()
            with monkeypatch.context() as undisturbed:
                undisturbed.setattr(tables, "write_files", write_files)
                assert JobTable(table.location, Rules(("page",), {"views": "sum"})).fold(
                    spark, files_min=1
                )
        return written

    monkeypatch.setattr(tables, "write_files", interrupted)


def test_rows_are_replaced_although_another_program_rewrites_the_files(
    appended, spark, monkeypatch
):
    rewritten_meanwhile(monkeypatch, appended, spark, times=3)
    rows = spark.createDataFrame([("/new", 7)], SCHEMA)
    assert appended.replace(rows, F.col("page") != "/a", batch(2)) == 1
    assert rows_of(appended, spark) == {"/0": 10, "/1": 10, "/2": 10, "/new": 7}
    assert appended.append(rows, batch(2)).is_repeated
    nothing = spark.createDataFrame([], SCHEMA)
    assert appended.replace(nothing, None, batch(2)) == 0
    assert appended.replace(nothing, None, batch(2)) == 0
    assert rows_of(appended, spark) == {}


def test_rows_that_could_not_be_replaced_are_not_reported(appended, spark, monkeypatch):
    rewritten_meanwhile(monkeypatch, appended, spark, times=100)
    with pytest.raises(CommitRefused, match=r"rewrote the files of .*/pages each time"):
        appended.replace(spark.createDataFrame([], SCHEMA), F.col("page") != "/a", batch(2))
    assert rows_of(appended, spark) == {"/a": 3, "/0": 10, "/1": 10, "/2": 10}
