"""Replaces small files of a table by larger ones, and deletes files without a commit.

deltalake's own compaction is never used: two at once double the rows. Here one commit removes the
old files and adds the new one, and all rewrites of a table carry the same txn ID, so that of two
rewrites at once one is refused.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from headrace.pipeline.errors import CommitRefused, LoadStopped
from headrace.pipeline.warehouse.batch import PartitionValues, TableFile
from headrace.pipeline.warehouse.files import PartitionedFiles
from headrace.pipeline.warehouse.table import ORPHAN_AGE_H_MIN, Table, now_ms

# Files of at least the first size stay; a new file has about the second.
SMALL_BYTES = 64 << 20
TARGET_BYTES = 256 << 20


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


def compact(table: Table, *, small: int = SMALL_BYTES, target: int = TARGET_BYTES) -> Compacted:
    """Join small files. A group that another rewrite was faster with is left alone."""
    removed = added = rows = 0
    table.update()
    for group in groups_to_join(table.files(), small, target):
        written_at_ms = now_ms()
        files = PartitionedFiles(
            table.location, table.file_schema(), f"compacted-{uuid.uuid4().hex[:12]}"
        )
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
        if table.rewrite(group, finished, written_at_ms):
            removed, added, rows = removed + len(group), added + len(finished), rows + after
    return Compacted(removed, added, rows)


def _copy(table: Table, group: list[TableFile], files: PartitionedFiles) -> None:
    for file in group:
        for rows in rows_of(table, file):
            files.add(file.partition_values, rows)


def rows_of(table: Table, file: TableFile) -> Iterator[pa.RecordBatch]:
    """The rows of a file, with the columns that the table has now."""
    schema = table.file_schema()
    for batch in table.location.open_parquet(file.path).iter_batches():
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
            f"files of the last {ORPHAN_AGE_H_MIN} hours are kept, not of {older_than_h}: a load "
            "may be about to commit them"
        )
    table.update()
    deleted: list[str] = table.handle.vacuum(
        retention_hours=older_than_h, dry_run=dry_run, enforce_retention_duration=False, full=True
    )
    return deleted
