"""Rows of tables that the driver keeps: merged as the tables are when they are read."""

import pyarrow as pa
import pytest

from headrace.pipeline.runner.known_rows import KnownRows, merge
from headrace.pipeline.tables import Rules

NEWEST = Rules(("page",))
SUMS = Rules(("page",), {"views": "sum", "first": "min", "last": "max"})


def rows(*found, deleted=None):
    table = pa.table({"page": [page for page, _ in found], "views": [n for _, n in found]})
    return table if deleted is None else table.append_column("_deleted", pa.array(deleted))


def pairs(table):
    return sorted(zip(*table.to_pydict().values(), strict=True))


def test_the_newest_row_of_a_key_counts():
    found = merge(rows(("/a", 1), ("/b", 2)), rows(("/b", 3), ("/c", 4)), NEWEST)
    assert pairs(found) == [("/a", 1), ("/b", 3), ("/c", 4)]


def test_deleted_keys_go_and_may_come_back():
    deleted = merge(
        rows(("/a", 1), ("/b", 2)), rows(("/a", None), ("/c", 3), deleted=[True, None]), NEWEST
    )
    assert pairs(deleted) == [("/b", 2), ("/c", 3)]
    assert deleted.column_names == ["page", "views"]
    again = merge(deleted, rows(("/a", 5), deleted=[False]), NEWEST)
    assert pairs(again) == [("/a", 5), ("/b", 2), ("/c", 3)]


def test_a_row_without_values_replaces_one_with_values():
    assert pairs(merge(rows(("/a", 1)), rows(("/a", None)), NEWEST)) == [("/a", None)]


def test_sums_and_extremes_of_a_key():
    def made(views, first, last):
        columns = {"page": ["/a"], "views": [views], "first": [first], "last": [last]}
        return pa.table(columns, schema=pa.schema([("page", "string"), *NUMBERS]))

    found = merge(made(1, 5, 5), made(2, 3, None), SUMS)
    assert found.to_pylist() == [{"page": "/a", "views": 3, "first": 3, "last": 5}]
    assert found.schema == made(1, 1, 1).schema


NUMBERS = [(name, pa.int64()) for name in ("views", "first", "last")]


def test_rows_that_a_batch_writes_are_seen_by_the_next_one():
    reads = []
    known = KnownRows({"pages": NEWEST, "uniques": Rules(("page",), {"visitors": "hll"})})
    assert list(known.names) == ["pages"]  # sketches are Spark's

    def read():
        reads.append(1)
        return FakeFrame(rows(("/a", 1)))

    spark = FakeSpark()
    assert pairs(known.frame("pages", spark, read, lambda: 0)) == [("/a", 1)]
    known.written("pages", rows(("/a", 2)))
    assert pairs(known.frame("pages", spark, read, lambda: 0)) == [("/a", 1)]
    known.batch_ended()
    assert pairs(known.frame("pages", spark, read, lambda: 0)) == [("/a", 2)]
    assert len(reads) == 1
    known.forget()
    assert pairs(known.frame("pages", spark, read, lambda: 0)) == [("/a", 1)]
    assert len(reads) == 2


def test_a_large_table_is_collected_once_and_then_only_read(monkeypatch):
    monkeypatch.setattr("headrace.pipeline.runner.known_rows._BYTES_MAX", 10)
    known = KnownRows({"pages": NEWEST})
    frame = FakeFrame(rows(("/a", 1), ("/b", 2)))
    for _ in range(3):
        assert known.frame("pages", FakeSpark(), lambda: frame, lambda: 0) is frame
        known.written("pages", rows(("/a", 2)))
        known.batch_ended()
    assert frame.collected_count == 1


def test_a_table_with_large_files_is_never_collected():
    known = KnownRows({"pages": NEWEST})
    frame = FakeFrame(rows(("/a", 1)))
    assert known.frame("pages", FakeSpark(), lambda: frame, lambda: 1 << 30) is frame
    assert frame.collected_count == 0


class FakeFrame:
    schema = None

    def __init__(self, rows):
        self._rows = rows
        self.collected_count = 0

    def toArrow(self):
        self.collected_count += 1
        return self._rows


class FakeSpark:
    def createDataFrame(self, rows, schema):
        return rows


@pytest.mark.parametrize("rules", [NEWEST])
def test_a_table_without_rows(rules):
    none = rows(("/a", 1)).slice(0, 0)
    assert pairs(merge(none, rows(("/b", 1)), rules)) == [("/b", 1)]
    assert pairs(merge(rows(("/b", 1)), none, rules)) == [("/b", 1)]
