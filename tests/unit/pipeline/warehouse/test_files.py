"""Parquet files of a task: names, sizes, statistics, and what an abandoned attempt leaves."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.pipeline.warehouse import files as files_module
from headrace.pipeline.warehouse.files import PartitionedFiles

SCHEMA = pa.schema([("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())])


def rows(*offsets, partition=0):
    size = len(offsets)
    return pa.RecordBatch.from_pydict(
        {"_topic": ["orders"] * size, "_partition": [partition] * size, "_offset": list(offsets)},
        SCHEMA,
    )


def day(text):
    return (("event_date", text),)


def test_one_file_for_each_combination_of_partition_values(tmp_path):
    files = PartitionedFiles(tmp_path, SCHEMA, "batch-00003-17")
    files.add(day("2026-01-02"), rows(5, 7))
    files.add(day("2026-01-03"), rows(6))
    files.add(day("2026-01-02"), rows(9, partition=2))
    files.add(day("2026-01-04"), rows())
    first, second = files.finish()
    assert first.path == "event_date=2026-01-02/part-batch-00003-17-00000.parquet"
    assert first.partition_values == day("2026-01-02")
    assert first.size == (tmp_path / first.path).stat().st_size
    assert json.loads(first.stats) == {
        "numRecords": 3,
        "minValues": {"_topic": "orders", "_partition": 0, "_offset": 5},
        "maxValues": {"_topic": "orders", "_partition": 2, "_offset": 9},
        "nullCount": {"_topic": 0, "_partition": 0, "_offset": 0},
    }
    assert (second.row_count, second.path.partition("/")[0]) == (1, "event_date=2026-01-03")
    assert pq.ParquetFile(tmp_path / first.path).read().column("_offset").to_pylist() == [5, 7, 9]


def test_statistics_count_nulls(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "_ROW_GROUP_BYTES", 1)  # each batch is a row group
    files = PartitionedFiles(tmp_path, SCHEMA, "a")
    for offsets in ([None], [4, None], [2]):
        columns = {"_topic": [None] * len(offsets), "_partition": [1] * len(offsets)}
        files.add((), pa.RecordBatch.from_pydict({**columns, "_offset": offsets}, SCHEMA))
    (file,) = files.finish()
    assert json.loads(file.stats) == {
        "numRecords": 4,
        "minValues": {"_partition": 1, "_offset": 2},
        "maxValues": {"_partition": 1, "_offset": 4},
        "nullCount": {"_topic": 4, "_partition": 0, "_offset": 2},
    }


@pytest.mark.parametrize("value", [None, "", "../up", "a/b", "ä", "a=b", "100%"])
def test_values_that_need_escaping_are_not_in_the_path(tmp_path, value):
    files = PartitionedFiles(tmp_path, SCHEMA, "a")
    files.add((("country", value),), rows(1))
    (file,) = files.finish()
    assert file.path == "part-a-00000.parquet"
    assert file.partition_values == (("country", value),)


def test_a_file_that_is_large_enough_is_finished(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "_ROW_GROUP_BYTES", 1)
    files = PartitionedFiles(tmp_path, SCHEMA, "a", file_bytes=1)
    for offset in range(3):
        files.add(day("2026-01-02"), rows(offset))
    finished = files.finish()
    assert [json.loads(file.stats)["minValues"]["_offset"] for file in finished] == [0, 1, 2]
    assert len({file.path for file in finished}) == 3


def test_memory_is_bounded_over_all_files(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "_WAITING_BYTES_MAX", 1)
    files = PartitionedFiles(tmp_path, SCHEMA, "a")
    for number in range(30):
        files.add(day(f"2026-01-{number % 3 + 1:02d}"), rows(number))
    finished = files.finish()
    assert [file.row_count for file in finished] == [10, 10, 10]


def test_an_abandoned_attempt_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "_ROW_GROUP_BYTES", 1)
    files = PartitionedFiles(tmp_path, SCHEMA, "a")
    files.add(day("2026-01-02"), rows(1))
    assert list(tmp_path.rglob("*.parquet"))
    files.abandon()
    assert not list(tmp_path.rglob("*.parquet"))


def test_two_attempts_never_write_the_same_file(tmp_path):
    PartitionedFiles(tmp_path, SCHEMA, "a").finish()
    first, again = (PartitionedFiles(tmp_path, SCHEMA, "a") for _ in range(2))
    first.add((), rows(1))
    first.finish()
    again.add((), rows(1))
    with pytest.raises(FileExistsError):
        again.finish()
