"""The door to a table, with real deltalake: races, repeats, gaps, unknown outcomes, schemas."""

import json
import threading
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from headrace.model.ids import TopicPartition
from headrace.pipeline.errors import CommitRefused, LoadStopped, SchemaRefused
from headrace.pipeline.warehouse.batch import Batch, Numbered
from headrace.pipeline.warehouse.files import PartitionedFiles
from headrace.pipeline.warehouse.offsets import Decision, Span
from headrace.pipeline.warehouse.table import Table, now_ms, open_or_create, open_table

ID = bytes(range(16))
SCHEMA = pa.schema([("_partition", pa.int32()), ("_offset", pa.int64())])
WIDER = SCHEMA.append(pa.field("page", pa.string()))


def span(first, end, partition=0):
    return Span(TopicPartition("orders", partition), ID, first, end)


def batch(table, *spans, name="a", schema=SCHEMA, written_at_ms=None):
    files = PartitionedFiles(table.location, schema, name)
    for one in spans:
        offsets = list(range(one.first_offset, one.offset_end))
        columns = {"_partition": [one.place.partition] * len(offsets), "_offset": offsets}
        for field in schema:
            columns.setdefault(field.name, [None] * len(offsets))
        files.add((), pa.RecordBatch.from_pydict(columns, schema))
    written_at_ms = now_ms() if written_at_ms is None else written_at_ms
    return Batch(tuple(spans), files.finish(), schema, written_at_ms)


def rows(table):
    found = DeltaTable(str(table.location)).to_pyarrow_table()
    return sorted(zip(*(found.column(n).to_pylist() for n in SCHEMA.names), strict=True))


def expected(*spans):
    return sorted(
        (s.place.partition, n) for s in spans for n in range(s.first_offset, s.offset_end)
    )


@pytest.fixture
def table(tmp_path):
    return open_or_create(tmp_path / "orders", SCHEMA, [])


def test_rows_and_offsets_are_one_commit(table):
    version = table.version
    spans = [span(0, 3), span(5, 9, 1)]
    assert table.commit(batch(table, *spans)) is Decision.COMMIT
    assert table.version == version + 1
    assert rows(table) == expected(*spans)
    assert table.recorded(spans[0].txn_id) == 3
    assert table.recorded(spans[1].txn_id) == 9
    assert table.recorded("other/0") is None


def test_offsets_known_after_a_commit_are_those_of_the_table(table):
    other = open_table(table.location)
    spans = [span(0, 3), span(0, 4, 1)]
    for number in range(6):
        moved = [one._replace(first_offset=number * 3, offset_end=number * 3 + 3) for one in spans]
        if number % 3 == 2:  # another loader commits between the two
            other.update()
            other.commit(batch(other, moved[1], name=f"other{number}"))
            table.update()
            moved = moved[:1]
        assert table.commit(batch(table, *moved, name=str(number))) is Decision.COMMIT
        fresh = open_table(table.location)
        for one in spans:
            assert table.recorded(one.txn_id) == fresh.recorded(one.txn_id) == number * 3 + 3


def test_numbers_known_after_a_commit_are_those_of_the_table(table):
    for number in (1, 2, 2, 3):
        repeated = table.recorded("query/orders") == number
        numbered = Numbered("query/orders", number)
        one = batch(table, span(0, 2), name=f"{number}{repeated}")._replace(
            spans=(), numbered=numbered
        )
        assert table.commit(one) is (Decision.REPEATED if repeated else Decision.COMMIT)
        assert table.recorded("query/orders") == number
        assert open_table(table.location).recorded("query/orders") == number
    assert len(rows(table)) == 6


def test_a_repeated_batch_is_dropped_by_the_same_and_by_a_new_handle(table):
    table.commit(batch(table, span(0, 3)))
    version = table.version
    for number, again in enumerate((table, open_table(table.location))):
        assert again.commit(batch(again, span(0, 3), name=f"again{number}")) is Decision.REPEATED
        assert again.version == version
    assert rows(table) == expected(span(0, 3))


def test_gap_and_overlap_are_refused_and_change_nothing(table):
    table.commit(batch(table, span(0, 10)))
    with pytest.raises(CommitRefused, match="begins at offset 11 .* continues at 10"):
        table.commit(batch(table, span(11, 20), name="gap"))
    with pytest.raises(CommitRefused, match="begins at offset 5 .* continues at 10"):
        table.commit(batch(table, span(5, 20), name="overlap"))
    assert rows(table) == expected(span(0, 10))


def test_a_handle_that_is_behind_drops_what_another_loader_committed(table):
    behind = open_table(table.location)
    table.commit(batch(table, span(0, 3), name="first"))
    assert behind.recorded(span(0, 3).txn_id) is None
    assert behind.commit(batch(behind, span(0, 3), name="second")) is Decision.REPEATED
    assert rows(table) == expected(span(0, 3))


