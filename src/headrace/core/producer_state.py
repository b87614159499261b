"""Idempotent and transactional producers as one partition sees them.

The state is small: per producer id the epoch, the last five batches, and the
first offset of an open transaction. From it follow

    duplicates           answered with the offsets of the first time
    gaps                 OUT_OF_ORDER_SEQUENCE_NUMBER
    zombies              INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED
    last stable offset   nothing at or after the first open transaction is stable

Batches are appended in two steps: staged (their state must count at once,
because the next batch may come in the same breath) and then written. If the
write fails, ``undo`` goes back to where the last ``written`` left off. To make
that cheap an entry is replaced, never changed.

Of the errors that Kafka once gave here, 4.3.1 still raises three: an unknown
producer is no error (any first sequence is taken: its state may have expired,
or its records been deleted), and a duplicate older than five batches reads as
out of order.
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, Offset, ProducerEpoch, ProducerId
from headrace.records.batch import CONTROL, MAX_SEQUENCE, TRANSACTIONAL, BatchHeader

BATCHES_KEPT = 5  # as many as a client may have in flight and still be idempotent
NO_OFFSET = Offset(-1)
_UNKNOWN_EPOCH = ProducerEpoch(-1)
_FIVE_KEPT = 1 - BATCHES_KEPT


class Origin(IntEnum):
    """Who appends, and so how much is checked."""

    CLIENT = 0  # everything
    COORDINATOR = 1  # epochs; sequences are not used, control batches are allowed
    INTERNAL = 2  # the same, for records of our own
    REPLICATION = 3  # nothing: the leader has decided


class WrittenBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset
    timestamp: Millis


class ProducerEntry(NamedTuple):
    producer_epoch: ProducerEpoch
    batches: tuple[WrittenBatch, ...]  # oldest first, at most five
    last_timestamp: Millis
    coordinator_epoch: int  # of the last transaction marker, -1 before the first
    transaction_start: Offset  # of the open transaction, -1 if there is none

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class EndMarker(NamedTuple):
    """What a control batch says: the end of its producer's transaction."""

    commit: bool
    coordinator_epoch: int
    timestamp: Millis


class AbortedTransaction(NamedTuple):
    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset  # of the marker
    last_stable_offset: Offset  # once the marker is replicated


