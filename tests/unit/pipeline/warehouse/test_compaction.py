"""Compaction: same rows in fewer files, also when it races with itself and with a load."""

import os
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.model.ids import TopicPartition
from headrace.pipeline.errors import CommitRefused, LoadStopped
from headrace.pipeline.warehouse import compaction
from headrace.pipeline.warehouse.batch import Batch, TableFile
from headrace.pipeline.warehouse.compaction import (
    CLOSED_FILES_MIN,
    closed_group,
    compact,
    compact_closed,
    groups_to_join,
    vacuum,
)
from headrace.pipeline.warehouse.files import PartitionedFiles
from headrace.pipeline.warehouse.offsets import Span
from headrace.pipeline.warehouse.table import FILES_TXN, now_ms, open_or_create, open_table

ID = bytes(range(16))
FILE = pa.schema([("_offset", pa.int64())])
SCHEMA = FILE.append(pa.field("event_date", pa.date32()))
DAYS = ("2026-01-01", "2026-01-02")


def load(table, first, end, schema=FILE, partition=0):
    files = PartitionedFiles(table.location, schema, f"{partition}-{first}")
    for offset in range(first, end):
        columns = {field.name: [offset] for field in schema}
        rows = pa.RecordBatch.from_pydict(columns, schema)
        files.add((("event_date", DAYS[offset % 2]),), rows)
    span = Span(TopicPartition("orders", partition), ID, first, end)
    whole = schema.append(SCHEMA.field("event_date"))
    table.commit(Batch((span,), files.finish(), whole, now_ms()))


def rows(table):
    found = DeltaTable(str(table.location)).to_pyarrow_table()
    return sorted(zip(*(found.column(n).to_pylist() for n in SCHEMA.names), strict=True))


@pytest.fixture
def table(tmp_path):
    made = open_or_create(tmp_path / "orders", SCHEMA, ["event_date"])
    for first in range(0, 12, 4):
        load(made, first, first + 4)
    return made


def test_small_files_of_equal_partition_values_are_joined(table):
    before = rows(table)
    loaded_ms = max(file.loaded_ms for file in table.files())
    done = compact(table)
    assert max(file.loaded_ms for file in table.files()) == loaded_ms
    assert (done.removed, done.added, done.row_count) == (6, 2, 12)
    assert rows(table) == before
    assert len(table.files()) == 2
    assert {file.partition_values for file in table.files()} == {
        (("event_date", day),) for day in DAYS
    }
    assert table.recorded(FILES_TXN) == 2
    assert compact(table) == (0, 0, 0)
    load(table, 12, 20)  # offsets go on as before
    assert [offset for offset, _ in rows(table)] == list(range(20))


def test_files_from_before_a_new_column_are_joined_with_later_ones(table):
    load(table, 12, 16, FILE.append(pa.field("extra", pa.int64())))
    compact(table)
    found = DeltaTable(str(table.location)).to_pyarrow_table().sort_by("_offset")
    assert found.column("extra").to_pylist() == [None] * 12 + [12, 13, 14, 15]
    assert len(table.files()) == 2


def test_two_compactions_at_once_keep_each_row_once(table):
    before = rows(table)
    start = threading.Barrier(3)

    def run():
        mine = open_table(table.location)
        start.wait()
        compact(mine)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(table) == before


def test_a_compaction_planned_on_an_old_version_changes_nothing(table):
    behind = open_table(table.location)
    group, *_ = groups_to_join(behind.files())
    before = rows(table)
    compact(table)
    files = PartitionedFiles(table.location, FILE, "late")
    compaction._copy(behind, group, files)
    assert behind.rewrite(group, files.finish(), now_ms()) is False
    assert rows(table) == before


