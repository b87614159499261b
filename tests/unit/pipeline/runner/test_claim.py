"""The newest start of a pipeline may write its tables, and no other."""

import shutil

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headrace.pipeline.errors import RunRefused
from headrace.pipeline.runner import claim as claims
from headrace.pipeline.runner.claim import ClaimCheck, claim, claimed_tables
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.tables import BatchName, JobTable, Rules
from headrace.pipeline.warehouse.storage import location_of
from headrace.pipeline.warehouse.table import open_table

DECLARED = {"table": {"pages": {"key": ["page"], "merge": {"views": "sum"}, "code": "1"}}}
SCHEMA = StructType([StructField("page", StringType()), StructField("views", LongType())])


@pytest.fixture
def warehouse(tmp_path):
    return location_of(tmp_path / "warehouse")


@pytest.fixture
def directory(tmp_path):
    return PipelineDirectory(tmp_path / "one" / "shop")


@pytest.fixture
def another(tmp_path):
    return PipelineDirectory(tmp_path / "another" / "shop")


def test_a_state_directory_starts_again_and_another_must_start_over(warehouse, directory, another):
    assert claim(warehouse, directory, DECLARED, takes_over=False).number == 1
    assert claim(warehouse, directory, DECLARED, takes_over=False).number == 2
    with pytest.raises(RunRefused, match=rf"belong to the state in {directory.path.parent} on"):
        claim(warehouse, another, DECLARED, takes_over=False)
    assert claim(warehouse, another, DECLARED, takes_over=True).number == 3
    with pytest.raises(RunRefused, match=rf"belong to the state in {another.path.parent} on"):
        claim(warehouse, directory, DECLARED, takes_over=False)


def test_pipelines_do_not_disturb_each_other(warehouse, directory, tmp_path):
    claim(warehouse, directory, DECLARED, takes_over=False)
    site = PipelineDirectory(tmp_path / "two" / "site")
    assert claim(warehouse, site, DECLARED, takes_over=False).number == 1
    assert claim(warehouse, directory, DECLARED, takes_over=False).number == 2


def test_readers_find_the_rules_of_tables(warehouse, directory):
    assert claimed_tables(warehouse) == {}
    claim(warehouse, directory, {"table": {}}, takes_over=False)
    claim(warehouse, directory, DECLARED, takes_over=False)
    assert claimed_tables(warehouse) == {"pages": {"key": ["page"], "merge": {"views": "sum"}}}


def test_the_state_of_another_warehouse_is_refused(warehouse, directory):
    directory.path.mkdir(parents=True)
    directory.record({}, {})
    with pytest.raises(RunRefused, match="is the state of shop in another warehouse"):
        claim(warehouse, directory, DECLARED, takes_over=False)
    assert claim(warehouse, directory, DECLARED, takes_over=True).number == 1
    # Queries that start over there have another ID.
    claim(warehouse, directory, DECLARED, takes_over=False)
    directory.forget_queries()
    with pytest.raises(RunRefused, match="belong to the state in"):
        claim(warehouse, directory, DECLARED, takes_over=False)


def test_a_running_query_notices_a_newer_run(warehouse, directory):
    check = ClaimCheck(warehouse, claim(warehouse, directory, DECLARED, takes_over=False))
    check.check()
    ours = claim(warehouse, directory, DECLARED, takes_over=False)
    with pytest.raises(RunRefused, match="another run of shop has started"):
        check.check()
    ClaimCheck(warehouse, ours).check()
    shutil.rmtree(warehouse)
    with pytest.raises(RunRefused, match="_runs was deleted"):
        ClaimCheck(warehouse, ours).check()


def test_the_files_of_many_starts_are_joined(warehouse, directory, monkeypatch):
    monkeypatch.setattr(claims, "FILES_MAX", 3)
    assert [claim(warehouse, directory, DECLARED, takes_over=False).number for _ in range(6)] == [
        1, 2, 3, 4, 5, 6,
    ]  # fmt: skip
    assert len(open_table(warehouse / "_runs").paths()) <= 3


def rows(number):
    return pa.table({"page": [f"/{number}"], "views": [number]})


@pytest.fixture
def runs(warehouse, directory):
    """The same table as two runs see it, the first of which has written a batch."""
    first, second = (
        JobTable(
            warehouse / "pages",
            Rules(("page",)),
            claim(warehouse, directory, DECLARED, takes_over=False),
        )
        for _ in range(2)
    )
    first.take_over(SCHEMA, without_rows=False)
    assert first.append_few(rows(1), BatchName("old", 0)).row_count == 1
    return first, second


def pages(table):
    found = open_table(table.location).handle.to_pyarrow_table()
    return sorted(found.column("page").to_pylist())


def test_a_table_refuses_an_older_run(runs):
    first, second = runs
    second.take_over(SCHEMA, without_rows=False)
    assert pages(second) == ["/1"]
    with pytest.raises(RunRefused, match="another run of this pipeline writes to"):
        first.append_few(rows(2), BatchName("old", 1))
    with pytest.raises(RunRefused, match="another run of this pipeline writes to"):
        first.take_over(SCHEMA, without_rows=True)
    second.append_few(rows(3), BatchName("new", 0))
    assert pages(second) == ["/1", "/3"]


def test_a_table_that_starts_over_has_new_columns_and_no_rows(runs):
    first, second = runs
    changed = StructType([StructField("page", LongType())])
    second.take_over(changed, without_rows=True)
    assert pages(second) == []
    with pytest.raises(RunRefused, match="another run of this pipeline writes to"):
        first.append_few(rows(2), BatchName("old", 1))
    assert second.append_few(pa.table({"page": [7]}), BatchName("new", 0)).row_count == 1
    assert pages(second) == [7]
    # What readers see of the log is one table: the commits before are still there.
    assert open_table(second.location).version == 4
