"""InitProducerId: hand out a producer id and epoch that fence the previous producer."""

from typing import TYPE_CHECKING

from headrace.core.outcome import Outcome, Reply, Ticket
from headrace.core.transactions import answers, end_txn
from headrace.core.transactions.transaction import (
    LAST_EPOCH,
    NEVER,
    NO_PRODUCER_EPOCH,
    PREPARED,
    State,
    Transaction,
)
from headrace.model.errors import ErrorCode
from headrace.model.ids import NO_PRODUCER_ID, Millis, ProducerEpoch, ProducerId
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.core.transactions.shard import TransactionShard


def init_producer_id(
    shard: "TransactionShard",
    ticket: Ticket,
    transactional_id: str,
    timeout_ms: int,
    expected: tuple[int, int] | None,
    now: Millis,
) -> Outcome:
    """``expected`` is the id and epoch of a producer that recovers from an error (KIP-360).

    Such a producer must not fence a newer one. Raises NeedsProducerId.
    """
    if not 0 < timeout_ms <= shard.settings().timeout_ms_max:
        return answers.init_refused(ticket, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    known = shard.transactions.get(transactional_id)
    if known is None:
        made = Transaction(
            transactional_id,
            shard.spare_producer_id(),
            NO_PRODUCER_EPOCH,
            NO_PRODUCER_ID,
            NO_PRODUCER_ID,
            timeout_ms,
            State.EMPTY,
            frozenset(),
            NEVER,
            now,
            0,
        )
        return _hand_out(shard, ticket, made, made.producer_id, made.bumped(), timeout_ms, now)
    if known.state in PREPARED:
        return answers.init_refused(ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
    if expected is not None and not _may_continue(known, expected):
        return answers.init_refused(ticket, ErrorCode.PRODUCER_FENCED)
    if known.state is State.ONGOING:
        if expected is not None and expected[1] != known.producer_epoch:
            # Kafka aborts in this case too, and rejects only the next attempt.
            return answers.init_refused(ticket, ErrorCode.PRODUCER_FENCED)
        # The client retries, and then gets an epoch above the one that ends this transaction.
        return end_txn.fence(shard, known, now) + answers.init_refused(
            ticket, ErrorCode.CONCURRENT_TRANSACTIONS
        )
    return _init_at_rest(shard, ticket, known, expected, timeout_ms, now)


def _may_continue(known: Transaction, expected: tuple[int, int]) -> bool:
    """Whether the id is the current one, or the previous one after its last epoch."""
    producer_id, producer_epoch = expected
    return producer_id == known.producer_id or (
        producer_id == known.previous_producer_id and producer_epoch >= LAST_EPOCH - 1
    )


def _init_at_rest(
    shard: "TransactionShard",
    ticket: Ticket,
    known: Transaction,
    expected: tuple[int, int] | None,
    timeout_ms: int,
    now: Millis,
) -> Outcome:
    last_epoch = shard.last_epoch(known)
    expected_epoch = None if expected is None else ProducerEpoch(expected[1])
    repeated = expected_epoch == last_epoch != NO_PRODUCER_EPOCH
    if repeated and known.producer_epoch < LAST_EPOCH:
        # The response was lost and no other producer came in between: answer the same again.
        return _hand_out(
            shard,
            ticket,
            known,
            known.producer_id,
            known.producer_epoch,
            timeout_ms,
            now,
            last_epoch=last_epoch,
        )
    if expected_epoch not in (None, known.producer_epoch) and not repeated:
        return answers.init_refused(ticket, ErrorCode.PRODUCER_FENCED)
    last_epoch = NO_PRODUCER_EPOCH if expected_epoch is None else expected_epoch
    if known.epoch_exhausted:
        producer_id, producer_epoch = shard.spare_producer_id(), ProducerEpoch(0)
    else:
        producer_id, producer_epoch = known.producer_id, known.bumped()
    return _hand_out(
        shard, ticket, known, producer_id, producer_epoch, timeout_ms, now, last_epoch=last_epoch
    )


def _hand_out(
    shard: "TransactionShard",
    ticket: Ticket,
    known: Transaction,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    timeout_ms: int,
    now: Millis,
    *,
    last_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
) -> Outcome:
    changed = known._replace(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        previous_producer_id=known.producer_id,
        timeout_ms=timeout_ms,
        state=State.EMPTY,
        partitions=frozenset(),
        started_at=NEVER,
        updated_at=now,
    )
    shard.remember_last_epoch(known.transactional_id, (producer_id, producer_epoch), last_epoch)
    response = m.InitProducerIdResponse(producer_id=producer_id, producer_epoch=producer_epoch)
    return Outcome((shard.record(changed),), (Reply(ticket, response),))
