"""Finding a record by its timestamp, in a thread with files of its own.

The segments that the loop works with (descriptors, indexes, caches) are not thread-safe. The
functions here are called on the loop, capture what exists now, and return the search, which may
run in another thread: it opens the files again and writes nothing. It cannot see that compaction
or retention replaced or removed a file while it read. ``look_up`` then discards its result and
searches again.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import LeaderEpoch, Millis, Offset, Position
from headrace.records.batch import BadBatch, BatchHeader
from headrace.records.record import Record, iter_records
from headrace.storage.files import OpenFile, OpenFiles
from headrace.storage.index import BadIndex
from headrace.storage.index_repair import repair_indexes
from headrace.storage.log import Log
from headrace.storage.scan import Scan
from headrace.storage.segment import Resources, Segment
from headrace.storage.segment_indexes import IndexCache, IndexDamaged

_SEARCHES_MAX = 5


class TimedOffset(NamedTuple):
    offset: Offset
    timestamp: Millis
    leader_epoch: LeaderEpoch


Search = Callable[[], TimedOffset | None]


async def offset_for_time(log: Log, timestamp: Millis) -> TimedOffset | None:
    """The first record at or after ``timestamp``."""
    return await look_up(log, lambda: first_at(log, timestamp))


async def offset_of_max_timestamp(log: Log) -> TimedOffset | None:
    """The first record with the largest timestamp (KIP-734)."""
    return await look_up(log, lambda: largest(log))


async def look_up(log: Log, prepare: Callable[[], Search]) -> TimedOffset | None:
    """Search in a thread, again if compaction or retention changed the files meanwhile."""
    segments = log.segments
    for _ in range(_SEARCHES_MAX):
        layout_count = segments.layout_count
        try:
            found = await asyncio.to_thread(prepare())
        except IndexDamaged as damaged:
            repair_indexes(log, segments.at(damaged.base_offset), damaged)
        except (Corrupt, FileNotFoundError):
            if segments.layout_count == layout_count:
                raise
        else:
            if segments.layout_count == layout_count:
                return found
    raise Rejected(
        ErrorCode.LEADER_NOT_AVAILABLE,
        f"the files of {log.topic_partition} keep changing; retry",
    )


def first_at(log: Log, timestamp: Millis) -> Search:
    """Search for the first record at or after ``timestamp``, not below the log start."""
    segments, log_start = log.segments.items, log.log_start
    active = segments[-1]
    indexes = active.indexes
    closed = [segment for segment in segments[:-1] if segment.indexes.may_reach(timestamp)]
    tail = None
    if indexes.max_timestamp >= timestamp:
        start = max(log_start - active.base_offset, indexes.times.floor(timestamp))
        tail = _Range(active, Position(indexes.offsets.floor(max(start, 0))[0]))

    def search() -> TimedOffset | None:
        for segment in map(_copy, closed):
            if segment.indexes.max_timestamp >= timestamp:
                relative = segment.indexes.times.floor(timestamp)
                start = Offset(max(log_start, segment.base_offset + relative))
                found = _first(_Range(segment, _position(segment, start)), timestamp, log_start)
                if found is not None:
                    return found
        return _first(tail, timestamp, log_start) if tail is not None else None

    return search


def largest(log: Log) -> Search:
    """Search for the first record with the largest timestamp."""
    segments = log.segments.items
    active = segments[-1]
    indexes = active.indexes
    closed = [segment for segment in segments[:-1] if segment.size > 0]
    relative = indexes.max_timestamp_offset - active.base_offset
    tail = _Range(active, Position(indexes.offsets.floor(max(relative, 0))[0]))
    tail_max = indexes.max_timestamp if active.size > 0 else Millis(-1)

    def search() -> TimedOffset | None:
        copies = map(_copy, closed)
        newest = max(copies, key=lambda segment: segment.indexes.max_timestamp, default=None)
        if newest is None or newest.indexes.max_timestamp < tail_max:
            return _first(tail, tail_max, Offset(0)) if tail_max >= 0 else None
        if newest.indexes.max_timestamp < 0:
            return None
        start = _position(newest, newest.indexes.max_timestamp_offset)
        return _first(_Range(newest, start), newest.indexes.max_timestamp, Offset(0))

    return search


def last_times(segments: Sequence[Segment]) -> list[tuple[Millis, Offset] | None]:
    """The largest timestamp of each closed segment, None if unreadable. For a thread."""
    found: list[tuple[Millis, Offset] | None] = []
    for segment in segments:
        try:
            found.append(segment.indexes.read_last_time())
        except (BadIndex, OSError):
            found.append(None)  # the caller that needs it meets the same error and handles it
    return found


class _Range:
    """Batches of one segment, from a position to where it ended when this was made."""

    def __init__(self, segment: Segment, start: Position) -> None:
        self._files = segment.files.system
        self._path = segment.path("log")
        self._start = start
        self._end = Position(segment.size)
        self._base_offset = segment.base_offset

    def records_from(self, timestamp: Millis) -> Iterator[tuple[BatchHeader, Record]]:
        """The records of batches that reach ``timestamp``; raises Corrupt for damaged ones."""
        file = OpenFile(self._files, self._path)
        scan = Scan(file, self._start, self._end, self._base_offset, check_crc=False)
        for position, header in scan:
            if header.max_timestamp < timestamp:
                continue
            try:
                for record in iter_records(scan.batch()):
                    yield header, record
            except BadBatch as bad:
                raise Corrupt(f"{self._path}: {bad.reason} at byte {position}") from None
        if scan.problem is not None:
            raise Corrupt(f"{self._path}: {scan.problem} at byte {scan.valid_end}")


def _first(batches: _Range, timestamp: Millis, log_start: Offset) -> TimedOffset | None:
    for header, record in batches.records_from(timestamp):
        if record.timestamp >= timestamp and record.offset >= log_start:
            return TimedOffset(
                Offset(record.offset), Millis(record.timestamp), LeaderEpoch(header.leader_epoch)
            )
    return None


def _copy(segment: Segment) -> Segment:
    """A second object for the same files, for this thread alone."""
    resources = Resources(segment.files.system, OpenFiles(1), IndexCache(rebuildable_size_max=-1))
    copy = Segment(
        segment.files.directory,
        segment.base_offset,
        segment.size,
        resources,
        created_at=segment.created_at,
    )
    copy.indexes.copy_times(segment.indexes)
    return copy


def _position(segment: Segment, offset: Offset) -> Position:
    try:
        return segment.position_of(offset)
    except IndexDamaged:
        raise
    except Corrupt:
        return Position(0)  # the index may be wrong: read the segment from its start
