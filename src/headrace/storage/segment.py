"""One segment of a log: its file of batches, its indexes, and how to find things in them.

Only the last segment of a log, the active one, is written to; its indexes live
in memory and reach their files when it is flushed, rolled or closed. Those of
older segments are read when somebody asks, and forgotten again.
"""

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from headrace.core.producer_state import AbortedTransaction
from headrace.core.retention import RELATIVE_OFFSET_MAX
from headrace.model.errors import Corrupt
from headrace.model.ids import Millis, Offset, Position
from headrace.records.batch import (
    BASE_OFFSET,
    CRC,
    CRC_FROM,
    HEADER_SIZE,
    LAST_OFFSET_DELTA,
    LOG_OVERHEAD,
    MAGIC,
    SIZE,
    BadBatch,
    BatchHeader,
    crc_holds,
    read_header,
)
from headrace.records.checksum import crc32c
from headrace.storage import aborted_transactions
from headrace.storage.files import (
    OpenFile,
    OpenFiles,
    preallocate,
    read_exactly,
    read_file,
    read_into,
    write_all,
)
from headrace.storage.index import (
    NO_TIMESTAMP,
    OFFSET_ENTRY_SIZE,
    TIME_ENTRY_SIZE,
    BadIndex,
    OffsetIndex,
    TimeIndex,
    last_time,
)

log = logging.getLogger("headrace.storage")

SCAN_SIZE = 1 << 20
_LENGTH_MIN = 14  # of the smallest message of magic 0, behind its length field


# What the indexes need to know of a batch: base offset, last offset, size, largest timestamp.
# A bare tuple, because one is made for every batch appended.
StagedBatch = tuple[int, int, int, int]

# base offset, length, magic and last offset delta out of a batch header
_walk = Struct(">qi4xb6xi")
_WALK_SIZE = _walk.size


class SegmentDamaged(Corrupt):
    """Something in the files of this segment is not as it should be."""

    def __init__(self, base_offset: Offset, problem: str) -> None:
        super().__init__(problem)
        self.base_offset = base_offset


class IndexDamaged(SegmentDamaged):
    """The indexes of a closed segment must be made anew, which takes too long to do it here."""


class IndexCache:
    """Bounds the memory of indexes that were read from files: the longest unused goes first."""

    __slots__ = ("_held", "_size", "renewable_size_max", "size_max")

    def __init__(self, size_max: int = 8 << 20, renewable_size_max: int = 2**63 - 1) -> None:
        self.size_max = size_max
        # Damaged indexes of closed segments up to this size are made anew on the spot.
        self.renewable_size_max = renewable_size_max
        self._size = 0
        self._held: dict[Segment, int] = {}

    def loaded(self, segment: "Segment", size: int) -> None:
        self.forget(segment)
        self._held[segment] = size
        self._size += size
        while self._size > self.size_max and len(self._held) > 1:
            oldest = next(iter(self._held))
            self._size -= self._held.pop(oldest)
            if oldest.index_touched and oldest is not segment:
                oldest.index_touched = False
                self._held[oldest] = oldest.index_size
                self._size += oldest.index_size
            else:
                oldest.drop_indexes()

    def forget(self, segment: "Segment") -> None:
        self._size -= self._held.pop(segment, 0)


class Resources(NamedTuple):
    """What the segments of all logs share."""

    files: OpenFiles
    indexes: IndexCache


