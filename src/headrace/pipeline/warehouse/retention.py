"""Removes rows of old events from a table: whole files where possible, in one commit.

A table with the partition column ``event_date`` loses whole partitions, and no row is read.
Another table is judged by the timestamps of its records: files with old and new rows are rewritten.
The commit says until which timestamp rows were removed, for the audit.
"""

from datetime import UTC, date, datetime, time
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline.errors import CommitRefused, LoadStopped
from headrace.pipeline.warehouse.batch import NewFile, TableFile
from headrace.pipeline.warehouse.compaction import rows_of
from headrace.pipeline.warehouse.files import PartitionedFiles, unique_name
from headrace.pipeline.warehouse.rows import EVENT_DATE
from headrace.pipeline.warehouse.table import Table, now_ms

_TIMESTAMP = "_timestamp"
# Attempts, if other rewrites change the same files meanwhile.
_TRIES = 20


class Removed(NamedTuple):
    row_count: int
    removed: int  # files
    added: int  # files that hold the other rows of removed ones


def first_day_kept(age_ms: int, at_ms: int) -> date:
    """Rows of the day that began ``age_ms`` ago or less are kept."""
    return datetime.fromtimestamp((at_ms - age_ms) / 1000, UTC).date()


def remove_before(table: Table, day: date) -> Removed:
    """Remove all rows of events before this day, in UTC."""
    for _ in range(_TRIES):
        table.update()
        written_at_ms = now_ms()
        removed, files = _plan(table, day)
        if not removed:
            return Removed(0, 0, 0)
        added = files.finish() if files is not None else ()
        until_ms = _removed_until(table, removed, day)
        if table.rewrite(removed, added, written_at_ms, removed_until_ms=until_ms):
            rows = _row_count(removed) - _row_count(added)
            return Removed(rows, len(removed), len(added))
    raise CommitRefused(
        f"gave up after {_TRIES} attempts: other rewrites changed {table.location} each time. "
        "Nothing was removed; run it again"
    )


def _plan(table: Table, day: date) -> tuple[list[TableFile], PartitionedFiles | None]:
    """The files to remove, and those with their newer rows."""
    if EVENT_DATE in table.partition_columns:
        limit = day.isoformat()
        old = [
            file
            for file in table.files()
            if (dict(file.partition_values)[EVENT_DATE] or limit) < limit
        ]
        return old, None
    schema = table.file_schema()
    if _TIMESTAMP not in schema.names:
        raise LoadStopped(
            f"{table.location} has neither the partition column {EVENT_DATE} nor the column "
            f"{_TIMESTAMP}, so the age of its rows is unknown"
        )
    limit = pa.scalar(datetime.combine(day, time(), UTC), schema.field(_TIMESTAMP).type)
    files = PartitionedFiles(table.location, schema, f"kept-{unique_name()}")
    removed = []
    try:
        for file in table.files():
            times = _times(table, file)
            if times is not None and times[0] >= limit.as_py():
                continue
            removed.append(file)
            for rows in rows_of(table.location, schema, file):
                old = pc.fill_null(pc.less(rows.column(_TIMESTAMP), limit), False)
                files.add(file.partition_values, rows.filter(pc.invert(old)))
    except BaseException:
        files.abandon()
        raise
    return removed, files


def _removed_until(table: Table, removed: list[TableFile], day: date) -> int:
    """No row of a record with this timestamp, or a newer one, is removed.

    A late event has an old date, and a record after that date.
    """
    ends = [int(datetime.combine(day, time(), UTC).timestamp() * 1000)]
    if EVENT_DATE in table.partition_columns:
        for file in removed:
            try:
                times = _times(table, file)
            except LoadStopped:  # a damaged file can be removed, too
                times = None
            newest = file.loaded_ms if times is None else int(times[1].timestamp() * 1000)
            ends.append(newest + 1)
    return max(ends)


def _times(table: Table, file: TableFile) -> tuple[datetime, datetime] | None:
    """The oldest and the newest timestamp, from the footer of the file; None if unknown."""
    with table.location.reading(file.path) as opened:
        footer = opened.metadata
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    if _TIMESTAMP not in paths:
        return None
    index = paths.index(_TIMESTAMP)
    found = [
        footer.row_group(number).column(index).statistics for number in range(footer.num_row_groups)
    ]
    known = all(one is not None and one.has_min_max and not one.null_count for one in found)
    if not found or not known:
        return None
    return min(one.min for one in found), max(one.max for one in found)


def _row_count(files: "list[TableFile] | tuple[NewFile, ...]") -> int:
    return sum(file.row_count for file in files)
