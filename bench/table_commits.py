"""Commits to one table, as the driver of a load makes them: memory and time.

    python -m bench.table_commits DIRECTORY COMMITS FILES PARTITIONS

Each commit adds FILES files with rows of PARTITIONS partitions. Prints a line of JSON. A process of
its own, so that its memory is that of the commits.
"""

import json
import os
import sys
import time
from pathlib import Path

import pyarrow as pa

from headrace.model.ids import TopicPartition
from headrace.pipeline.warehouse.batch import Batch, NewFile
from headrace.pipeline.warehouse.files import PartitionedFiles
from headrace.pipeline.warehouse.offsets import Span
from headrace.pipeline.warehouse.table import Table, now_ms, open_or_create

_SCHEMA = pa.schema([("_partition", pa.int32()), ("_offset", pa.int64())])
_ID = bytes(range(16))
_GROWTH_FROM = 10  # per cent of the commits


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _copies(table: Table, file: NewFile, number: int, count: int) -> tuple[NewFile, ...]:
    """Files of equal content, since only their number matters."""
    made = []
    for index in range(count):
        path = f"part-{number:06d}-{index:03d}.parquet"
        os.link(Path(str(table.location), file.path), Path(str(table.location), path))
        made.append(file._replace(path=path))
    return tuple(made)


def main(directory: str, commits: int, files: int, partitions: int) -> None:
    table = open_or_create(Path(directory), _SCHEMA, [])
    written = PartitionedFiles(table.location, _SCHEMA, "one")
    written.add((), pa.RecordBatch.from_pydict({"_partition": [0], "_offset": [0]}, _SCHEMA))
    (file,) = written.finish()
    took, resident = [], []
    for number in range(commits):
        spans = tuple(
            Span(TopicPartition("orders", partition), _ID, number, number + 1)
            for partition in range(partitions)
        )
        added = _copies(table, file, number, files)
        began = time.perf_counter()
        table.next_offsets(span.txn_id for span in spans)  # the plan of the batch
        table.commit(Batch(spans, added, _SCHEMA, now_ms()))
        took.append(time.perf_counter() - began)
        resident.append(_resident_mb())
    told = {
        "first_s": took[0],
        "median_s": sorted(took)[len(took) // 2],
        "longest_s": max(took[1:], default=took[0]),
        "grown_mb": resident[-1] - resident[commits * _GROWTH_FROM // 100],
        "resident_mb": resident[-1],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
