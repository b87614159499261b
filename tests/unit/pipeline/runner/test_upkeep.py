"""Unused files of tables are deleted once a day, and files in use stay."""

import os
import time

import pyarrow as pa
import pytest

from headrace.pipeline.runner.upkeep import Upkeep
from headrace.pipeline.tables import BatchName, JobTable, Rules
from headrace.pipeline.warehouse.table import open_table

DAY = 86_400


def files_of(path):
    return {one.name for one in path.glob("*.parquet")}


@pytest.fixture
def warehouse(tmp_path):
    """Two tables of three files each, and a file that no commit has."""
    for name in ("pages", "_dead_letters"):
        table = JobTable(tmp_path / name, Rules(("page",)))
        for number in range(3):
            table.append_few(pa.table({"page": [f"/{number}"]}), BatchName("query", number))
    orphan = tmp_path / "pages" / "killed.parquet"
    orphan.write_bytes(b"x")
    set_age(orphan, 2 * DAY)
    return tmp_path


def set_age(path, seconds):
    os.utime(path, (time.time() - seconds,) * 2)


def upkeep(warehouse):
    return Upkeep(warehouse / "cleaned", [warehouse / "pages"], warehouse / "_dead_letters")


def test_files_without_a_commit_go_and_letters_are_joined_once_a_day(warehouse):
    assert not upkeep(warehouse).run_if_due()  # the first run
    assert not upkeep(warehouse).run_if_due()
    set_age(warehouse / "cleaned", DAY + 60)
    assert upkeep(warehouse).run_if_due()
    assert not upkeep(warehouse).run_if_due()

    assert files_of(warehouse / "pages") == open_table(warehouse / "pages").paths()
    letters = open_table(warehouse / "_dead_letters")
    assert len(letters.paths()) == 1
    assert letters.handle.to_pyarrow_table().num_rows == 3
    # The files that were joined just now may be in use for a day.
    assert len(files_of(warehouse / "_dead_letters")) == 4


def test_a_table_that_cannot_be_read_stops_nothing(warehouse, caplog):
    (warehouse / "cleaned").touch()
    set_age(warehouse / "cleaned", DAY + 60)
    (warehouse / "pages" / "_delta_log" / f"{1:020}.json").write_text("broken")
    assert upkeep(warehouse).run_if_due()
    assert "Could not clean up" in caplog.text
    assert len(open_table(warehouse / "_dead_letters").paths()) == 1