def test_a_handle_that_is_behind_refuses_an_overlap(table):
    behind = open_table(table.location)
    table.commit(batch(table, span(0, 3), name="first"))
    with pytest.raises(CommitRefused, match="continues at 3"):
        behind.commit(batch(behind, span(0, 5), name="second"))
    assert rows(table) == expected(span(0, 3))


def test_loaders_of_different_partitions_do_not_disturb_each_other(table):
    other = open_table(table.location)
    table.commit(batch(table, span(0, 3), name="first"))
    assert other.commit(batch(other, span(0, 5, 1), name="second")) is Decision.COMMIT
    assert rows(table) == expected(span(0, 3), span(0, 5, 1))


def test_loaders_that_race_load_every_offset_once(table):
    end = 40

    def load(name):
        mine = open_table(table.location)
        while (first := mine.recorded(span(0, 1).txn_id) or 0) < end:
            # Sizes differ, so the loaders overlap as well as repeat each other.
            size = 3 if name == "a" else 5
            try:
                mine.commit(batch(mine, span(first, min(first + size, end)), name=f"{name}{first}"))
            except CommitRefused:
                mine.update()

    threads = [threading.Thread(target=load, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(table) == expected(span(0, end))


class Faulty(DeltaTable):
    """A handle whose next commits fail, before or after they happen."""

    faults = ()

    def create_write_transaction(self, *args, **kwargs):
        fault, *self.faults = self.faults or [None]
        if fault == "before":
            raise DeltaError("the disk is full")
        super().create_write_transaction(*args, **kwargs)
        if fault == "after":
            raise OSError("the connection was lost")


def faulty(table, *faults):
    handle = Faulty(str(table.location))
    handle.faults = list(faults)
    return Table(table.location, handle)


@pytest.mark.parametrize("faults", [["after"], ["before", "after"], ["before", "before"]])
def test_a_commit_with_an_unknown_outcome_happens_once(table, faults):
    door = faulty(table, *faults)
    assert door.commit(batch(door, span(0, 3))) is Decision.COMMIT
    assert rows(table) == expected(span(0, 3))
    assert door.commit(batch(door, span(3, 5), name="next")) is Decision.COMMIT
    assert rows(table) == expected(span(0, 5))


def test_a_commit_that_always_fails_is_refused(table):
    door = faulty(table, *["before"] * 100)
    with pytest.raises(CommitRefused, match="disk is full"):
        door.commit(batch(door, span(0, 3)))
    assert rows(table) == []


def test_files_without_offsets_are_committed_once(table):
    door = faulty(table, "after")
    letters = batch(door, span(0, 3))._replace(spans=())
    assert door.commit(letters) is Decision.COMMIT
    assert rows(table) == expected(span(0, 3))


def test_a_failed_commit_that_another_loader_has_made_is_repeated(table):
    door = faulty(table, "before")
    table.commit(batch(table, span(0, 3), name="other"))
    assert door.commit(batch(door, span(0, 3), name="ours")) is Decision.REPEATED
    assert rows(table) == expected(span(0, 3))


def test_offsets_can_move_without_files(table):
    table.commit(batch(table, span(0, 3)))
    lost = Batch((span(3, 50),), (), SCHEMA, now_ms(), "lost: orders-0 3 to 49")
    assert table.commit(lost) is Decision.COMMIT
    assert table.recorded(span(0, 1).txn_id) == 50
    assert table.handle.history(1)[0]["headrace"] == "lost: orders-0 3 to 49"


def test_a_new_column_is_added_by_a_commit_of_its_own(table):
    table.commit(batch(table, span(0, 3)))
    version = table.version
    table.commit(batch(table, span(3, 5), name="wide", schema=WIDER))
    assert table.version == version + 2
    assert [field["name"] for field in table.fields()] == WIDER.names
    assert table.fields()[-1]["nullable"]
    assert rows(table) == expected(span(0, 5))


def test_two_loaders_that_add_the_same_column(table):
    behind = open_table(table.location)
    table.commit(batch(table, span(0, 3), name="first", schema=WIDER))
    assert behind.commit(batch(behind, span(0, 3, 1), name="second", schema=WIDER)) is (
        Decision.COMMIT
    )
    assert [field["name"] for field in behind.fields()] == WIDER.names
    assert rows(table) == expected(span(0, 3), span(0, 3, 1))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (SCHEMA.set(1, pa.field("_offset", pa.int32())), "'_offset' is long .* integer"),
        (SCHEMA.remove(0), "'_partition' of the table is missing"),
        (
            SCHEMA.set(1, pa.field("_offset", pa.int64(), nullable=False)),
            "is NOT NULL in the batch",
        ),
    ],
)
def test_a_changed_type_a_lost_column_and_stricter_nullability_are_refused(table, schema, reason):
    table.commit(batch(table, span(0, 3)))
    wrong = batch(table, span(3, 5), name="wrong")._replace(schema=schema)
    with pytest.raises(SchemaRefused, match=reason):
        table.commit(wrong)
    assert rows(table) == expected(span(0, 3))
    assert table.recorded(span(0, 1).txn_id) == 3


