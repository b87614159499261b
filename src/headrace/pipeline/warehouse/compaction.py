"""Replaces small files of a table by larger ones, and deletes files without a commit.

deltalake's own compaction is never used: two at once double the rows. Here one commit removes the
old files and adds the new one, and all rewrites of a table carry the same txn ID, so that of two
rewrites at once one is refused.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa

from headrace.pipeline.errors import CommitRefused, LoadStopped
from headrace.pipeline.warehouse.batch import PartitionValues, TableFile
from headrace.pipeline.warehouse.files import PartitionedFiles, unique_name
from headrace.pipeline.warehouse.rows import EVENT_DATE
from headrace.pipeline.warehouse.storage import Location
from headrace.pipeline.warehouse.table import ORPHAN_AGE_H_MIN, Table, now_ms

# Files of at least the first size stay; a new file has about the second.
SMALL_BYTES = 64 << 20
TARGET_BYTES = 256 << 20
# A running load joins the files of a date that is over: few events come later.
CLOSED_FILES_MIN = 10
_CLOSED_AFTER_MS = 3_600_000


class Compacted(NamedTuple):
    removed: int  # files
    added: int
    row_count: int


def groups_to_join(
    files: Iterable[TableFile], small: int = SMALL_BYTES, target: int = TARGET_BYTES
) -> list[list[TableFile]]:
    """Small files of equal partition values, in groups of about ``target`` bytes."""
    by_values: dict[PartitionValues, list[TableFile]] = defaultdict(list)
    for file in sorted(files, key=lambda one: one.path):
        if file.size < small:
            by_values[file.partition_values].append(file)
    groups: list[list[TableFile]] = []
    for found in by_values.values():
        group: list[TableFile] = []
        for file in found:
            if group and sum(one.size for one in group) + file.size > target:
                groups.append(group)
                group = []
            group.append(file)
        groups.append(group)
    return [group for group in groups if len(group) > 1]


def closed_group(files: Iterable[TableFile], at_ms: int) -> list[TableFile]:
    """Small files of one date that is over, if there are enough of them; otherwise none."""
    today = datetime.fromtimestamp((at_ms - _CLOSED_AFTER_MS) / 1000, UTC).date().isoformat()
    closed = [
        file for file in files if (dict(file.partition_values).get(EVENT_DATE) or today) < today
    ]
    return next((one for one in groups_to_join(closed) if len(one) >= CLOSED_FILES_MIN), [])


def compact(table: Table, *, small: int = SMALL_BYTES, target: int = TARGET_BYTES) -> Compacted:
    """Join small files. Skip a group that another rewrite has replaced meanwhile."""
    table.update()
    done = [_join(table, group) for group in groups_to_join(table.files(), small, target)]
    return Compacted(*map(sum, zip(*done, strict=True))) if done else Compacted(0, 0, 0)


def compact_closed(table: Table) -> Compacted:
    """Join one group of files of a date that is over, if there is one."""
    table.update()
    group = closed_group(table.files(), now_ms())
    return _join(table, group) if group else Compacted(0, 0, 0)


def _join(table: Table, group: list[TableFile]) -> Compacted:
    written_at_ms = now_ms()
    files = PartitionedFiles(table.location, table.file_schema(), f"compacted-{unique_name()}")
    try:
        _copy(table, group, files)
        finished = files.finish()
    except BaseException:
        files.abandon()
        raise
    before, after = (sum(file.row_count for file in some) for some in (group, finished))
    if before != after:
        files.abandon()
        raise CommitRefused(
            f"{len(group)} files of {table.location} should hold {before} rows and hold "
            f"{after}. Nothing was changed"
        )
    if not table.rewrite(group, finished, written_at_ms):
        # Vacuum deletes the new files: after an unknown outcome an older version may have them.
        return Compacted(0, 0, 0)
    return Compacted(len(group), len(finished), after)


def _copy(table: Table, group: list[TableFile], files: PartitionedFiles) -> None:
    for file in group:
        for rows in rows_of(table.location, table.file_schema(), file):
            files.add(file.partition_values, rows)


def rows_of(location: Location, schema: pa.Schema, file: TableFile) -> Iterator[pa.RecordBatch]:
    """The rows of a file, with the columns that the table has now."""
    with location.reading(file.path) as opened:
        for batch in opened.iter_batches():
            columns = [
                batch.column(field.name).cast(field.type)
                if field.name in batch.schema.names
                else pa.nulls(batch.num_rows, field.type)  # the file is older than the column
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def vacuum(table: Table, older_than_h: int, *, dry_run: bool) -> list[str]:
    """Delete files that no version of the last hours needs, and those without a commit."""
    if older_than_h < ORPHAN_AGE_H_MIN:
        raise LoadStopped(
            f"expected at least {ORPHAN_AGE_H_MIN} hours, got {older_than_h}: a load may be "
            "about to commit newer files"
        )
    table.update()
    deleted: list[str] = table.handle.vacuum(
        retention_hours=older_than_h, dry_run=dry_run, enforce_retention_duration=False, full=True
    )
    return deleted
