"""The segments of one log in their order, and how a reader finds its way through them.

Invariant: base offsets rise, and the last segment, the active one, is the only
one that grows. A segment reaches up to the base of the next, though compaction
may have emptied its end.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter

from headrace.core.retention import SegmentFacts
from headrace.model.ids import Offset, Position, ProducerId
from headrace.storage.files import FileSlice
from headrace.storage.segment import Segment

_RECENT_COUNT = 32
_last_offset = attrgetter("last_offset")


class Segments:
    __slots__ = ("_recent", "active", "bases", "items")

    def __init__(self, items: list[Segment]) -> None:
        self.items = items
        self.bases = [segment.base_offset for segment in items]
        self.active = items[-1]
        # Where the last writes began, in the active segment. Readers at the
        # tail ask for exactly these offsets, and so does the high watermark.
        self._recent: dict[Offset, Position] = {}

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.items)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.items)

    def facts(self, log_end: Offset) -> list[SegmentFacts]:
        """What retention goes by; reads the time index of those ``without_times``."""
        ends = [*self.bases[1:], log_end]
        return [
            SegmentFacts(segment.base_offset, end, segment.size, segment.largest_timestamp)
            for segment, end in zip(self.items, ends, strict=True)
        ]

    def without_times(self) -> list[Segment]:
        """Those whose largest time is known to their files alone."""
        return [segment for segment in self.items if not segment.knows_time]

    def slot_of(self, offset: Offset) -> int:
        """The segment in whose range ``offset`` lies; the first one for what lies below."""
        return max(bisect_right(self.bases, offset) - 1, 0)

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
        return taken

    def take_after(self, slot: int) -> list[Segment]:
        """Remove all behind ``slot``, which becomes the active one."""
        taken = self.items[slot + 1 :]
        del self.items[slot + 1 :], self.bases[slot + 1 :]
        self.active = self.items[slot]
        self._recent.clear()
        return taken

    def take_all(self) -> list[Segment]:
        """Remove everything; one must be appended at once."""
        taken, self.items, self.bases = self.items, [], []
        return taken

    def find_run(self, bases: list[Offset]) -> slice | None:
        """Where exactly these follow one another, all of them closed; None if they do not."""
        slot = bisect_left(self.bases, bases[0])
        run = slice(slot, slot + len(bases))
        return run if self.bases[run] == bases and run.stop < len(self.bases) else None

    def replace(self, run: slice, segment: Segment) -> None:
        self.items[run] = [segment]
        self.bases[run] = [segment.base_offset]

    def written_at(self, offset: Offset, position: Position) -> None:
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
            end: int = segment.size
            if slot < len(bases):
                start = segment.position_of(fetch_offset)
                if end_offset < bases[slot]:
                    end = segment.position_of(end_offset)
            else:
                recent = self._recent
                start = recent.get(fetch_offset, -1)  # type: ignore[arg-type]
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
                    end = start + segment.header_at(start).size
            return FileSlice(segment.open(), start, end - start)
        return None

    def at(self, offset: Offset) -> Segment:
        """The one in whose range ``offset`` lies."""
        return self.items[self.slot_of(offset)]

    def bytes_between(self, start: Offset, end_offset: Offset, log_end: Offset) -> int:
        """About how many bytes [start, end_offset) has, which is not empty."""
        first = self.slot_of(start)
        last = max(bisect_left(self.bases, end_offset) - 1, first)
        skipped = self.items[first].index.floor(max(start - self.bases[first], 0))[0]
        if end_offset >= log_end:
            last, end = len(self.items) - 1, self.active.size
        else:
            end = self.items[last].position_of(end_offset)
        between = sum(segment.size for segment in self.items[first:last])
        return max(between - skipped + end, 1)

    def end_of(self, found: FileSlice, start: Offset, end_offset: Offset) -> Offset:
        """As ``Log.end_of``. Raises SegmentDamaged if what follows ``found`` is no batch."""
        end = Position(found.position + found.size)
        if found.file is self.active.file and end == self.active.size:
            return end_offset  # as for all who read at the tail
        for slot in range(self.slot_of(start), len(self.items)):
            segment = self.items[slot]
            if segment.file is found.file:
                if end < segment.size:
                    return min(Offset(segment.header_at(end).base_offset), end_offset)
                return min([*self.bases[slot + 1 : slot + 2], end_offset])
        return end_offset

    def aborted_between(self, start: Offset, end_offset: Offset) -> list[tuple[ProducerId, Offset]]:
        found: list[tuple[ProducerId, Offset]] = []
        # A transaction is listed where its marker lies, which may be segments later.
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
