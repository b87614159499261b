"""Compaction, reload, retention and load: each pair at once, with every row counted.

In ``test_table_races`` processes work at random times. Here both have planned on the same version
before either commits, so each round is a race. The timestamps of the rows grow with their offsets;
retention removes the oldest rows, and the range of a reload begins after them in the same file.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import combinations_with_replacement, count

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.model.ids import TopicPartition, id_to_text
from headrace.pipeline.errors import CommitRefused
from headrace.pipeline.warehouse.batch import Batch
from headrace.pipeline.warehouse.compaction import compact
from headrace.pipeline.warehouse.files import PartitionedFiles
from headrace.pipeline.warehouse.offsets import Decision, Span
from headrace.pipeline.warehouse.reload import (
    OtherRows,
    files_with_other_rows,
    files_with_rows,
    in_tasks,
)
from headrace.pipeline.warehouse.retention import remove_before
from headrace.pipeline.warehouse.table import Table, now_ms, open_or_create

ID = bytes(range(16))
FILE = pa.schema(
    [("_topic_id", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64()),
     ("_timestamp", pa.timestamp("us", "UTC")), ("by", pa.string())]
)  # fmt: skip
SCHEMA = FILE.append(pa.field("event_date", pa.date32()))
PLACE = TopicPartition("orders", 0)
TXN_ID = Span(PLACE, ID, 0, 0).txn_id
FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)
ROWS_A_DAY = 12
ROUNDS = 4
FILES, ROWS = 3, 8  # a round begins with these: two days, whose border is in the second file
LIVE_ROWS = 12
PATIENCE_S = 60

_names = count()


def at(offset):
    return FIRST_DAY + timedelta(hours=offset * 24 / ROWS_A_DAY)


class Meeting(Table):
    """A table whose first commit waits until the other thread is about to commit too."""

    def __init__(self, location, start, number):
        super().__init__(location, DeltaTable(str(location)))
        self.number = number
        self._start = start
        self.outcomes = []  # of commits and rewrites: True, or False if another one came first

    def _meet(self):
        if not self.outcomes:
            self._start.wait(PATIENCE_S)

    def commit(self, batch):
        self._meet()
        try:
            self.outcomes.append(super().commit(batch) is Decision.COMMIT)
        except CommitRefused:
            self.outcomes.append(False)

    def rewrite(self, *args, **more):
        self._meet()
        self.outcomes.append(super().rewrite(*args, **more))
        return self.outcomes[-1]


def write(table, by, first, end):
    files = PartitionedFiles(table.location, FILE, f"{by}-{next(_names)}")
    for offset in range(first, end):
        day = (("event_date", at(offset).date().isoformat()),)
        row = {"_topic_id": id_to_text(ID), "_partition": 0, "_offset": offset, "by": by}
        row["_timestamp"] = at(offset)
        batch = pa.RecordBatch.from_pylist([row], FILE)
        files.add(day if table.partition_columns else (), batch)
    return files.finish()


def schema_of(table):
    return SCHEMA if table.partition_columns else FILE


# --- what races: each as the commands do it, until it has nothing left to do


class Round:
    """The rows at the beginning of a round, and what the two shall do with them."""

    def __init__(self, table):
        self.first = table.recorded(TXN_ID) or 0
        for _ in range(FILES):
            end = (table.recorded(TXN_ID) or 0) + ROWS
            batch = Batch(
                (Span(PLACE, ID, end - ROWS, end),),
                write(table, "before", end - ROWS, end),
                schema_of(table),
                now_ms(),
            )
            assert table.commit(batch) is Decision.COMMIT
        self.end = table.recorded(TXN_ID)
        self.kept_from = self.first + ROWS_A_DAY  # by retention
        self.reloaded_from = self.kept_from + 2  # in the same file
        self.live_end = self.end + LIVE_ROWS

    def compact(self, table):
        compact(table)

    def retention(self, table):
        remove_before(table, at(self.kept_from).date())

    def reload(self, table):
        done = False
        while not done:
            table.update()
            span = Span(PLACE, ID, self.reloaded_from, table.recorded(TXN_ID))
            removed = files_with_rows(table.files(), [span])
            others = OtherRows(
                table.location,
                table.file_schema(),
                in_tasks(files_with_other_rows(removed, [span])),
                (span,),
                f"others-{next(_names)}",
            )
            added = [*write(table, "reload", span.first_offset, span.offset_end)]
            for number in range(len(others.tasks)):
                added += others.run_task(number)
            done = table.rewrite(removed, added, now_ms(), {TXN_ID: span.offset_end})

    def load(self, table):
        size = (3, 5)[table.number]  # two loads overlap as well as repeat each other
        while (first := table.next_offsets([TXN_ID])[TXN_ID]) < self.live_end:
            end = min(first + size, self.live_end)
            files = write(table, "live", first, end)
            table.commit(Batch((Span(PLACE, ID, first, end),), files, schema_of(table), now_ms()))


OPERATIONS = ("compact", "reload", "retention", "load")


def race(table, round_, pair):
    """Run both at once; what they were told, in the order of the pair."""
    start = threading.Barrier(2)
    doors = [Meeting(table.location, start, number) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(getattr(round_, name), door) for name, door in zip(pair, doors, strict=True)
        ]
        for run in runs:
            run.result(PATIENCE_S)
    return [door.outcomes for door in doors]


@pytest.mark.parametrize("partition_by", [(), ("event_date",)], ids=["one-partition", "by-date"])
@pytest.mark.parametrize("pair", list(combinations_with_replacement(OPERATIONS, 2)), ids="-".join)
def test_a_race_of_two_loses_and_doubles_no_row(tmp_path, pair, partition_by):
    table = open_or_create(
        tmp_path / "orders", SCHEMA if partition_by else FILE, list(partition_by)
    )
    kept_from = 0
    for _ in range(ROUNDS):
        round_ = Round(table)
        outcomes = race(table, round_, pair)

        # Each did its work, or was told that the other came first.
        for name, told in zip(pair, outcomes, strict=True):
            assert told and (told[-1] or name == "compact" or pair[0] == pair[1]), outcomes
        if "load" not in pair and not partition_by:
            assert sorted(told[0] for told in outcomes) == [False, True]  # both change one file
        if pair == ("load", "load"):
            assert False in outcomes[0] + outcomes[1]

        table.update()
        end = round_.live_end if "load" in pair else round_.end
        kept_from = round_.kept_from if "retention" in pair else kept_from
        found = DeltaTable(str(table.location)).to_pyarrow_table().sort_by("_offset").to_pylist()
        assert [row["_offset"] for row in found] == list(range(kept_from, end))
        assert table.recorded(TXN_ID) == end
        if "reload" in pair:
            again = [row["by"] for row in found if round_.reloaded_from <= row["_offset"]]
            assert set(again[: round_.end - round_.reloaded_from]) == {"reload"}
        if partition_by:
            assert all(row["event_date"] == row["_timestamp"].date() for row in found)
