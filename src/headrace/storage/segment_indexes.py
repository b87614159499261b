"""The offset index and the time index of one segment, in memory and in their files.

The indexes of the active segment stay in memory; they are written to their files when the segment
is flushed, rolled or closed. Those of closed segments are read on demand and evicted by
``IndexCache``. Damaged indexes are rebuilt from the batches.
"""

import logging
from collections.abc import Iterable

from headrace.model.errors import Corrupt
from headrace.model.ids import Millis, Offset, Position
from headrace.records.batch import BatchHeader
from headrace.storage.files import OpenFile, read_exactly
from headrace.storage.index import (
    NO_TIMESTAMP,
    OFFSET_ENTRY_SIZE,
    TIME_ENTRY_SIZE,
    BadIndex,
    OffsetIndex,
    TimeIndex,
    last_time,
)
from headrace.storage.segment_files import SegmentDamaged, SegmentFiles
from headrace.world.files import O_RDONLY

_log = logging.getLogger("headrace.storage")

# What the indexes need to know about a batch: base offset, last offset, size, largest timestamp.
# A bare tuple, because one is made for every batch appended.
StagedBatch = tuple[int, int, int, int]

# Kafka's default for index.interval.bytes, for callers that do not know the topic's setting. Any
# value makes a correct index, only a finer or coarser one.
INDEX_INTERVAL_SIZE = 4096


def as_staged(header: BatchHeader) -> StagedBatch:
    return header.base_offset, header.last_offset, header.size, header.max_timestamp


class IndexDamaged(SegmentDamaged):
    """The indexes of a closed segment must be rebuilt, which takes too long for the loop."""


