"""Retention: old rows go in one commit, newer ones stay, the commit says what went."""

from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.model.ids import TopicPartition
from headrace.pipeline.errors import LoadStopped
from headrace.pipeline.warehouse.batch import Batch
from headrace.pipeline.warehouse.compaction import compact
from headrace.pipeline.warehouse.files import PartitionedFiles
from headrace.pipeline.warehouse.offsets import Span
from headrace.pipeline.warehouse.retention import first_day_kept, remove_before
from headrace.pipeline.warehouse.table import (
    FILES_TXN,
    RETENTION_TXN,
    now_ms,
    open_or_create,
    open_table,
)

ID = bytes(range(16))
FILE = pa.schema(
    [
        ("tags", pa.list_(pa.struct([("a", pa.int64()), ("b", pa.int64())]))),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")),
    ]
)
SCHEMA = FILE.append(pa.field("event_date", pa.date32()))
FIRST = datetime(2026, 1, 1, 12, tzinfo=UTC)


def load(table, first, end, hours=24):
    """One row per offset, so many hours apart."""
    by_date = table.partition_columns == ("event_date",)
    files = PartitionedFiles(table.location, FILE, str(first))
    for offset in range(first, end):
        at = FIRST + timedelta(hours=hours * offset)
        rows = pa.RecordBatch.from_pylist([{"_offset": offset, "_timestamp": at}], FILE)
        files.add((("event_date", at.date().isoformat()),) if by_date else (), rows)
    span = Span(TopicPartition("orders", 0), ID, first, end)
    table.commit(Batch((span,), files.finish(), SCHEMA if by_date else FILE, now_ms()))


def offsets(table, version=None):
    found = DeltaTable(str(table.location), version=version).to_pyarrow_table()
    return sorted(found.column("_offset").to_pylist())


@pytest.fixture
def by_date(tmp_path):
    table = open_or_create(tmp_path / "orders", SCHEMA, ["event_date"])
    load(table, 0, 5)
    return table


@pytest.fixture
def in_one_file(tmp_path):
    table = open_or_create(tmp_path / "orders", FILE, [])
    for first in (0, 5, 10):
        load(table, first, first + 5)
    return table


def test_whole_partitions_are_removed_even_if_their_files_are_gone(by_date):
    version = by_date.version
    loaded_ms = max(file.loaded_ms for file in by_date.files())
    for file in by_date.files():
        by_date.location.delete(file.path)
    assert remove_before(by_date, date(2026, 1, 3)) == (2, 2, 0)
    assert [dict(file.partition_values)["event_date"] for file in by_date.files()] == [
        "2026-01-03", "2026-01-04", "2026-01-05"
    ]  # fmt: skip
    assert by_date.version == version + 1 and by_date.recorded(FILES_TXN) == 1
    assert remove_before(by_date, date(2026, 1, 3)) == (0, 0, 0)
    assert by_date.version == version + 1
    assert by_date.recorded(RETENTION_TXN) == loaded_ms + 1  # nobody knows the times of the rows


def millis(day, hour=0):
    return int(datetime(2026, 1, day, hour, tzinfo=UTC).timestamp() * 1000)


def test_the_commit_says_until_which_time_rows_were_removed(by_date):
    assert by_date.recorded(RETENTION_TXN) is None
    files = PartitionedFiles(by_date.location, FILE, "late")
    rows = pa.RecordBatch.from_pylist(
        [{"_offset": 9, "_timestamp": FIRST + timedelta(days=3)}], FILE
    )
    files.add((("event_date", "2026-01-01"),), rows)
    span = Span(TopicPartition("orders", 0), ID, 5, 10)
    by_date.commit(Batch((span,), files.finish(), SCHEMA, now_ms()))
    remove_before(by_date, date(2026, 1, 2))  # the late row is of January 4
    assert by_date.recorded(RETENTION_TXN) == millis(4, 12) + 1
    remove_before(by_date, date(2026, 1, 4))
    assert by_date.recorded(RETENTION_TXN) == millis(4, 12) + 1  # never moves back
    remove_before(by_date, date(2026, 1, 6))
    assert by_date.recorded(RETENTION_TXN) == millis(6)


def test_a_table_by_timestamp_is_removed_up_to_the_day(in_one_file):
    remove_before(in_one_file, date(2026, 1, 8))
    assert in_one_file.recorded(RETENTION_TXN) == millis(8)
    compact(in_one_file)
    assert open_table(in_one_file.location).recorded(RETENTION_TXN) == millis(8)


def test_files_with_old_and_new_rows_are_rewritten(in_one_file):
    version = in_one_file.version
    assert remove_before(in_one_file, date(2026, 1, 8)) == (7, 2, 1)
    assert offsets(in_one_file) == list(range(7, 15))
    assert offsets(in_one_file, version) == list(range(15))  # readers of the old version
    assert remove_before(in_one_file, date(2026, 1, 8)) == (0, 0, 0)
    load(in_one_file, 15, 17)  # the offsets go on
    assert offsets(in_one_file) == list(range(7, 17))


def test_a_compaction_meanwhile_is_noticed(in_one_file):
    behind = open_table(in_one_file.location)
    compact(in_one_file)
    assert remove_before(behind, date(2026, 1, 8)).row_count == 7
    assert offsets(in_one_file) == list(range(7, 15))


def test_a_table_without_times_is_refused(tmp_path):
    schema = pa.schema([("n", pa.int64())])
    table = open_or_create(tmp_path / "numbers", schema, [])
    with pytest.raises(LoadStopped, match="neither the partition column event_date nor"):
        remove_before(table, date(2026, 1, 8))


def test_the_first_day_kept():
    noon = int(FIRST.timestamp() * 1000)
    assert first_day_kept(0, noon) == date(2026, 1, 1)
    assert first_day_kept(30 * 86_400_000, noon) == date(2025, 12, 2)
    assert first_day_kept(13 * 3_600_000, noon) == date(2025, 12, 31)