class SnapshotEntry(NamedTuple):
    """One producer as a ``.snapshot`` file holds it: only its last batch survives."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_sequence: int
    last_offset: Offset
    offset_delta: int
    timestamp: Millis
    coordinator_epoch: int
    transaction_start: Offset


# A named tuple's own constructor is a Python function; this one is called per batch.
_new = tuple.__new__
_NEW = ProducerEntry(_UNKNOWN_EPOCH, (), Millis(-1), -1, NO_OFFSET)


class Producers:
    """The producers of one partition. ``append`` must see every batch that has a producer id."""

    __slots__ = (
        "_begun",
        "_changed",
        "_ended",
        "aborted",
        "entries",
        "expiration_ms",
        "ongoing",
        "unreplicated",
    )

    def __init__(self, expiration_ms: int = 86_400_000) -> None:
        self.expiration_ms = expiration_ms
        self.entries: dict[ProducerId, ProducerEntry] = {}
        # First offset -> producer, rising, because transactions begin at the log's end.
        self.ongoing: dict[Offset, ProducerId] = {}
        # First offset -> offset of the marker, of transactions that have ended
        # but whose end is not yet below the high watermark.
        self.unreplicated: dict[Offset, Offset] = {}
        self._changed: list[tuple[ProducerId, ProducerEntry | None]] = []
        # First offsets of transactions that began, and with their producers of those that ended,
        # since the last ``written``.
        self._begun: list[Offset] = []
        self._ended: list[tuple[Offset, ProducerId]] = []
        # Ended by what was appended since the last ``written``: the log's
        # transaction index needs them before that.
        self.aborted: list[AbortedTransaction] = []

    # -- appending ----------------------------------------------------------------------

    def append(
        self,
        header: BatchHeader,
        base_offset: Offset,
        timestamp: Millis,
        origin: Origin,
        marker: EndMarker | None = None,
        transaction_version: int = 0,
    ) -> WrittenBatch | None:
        """Take a batch that will get ``base_offset``; a batch seen before is returned instead.

        ``timestamp`` is the batch's largest, after the broker stamped its own.
        ``marker`` must be given for a control batch that still has its record
        (compaction may have removed it: then nothing is left to learn).
        """
        (_, _, _, _, _, attributes, delta, _, _, producer_id, producer_epoch, base_sequence,
         _) = header  # fmt: skip
        entries = self.entries
        known = entries.get(producer_id)  # type: ignore[call-overload]
        entry: ProducerEntry = known or _NEW
        if attributes & CONTROL:
            if marker is not None:
                self._end_transaction(
                    ProducerId(producer_id), ProducerEpoch(producer_epoch), entry, base_offset,
                    marker, origin, transaction_version,
                )  # fmt: skip
            return None

        known_epoch, batches, _, coordinator_epoch, transaction_start = entry
        last_sequence = (base_sequence + delta) & MAX_SEQUENCE if base_sequence >= 0 else -1
        if producer_epoch != known_epoch:
            if producer_epoch < known_epoch and origin != Origin.REPLICATION:
                raise _fenced(producer_id, producer_epoch, known_epoch)
            if base_sequence != 0 and known is not None and origin == Origin.CLIENT:
                raise _out_of_order(producer_id, producer_epoch, base_sequence, 0)
            batches = ()
        elif origin == Origin.CLIENT:
            expected = (batches[-1][1] + 1) & MAX_SEQUENCE if batches else 0
            if base_sequence != expected:
                for seen in batches:
                    if seen.base_sequence == base_sequence and seen.last_sequence == last_sequence:
                        return seen
                raise _out_of_order(producer_id, producer_epoch, base_sequence, expected)

        if attributes & TRANSACTIONAL:
            if transaction_start < 0:
                self._begun.append(base_offset)
                transaction_start = base_offset
                self.ongoing[base_offset] = ProducerId(producer_id)
        elif transaction_start >= 0 and origin != Origin.REPLICATION:
            raise Rejected(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} sent a batch outside of the transaction "
                f"that it began at offset {transaction_start}",
            )
        self._changed.append((producer_id, known))  # type: ignore[arg-type]
        written = _new(
            WrittenBatch,
            (base_sequence, last_sequence, base_offset, base_offset + delta, timestamp),
        )
        entries[producer_id] = _new(  # type: ignore[index]
            ProducerEntry,
            (producer_epoch, (*batches[_FIVE_KEPT:], written), timestamp, coordinator_epoch,
             transaction_start),
        )  # fmt: skip
        return None

    def _end_transaction(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        entry: ProducerEntry,
        offset: Offset,
        marker: EndMarker,
        origin: Origin,
        transaction_version: int,
    ) -> None:
        if origin != Origin.REPLICATION:
            known_epoch = entry.producer_epoch
            # From transactions version 2 on every transaction ends with a bumped
            # epoch, so an equal one is late, unless nothing is open: then it is
            # the coordinator repeating itself (KIP-890).
            late = producer_epoch < known_epoch or (
                transaction_version >= 2
                and producer_epoch == known_epoch
                and entry.transaction_start >= 0
            )
            if late:
                raise _fenced(producer_id, producer_epoch, known_epoch)
            if marker.coordinator_epoch < entry.coordinator_epoch:
                raise Rejected(
                    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                    f"a coordinator of epoch {marker.coordinator_epoch} ends a transaction of "
                    f"producer {producer_id}; one of epoch {entry.coordinator_epoch} rules",
                )
        start = entry.transaction_start
        if start >= 0:
            self._ended.append((start, producer_id))
            self.ongoing.pop(start, None)
            self.unreplicated[start] = offset
            if not marker.commit:
                others = next(iter(self.ongoing), Offset(offset + 1))
                self.aborted.append(AbortedTransaction(producer_id, start, offset, others))
        self._changed.append((producer_id, self.entries.get(producer_id)))
        self.entries[producer_id] = ProducerEntry(
            producer_epoch,
            entry.batches if producer_epoch == entry.producer_epoch else (),
            marker.timestamp,
            marker.coordinator_epoch,
            NO_OFFSET,
        )

    def written(self) -> None:
        """What was appended is on disk and cannot be undone any more."""
        self._changed.clear()
        if self._begun:
            self._begun.clear()
        if self._ended:
            self._ended.clear()
            self.aborted.clear()

    def undo(self) -> None:
        """Forget everything appended since the last ``written``."""
        for producer_id, entry in reversed(self._changed):
            if entry is None:
                self.entries.pop(producer_id, None)
            else:
                self.entries[producer_id] = entry
        self._changed.clear()
        for start, producer_id in self._ended:
            self.ongoing[start] = producer_id
            del self.unreplicated[start]
        for start in self._begun:
            del self.ongoing[start]
        if self._ended:
            self.ongoing = dict(sorted(self.ongoing.items()))
        self._begun.clear()
        self._ended.clear()
        self.aborted.clear()

    # -- what follows from the state ------------------------------------------------------

    @property
    def first_unstable_offset(self) -> Offset | None:
        """The first offset of any transaction that is open or not yet replicated to its end."""
        first = next(iter(self.ongoing), None)
        if self.unreplicated:
            ended = min(self.unreplicated)
            return ended if first is None or ended < first else first
        return first

    def high_watermark_advanced(self, high_watermark: Offset) -> None:
        if self.unreplicated:
            replicated = [
                start for start, marker in self.unreplicated.items() if marker < high_watermark
            ]
            for start in replicated:
                del self.unreplicated[start]

    def log_start_advanced(self, log_start: Offset) -> None:
        """Transactions that ended below the log's start hold nothing back any more.

        The producers stay: without their sequences a retry could not be told
        from a new batch (KIP-360).
        """
        self.high_watermark_advanced(log_start)

    def has_ongoing_transaction(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch
    ) -> bool:
        entry = self.entries.get(producer_id)
        return (
            entry is not None
            and entry.producer_epoch == producer_epoch
            and entry.transaction_start >= 0
        )

    def expire(self, now: Millis) -> int:
        """Drop producers silent for ``expiration_ms`` that have no open transaction."""
        silent_since = now - self.expiration_ms
        silent = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.transaction_start < 0 and entry.last_timestamp <= silent_since
        ]
        for producer_id in silent:
            del self.entries[producer_id]
        return len(silent)

    # -- snapshots ------------------------------------------------------------------------

    def snapshot(self) -> Iterator[SnapshotEntry]:
        """Everything worth saving, by producer id: equal states make equal files."""
        for producer_id, entry in sorted(self.entries.items()):
            if entry.batches:
                last = entry.batches[-1]
                last_sequence, last_offset = last.last_sequence, last.last_offset
                offset_delta = last.last_offset - last.base_offset
            else:
                last_sequence, last_offset, offset_delta = -1, NO_OFFSET, 0
            yield SnapshotEntry(
                producer_id,
                entry.producer_epoch,
                last_sequence,
                last_offset,
                offset_delta,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_start,
            )

    def restore(self, snapshot: Iterable[SnapshotEntry], now: Millis) -> None:
        """Become what ``snapshot`` says, without the producers that have expired since."""
        self.clear()
        open_transactions = {}
        for saved in snapshot:
            if (
                saved.transaction_start < 0
                and now - saved.timestamp >= self.expiration_ms
            ):  # fmt: skip
                continue
            batches: tuple[WrittenBatch, ...] = ()
            if saved.last_offset >= 0:
                base_sequence = saved.last_sequence
                if base_sequence >= 0:
                    base_sequence = (base_sequence - saved.offset_delta) & MAX_SEQUENCE
                batches = (
                    WrittenBatch(
                        base_sequence,
                        saved.last_sequence,
                        Offset(saved.last_offset - saved.offset_delta),
                        saved.last_offset,
                        saved.timestamp,
                    ),
                )
            self.entries[saved.producer_id] = ProducerEntry(
                saved.producer_epoch,
                batches,
                saved.timestamp,
                saved.coordinator_epoch,
                saved.transaction_start,
            )
            if saved.transaction_start >= 0:
                open_transactions[saved.transaction_start] = saved.producer_id
        self.ongoing = dict(sorted(open_transactions.items()))

    def clear(self) -> None:
        self.entries.clear()
        self.ongoing.clear()
        self.unreplicated.clear()
        self._changed.clear()
        self._begun.clear()
        self._ended.clear()
        self.aborted.clear()


def _fenced(producer_id: int, producer_epoch: int, known_epoch: int) -> Rejected:
    return Rejected(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer_id} has epoch {producer_epoch} "
        f"and the partition knows its epoch {known_epoch}: a newer instance took over",
    )


def _out_of_order(
    producer_id: int, producer_epoch: int, base_sequence: int, expected: int
) -> Rejected:
    return Rejected(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {producer_id} sent sequence {base_sequence} where {expected} comes next "
        f"in its epoch {producer_epoch}",
    )
