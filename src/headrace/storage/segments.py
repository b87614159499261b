"""The segments of one log in order, and how a reader finds its way through them.

Invariant: base offsets rise, and the last segment, the active one, is the only one that grows. A
segment reaches up to the base of the next, though compaction may have emptied its end.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter

from headrace.core.retention import SegmentFacts
from headrace.model.ids import Offset, ProducerId
from headrace.storage.files import FileSlice
from headrace.storage.segment import Segment

_RECENT_COUNT = 32
_last_offset = attrgetter("last_offset")


class Segments:
    __slots__ = ("_recent", "active", "bases", "items", "layout_count")

    def __init__(self, items: list[Segment]) -> None:
        self.items = items
        self.bases = [segment.base_offset for segment in items]
        self.active = items[-1]
        self.layout_count = 0  # grows when closed segments are removed, replaced or moved
        # Where the last writes began in the active segment. Readers at the tail ask for exactly
        # these offsets, and so does the high watermark.
        self._recent: dict[Offset, int] = {}

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.items)

    @property
    def size(self) -> int:
        return sum(segment.files.size for segment in self.items)

    @property
    def first_base_offset(self) -> Offset:
        return self.bases[0]

    def facts(self, log_end: Offset) -> list[SegmentFacts]:
        """Input of the retention decision; reads the time index of those ``without_times``."""
        ends = [*self.bases[1:], log_end]
        return [
            SegmentFacts(segment.base_offset, end, segment.size, segment.largest_timestamp)
            for segment, end in zip(self.items, ends, strict=True)
        ]

    def without_times(self) -> list[Segment]:
        """Segments whose largest timestamp has not been read from its file yet."""
        return [segment for segment in self.items if not segment.indexes.knows_time]

    def slot_of(self, offset: Offset) -> int:
        """Slot of the segment whose range holds ``offset``; the first for lower offsets."""
        return max(bisect_right(self.bases, offset) - 1, 0)

    def at(self, offset: Offset) -> Segment:
        """The segment whose range holds ``offset``."""
        return self.items[self.slot_of(offset)]

    # -- changing -------------------------------------------------------------------------

    def append(self, segment: Segment) -> None:
        """``segment`` becomes the active one."""
        self.items.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment
        self._recent.clear()

    def take_first(self, count: int) -> list[Segment]:
        """Remove the oldest; never the active one."""
        assert count < len(self.items)
        taken = self.items[:count]
        del self.items[:count], self.bases[:count]
        self.layout_count += 1
        return taken

    def take_after(self, slot: int) -> list[Segment]:
        """Remove all after ``slot``, which becomes the active one."""
        taken = self.items[slot + 1 :]
        del self.items[slot + 1 :], self.bases[slot + 1 :]
        self.active = self.items[slot]
        self._recent.clear()
        self.layout_count += 1
        return taken

    def take_all(self) -> list[Segment]:
        """Remove everything; the caller must append a new one at once."""
        taken, self.items, self.bases = self.items, [], []
        self.layout_count += 1
        return taken

    def find_run(self, bases: list[Offset]) -> slice | None:
        """The slots of exactly these neighbors, all of them closed; None if they are not there."""
        slot = bisect_left(self.bases, bases[0])
        run = slice(slot, slot + len(bases))
        return run if self.bases[run] == bases and run.stop < len(self.bases) else None

    def replace(self, run: slice, segment: Segment) -> None:
        self.items[run] = [segment]
        self.bases[run] = [segment.base_offset]
        self.layout_count += 1

    def relocate(self, directory: str) -> None:
        """Continue with files of the same content in another directory."""
        for segment in self.items:
            segment.files.relocate(directory)
        self.layout_count += 1

    def written_at(self, offset: Offset, position: int) -> None:
        """A write began with ``offset`` at ``position`` of the active segment."""
        recent = self._recent
        if len(recent) >= _RECENT_COUNT:
            del recent[next(iter(recent))]
        recent[offset] = position

    def forget_recent(self) -> None:
        self._recent.clear()

    # -- finding --------------------------------------------------------------------------

    def read(
        self,
        fetch_offset: Offset,
        max_bytes: int,
        end_offset: Offset,
        log_end: Offset,
        at_least_one: bool,
    ) -> FileSlice | None:
        """As ``Log.read``, for offsets that have been checked."""
        bases = self.bases
        slot = len(bases) - 1
        if fetch_offset < bases[slot]:
            slot = self.slot_of(fetch_offset)
        while slot < len(bases) and bases[slot] < end_offset:
            segment = self.items[slot]
            slot += 1
            files = segment.files
            start: int
            end: int = files.size
            if slot < len(bases):
                start = segment.position_of(fetch_offset)
                if end_offset < bases[slot]:
                    end = segment.position_of(end_offset)
            else:
                recent = self._recent
                start = recent.get(fetch_offset, -1)
                if start < 0:
                    start = segment.position_of(fetch_offset)
                if end_offset < log_end:
                    end = recent.get(end_offset) or segment.position_of(end_offset)
            if start >= end:
                continue  # compaction emptied the rest of this segment
            if end - start > max_bytes:
                end = segment.boundary_before(start, start + max_bytes)
                if end <= start:
                    if not at_least_one:
                        return None
                    end = start + files.header_at(start).size
            return FileSlice(files.open(), start, end - start)
        return None

    def bytes_between(self, start: Offset, end_offset: Offset, log_end: Offset) -> int:
        """Approximate size of [start, end_offset), which is not empty."""
        first = self.slot_of(start)
        last = max(bisect_left(self.bases, end_offset) - 1, first)
        offsets = self.items[first].indexes.offsets
        skipped = offsets.floor(max(start - self.bases[first], 0))[0]
        if end_offset >= log_end:
            last, end = len(self.items) - 1, self.active.files.size
        else:
            end = self.items[last].position_of(end_offset)
        between = sum(segment.files.size for segment in self.items[first:last])
        return max(between - skipped + end, 1)

    def end_of(self, found: FileSlice, start: Offset, end_offset: Offset) -> Offset:
        """As ``Log.end_of``. Raises SegmentDamaged if no batch follows ``found``."""
        end = found.position + found.size
        active = self.active.files
        if found.file is active.file and end == active.size:
            return end_offset  # the usual case: a reader at the tail
        for slot in range(self.slot_of(start), len(self.items)):
            files = self.items[slot].files
            if files.file is found.file:
                if end < files.size:
                    return min(Offset(files.header_at(end).base_offset), end_offset)
                return min([*self.bases[slot + 1 : slot + 2], end_offset])
        return end_offset

    def aborted_between(self, start: Offset, end_offset: Offset) -> list[tuple[ProducerId, Offset]]:
        found: list[tuple[ProducerId, Offset]] = []
        # A transaction is listed in the segment of its marker, which may be a later one.
        for slot in range(self.slot_of(start), len(self.items)):
            listed = self.items[slot].aborted  # in the order of their markers
            if not listed:
                continue
            for place in range(bisect_left(listed, start, key=_last_offset), len(listed)):
                aborted = listed[place]
                if aborted.first_offset < end_offset:
                    found.append((aborted.producer_id, aborted.first_offset))
                if aborted.last_stable_offset >= end_offset:
                    return found
        return found