def test_a_schema_that_changed_after_the_check_is_compared_again(table):
    behind = open_table(table.location)
    table.commit(batch(table, span(0, 3), schema=WIDER))
    with pytest.raises(SchemaRefused, match="'page' of the table is missing"):
        behind.commit(batch(behind, span(0, 3, 1), name="narrow"))


def test_a_checkpoint_is_written_every_twenty_commits_and_keeps_the_offsets(table):
    for offset in range(25):
        table.commit(batch(table, span(offset, offset + 1), name=str(offset)))
    log = Path(str(table.location), "_delta_log")
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    version = json.loads((log / "_last_checkpoint").read_text())["version"]
    assert checkpoint.name.startswith(f"{version:020d}")
    for number in range(version):
        (log / f"{number:020d}.json").unlink()
    assert open_table(table.location).recorded(span(0, 1).txn_id) == 25
    assert rows(table) == expected(span(0, 25))


def test_a_handle_survives_a_cleaned_log(table):
    behind = open_table(table.location)
    for offset in range(25):
        table.commit(batch(table, span(offset, offset + 1), name=str(offset)))
    log = Path(str(table.location), "_delta_log")
    for number in range(json.loads((log / "_last_checkpoint").read_text())["version"]):
        (log / f"{number:020d}.json").unlink()
    assert behind.commit(batch(behind, span(0, 2, 1), name="late")) is Decision.COMMIT
    assert rows(table) == expected(span(0, 25), span(0, 2, 1))


def test_missing_and_old_files_are_refused(table):
    whole = batch(table, span(0, 3))
    table.location.delete(whole.files[0].path)
    with pytest.raises(CommitRefused, match="is missing"):
        table.commit(whole)
    old = batch(table, span(0, 3), name="old", written_at_ms=now_ms() - 13 * 3_600_000)
    with pytest.raises(CommitRefused, match="13 hours old"):
        table.commit(old)
    assert rows(table) == []


def test_a_table_is_created_once_by_two_at_once(tmp_path):
    start = threading.Barrier(4)

    def create():
        start.wait()
        open_or_create(tmp_path / "t", SCHEMA, [])

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert open_table(tmp_path / "t").version == 0


def test_a_table_that_cannot_be_read_is_named(table):
    log = Path(str(table.location), "_delta_log", f"{0:020d}.json")
    log.write_text("{ broken")
    with pytest.raises(LoadStopped, match="cannot open the table .*/orders: "):
        open_table(table.location)


def test_other_partition_columns_are_refused(tmp_path):
    open_or_create(tmp_path / "t", SCHEMA, [])
    with pytest.raises(LoadStopped, match="partitioned by no column, and the load by _partition"):
        open_or_create(tmp_path / "t", SCHEMA, ["_partition"])


def test_deltalake_still_refuses_what_the_door_relies_on(table):
    """A stale handle with the same txn ID fails; that is all that keeps two loaders apart."""
    stale = open_table(table.location)
    table.commit(batch(table, span(0, 3), name="first"))
    with pytest.raises(CommitFailedError):
        stale._append(batch(stale, span(0, 3), name="second"))


def page_batch(table):
    files = PartitionedFiles(table.location, WIDER, "pages")
    columns = {"_partition": [0, 0], "_offset": [0, 1], "page": ["a", "b"]}
    files.add((), pa.RecordBatch.from_pydict(columns, WIDER))
    return Batch((span(0, 2),), files.finish(), WIDER, now_ms())


@pytest.mark.parametrize("is_foreign", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_readers_find_rows_by_every_column(tmp_path, is_foreign, checkpointed):
    """A reader skips files by their statistics, and must not by missing ones."""
    place = tmp_path / "pages"
    if is_foreign:
        write_deltalake(str(place), pa.Table.from_pylist([], WIDER))
    table = open_or_create(place, WIDER, [])
    table.commit(page_batch(table))
    if checkpointed:
        DeltaTable(str(place)).create_checkpoint()
    rows = DeltaTable(str(place)).to_pyarrow_dataset()

    assert rows.count_rows(filter=pc.field("page") == "b") == 1
    assert rows.count_rows(filter=pc.field("_offset") == 1) == 1
    assert duckdb.sql("select page from rows where page > 'a'").fetchall() == [("b",)]
