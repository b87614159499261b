"""Reload: exactly the rows of the range are replaced, in one commit, also in races."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.model.ids import TopicPartition, id_to_text
from headrace.pipeline.errors import LoadStopped
from headrace.pipeline.warehouse.batch import Batch, TableFile
from headrace.pipeline.warehouse.compaction import compact
from headrace.pipeline.warehouse.files import PartitionedFiles
from headrace.pipeline.warehouse.offsets import Bounds, Span
from headrace.pipeline.warehouse.reload import (
    OtherRows,
    files_with_other_rows,
    files_with_rows,
    in_tasks,
    span_to_reload,
)
from headrace.pipeline.warehouse.table import now_ms, open_or_create, open_table

ID = bytes(range(16))
SCHEMA = pa.schema(
    [("_topic_id", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64()),
     ("round", pa.string())]
)  # fmt: skip


def span(first, end, partition=0):
    return Span(TopicPartition("orders", partition), ID, first, end)


def write(table, round_, *spans):
    files = PartitionedFiles(table.location, SCHEMA, f"{round_}-{spans[0].first_offset}")
    for one in spans:
        offsets = list(range(one.first_offset, one.offset_end))
        size = len(offsets)
        columns = [[id_to_text(ID)] * size, [one.place.partition] * size, offsets, [round_] * size]
        files.add((), pa.RecordBatch.from_arrays(
            [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
        ))  # fmt: skip
    return files.finish()


def load(table, *spans, round_="first"):
    table.commit(Batch(spans, write(table, round_, *spans), SCHEMA, now_ms()))


def reload(table, *spans, round_="second"):
    removed = files_with_rows(table.files(), spans)
    added = [*write(table, round_, *spans)]
    straddling = in_tasks(files_with_other_rows(removed, spans))
    others = OtherRows(table.location, SCHEMA, straddling, spans, f"o{round_}")
    for number in range(len(others.tasks)):
        added += others.run_task(number)
    ends = {s.txn_id: s.offset_end for s in spans}
    return table.rewrite(removed, added, now_ms(), ends)


def rows(table, version=None):
    found = DeltaTable(str(table.location), version=version).to_pyarrow_table()
    names = ("_partition", "_offset", "round")
    return sorted(zip(*(found.column(n).to_pylist() for n in names), strict=True))


@pytest.fixture
def table(tmp_path):
    made = open_or_create(tmp_path / "orders", SCHEMA, [])
    load(made, span(0, 5), span(0, 5, 1))
    load(made, span(5, 10), span(5, 8, 1))
    return made


def expected(reloaded_from):
    ends = {0: 10, 1: 8}
    return [
        (partition, offset, "second" if offset >= reloaded_from.get(partition, 99) else "first")
        for partition, end in ends.items()
        for offset in range(end)
    ]


@pytest.mark.parametrize("first", [0, 3, 5, 7])
def test_exactly_the_range_is_replaced_in_one_commit(table, first):
    version = table.version
    assert reload(table, span(first, 10))
    assert table.version == version + 1
    assert rows(table) == expected({0: first})
    assert rows(table, version) == expected({})  # a reader of the old version sees the old rows
    assert table.recorded(span(0, 1).txn_id) == 10
    load(table, span(10, 12))
    assert len(rows(table)) == 20


def test_several_partitions_are_replaced_together(table):
    assert reload(table, span(4, 10), span(6, 8, 1))
    assert rows(table) == expected({0: 4, 1: 6})


def test_a_load_meanwhile_keeps_the_reload_out(table):
    behind = open_table(table.location)
    load(table, span(10, 12))
    before = rows(table)
    assert not reload(behind, span(3, 10))
    assert rows(table) == before


def test_a_reload_meanwhile_keeps_a_load_of_the_old_version_safe(table):
    behind = open_table(table.location)
    assert reload(table, span(3, 10))
    load(behind, span(10, 12), round_="live")
    assert rows(table) == sorted([*expected({0: 3}), (0, 10, "live"), (0, 11, "live")])


def test_a_compaction_meanwhile_keeps_the_reload_out(table):
    behind = open_table(table.location)
    compact(table)
    assert not reload(behind, span(3, 10))
    assert rows(table) == expected({})
    behind.update()
    assert reload(behind, span(3, 10), round_="second-try")
    assert len(rows(table)) == 18


def test_a_reload_meanwhile_keeps_a_reload_out(table):
    behind = open_table(table.location)
    assert reload(table, span(3, 10))
    assert not reload(behind, span(5, 10), round_="late")
    assert rows(table) == expected({0: 3})


def test_files_are_chosen_by_their_statistics():
    key = id_to_text(ID)
    below = TableFile("below", 1, (), 1, (key, 0, 0), (key, 0, 4))
    other = TableFile("other", 1, (), 1, (key, 1, 0), (key, 1, 9))
    mixed = TableFile("mixed", 1, (), 1, (key, 0, 0), (key, 2, 9))
    unknown = TableFile("unknown", 1, (), 1)
    found = files_with_rows([below, other, mixed, unknown], [span(5, 10)])
    assert [file.path for file in found] == ["mixed", "unknown"]


def test_a_file_lies_inside_only_if_its_statistics_prove_it():
    key, nulls = id_to_text(ID), (0, 0, 0)

    def inside(low, high, null_counts=nulls):
        file = TableFile("file", 1, (), 1, low, high, null_counts=null_counts)
        return not files_with_other_rows([file], [span(5, 10), span(3, 10, 1)])

    assert inside((key, 0, 5), (key, 0, 9))
    assert inside((key, 1, 3), (key, 1, 9))
    assert inside((key, 0, 5), (key, 1, 9))  # both partitions begin before
    assert not inside((key, 0, 4), (key, 0, 9))
    assert not inside((key, 0, 3), (key, 1, 9))
    assert not inside((key, 0, 5), (key, 2, 9))  # partition 2 is not loaded again
    assert not inside((key, 0, 5), (key + "x", 0, 9))
    assert not inside(("A", 0, 5), ("A", 0, 9))
    assert not inside((None, None, None), (None, None, None))
    for null_counts in ((1, 0, 0), (0, 0, 1), (None, None, None)):
        assert not inside((key, 0, 5), (key, 0, 9), null_counts)


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_a_reload_replaces_a_damaged_file_inside_its_range(table, damage):
    (damaged,) = (file for file in table.files() if file.low[2] == 5)
    path = Path(str(table.location), damaged.path)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:20])
    else:
        path.unlink()
    with pytest.raises(LoadStopped, match="load its records again with --reload-from"):
        compact(table)
    with pytest.raises(LoadStopped, match="cannot be read"):
        reload(table, span(6, 10), span(5, 8, 1), round_="too-short")
    assert reload(table, span(3, 10), span(5, 8, 1))
    assert rows(table) == expected({0: 3, 1: 5})
    compact(table)
    assert rows(table) == expected({0: 3, 1: 5})


def test_rows_without_a_place_in_a_topic_stay(table):
    foreign = [{"round": "foreign"}, {"_topic_id": id_to_text(ID), "_offset": 7}]
    write_deltalake(str(table.location), pa.Table.from_pylist(foreign, SCHEMA), mode="append")
    table.update()
    compact(table)  # one file with all rows; its statistics tell of the nulls
    (file,) = table.files()
    assert file.null_counts == (1, 2, 1)
    assert reload(table, span(0, 10), span(0, 8, 1))
    found = DeltaTable(str(table.location)).to_pyarrow_table().to_pylist()
    without = [row for row in found if row["_partition"] is None]
    assert [(row["_offset"], row["round"]) for row in without] == [(None, "foreign"), (7, None)]
    assert len(found) == 20
    assert {row["round"] for row in found if row["_partition"] is not None} == {"second"}


def test_tasks_rewrite_files_of_about_one_target_size():
    sizes = [100 << 20, 100 << 20, 100 << 20, 1 << 30, 1]
    files = [TableFile(str(number), size, (), 1) for number, size in enumerate(sizes)]
    names = [[file.path for file in task] for task in in_tasks(files)]
    assert names == [["0", "1"], ["2"], ["3"], ["4"]]
    assert in_tasks([]) == ()


def test_what_to_reload():
    place, bounds = TopicPartition("orders", 0), Bounds(5, 20)
    assert span_to_reload(place, ID, 7, 12, bounds) == span(7, 12)
    assert span_to_reload(place, ID, 12, 12, bounds) is None
    assert span_to_reload(place, ID, 0, None, bounds) is None
    with pytest.raises(LoadStopped, match="from offset 4: its log starts at 5"):
        span_to_reload(place, ID, 4, 12, bounds)