def test_compaction_races_with_a_live_load(table):
    finished = threading.Event()

    def keep_compacting():
        mine = open_table(table.location)
        while not finished.is_set():
            compact(mine)

    thread = threading.Thread(target=keep_compacting)
    thread.start()
    for first in range(12, 60, 4):
        load(table, first, first + 4)
    finished.set()
    thread.join()
    assert [offset for offset, _ in rows(table)] == list(range(60))


def test_files_that_hold_another_number_of_rows_are_left_alone(table, monkeypatch):
    before = rows(table)
    monkeypatch.setattr(compaction, "_copy", lambda table, group, files: None)
    with pytest.raises(CommitRefused, match="should hold 6 rows and hold 0"):
        compact(table)
    assert rows(table) == before


def test_groups_respect_the_target_and_leave_large_files():
    def file(name, size, day="a"):
        return TableFile(name, size, (("event_date", day),), 1)

    files = [file("1", 10), file("2", 10), file("3", 10), file("4", 64), file("5", 5, "b")]
    assert [[f.path for f in g] for g in groups_to_join(files, 64, 25)] == [["1", "2"]]
    assert [[f.path for f in g] for g in groups_to_join(files, 64, 99)] == [["1", "2", "3"]]


def test_a_running_load_joins_enough_files_of_a_date_that_is_over(table):
    assert compact_closed(table) == (0, 0, 0)  # three files per day
    for first in range(12, 12 + 4 * CLOSED_FILES_MIN, 4):
        load(table, first, first + 4)
    before = rows(table)
    count = CLOSED_FILES_MIN + 3
    assert [compact_closed(table).removed for _ in range(3)] == [count, count, 0]
    assert rows(table) == before


def test_the_files_of_today_are_not_joined():
    noon = 1_790_000_000_000 // 86_400_000 * 86_400_000 + 43_200_000

    def found(day, at_ms=noon):
        files = [TableFile(str(n), 10, (("event_date", day),), 1) for n in range(CLOSED_FILES_MIN)]
        return len(closed_group(files, at_ms))

    assert found("2026-09-21") == 0  # today
    assert found("2026-09-20") == CLOSED_FILES_MIN
    assert found("2026-09-20", noon - 11 * 3_600_000 - 1) == 0  # less than an hour ago
    assert found(None) == 0


def test_a_broken_file_is_named_and_nothing_changes(table):
    broken = table.files()[0]
    whole = Path(str(table.location), broken.path)
    kept = whole.read_bytes()
    whole.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(LoadStopped, match=r"part-.*parquet cannot be read: .* Restore the file"):
        compact(table)
    whole.write_bytes(kept)
    assert [offset for offset, _ in rows(table)] == list(range(12))


def test_vacuum_deletes_old_files_without_a_commit_only(table):
    before = rows(table)
    letters = open_or_create(table.location / "_dead_letters", SCHEMA, ["event_date"])
    load(letters, 0, 2)
    directory = Path(str(table.location))
    day = directory / f"event_date={DAYS[0]}"
    names = {"new": 1, "old": 25}
    for name, hours in names.items():
        path = day / f"part-{name}.parquet"
        path.write_bytes(b"")
        os.utime(path, (time.time() - hours * 3600,) * 2)
    for path in (directory / "_dead_letters").rglob("*.parquet"):
        os.utime(path, (time.time() - 1000 * 3600,) * 2)
    for file in table.files():
        os.utime(directory / file.path, (time.time() - 1000 * 3600,) * 2)
    assert [path.rpartition("/")[2] for path in vacuum(table, 24, dry_run=True)] == [
        "part-old.parquet"
    ]
    assert (day / "part-old.parquet").exists()
    vacuum(table, 24, dry_run=False)
    assert not (day / "part-old.parquet").exists() and (day / "part-new.parquet").exists()
    assert rows(table) == before
    assert len(rows(letters)) == 2


def test_vacuum_never_deletes_what_a_load_may_commit(table):
    with pytest.raises(LoadStopped, match="24 hours"):
        vacuum(table, 23, dry_run=False)