class IndexCache:
    """Bounds the memory of indexes that were read from files; evicts the least recently used."""

    __slots__ = ("_held", "_size", "rebuildable_size_max", "size_max")

    def __init__(self, size_max: int = 8 << 20, rebuildable_size_max: int = 2**63 - 1) -> None:
        self.size_max = size_max
        # Damaged indexes of closed segments up to this size are rebuilt by the reader.
        self.rebuildable_size_max = rebuildable_size_max
        self._size = 0
        self._held: dict[SegmentIndexes, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def loaded(self, indexes: "SegmentIndexes", size: int) -> None:
        self.forget(indexes)
        self._held[indexes] = size
        self._size += size
        while self._size > self.size_max and len(self._held) > 1:
            oldest = next(iter(self._held))
            self._size -= self._held.pop(oldest)
            if oldest.touched and oldest is not indexes:
                oldest.touched = False
                self._held[oldest] = oldest.memory_size
                self._size += oldest.memory_size
            else:
                oldest.drop()

    def forget(self, indexes: "SegmentIndexes") -> None:
        self._size -= self._held.pop(indexes, 0)


class SegmentIndexes:
    """Both indexes of a segment, and its largest timestamp, which the time index ends with."""

    __slots__ = (
        "_cache",
        "_files",
        "_max_timestamp",
        "_offsets",
        "_times",
        "active",
        "max_timestamp_offset",
        "touched",
        "unindexed_size",
    )

    def __init__(self, files: SegmentFiles, cache: IndexCache) -> None:
        self._files = files
        self._cache = cache
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._max_timestamp: Millis | None = None  # None: not read yet
        self.max_timestamp_offset = files.base_offset  # last offset of the batch that has it
        self.unindexed_size = 0  # bytes since the batch that the last entry points to
        self.active = False  # the segment is written to: the indexes stay in memory
        self.touched = False

    @property
    def offsets(self) -> OffsetIndex:
        self.touched = True
        return self._offsets if self._offsets is not None else self._load()[0]

    @property
    def times(self) -> TimeIndex:
        self.touched = True
        return self._times if self._times is not None else self._load()[1]

    @property
    def path(self) -> str:
        """The path of the segment's log, which identifies the segment."""
        return self._files.path("log")

    @property
    def memory_size(self) -> int:
        """Approximate memory use."""
        if self._offsets is None or self._times is None:
            return 0
        return 300 + 12 * len(self._offsets) + 12 * len(self._times)

    # -- memory ---------------------------------------------------------------------------

    def start(self) -> tuple[OffsetIndex, TimeIndex]:
        """Begin with empty indexes: for a new segment, and before a rebuild."""
        self._offsets, self._times = OffsetIndex(), TimeIndex()
        self._max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self._files.base_offset
        self.unindexed_size = 0
        return self._offsets, self._times

    def activate(self) -> None:
        """The segment is written to from now on: load the indexes and keep them in memory."""
        self.active = True
        self._cache.forget(self)
        assert self.offsets is not None

    def retire(self) -> None:
        """The segment is closed: the indexes may leave memory."""
        self.active = False
        self._cache.loaded(self, self.memory_size)

    def release(self) -> None:
        self._cache.forget(self)
        self.active = False
        self.drop()

    def drop(self) -> None:
        if not self.active:
            self._offsets = self._times = None

    def reload(self) -> None:
        """The files were replaced: read them at the next use."""
        self._cache.forget(self)
        self.drop()
        self._max_timestamp = None

    # -- files ----------------------------------------------------------------------------

    def _load(self) -> tuple[OffsetIndex, TimeIndex]:
        try:
            offsets = OffsetIndex.decode(self._files.read("index"), self._files.size)
            times = TimeIndex.decode(self._files.read("timeindex"))
        except (BadIndex, FileNotFoundError) as problem:
            return self._rebuild_damaged(problem)
        self._offsets, self._times = offsets, times
        if not self.active:
            self._cache.loaded(self, self.memory_size)
        return offsets, times

    @property
    def rebuilds_at_once(self) -> bool:
        """Whether the segment is small enough to rebuild its indexes in the caller's thread."""
        return self._files.size <= self._cache.rebuildable_size_max

    def _rebuild_damaged(self, problem: Exception) -> tuple[OffsetIndex, TimeIndex]:
        path = self.path
        if not self.active and not self.rebuilds_at_once:
            raise IndexDamaged(
                self._files.base_offset, f"the indexes of {path} are damaged: {problem}"
            ) from None
        _log.warning("Rebuilding the indexes of %s from the log: %s", path, problem)
        return self.rebuild()

    def rebuild(self) -> tuple[OffsetIndex, TimeIndex]:
        """Rebuild both indexes from the batches and save them."""
        indexes = self.read_from_log()
        self.save()
        if not self.active:
            self._cache.loaded(self, self.memory_size)
        return indexes

    def read_from_log(self) -> tuple[OffsetIndex, TimeIndex]:
        """Build both indexes from the batches; if those are damaged, nothing changes."""
        before = self._offsets, self._times, self.unindexed_size
        times_before = self.max_timestamp_offset, self._max_timestamp
        offsets, times = self.start()
        position = 0
        scan = self._files.scan(Position(0))
        for _, header in scan:
            position = self.extend((as_staged(header),), position, INDEX_INTERVAL_SIZE)
        if scan.problem is not None:
            self._offsets, self._times, self.unindexed_size = before
            self.max_timestamp_offset, self._max_timestamp = times_before
            raise Corrupt(f"{self.path}: {scan.problem} at byte {scan.valid_end}")
        if not self.active:
            self.close_times()
        return offsets, times

    def save(self) -> None:
        """Append new entries to the index files; without fsync."""
        offsets, times = self._offsets, self._times
        if offsets is None or times is None or self._files.are_absent:
            return
        saved = offsets.saved_count
        self._files.save("index", offsets.encode(saved), saved * OFFSET_ENTRY_SIZE)
        offsets.saved_count = len(offsets)
        saved = times.saved_count
        self._files.save("timeindex", times.encode(saved), saved * TIME_ENTRY_SIZE)
        times.saved_count = len(times)

    # -- growing --------------------------------------------------------------------------

    def extend(
        self, batches: Iterable[StagedBatch], position: int, index_interval_size: int
    ) -> int:
        """Add batches that the file now has from ``position`` on; returns where they end."""
        unindexed_size = self.unindexed_size
        max_timestamp = self.max_timestamp
        for base_offset, last_offset, size, timestamp in batches:
            if timestamp > max_timestamp:
                self._max_timestamp = max_timestamp = Millis(timestamp)
                self.max_timestamp_offset = Offset(last_offset)
            if unindexed_size > index_interval_size:
                base = self._files.base_offset
                self.offsets.append(base_offset - base, last_offset - base, position)
                self.times.maybe_append(max_timestamp, self.max_timestamp_offset - base)
                unindexed_size = 0
            position += size
            unindexed_size += size
        self.unindexed_size = unindexed_size
        return position

    def close_times(self) -> None:
        """Append the last entry of the time index: the largest timestamp of the segment."""
        if self.max_timestamp >= 0:
            self.times.maybe_append(
                self.max_timestamp, self.max_timestamp_offset - self._files.base_offset
            )

    def truncate(self, position: int, end_offset: Offset) -> None:
        """Keep the entries of batches before ``position``, where ``end_offset`` begins."""
        self.offsets.truncate(position)
        self.times.truncate(max(0, end_offset - self._files.base_offset))

    def read_tail(self) -> Offset:
        """Read the batches after the last index entry; returns the end offset of the segment.

        Also restores what only memory holds: the largest timestamp, and the bytes since the last
        entry.
        """
        files, positions = self._files, self.offsets.positions
        start = positions[-1] if positions else 0
        self.resume_times()
        self.unindexed_size = files.size - start
        end_offset = files.base_offset
        scan = files.scan(Position(start))
        for _, header in scan:
            end_offset = Offset(header.next_offset)
            if header.max_timestamp > self.max_timestamp:
                self._max_timestamp = Millis(header.max_timestamp)
                self.max_timestamp_offset = Offset(header.last_offset)
        if scan.problem is not None:
            raise Corrupt(f"{files.path('log')}: {scan.problem} at byte {scan.valid_end}")
        return end_offset

    # -- the largest timestamp ------------------------------------------------------------

    def resume_times(self) -> None:
        """Take the largest timestamp from the time index; the caller reads the batches after it."""
        times, base_offset = self.times, self._files.base_offset
        self.unindexed_size = 0
        self._max_timestamp = times.last_timestamp
        self.max_timestamp_offset = base_offset
        if times.timestamps:
            self.max_timestamp_offset = Offset(base_offset + times.last_offsets[-1])

    @property
    def max_timestamp(self) -> Millis:
        """The largest timestamp of a record, -1 if none has one."""
        if self._max_timestamp is None:
            try:
                self.learn_time(self.read_last_time())
            except (BadIndex, FileNotFoundError) as problem:
                self._rebuild_damaged(problem)
        assert self._max_timestamp is not None
        return self._max_timestamp

    @property
    def knows_time(self) -> bool:
        """Whether ``max_timestamp`` is known without reading a file."""
        return self._max_timestamp is not None

    def may_reach(self, timestamp: Millis) -> bool:
        """False if it is known, without reading a file, that every record is older."""
        return self._max_timestamp is None or self._max_timestamp >= timestamp

    def read_last_time(self) -> tuple[Millis, Offset]:
        """Read the largest timestamp and its offset from the file of a closed segment.

        Changes nothing, so it may run in another thread. Raises BadIndex or OSError.
        """
        system = self._files.system
        file = OpenFile(system, self._files.path("timeindex"), O_RDONLY)
        size = system.size_of(file.fd)
        entry = system.pread(file.fd, TIME_ENTRY_SIZE, max(size - TIME_ENTRY_SIZE, 0))
        if size % TIME_ENTRY_SIZE or not any(entry):
            entry = read_exactly(file, size, 0)  # preallocated or damaged: read it all
        timestamp, relative = last_time(entry)
        return timestamp, Offset(self._files.base_offset + relative)

    def learn_time(self, found: tuple[Millis, Offset]) -> None:
        # The timestamp last: a thread that sees it must see its offset too.
        self.max_timestamp_offset = found[1]
        self._max_timestamp = found[0]

    def copy_times(self, other: "SegmentIndexes") -> None:
        """Copy the largest timestamp from ``other``, which has the same files."""
        self._max_timestamp = other._max_timestamp
        self.max_timestamp_offset = other.max_timestamp_offset
