"""Partitions join a transaction: AddPartitionsToTxn, AddOffsetsToTxn, Produce."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.core.outcome import NewRecord, Outcome, Reply, Ticket
from headrace.core.transactions import answers
from headrace.core.transactions.transaction import (
    EPOCH_BUMP,
    LAST_EPOCH,
    PREPARED,
    State,
    Transaction,
)
from headrace.model.errors import ErrorCode
from headrace.model.ids import Millis, TopicPartition

if TYPE_CHECKING:
    from headrace.core.transactions.shard import TransactionShard


def add(
    shard: "TransactionShard",
    ticket: Ticket,
    transactional_id: str,
    producer: tuple[int, int],
    partitions: Sequence[TopicPartition],
    client_transaction_version: int,
    now: Millis,
) -> Outcome:
    """Begin or extend a transaction: with all of the partitions, or none."""
    code, records = _add(
        shard, transactional_id, producer, partitions, client_transaction_version, now
    )
    added = answers.results(transactional_id, partitions, code)
    return Outcome(records, (Reply(ticket, added),))


def verify_or_add(
    shard: "TransactionShard",
    ticket: Ticket,
    transactional_id: str,
    producer: tuple[int, int],
    partitions: Sequence[TopicPartition],
    now: Millis,
) -> Outcome:
    """For a broker that is about to write (KIP-890); answers ``VerifiedPartitions``."""
    code, records = _add(shard, transactional_id, producer, partitions, EPOCH_BUMP, now)
    verified = answers.VerifiedPartitions(dict.fromkeys(partitions, code))
    return Outcome(records, (Reply(ticket, verified),))


def verify(
    shard: "TransactionShard",
    ticket: Ticket,
    transactional_id: str,
    producer: tuple[int, int],
    partitions: Sequence[TopicPartition],
    now: Millis,
) -> Outcome:
    """Tell for each partition whether it is part of the producer's open transaction."""
    known = shard.transactions.get(transactional_id)
    codes: ErrorCode | dict[TopicPartition, ErrorCode] = _refusal(known, producer)
    if known is not None and codes is ErrorCode.NONE:
        codes = {
            partition: (
                ErrorCode.NONE if partition in known.partitions else ErrorCode.TRANSACTION_ABORTABLE
            )
            for partition in partitions
        }
    return answers.answer(ticket, answers.results(transactional_id, partitions, codes))


def _add(
    shard: "TransactionShard",
    transactional_id: str,
    producer: tuple[int, int],
    partitions: Sequence[TopicPartition],
    client_transaction_version: int,
    now: Millis,
) -> tuple[ErrorCode, tuple[NewRecord, ...]]:
    known = shard.transactions.get(transactional_id)
    if known is not None and known.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS, ()
    code = _refusal(known, producer)
    if known is None or code is not ErrorCode.NONE:
        return code, ()
    ongoing = known.state is State.ONGOING
    if ongoing and known.partitions.issuperset(partitions):
        return code, ()
    changed = known._replace(
        previous_producer_id=known.producer_id,
        state=State.ONGOING,
        partitions=known.partitions.union(partitions),
        started_at=known.started_at if ongoing else now,
        updated_at=now,
        client_transaction_version=client_transaction_version,
    )
    return code, (shard.record(changed),)


def _refusal(known: Transaction | None, producer: tuple[int, int]) -> ErrorCode:
    producer_id, producer_epoch = producer
    if known is None or known.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.producer_epoch != producer_epoch or producer_epoch == LAST_EPOCH:
        return ErrorCode.PRODUCER_FENCED
    if known.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE
