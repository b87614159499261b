"""Compaction, the decisions: which log is dirtiest, which segments are joined, what survives.

The rules are those of Kafka's cleaner, so that either broker can continue the other's work. A
compacted log has three parts:

    log start .. first dirty    cleaned before: each key at most once (except as below)
    first dirty .. clean end    to be cleaned now
    clean end .. log end        not cleaned: the active segment, records that are not yet
                                stable, and those younger than min.compaction.lag.ms

A cleaning collects the newest offset of each key in the dirty part, then rewrites everything from
the log start without the records that a newer record with the same key supersedes. Three kinds of
batches need more care:

    tombstones        kept until consumers had delete.retention.ms to see them. The clock starts
                      when a cleaning first keeps them: it writes the end of that time, the
                      delete horizon, into the batch in place of the base timestamp.
    transactions      records of aborted ones are dropped at once; a marker stays as long as a
                      batch of its transaction, and then for a delete horizon of its own.
    the last batch of a producer, and the last batch before the clean end
                      stay, if necessary without records: the first holds the sequence that
                      the producer must continue, the second the end offset.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop
from typing import NamedTuple, TypeVar

from headrace.core.producer_state import AbortedTransaction
from headrace.core.retention import RELATIVE_OFFSET_MAX
from headrace.records.batch import BatchHeader
from headrace.records.record import ABORT, COMMIT, Span

_Name = TypeVar("_Name")


# -- which log, and how far -----------------------------------------------------------------


class SegmentSummary(NamedTuple):
    base_offset: int
    size: int
    index_size: int = 0  # bytes of the larger of its two indexes
    first_timestamp: int = -1  # of its first batch; -1 if unknown or not needed
    largest_timestamp: int = -1


class LogSummary(NamedTuple):
    """What is known of a log without reading its records."""

    segments: Sequence[SegmentSummary]  # at least one; the last is the active one
    log_start: int
    log_end: int
    stable_end: int  # everything below is replicated and belongs to no open transaction
    cleaned_end: int | None  # where the last cleaning ended, from the checkpoint
    min_lag_ms: int = 0
    max_lag_ms: int = 2**63 - 1


class DirtyRange(NamedTuple):
    """How much of a log a cleaning would read."""

    first_dirty: int
    clean_end: int  # base offset of the first segment that is not cleaned
    clean_size: int
    dirty_size: int
    overdue: bool  # a record has waited longer than max.compaction.lag.ms

    @property
    def ratio(self) -> float:
        whole = self.clean_size + self.dirty_size
        return self.dirty_size / whole if whole else 0.0


def measure(log: LogSummary, now: int) -> DirtyRange:
    segments = log.segments
    bases = [segment.base_offset for segment in segments]
    first_dirty = log.cleaned_end
    if first_dirty is None or not log.log_start <= first_dirty <= log.log_end:
        # Below the start: retention deleted it. Beyond the end: the log was truncated, and the
        # records after that were never cleaned. Either way the checkpoint is void.
        first_dirty = log.log_start
    dirty_from = max(bisect_right(bases, first_dirty) - 1, 0)

    untouchable = min(log.stable_end, bases[-1])
    if log.min_lag_ms > 0:
        for segment in segments[dirty_from:-1]:
            if segment.largest_timestamp > now - log.min_lag_ms:
                untouchable = min(untouchable, segment.base_offset)
                break
    untouchable = max(untouchable, first_dirty)
    # Segments are cleaned whole: the one that holds the limit is not cleaned.
    end_at = max(bisect_right(bases, untouchable) - 1, dirty_from)

    overdue = False
    if log.max_lag_ms < 2**63 - 1:
        times = [s.first_timestamp for s in segments[dirty_from:-1] if s.first_timestamp > 0]
        overdue = bool(times) and min(times) < now - log.max_lag_ms
    return DirtyRange(
        first_dirty,
        bases[end_at],
        sum(segment.size for segment in segments[:dirty_from]),
        sum(segment.size for segment in segments[dirty_from:end_at]),
        overdue,
    )


def dirtiest(
    logs: Mapping[_Name, tuple[DirtyRange, float]],
) -> _Name | None:
    """The log with the largest dirty ratio among those due; each comes with its minimum ratio."""
    due = {
        name: dirt.ratio
        for name, (dirt, least_ratio) in logs.items()
        if dirt.dirty_size > 0 and (dirt.overdue or dirt.ratio > least_ratio)
    }
    return max(due, key=lambda name: due[name]) if due else None


def grouped(
    segments: Sequence[SegmentSummary], *, segment_size_max: int, index_size_max: int, end: int
) -> list[list[SegmentSummary]]:
    """Neighbors to join into one segment, so that cleaning does not leave ever smaller ones.

    ``end`` is the base offset of the segment after the last of these. Before cleaning, a group
    must not exceed the limits of one segment, nor span more offsets than an index entry can hold.
    """
    groups: list[list[SegmentSummary]] = []
    size = index_size = 0
    for position, segment in enumerate(segments):
        next_base = segments[position + 1].base_offset if position + 1 < len(segments) else end
        if (
            not groups
            or size + segment.size > segment_size_max
            or index_size + segment.index_size > index_size_max
            or next_base - 1 - groups[-1][0].base_offset > RELATIVE_OFFSET_MAX
        ):
            groups.append([])
            size = index_size = 0
        groups[-1].append(segment)
        size += segment.size
        index_size += segment.index_size
    return groups


# -- what survives --------------------------------------------------------------------------


class LastOfProducer(NamedTuple):
    """The last batch of an active producer; ``last_data_offset`` is None after a bare marker."""

    last_data_offset: int | None
    producer_epoch: int


class TransactionTrail:
    """Follows the transactions of a log while its batches are read in order.

    ``aborted`` are the transactions that ended at or after the first batch to be read.
    ``take_kept`` returns the entries for the transaction index of the cleaned segment.
    """

    __slots__ = ("_ahead", "_committed", "_kept", "_open_aborted", "_seen_aborted")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._ahead = [(transaction.first_offset, transaction) for transaction in aborted]
        heapify(self._ahead)
        self._open_aborted: dict[int, AbortedTransaction] = {}
        self._seen_aborted: set[int] = set()  # producers of open ones that still have a batch
        self._committed: set[int] = set()  # producers with a batch since their last marker
        self._kept: list[AbortedTransaction] = []

    def data_batch(self, header: BatchHeader) -> bool:
        """Whether the batch belongs to an aborted transaction."""
        self._reach(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._open_aborted:
            self._seen_aborted.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def control_batch(self, header: BatchHeader, marker: int | None) -> bool:
        """Whether the batch may be dropped: no batch of the transaction that it ends is left.

        ``marker`` is None if the batch has no record.
        """
        self._reach(header.last_offset)
        producer_id = header.producer_id
        if marker is None:
            return True
        if marker == ABORT:
            transaction = self._open_aborted.pop(producer_id, None)
            if transaction is None or producer_id not in self._seen_aborted:
                return True
            self._seen_aborted.discard(producer_id)
            self._kept.append(transaction)
            return False
        if marker == COMMIT:
            if producer_id not in self._committed:
                return True
            self._committed.discard(producer_id)
        return False

    def take_kept(self) -> list[AbortedTransaction]:
        """The aborted transactions to index whose markers were read since the last call."""
        kept, self._kept = self._kept, []
        return kept

    def _reach(self, last_offset: int) -> None:
        while self._ahead and self._ahead[0][0] <= last_offset:
            transaction = heappop(self._ahead)[1]
            self._open_aborted[transaction.producer_id] = transaction


def loses_all_records(header: BatchHeader, *, discardable: bool, now: int) -> bool:
    """Whether no record of the batch survives; ``discardable`` is the trail's answer."""
    return discardable and (not header.is_control or horizon_passed(header, now))


