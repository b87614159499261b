"""Idempotent and transactional producers as one partition sees them.

The state is small: for each producer id the epoch, the last five batches, and the first offset of
an open transaction. It decides

    duplicates           answered with the offsets of the first write
    gaps                 OUT_OF_ORDER_SEQUENCE_NUMBER
    zombies              INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED
    last stable offset   nothing at or after the first open transaction is stable

Batches are appended in two steps. They are staged first; their state takes effect at once,
because the next batch may arrive in the same request. Then they are written. If the write fails,
``undo`` returns to the state of the last ``written``. To make that cheap, an entry is replaced,
never changed.

Kafka 4.3.1 raises only three of the errors that earlier releases had, and so does this module.
An unknown producer is no error: any first sequence is accepted, because the producer's state may
have expired or its records been deleted. A duplicate older than five batches is out of order.
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, Offset, ProducerEpoch, ProducerId
from headrace.records.batch import CONTROL, MAX_SEQUENCE, TRANSACTIONAL, BatchHeader

BATCHES_KEPT = 5  # an idempotent client has at most this many in flight
NO_OFFSET = Offset(-1)
_UNKNOWN_EPOCH = ProducerEpoch(-1)
_FIVE_KEPT = 1 - BATCHES_KEPT


class Origin(IntEnum):
    """Who appends a batch, and which checks apply."""

    CLIENT = 0  # all checks
    COORDINATOR = 1  # epochs; there are no sequences, control batches are allowed
    INTERNAL = 2  # the same, for records of the broker itself
    REPLICATION = 3  # none: the leader has decided


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
    """The content of a control batch: the end of its producer's transaction."""

    commit: bool
    coordinator_epoch: int
    timestamp: Millis


class AbortedTransaction(NamedTuple):
    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset  # of the marker
    last_stable_offset: Offset  # once the marker is replicated


class SnapshotEntry(NamedTuple):
    """One producer as a ``.snapshot`` file holds it: with its last batch only."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_sequence: int
    last_offset: Offset
    offset_delta: int
    timestamp: Millis
    coordinator_epoch: int
    transaction_start: Offset


# The constructor of a named tuple is a Python function; this avoids it for every batch.
_new = tuple.__new__
_NEW = ProducerEntry(_UNKNOWN_EPOCH, (), Millis(-1), -1, NO_OFFSET)


class Producers:
    """The producers of one partition. ``append`` must get every batch that has a producer id."""

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
        # First offset -> producer, in ascending order: transactions begin at the log end.
        self.ongoing: dict[Offset, ProducerId] = {}
        # First offset -> offset of the marker, for transactions that have ended but whose end is
        # not below the high watermark yet.
        self.unreplicated: dict[Offset, Offset] = {}
        self._changed: list[tuple[ProducerId, ProducerEntry | None]] = []
        # Since the last ``written``: first offsets of transactions that began, and first offsets
        # with producers of those that ended.
        self._begun: list[Offset] = []
        self._ended: list[tuple[Offset, ProducerId]] = []
        # Aborted by batches appended after the last ``written``; the aborted-transaction index
        # needs them before that.
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
        """Accept a batch at ``base_offset``, or return the earlier batch that it duplicates.

        ``timestamp`` is the largest timestamp of the batch, after the broker set its own.
        ``marker`` is the content of a control batch; None if compaction has removed its record.
        Raises Rejected.
        """
        # One unpacking is cheaper than reading five attributes.
        (_, _, _, _, _, attributes, last_offset_delta, _, _, producer_id, producer_epoch,
         base_sequence, _) = header  # fmt: skip
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
        last_sequence = -1
        if base_sequence >= 0:
            last_sequence = (base_sequence + last_offset_delta) & MAX_SEQUENCE
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
                f"Producer {producer_id} sent a batch outside of its transaction, "
                f"which is open since offset {transaction_start}.",
            )
        self._changed.append((producer_id, known))  # type: ignore[arg-type]
        written = _new(
            WrittenBatch,
            (base_sequence, last_sequence, base_offset, base_offset + last_offset_delta, timestamp),
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
            # From transaction version 2 on, every transaction ends with a bumped epoch. An equal
            # epoch is then a late marker, unless no transaction is open: in that case the
            # coordinator repeats itself (KIP-890).
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
                    f"A coordinator with epoch {marker.coordinator_epoch} cannot end the "
                    f"transaction of producer {producer_id}: epoch {entry.coordinator_epoch} "
                    "has fenced it.",
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
        """All appended batches are written and can no longer be undone."""
        self._changed.clear()
        if self._begun:
            self._begun.clear()
        if self._ended:
            self._ended.clear()
            self.aborted.clear()

    def undo(self) -> None:
        """Forget everything appended after the last ``written``."""
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
        """The first offset of a transaction that is open, or whose end is not replicated yet."""
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
        """Transactions that ended below the log start no longer hold back stable offsets.

        The producers stay: without their sequences a retry would look like a new batch
        (KIP-360).
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
        """Remove producers without an open transaction that were idle for ``expiration_ms``."""
        idle_since = now - self.expiration_ms
        idle = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.transaction_start < 0 and entry.last_timestamp <= idle_since
        ]
        for producer_id in idle:
            del self.entries[producer_id]
        return len(idle)

    # -- snapshots ------------------------------------------------------------------------

    def snapshot(self) -> Iterator[SnapshotEntry]:
        """All entries to save, ordered by producer id so that equal states give equal files."""
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
        """Load ``snapshot``, without the producers that have expired since."""
        self.clear()
        open_transactions = {}
        for saved in snapshot:
            if saved.transaction_start < 0 and now - saved.timestamp >= self.expiration_ms:
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

    def recall(self, older: Iterable[BatchHeader]) -> None:
        """Remember batches from before the restored snapshot, in the order of their offsets.

        A snapshot has only the last batch of each producer. A client that heard nothing of its last
        five batches sends all of them again.
        """
        found: dict[int, list[WrittenBatch]] = {}
        for header in older:
            entry = self.entries.get(ProducerId(header.producer_id))
            if (
                entry is None
                or not entry.batches
                or header.attributes & CONTROL
                or header.base_sequence < 0
                or header.producer_epoch != entry.producer_epoch
                or header.base_offset >= entry.batches[0].base_offset
            ):
                continue
            delta = header.last_offset_delta
            found.setdefault(header.producer_id, []).append(
                WrittenBatch(
                    header.base_sequence,
                    (header.base_sequence + delta) & MAX_SEQUENCE,
                    Offset(header.base_offset),
                    Offset(header.base_offset + delta),
                    Millis(header.max_timestamp),
                )
            )
        for producer_id, batches in found.items():
            entry = self.entries[ProducerId(producer_id)]
            kept = (*batches, *entry.batches)[-BATCHES_KEPT:]
            self.entries[ProducerId(producer_id)] = entry._replace(batches=kept)

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
        f"Producer {producer_id} has epoch {producer_epoch}, and the partition has seen epoch "
        f"{known_epoch}: a newer instance has fenced it.",
    )


def _out_of_order(
    producer_id: int, producer_epoch: int, base_sequence: int, expected: int
) -> Rejected:
    return Rejected(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"Producer {producer_id} with epoch {producer_epoch} sent sequence {base_sequence}; "
        f"expected {expected}.",
    )
