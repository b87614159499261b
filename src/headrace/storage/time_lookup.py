"""Finding a record by its time, and the times of segments, in a thread with files of its own.

The segments that the loop works with (their descriptors, indexes and caches) are not made for
two threads. So the functions here are called on the loop, note what there is as of now, and
return the search, which may run in another thread: it opens the files anew, and writes nothing.
What it cannot see is that compaction or retention took a file away, or put another in its
place, while it read. Then its answer is void, and ``Log.look_up`` searches again.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from headrace.model.errors import Corrupt
from headrace.model.ids import LeaderEpoch, Millis, Offset, Position
from headrace.records.batch import BadBatch, BatchHeader
from headrace.records.record import Record, iter_records
from headrace.storage.files import OpenFile, OpenFiles
from headrace.storage.index import BadIndex
from headrace.storage.segment import IndexCache, IndexDamaged, Resources, Scan, Segment


class TimedOffset(NamedTuple):
    offset: Offset
    timestamp: Millis
    leader_epoch: LeaderEpoch


Search = Callable[[], TimedOffset | None]


def first_at(segments: Sequence[Segment], log_start: Offset, timestamp: Millis) -> Search:
    """The first record at or after ``timestamp``, not below ``log_start``."""
    active = segments[-1]
    closed = [segment for segment in segments[:-1] if segment.may_reach(timestamp)]
    tail = None
    if active.max_timestamp >= timestamp:
        start = max(log_start - active.base_offset, active.time_index.floor(timestamp))
        tail = _Range(active, Position(active.index.floor(max(start, 0))[0]))

    def search() -> TimedOffset | None:
        for segment in map(_copy, closed):
            if segment.max_timestamp >= timestamp:
                relative = segment.time_index.floor(timestamp)
                start = Offset(max(log_start, segment.base_offset + relative))
                found = _first(_Range(segment, _position(segment, start)), timestamp, log_start)
                if found is not None:
                    return found
        return _first(tail, timestamp, log_start) if tail is not None else None

    return search


def largest(segments: Sequence[Segment]) -> Search:
    """The first record with the largest timestamp (KIP-734)."""
    active = segments[-1]
    closed = [segment for segment in segments[:-1] if segment.size > 0]
    relative = active.max_timestamp_offset - active.base_offset
    tail = _Range(active, Position(active.index.floor(max(relative, 0))[0]))
    tail_max = active.max_timestamp if active.size > 0 else Millis(-1)

    def search() -> TimedOffset | None:
        copies = map(_copy, closed)
        newest = max(copies, key=lambda segment: segment.max_timestamp, default=None)
        if newest is None or newest.max_timestamp < tail_max:
            return _first(tail, tail_max, Offset(0)) if tail_max >= 0 else None
        if newest.max_timestamp < 0:
            return None
        start = _position(newest, newest.max_timestamp_offset)
        return _first(_Range(newest, start), newest.max_timestamp, Offset(0))

    return search


def last_times(segments: Sequence[Segment]) -> list[tuple[Millis, Offset] | None]:
    """The largest time of each closed segment; None where its file does not say. For a thread."""
    found: list[tuple[Millis, Offset] | None] = []
    for segment in segments:
        try:
            found.append(segment.read_last_time())
        except (BadIndex, OSError):
            found.append(None)  # whoever needs it meets the same, and knows what to do
    return found


class _Range:
    """Batches of one segment, from a position up to where it ended when this was made."""

    def __init__(self, segment: Segment, start: Position) -> None:
        self._path = segment.path("log")
        self._start = start
        self._end = Position(segment.size)
        self._base_offset = segment.base_offset

    def records_from(self, timestamp: Millis) -> Iterator[tuple[BatchHeader, Record]]:
        """The records of batches that reach ``timestamp``; raises Corrupt for damaged ones."""
        scan = Scan(
            OpenFile(self._path), self._start, self._end, self._base_offset, check_crc=False
        )
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
    """The same files in other hands."""
    resources = Resources(OpenFiles(1), IndexCache(renewable_size_max=-1))
    copy = Segment(
        segment.folder,
        segment.base_offset,
        segment.size,
        resources,
        created_at=segment.created_at,
    )
    copy.take_times(segment)
    return copy


def _position(segment: Segment, offset: Offset) -> Position:
    try:
        return segment.position_of(offset)
    except IndexDamaged:
        raise
    except Corrupt:
        return Position(0)  # the index may be wrong about it; the log is read from its start
