"""Programs that change one table at the same time, each in a process of its own.

``python -m tests.fakes.table_workers ROLE TABLE`` works until its input ends, and prints a line for
each of its changes. The offsets of the rows are known, so they can be counted.
"""

import random
import sys
import threading
import time
import uuid
from datetime import date

import pyarrow as pa

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
from headrace.pipeline.warehouse.storage import location_of
from headrace.pipeline.warehouse.table import now_ms, open_or_create, open_table

ID = bytes(range(16))
FILE = pa.schema([("_topic_id", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())])
SCHEMA = FILE.append(pa.field("event_date", pa.date32()))
DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
FIRST_DAY_KEPT = date(2026, 1, 2)
BATCH = 30


def create(directory):
    return open_or_create(directory, SCHEMA, ["event_date"])


def day_of(offset):
    return DAYS[offset % len(DAYS)]


def span(partition, first, end):
    return Span(TopicPartition("orders", partition), ID, first, end)


def _write(table, one):
    files = PartitionedFiles(table.location, FILE, uuid.uuid4().hex)
    for offset in range(one.first_offset, one.offset_end):
        row = {
            "_topic_id": id_to_text(ID),
            "_partition": one.place.partition,
            "_offset": offset,
        }
        rows = pa.RecordBatch.from_pylist([row], FILE)
        files.add((("event_date", day_of(offset)),), rows)
    return files.finish()


def load(table, partition=0):
    """Load the next offsets, as a loader that plans from the table."""
    table.update()
    first = table.recorded(span(partition, 0, 0).txn_id) or 0
    one = span(partition, first, first + BATCH)
    batch = Batch((one,), _write(table, one), SCHEMA, now_ms())
    time.sleep(0.01)  # others get a chance
    try:
        return table.commit(batch) is Decision.COMMIT
    except CommitRefused:
        return False


def reload(table):
    table.update()
    partition = random.randrange(2)
    end = table.recorded(span(partition, 0, 0).txn_id) or 0
    spans = (span(partition, random.randrange(end + 1), end),)
    removed = files_with_rows(table.files(), spans)
    added = [*_write(table, spans[0])]
    tasks = in_tasks(files_with_other_rows(removed, spans))
    others = OtherRows(table.location, FILE, tasks, spans, uuid.uuid4().hex)
    for number in range(len(others.tasks)):
        added += others.run_task(number)
    return table.rewrite(removed, added, now_ms(), {spans[0].txn_id: end})


ROLES = {
    "load": load,
    "compact": lambda table: compact(table).removed,
    "retention": lambda table: remove_before(table, FIRST_DAY_KEPT).row_count,
    "reload": reload,
}


def main(role, directory):
    table = open_table(location_of(directory))
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    while not over.is_set():
        if ROLES[role](table):
            print("changed", flush=True)


if __name__ == "__main__":
    from pathlib import Path

    main(sys.argv[1], Path(sys.argv[2]))
