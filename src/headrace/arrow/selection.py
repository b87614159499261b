"""Which batches of one fetch a reader sees: those in its range, without hidden transactions."""

from collections.abc import Iterable
from typing import NamedTuple

from headrace.model.errors import ErrorCode
from headrace.records.batch import BadBatch, BatchHeader, crc_holds, headers
from headrace.records.record import ABORT, iter_records, marker_type


class Section(NamedTuple):
    """One batch to be opened: its header and all its bytes."""

    header: BatchHeader
    batch: memoryview


class Selected(NamedTuple):
    """The batches of one fetch that a reader sees."""

    sections: list[Section]
    next_offset: int  # where the next fetch begins; past gaps and skipped batches
    bytes_read: int
    offsets_read: int  # that these bytes cover, also outside the range


class AbortedTransactions:
    """The batches of one fetch that belong to aborted transactions.

    The broker lists aborted transactions by first offset. A transaction is open from there
    until its abort marker, so batches must be passed in order.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        # Latest first, so that the next to begin is popped from the end.
        self._to_begin = sorted(((first, producer) for producer, first in aborted), reverse=True)
        self._open: set[int] = set()

    def hides(self, header: BatchHeader, batch: memoryview) -> bool:
        while self._to_begin and self._to_begin[-1][0] <= header.last_offset:
            self._open.add(self._to_begin.pop()[1])
        if header.is_control:
            if header.producer_id in self._open and _is_abort(batch):
                self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open


def _is_abort(batch: memoryview) -> bool:
    return any(marker_type(record.key) == ABORT for record in iter_records(batch))


def select_batches(
    fetched: memoryview,
    first_offset: int,
    offset_end: int,
    aborted: Iterable[tuple[int, int]] | None,
    *,
    check_crcs: bool = True,
) -> Selected:
    """The batches with records in ``[first_offset, offset_end)``, without control batches.

    ``aborted`` lists the aborted transactions as (producer ID, first offset); None reads
    uncommitted records too. A batch that the fetch cut off is left for the next fetch.
    """
    hidden = AbortedTransactions(aborted) if aborted is not None else None
    sections = []
    next_offset = first_offset
    position_end = offsets_read = 0
    base_offset: int | None = None
    for position, header in headers(fetched):
        position_end = position + header.size
        if base_offset is None:
            base_offset = header.base_offset
        offsets_read = header.next_offset - base_offset
        if header.last_offset < first_offset:
            continue
        if header.base_offset >= offset_end:
            # All records of the range come before this batch; compaction may have removed some.
            next_offset = offset_end
            break
        batch = fetched[position:position_end]
        if check_crcs and not crc_holds(batch, header):
            raise BadBatch(
                ErrorCode.CORRUPT_MESSAGE,
                f"the batch at offset {header.base_offset} has a wrong checksum",
            )
        next_offset = header.next_offset
        if hidden is not None:
            if hidden.hides(header, batch):
                continue
        elif header.is_control:
            continue
        if header.record_count:
            sections.append(Section(header, batch))
    return Selected(sections, next_offset, position_end, offsets_read)