class Segment:
    __slots__ = (
        "_aborted",
        "_first_timestamp",
        "_index",
        "_max_timestamp",
        "_resources",
        "_time_index",
        "active",
        "base_offset",
        "created_at",
        "file",
        "folder",
        "index_touched",
        "max_timestamp_offset",
        "modified_at",
        "size",
        "touched",
        "unindexed_size",
    )

    def __init__(
        self,
        folder: str,
        base_offset: Offset,
        size: int,
        resources: Resources,
        *,
        created_at: Millis,
        aborted: list[AbortedTransaction] | None = None,
    ) -> None:
        self.folder = folder
        self.base_offset = base_offset
        self.size = size  # bytes of whole batches; the file may be longer while a write runs
        self.created_at = created_at
        self.modified_at = created_at
        self.active = False
        self.file: OpenFile | None = None
        self.touched = False
        self.index_touched = False
        self.unindexed_size = 0  # bytes since the batch that the last index entry names
        self.max_timestamp_offset = base_offset  # last offset of the batch with the largest time
        self._max_timestamp: Millis | None = None  # None: not read yet
        self._first_timestamp: Millis | None = None
        self._index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._aborted = aborted  # None: in the file, not read yet
        self._resources = resources

    @classmethod
    def create(
        cls,
        folder: str,
        base_offset: Offset,
        resources: Resources,
        now: Millis,
        preallocated_size: int = 0,
    ) -> "Segment":
        """A new, empty, active segment with its files; ``trim`` takes back what it did not use."""
        segment = cls(folder, base_offset, 0, resources, created_at=now, aborted=[])
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            segment.file = OpenFile(segment.path("log"), flags)
            resources.files.opened(segment)
            if preallocated_size:
                preallocate(segment.file.fd, preallocated_size)
            for suffix in ("index", "timeindex"):
                os.close(os.open(segment.path(suffix), flags, 0o644))
        except OSError:
            # The segment before goes on. An empty one in its middle would be taken for the
            # active one at the next start, and hide all that was written behind its base.
            segment.remove()
            raise
        segment.start_indexes()
        segment.active = True
        return segment

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}, {self.size} bytes)"

    def path(self, suffix: str) -> str:
        return f"{self.folder}/{self.base_offset:020d}.{suffix}"

    def open(self) -> OpenFile:
        file = self.file
        if file is None:
            file = OpenFile(self.path("log"))
            self.file = file
            self._resources.files.opened(self)
        else:
            self.touched = True
        return file

    def release(self) -> None:
        """Let go of descriptor and memory; slices that others hold stay good."""
        self._resources.files.forget(self)
        self._resources.indexes.forget(self)
        self.active = False
        self.drop_indexes()

    def relocate(self, folder: str) -> None:
        """Go on with files of the same content in another folder."""
        self._resources.files.forget(self)
        self.folder = folder

    def remove(self) -> None:
        """Delete the files at once."""
        self.release()
        with suppress(OSError):
            os.truncate(self.path("log"), 0)  # what cannot be unlinked is at least seen to be empty
        for suffix in ("log", "index", "timeindex", "txnindex"):
            with suppress(FileNotFoundError):
                os.unlink(self.path(suffix))  # noqa: PTH108

    def trim(self) -> None:
        """End the file where its batches do."""
        if os.fstat(self.open().fd).st_size > self.size:
            os.ftruncate(self.open().fd, self.size)

    @property
    def is_blank(self) -> bool:
        """Whether nothing was ever written to the file, though it may have been preallocated."""
        return self.size == 0 or not any(os.pread(self.open().fd, LOG_OVERHEAD, 0))

    def activate(self) -> None:
        """Make an old segment the one that is written to: its indexes stay in memory."""
        self.active = True
        self._resources.indexes.forget(self)
        assert self.index is not None

    def retire(self) -> None:
        """No longer written to: the indexes may leave memory."""
        self.active = False
        self._resources.indexes.loaded(self, self.index_size)

    # -- indexes --------------------------------------------------------------------------

    @property
    def index(self) -> OffsetIndex:
        self.index_touched = True
        return self._index if self._index is not None else self._load_indexes()[0]

    @property
    def time_index(self) -> TimeIndex:
        self.index_touched = True
        return self._time_index if self._time_index is not None else self._load_indexes()[1]

    @property
    def renewable_size_max(self) -> int:
        return self._resources.indexes.renewable_size_max

    @property
    def index_size(self) -> int:
        """Roughly the memory that the indexes take."""
        if self._index is None or self._time_index is None:
            return 0
        return 300 + 12 * len(self._index) + 12 * len(self._time_index)

    def start_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Begin with empty indexes: for a new segment, and before they are made anew."""
        self._index, self._time_index = OffsetIndex(), TimeIndex()
        self._max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        self.unindexed_size = 0
        return self._index, self._time_index

    def drop_indexes(self) -> None:
        if not self.active:
            self._index = self._time_index = None

    def _load_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        try:
            index = OffsetIndex.decode(self._read_beside("index"), self.size)
            time_index = TimeIndex.decode(self._read_beside("timeindex"))
        except (BadIndex, FileNotFoundError) as problem:
            return self._renew_indexes(problem)
        self._index, self._time_index = index, time_index
        if not self.active:
            self._resources.indexes.loaded(self, self.index_size)
        return index, time_index

    def forget_indexes(self) -> None:
        """Their files were replaced."""
        self._resources.indexes.forget(self)
        self.drop_indexes()
        self._max_timestamp = None

    def may_reach(self, timestamp: Millis) -> bool:
        """Whether a record may be that young, as far as is known without reading anything."""
        return self._max_timestamp is None or self._max_timestamp >= timestamp

    def take_times(self, other: "Segment") -> None:
        """Know of the largest time what ``other`` knows, which has the same files."""
        self._max_timestamp = other._max_timestamp
        self.max_timestamp_offset = other.max_timestamp_offset

    def _renew_indexes(self, problem: Exception) -> tuple[OffsetIndex, TimeIndex]:
        if not self.active and self.size > self._resources.indexes.renewable_size_max:
            raise IndexDamaged(
                self.base_offset, f"the indexes of {self.path('log')} are damaged: {problem}"
            ) from None
        log.warning("the indexes of %s are made anew from the log: %s", self.path("log"), problem)
        return self.rebuild_indexes()

    def rebuild_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Make both indexes anew from the batches, and save them."""
        indexes = self.read_indexes_from_log()
        self.save_indexes()
        if not self.active:
            self._resources.indexes.loaded(self, self.index_size)
        return indexes

    def read_indexes_from_log(self) -> tuple[OffsetIndex, TimeIndex]:
        """Both, from the batches; if those are damaged everything stays as it was."""
        size = self.size
        before = self._index, self._time_index, self.unindexed_size
        times_before = self.max_timestamp_offset, self._max_timestamp
        self.start_indexes()
        self.size = 0
        scan = Scan(self.open(), Position(0), Position(size), self.base_offset, check_crc=False)
        for _, header in scan:
            self.extend((as_staged(header),), INDEX_INTERVAL_SIZE)
        if scan.problem is not None:
            self.size = size
            self._index, self._time_index, self.unindexed_size = before
            self.max_timestamp_offset, self._max_timestamp = times_before
            raise Corrupt(f"{self.path('log')}: {scan.problem} at byte {scan.valid_end}")
        if not self.active:
            self.close_time_index()
        assert self._index is not None and self._time_index is not None
        return self._index, self._time_index

    def save_indexes(self) -> None:
        """Append to the index files what they lack; without fsync."""
        index, time_index = self._index, self._time_index
        if index is None or time_index is None:
            return
        saved = index.saved_count * OFFSET_ENTRY_SIZE
        self._save("index", index.encode(index.saved_count), saved)
        index.saved_count = len(index)
        saved = time_index.saved_count * TIME_ENTRY_SIZE
        self._save("timeindex", time_index.encode(time_index.saved_count), saved)
        time_index.saved_count = len(time_index)

    def _save(self, suffix: str, content: bytes, position: int) -> None:
        fd = os.open(self.path(suffix), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if content:
                write_all(fd, [content], position, len(content))
            # Whatever lies behind is preallocation, or belongs to batches cut off since.
            os.ftruncate(fd, position + len(content))
        finally:
            os.close(fd)

    def close_time_index(self) -> None:
        """Give the time index its last entry: the largest time of the segment."""
        if self.max_timestamp >= 0:
            self.time_index.maybe_append(
                self.max_timestamp, self.max_timestamp_offset - self.base_offset
            )

    def _read_beside(self, suffix: str) -> bytes:
        return read_file(self.path(suffix))

    # -- growing --------------------------------------------------------------------------

    def extend(self, batches: Iterable[StagedBatch], index_interval_size: int) -> None:
        """Account for batches now in the file behind the others."""
        position = self.size
        unindexed_size = self.unindexed_size
        max_timestamp = self.max_timestamp
        for base_offset, last_offset, size, timestamp in batches:
            if timestamp > max_timestamp:
                self._max_timestamp = max_timestamp = Millis(timestamp)
                self.max_timestamp_offset = Offset(last_offset)
            if unindexed_size > index_interval_size:
                base = self.base_offset
                self.index.append(base_offset - base, last_offset - base, position)
                self.time_index.maybe_append(max_timestamp, self.max_timestamp_offset - base)
                unindexed_size = 0
            position += size
            unindexed_size += size
        self.size = position
        self.unindexed_size = unindexed_size

    def cut(self, position: Position, end_offset: Offset) -> None:
        """Drop everything from ``position`` on, where the batch of ``end_offset`` begins."""
        index, time_index = self.index, self.time_index
        os.ftruncate(self.open().fd, position)
        self.size = position
        index.truncate(position)
        time_index.truncate(max(0, end_offset - self.base_offset))
        if position == 0:
            self._first_timestamp = None
        self.read_tail()
        self.save_indexes()

    def read_tail(self) -> Offset:
        """Read the batches behind the last index entry; returns the segment's end offset.

        Gives the segment what an active one must know besides: its largest
        time and the bytes since the last entry.
        """
        index = self.index
        start = index.positions[-1] if index.positions else 0
        self.resume_times()
        self.unindexed_size = self.size - start
        end_offset = self.base_offset
        scan = Scan(self.open(), Position(start), Position(self.size), end_offset, check_crc=False)
        for _, header in scan:
            end_offset = Offset(header.next_offset)
            if header.max_timestamp > self.max_timestamp:
                self._max_timestamp = Millis(header.max_timestamp)
                self.max_timestamp_offset = Offset(header.last_offset)
        if scan.problem is not None:
            raise Corrupt(f"{self.path('log')}: {scan.problem} at byte {scan.valid_end}")
        return end_offset

    # -- times ----------------------------------------------------------------------------

    def resume_times(self) -> None:
        """Take the largest time from the time index; the batches behind it are read next."""
        time_index = self.time_index
        self.unindexed_size = 0
        self._max_timestamp = time_index.last_timestamp
        self.max_timestamp_offset = self.base_offset
        if time_index.timestamps:
            self.max_timestamp_offset = Offset(self.base_offset + time_index.last_offsets[-1])

    @property
    def max_timestamp(self) -> Millis:
        """The largest time of a record, -1 if none carries one."""
        if self._max_timestamp is None:
            try:
                self.learn_time(self.read_last_time())
            except (BadIndex, FileNotFoundError) as problem:
                self._renew_indexes(problem)
        assert self._max_timestamp is not None
        return self._max_timestamp

    @property
    def knows_time(self) -> bool:
        """Whether ``max_timestamp`` is at hand without reading a file."""
        return self._max_timestamp is not None

    def read_last_time(self) -> tuple[Millis, Offset]:
        """The largest time and its offset, as the file of a closed segment has it.

        Changes nothing, so it may run in another thread. Raises BadIndex, or OSError.
        """
        file = OpenFile(self.path("timeindex"), os.O_RDONLY | os.O_CLOEXEC)
        size = os.fstat(file.fd).st_size
        entry = os.pread(file.fd, TIME_ENTRY_SIZE, max(size - TIME_ENTRY_SIZE, 0))
        if size % TIME_ENTRY_SIZE or not any(entry):
            entry = read_exactly(file.fd, size, 0)  # preallocated or damaged: all of it tells
        timestamp, relative = last_time(entry)
        return timestamp, Offset(self.base_offset + relative)

    def learn_time(self, found: tuple[Millis, Offset]) -> None:
        # The time last: whoever sees it, in whatever thread, sees the offset too.
        self.max_timestamp_offset = found[1]
        self._max_timestamp = found[0]

    @property
    def largest_timestamp(self) -> Millis:
        """What retention by time goes by."""
        newest = self.max_timestamp
        return newest if newest >= 0 else self.modified_at

    @property
    def first_timestamp(self) -> Millis:
        """The time of the first batch, -1 if there is none: what rolling by age goes by."""
        if self._first_timestamp is None:
            if self.size == 0:
                return NO_TIMESTAMP
            self._first_timestamp = Millis(self.header_at(Position(0)).max_timestamp)
        return self._first_timestamp

    # -- finding --------------------------------------------------------------------------

    def _damaged(self, suffix: str, problem: str) -> SegmentDamaged:
        return SegmentDamaged(self.base_offset, f"{self.path(suffix)}: {problem}")

    def header_at(self, position: Position) -> BatchHeader:
        try:
            return read_header(os.pread(self.open().fd, HEADER_SIZE, position))
        except BadBatch as bad:
            raise self._damaged("log", f"{bad.reason} at byte {position}") from None

    def position_of(self, offset: Offset) -> Position:
        """Where the first batch begins whose last offset is ``offset`` or more; else the end."""
        base, limit = self.base_offset, RELATIVE_OFFSET_MAX
        relative = offset - base
        if relative <= 0:
            return Position(0)
        start, exact = self.index.floor(min(relative, limit))
        if exact:
            return Position(start)
        position, size, fd = start, self.size, self.open().fd
        unpack = _walk.unpack_from
        while position < size:
            # Entries are about 4 KiB apart, so the batches between two of them
            # mostly come with the first read.
            window = os.pread(fd, 4096, position)
            readable = min(len(window), size - position) - _WALK_SIZE
            at = 0
            while at <= readable:
                base_offset, length, magic, last_offset_delta = unpack(window, at)
                if length < _LENGTH_MIN or magic > 2 or not 0 <= base_offset - base <= limit:
                    raise self._damaged("log", f"no batch at byte {position + at}")
                if base_offset + (last_offset_delta if magic == 2 else 0) >= offset:
                    return Position(position + at)
                at += length + LOG_OVERHEAD
            if at == 0:
                raise self._damaged("log", f"no batch at byte {position}")
            position += at
        return Position(size)

    def boundary_before(self, start: Position, limit: int) -> Position:
        """The last batch boundary at or before ``limit``; ``start``, a boundary, if none is."""
        cut, last_offset = self.index.cut(limit)
        if cut > start:
            if last_offset is not None:
                found = self.header_at(Position(cut)).last_offset - self.base_offset
                if found != last_offset:
                    raise self._damaged("index", f"no batch begins at byte {cut}")
            return Position(cut)
        # No entry in between: walk. That is at most one index interval and a batch.
        position: int = start
        while position < self.size:
            batch_end = position + self.header_at(Position(position)).size
            if batch_end > limit:
                break
            position = batch_end
        return Position(position)

    def batches_from(self, position: Position) -> "Scan":
        return Scan(self.open(), position, Position(self.size), self.base_offset, check_crc=False)

    # -- aborted transactions -------------------------------------------------------------

    @property
    def aborted(self) -> list[AbortedTransaction]:
        if self._aborted is None:
            try:
                self._aborted = aborted_transactions.decode(self._read_beside("txnindex"))
            except FileNotFoundError:
                self._aborted = []
            except ValueError as problem:
                raise Corrupt(f"{self.path('txnindex')}: {problem}") from None
        return self._aborted

    def add_aborted(self, aborted: list[AbortedTransaction]) -> None:
        start = len(self.aborted) * aborted_transactions.ENTRY_SIZE
        self._save("txnindex", aborted_transactions.encode(aborted), start)
        self.aborted.extend(aborted)

    def set_aborted(self, aborted: list[AbortedTransaction]) -> None:
        if aborted:
            self._save("txnindex", aborted_transactions.encode(aborted), 0)
        elif self._aborted is None or self._aborted:
            with suppress(FileNotFoundError):
                os.unlink(self.path("txnindex"))  # noqa: PTH108
        self._aborted = aborted


# Kafka's default for index.interval.bytes; used where the topic's setting is not at hand. Any
# value makes a right index, only a finer or coarser one.
INDEX_INTERVAL_SIZE = 4096


def as_staged(header: BatchHeader) -> StagedBatch:
    return header.base_offset, header.last_offset, header.size, header.max_timestamp


class Scan:
    """Walks the batches of a file in large reads; stops at the first that is not whole.

    Yields position and header. Afterwards ``valid_end`` is where the last good
    batch ended, and ``problem`` says what follows it, or is None at the end.
    The bytes of the batch at hand are in ``batch()`` until the next one.
    """

    __slots__ = (
        "_at",
        "_buffer",
        "_check_crc",
        "_end",
        "_file",
        "_memory",
        "_next_offset",
        "_size",
        "problem",
        "valid_end",
    )

    def __init__(
        self,
        file: OpenFile,
        start: Position,
        end: Position,
        next_offset: Offset,
        *,
        check_crc: bool,
    ) -> None:
        self._file = file
        self._end = end
        self._check_crc = check_crc
        self._next_offset = next_offset
        self._memory = self._buffer = memoryview(b"")
        self._at = 0
        self._size = 0
        self.valid_end: Position = start
        self.problem: str | None = None

    def batch(self) -> memoryview:
        """The whole batch that was yielded last, if it is all in memory (with CRC it is)."""
        if self._at + self._size > len(self._buffer):
            self._fill(Position(self.valid_end - self._size), self._size)
        return self._buffer[self._at : self._at + self._size]

    def _fill(self, position: Position, least: int) -> memoryview:
        size = min(max(SCAN_SIZE, least), max(self._end - position, least))
        if size > len(self._memory):
            # Reused, because fresh memory would cost a page fault per 4 KiB read.
            self._memory = memoryview(bytearray(size))
        count = read_into(self._file.fd, self._memory[:size], position)
        self._buffer, self._at = self._memory[:count], 0
        return self._buffer

    def __iter__(self) -> Iterator[tuple[Position, BatchHeader]]:
        position: int = self.valid_end
        end, next_offset, check_crc = self._end, self._next_offset, self._check_crc
        buffer, at, available = self._buffer, 0, 0
        while position < end:
            if available - at < HEADER_SIZE and available - at < end - position:
                buffer, at = self._fill(Position(position), HEADER_SIZE), 0
                available = len(buffer)
            try:
                header = read_header(buffer, at)
            except BadBatch as bad:
                self.problem = bad.reason
                return
            size = header[SIZE]
            if size > end - position:
                self.problem = (
                    f"a batch of {size} bytes of which only {end - position} were written"
                )
                return
            if check_crc:
                if at + size > available:
                    buffer, at = self._fill(Position(position), size), 0
                    available = len(buffer)
                    if size > available:
                        self.problem = f"a batch of {size} bytes is cut"
                        return
                if header[MAGIC] == 2:  # as crc_holds does, without a call per batch
                    good = crc32c(buffer[at + CRC_FROM : at + size]) == header[CRC]
                else:
                    good = crc_holds(buffer[at : at + size], header)
                if not good:
                    self.problem = "a batch that does not have the CRC it carries"
                    return
            base_offset, delta = header[BASE_OFFSET], header[LAST_OFFSET_DELTA]
            if base_offset < next_offset or delta < 0:
                self.problem = f"offset {base_offset} where {next_offset} or more must follow"
                return
            next_offset = base_offset + delta + 1  # type: ignore[assignment]
            self._at, self._size = at, size
            self.valid_end = position + size  # type: ignore[assignment]
            yield position, header  # type: ignore[misc]
            if self._buffer is not buffer:  # ``batch`` had to read
                buffer, at = self._buffer, self._at
                available = len(buffer)
            at += size
            position += size