def stays_without_records(
    header: BatchHeader, *, last: LastOfProducer | None, clean_end: int
) -> bool:
    """Whether the batch must stay even if none of its records does."""
    if header.next_offset == clean_end:
        return True
    return header.producer_id >= 0 and last is not None and _is_last(header, last)


def horizon_passed(header: BatchHeader, now: int) -> bool:
    horizon = header.delete_horizon
    return horizon is not None and horizon <= now


def _is_last(header: BatchHeader, last: LastOfProducer) -> bool:
    if last.last_data_offset is not None:
        return header.last_offset == last.last_data_offset
    return header.is_control and header.producer_epoch == last.producer_epoch


def surviving(
    found: Sequence[Span],
    newest: Sequence[int],
    base_offset: int,
    *,
    mapped_end: int,
    keep_tombstones: bool,
) -> list[Span]:
    """The records of a data batch that stay.

    ``newest`` has the newest known offset for each of their keys, -1 for none. Records at or after
    ``mapped_end`` were not read when the keys were collected, so nothing is known to supersede
    them.
    """
    return [
        span
        for span, newest_offset in zip(found, newest, strict=True)
        if base_offset + span.offset_delta >= mapped_end
        or (
            base_offset + span.offset_delta >= newest_offset
            and (span.has_value or keep_tombstones)
            and span.key is not None
        )
    ]


def new_horizon(
    header: BatchHeader,
    *,
    has_tombstones: bool,
    empty_transaction: bool,
    delete_retention_ms: int,
    now: int,
) -> int | None:
    """The delete horizon to write into a batch that has none and now needs one."""
    if (has_tombstones or empty_transaction) and header.delete_horizon is None:
        return now + delete_retention_ms
    return None
