"""Markers: what ends a prepared transaction in each of its partitions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.core.outcome import NOTHING, Outcome
from headrace.core.transactions.effects import WriteMarkers
from headrace.core.transactions.transaction import Transaction
from headrace.model.errors import ErrorCode
from headrace.model.ids import Millis, TopicPartition

if TYPE_CHECKING:
    from headrace.core.transactions.shard import TransactionShard

RETRY_MS = 100
MARKERS = "markers"  # the timer of the next attempt


def markers_of(shard: "TransactionShard", prepared: Transaction) -> tuple[WriteMarkers, ...]:
    """The markers that a prepared transaction still needs."""
    partitions = shard.unmarked.get(prepared.transactional_id, prepared.partitions)
    if not partitions:
        return ()
    return (
        WriteMarkers(
            prepared.transactional_id,
            prepared.producer_id,
            prepared.producer_epoch,
            shard.coordinator_epoch(),
            prepared.is_commit,
            prepared.client_transaction_version,
            tuple(sorted(partitions)),
        ),
    )


def pending(shard: "TransactionShard") -> list[WriteMarkers]:
    """The markers of all prepared transactions."""
    return [
        marker
        for transactional_id in shard.unmarked
        for marker in markers_of(shard, shard.transactions[transactional_id])
    ]


def answered(
    shard: "TransactionShard",
    written: WriteMarkers,
    codes: Mapping[TopicPartition, ErrorCode],
    now: Millis,
) -> Outcome:
    """The results of writing markers to some or all partitions; the others follow."""
    transactional_id = written.transactional_id
    known = shard.transactions.get(transactional_id)
    unmarked = shard.unmarked.get(transactional_id)
    if (
        known is None
        or unmarked is None
        or (known.producer_id, known.producer_epoch)
        != (written.producer_id, written.producer_epoch)
    ):
        return NOTHING  # about an earlier transaction, which is complete
    for partition, code in codes.items():
        # With INVALID_PRODUCER_EPOCH, a newer epoch has already ended the transaction there.
        # Everything else is tried again: a leader moves, a disk recovers.
        if code in (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH):
            unmarked.discard(partition)
    if ErrorCode.TRANSACTION_COORDINATOR_FENCED in codes.values():
        # A newer coordinator ends this transaction, and this shard will soon be dropped.
        shard.timers.cancel((transactional_id, MARKERS))
        return NOTHING
    # Also when no partition is left: the record that completes may fail to be written.
    shard.timers.set((transactional_id, MARKERS), now + RETRY_MS)
    return NOTHING if unmarked else complete(shard, known, now)


def complete(shard: "TransactionShard", prepared: Transaction, now: Millis) -> Outcome:
    return Outcome((shard.record(prepared.completed(now)),))
