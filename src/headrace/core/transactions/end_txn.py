"""EndTxn: decide to commit or abort; the markers and the completing record follow."""

from typing import TYPE_CHECKING

from headrace.core.outcome import Outcome, Reply, Ticket
from headrace.core.transactions import answers
from headrace.core.transactions.answers import answer
from headrace.core.transactions.markers import markers_of
from headrace.core.transactions.transaction import (
    AT_REST,
    EPOCH_BUMP,
    FLEXIBLE_RECORDS,
    LAST_EPOCH,
    PREPARED,
    State,
    Transaction,
)
from headrace.model.errors import ErrorCode
from headrace.model.ids import NO_PRODUCER_ID, Millis, ProducerEpoch
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.core.transactions.shard import TransactionShard


def end(
    shard: "TransactionShard",
    ticket: Ticket,
    transactional_id: str,
    producer: tuple[int, int],
    commit: bool,
    client_transaction_version: int,
    now: Millis,
) -> Outcome:
    """Decide the end of a transaction. Once this is answered, the end is certain.

    Raises NeedsProducerId.
    """
    known = shard.transactions.get(transactional_id)
    if known is None:
        return answers.end_refused(ticket, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if client_transaction_version >= EPOCH_BUMP:
        return _end_with_bump(shard, ticket, known, producer, commit, now)
    return _end_without_bump(shard, ticket, known, producer, commit, now)


def fence(shard: "TransactionShard", known: Transaction, now: Millis) -> Outcome:
    """Abort a transaction that its producer has not ended; the bumped epoch fences it."""
    bumps = shard.settings().transaction_version >= EPOCH_BUMP
    version = EPOCH_BUMP if bumps else 0
    return _end(shard, _prepared(shard, known, False, now, known.bumped(), version=version))


def _end_without_bump(
    shard: "TransactionShard",
    ticket: Ticket,
    known: Transaction,
    producer: tuple[int, int],
    commit: bool,
    now: Millis,
) -> Outcome:
    if known.producer_id != producer[0]:
        return answers.end_refused(ticket, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if known.producer_epoch != producer[1]:
        return answers.end_refused(ticket, ErrorCode.PRODUCER_FENCED)
    if known.state is State.ONGOING:
        prepared = _prepared(shard, known, commit, now, known.producer_epoch, version=0)
        return _end(shard, prepared) + answer(ticket, m.EndTxnResponse())
    if known.state is State.EMPTY or known.is_commit != commit:
        return answers.end_refused(ticket, ErrorCode.INVALID_TXN_STATE)
    if known.state in PREPARED:
        return answers.end_refused(ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
    return answer(ticket, m.EndTxnResponse())


def _end_with_bump(
    shard: "TransactionShard",
    ticket: Ticket,
    known: Transaction,
    producer: tuple[int, int],
    commit: bool,
    now: Millis,
) -> Outcome:
    if known.state in PREPARED:
        # For every producer, even with the epoch of the last response: the end is in progress.
        return answers.end_refused(ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
    producer_id, producer_epoch = producer
    # A repeated end, whose response was lost: the state already has the next epoch, or the
    # first epoch of the next producer id. With the current epoch it is a new end.
    rotated = (
        known.state in AT_REST
        and known.producer_epoch == 0
        and producer == (known.previous_producer_id, LAST_EPOCH - 1)
    )
    repeated = known.producer_epoch == producer_epoch + 1 or rotated
    if known.producer_id != producer_id and not rotated:
        return answers.end_refused(ticket, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_current = known.producer_epoch == producer_epoch < LAST_EPOCH
    may_be_repeated = known.state not in (State.ONGOING, State.EMPTY)
    if not (is_current or (may_be_repeated and repeated)):
        return answers.end_refused(ticket, ErrorCode.PRODUCER_FENCED)
    if known.state is State.ONGOING:
        return _bump_and_end(shard, ticket, known, commit, now)
    if repeated:
        if known.is_commit != commit:
            return answers.end_refused(ticket, ErrorCode.INVALID_TXN_STATE)
        return answer(ticket, answers.ended(known))
    if commit:
        return answers.end_refused(ticket, ErrorCode.INVALID_TXN_STATE)
    # A producer that aborts before it has sent anything still gets the next epoch.
    return _bump_and_end(shard, ticket, known, commit, now)


def _bump_and_end(
    shard: "TransactionShard", ticket: Ticket, known: Transaction, commit: bool, now: Millis
) -> Outcome:
    prepared = _prepared(shard, known, commit, now, known.bumped(), version=EPOCH_BUMP)
    reply = Reply(ticket, answers.ended(prepared))
    return _end(shard, prepared)._replace(replies=(reply,))


def _prepared(
    shard: "TransactionShard",
    known: Transaction,
    commit: bool,
    now: Millis,
    producer_epoch: ProducerEpoch,
    *,
    version: int,
) -> Transaction:
    next_producer_id = NO_PRODUCER_ID
    # Older records have no field for the next producer id.
    rotates = shard.settings().transaction_version >= FLEXIBLE_RECORDS
    if version >= EPOCH_BUMP and known.epoch_exhausted and rotates:
        next_producer_id = shard.spare_producer_id()
    prepared = known._replace(
        producer_epoch=producer_epoch,
        previous_producer_id=known.producer_id,
        next_producer_id=next_producer_id,
        state=State.PREPARE_COMMIT if commit else State.PREPARE_ABORT,
        started_at=known.started_at if known.state is State.ONGOING else now,
        updated_at=now,
        client_transaction_version=version,
    )
    if version >= EPOCH_BUMP:
        shard.remember_last_epoch(
            known.transactional_id, prepared.producer_when_completed(), known.producer_epoch
        )
    # Without partitions there is no marker to wait for.
    return prepared if prepared.partitions else prepared.completed(now)


def _end(shard: "TransactionShard", prepared: Transaction) -> Outcome:
    return Outcome((shard.record(prepared),), (), markers_of(shard, prepared))
