"""Rebuilding producer state from the batches of a log."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from struct import Struct
from struct import error as StructError

from headrace.core.producer_state import (
    BATCHES_KEPT,
    AbortedTransaction,
    EndMarker,
    Origin,
    Producers,
)
from headrace.model.errors import Corrupt
from headrace.model.ids import Millis, Offset
from headrace.records.batch import CONTROL, TRANSACTIONAL, BadBatch, BatchHeader
from headrace.records.record import ABORT, COMMIT, iter_records, marker_type
from headrace.storage.scan import Scan
from headrace.storage.segment import Segment

_MARKER_VALUE = Struct(">hi")
# Entries of the index, one for each batch or for each 4 KiB of small ones.
_RECALLED_ENTRIES = 16


def replay(
    segments: list[Segment], start: Offset, end_offset: Offset, producers: Producers
) -> None:
    """Apply the batches of [start, end_offset) to ``producers``, by their headers."""
    for slot, segment in enumerate(segments):
        next_base = segments[slot + 1].base_offset if slot + 1 < len(segments) else end_offset
        if next_base <= start and slot + 1 < len(segments):
            continue
        if segment.base_offset >= end_offset:
            break
        scan = segment.files.scan(segment.position_of(start))
        replay = ProducerStateReplay(producers)
        for _, header in scan:
            if header.base_offset >= end_offset:
                break
            if header.producer_id >= 0 and header.base_offset >= start:
                replay.add(header, scan)
        replay.finish()


def headers_before(segments: list[Segment], end_offset: Offset) -> list[BatchHeader]:
    """The batches right before ``end_offset``: 16 at least, and 64 KiB of small ones."""
    found: list[BatchHeader] = []
    left = _RECALLED_ENTRIES
    for segment in reversed(segments):
        if segment.base_offset >= end_offset or left <= 0:
            continue
        earlier = []
        try:
            offsets = segment.indexes.offsets
            slot = bisect_left(offsets.last_offsets, end_offset - segment.base_offset)
            position = offsets.positions[slot - left] if slot > left else 0
            left -= slot + 1
            while position < segment.size:
                header = segment.files.header_at(position)
                if header.base_offset >= end_offset:
                    break
                earlier.append(header)
                position += header.size
        except Corrupt:
            return found  # who reads these batches hears of it
        found = earlier + found
    return found


class ProducerStateReplay:
    """Applies batches to the producers, but only those that leave a trace in their state.

    Of a long run of plain batches of one producer only the last five are remembered, so only
    those are applied, when the run ends.
    """

    def __init__(self, producers: Producers, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._producers = producers
        self._aborted = list(aborted)
        self._runs: dict[int, deque[BatchHeader]] = {}

    def add(self, header: BatchHeader, scan: Scan) -> None:
        run = self._runs.get(header.producer_id)
        if run is None:
            run = self._runs[header.producer_id] = deque(maxlen=BATCHES_KEPT)
        attributes = header.attributes
        if attributes & (CONTROL | TRANSACTIONAL):
            self._apply_run(run)
            self._apply(header, read_marker(scan.batch()) if attributes & CONTROL else None)
            return
        if run and run[-1].producer_epoch != header.producer_epoch:
            self._apply_run(run)
        run.append(header)

    def finish(self) -> list[AbortedTransaction]:
        """All aborted transactions, in the order of their markers."""
        for run in self._runs.values():
            self._apply_run(run)
        return self._aborted

    def _apply_run(self, run: deque[BatchHeader]) -> None:
        for header in run:
            self._apply(header, None)
        run.clear()

    def _apply(self, header: BatchHeader, marker: EndMarker | None) -> None:
        producers = self._producers
        producers.append(
            header,
            Offset(header.base_offset),
            Millis(header.max_timestamp),
            Origin.REPLICATION,
            marker,
        )
        if producers.aborted:
            self._aborted += producers.aborted
        producers.written()


def read_marker(batch: memoryview | bytes) -> EndMarker | None:
    """Read a control batch; None if compaction emptied it or it ends no transaction."""
    try:
        record = next(iter_records(batch), None)
        if record is None:
            return None
        kind = marker_type(record.key)
        if kind not in (ABORT, COMMIT):
            return None
        coordinator_epoch = _MARKER_VALUE.unpack_from(record.value or b"")[1]
    except (BadBatch, StructError):
        return None
    return EndMarker(kind == COMMIT, coordinator_epoch, Millis(record.timestamp))
