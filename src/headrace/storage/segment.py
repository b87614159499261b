"""One segment of a log: its batches, its indexes, and how to find offsets in them.

Only the last segment of a log, the active one, is written to.
"""

from struct import Struct
from typing import NamedTuple

from headrace.core.producer_state import AbortedTransaction
from headrace.core.retention import RELATIVE_OFFSET_MAX
from headrace.model.errors import Corrupt
from headrace.model.ids import Millis, Offset, Position
from headrace.records.batch import LOG_OVERHEAD
from headrace.storage import aborted_transactions
from headrace.storage.files import OpenFiles
from headrace.storage.index import NO_TIMESTAMP
from headrace.storage.segment_files import SegmentFiles
from headrace.storage.segment_indexes import IndexCache, SegmentIndexes
from headrace.world.files import SystemFiles

_LENGTH_MIN = 14  # of the smallest message of magic 0, after its length field

# base offset, length, magic and last offset delta of a batch header
_walk = Struct(">qi4xb6xi")
_WALK_SIZE = _walk.size


class Resources(NamedTuple):
    """What the segments of all logs share."""

    files: SystemFiles
    open_files: OpenFiles
    indexes: IndexCache


class Segment:
    __slots__ = (
        "_aborted",
        "_first_timestamp",
        "base_offset",
        "created_at",
        "files",
        "indexes",
        "modified_at",
    )

    def __init__(
        self,
        directory: str,
        base_offset: Offset,
        size: int,
        resources: Resources,
        *,
        created_at: Millis,
        aborted: list[AbortedTransaction] | None = None,
    ) -> None:
        self.base_offset = base_offset
        self.files = SegmentFiles(
            directory, base_offset, size, resources.files, resources.open_files
        )
        self.indexes = SegmentIndexes(self.files, resources.indexes)
        self.created_at = created_at
        self.modified_at = created_at
        self._first_timestamp: Millis | None = None
        self._aborted = aborted  # None: in the file, not read yet

    @classmethod
    def create(
        cls,
        directory: str,
        base_offset: Offset,
        resources: Resources,
        now: Millis,
        preallocated_size: int = 0,
    ) -> "Segment":
        """Create a new, empty, active segment and its files."""
        segment = cls(directory, base_offset, 0, resources, created_at=now, aborted=[])
        try:
            segment.files.create(preallocated_size)
        except OSError:
            # The log continues in the previous segment. An empty one in its middle would become
            # the active one at the next start and hide everything written after its base.
            segment.remove()
            raise
        segment._activate()
        return segment

    @classmethod
    def first(cls, directory: str, resources: Resources, now: Millis) -> "Segment":
        """The active segment of a new log, at offset 0; its files come with the first batch."""
        segment = cls(directory, Offset(0), 0, resources, created_at=now, aborted=[])
        segment.files.create_at_first_use()
        segment._activate()
        return segment

    def _activate(self) -> None:
        self.indexes.start()
        self.indexes.active = True

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}, {self.size} bytes)"

    @property
    def size(self) -> int:
        """Bytes of whole batches."""
        return self.files.size

    def path(self, suffix: str) -> str:
        return self.files.path(suffix)

    def release(self) -> None:
        """Drop descriptor and indexes; slices that are still being sent stay valid."""
        self.files.release()
        self.indexes.release()

    def remove(self) -> None:
        """Delete the files now."""
        self.release()
        self.files.remove()

    def cut(self, position: Position, end_offset: Offset) -> Offset:
        """Drop everything from ``position`` on, where the batch of ``end_offset`` begins.

        Returns the end of the last batch left.
        """
        indexes = self.indexes
        indexes.activate()  # loads them, while the file still matches them
        self.files.cut(position)
        indexes.truncate(position, end_offset)
        if position == 0:
            self._first_timestamp = None
        batches_end = indexes.read_tail()
        indexes.save()
        return batches_end

    # -- times ----------------------------------------------------------------------------

    @property
    def largest_timestamp(self) -> Millis:
        """The time that retention uses: the largest timestamp, else the last modification."""
        newest = self.indexes.max_timestamp
        return newest if newest >= 0 else self.modified_at

    @property
    def first_timestamp(self) -> Millis:
        """The timestamp of the first batch, -1 if there is none: rolling by age uses it."""
        if self._first_timestamp is None:
            if self.files.size == 0:
                return NO_TIMESTAMP
            self._first_timestamp = Millis(self.files.header_at(0).max_timestamp)
        return self._first_timestamp

    # -- finding --------------------------------------------------------------------------

    def position_of(self, offset: Offset) -> Position:
        """Position of the first batch whose last offset is ``offset`` or more; else the end."""
        base, limit = self.base_offset, RELATIVE_OFFSET_MAX
        relative = offset - base
        if relative <= 0:
            return Position(0)
        start, exact = self.indexes.offsets.floor(min(relative, limit))
        if exact:
            return Position(start)
        files = self.files
        file = files.open()
        position, size, fd, pread = start, files.size, file.fd, file.files.pread
        unpack = _walk.unpack_from
        while position < size:
            # Entries are about 4 KiB apart, so the first read usually holds all batches
            # between two of them.
            window = pread(fd, 4096, position)
            readable = min(len(window), size - position) - _WALK_SIZE
            at = 0
            while at <= readable:
                base_offset, length, magic, last_offset_delta = unpack(window, at)
                if length < _LENGTH_MIN or magic > 2 or not 0 <= base_offset - base <= limit:
                    raise files.damaged("log", f"no batch at byte {position + at}")
                if base_offset + (last_offset_delta if magic == 2 else 0) >= offset:
                    return Position(position + at)
                at += length + LOG_OVERHEAD
            if at == 0:
                raise files.damaged("log", f"no batch at byte {position}")
            position += at
        return Position(size)

    def boundary_before(self, start: int, limit: int) -> Position:
        """The last batch boundary at or before ``limit``; ``start`` if there is none after it."""
        files = self.files
        cut, last_offset = self.indexes.offsets.cut(limit)
        if cut > start:
            if last_offset is not None:
                found = files.header_at(cut).last_offset - self.base_offset
                if found != last_offset:
                    raise files.damaged("index", f"no batch begins at byte {cut}")
            return Position(cut)
        # No index entry in between: walk at most one index interval and a batch.
        position: int = start
        while position < files.size:
            batch_end = position + files.header_at(position).size
            if batch_end > limit:
                break
            position = batch_end
        return Position(position)

    # -- aborted transactions -------------------------------------------------------------

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """Aborted transactions whose marker is in this segment. Raises Corrupt."""
        if self._aborted is None:
            try:
                self._aborted = aborted_transactions.decode(self.files.read("txnindex"))
            except FileNotFoundError:
                self._aborted = []
            except ValueError as problem:
                raise Corrupt(f"{self.path('txnindex')}: {problem}") from None
        return self._aborted

    def add_aborted(self, aborted: list[AbortedTransaction]) -> None:
        start = len(self.aborted) * aborted_transactions.ENTRY_SIZE
        self.files.save("txnindex", aborted_transactions.encode(aborted), start)
        self.aborted.extend(aborted)

    def set_aborted(self, aborted: list[AbortedTransaction]) -> None:
        if aborted:
            self.files.save("txnindex", aborted_transactions.encode(aborted), 0)
        elif self._aborted is None or self._aborted:
            self.files.unlink("txnindex")
        self._aborted = aborted
