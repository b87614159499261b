"""One transactional id as its last record has it, and the bytes of that record."""

from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from headrace.core.outcome import NewRecord
from headrace.model.ids import (
    NO_PRODUCER_ID,
    Millis,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from headrace.wire import messages as m
from headrace.wire.framing import (
    decode_record_key,
    decode_versioned,
    encode_record_key,
    encode_versioned,
)

NO_PRODUCER_EPOCH = ProducerEpoch(-1)
NEVER = Millis(-1)  # no transaction has begun
# The last epoch. No client ever gets it: it is reserved to end or fence the transaction of the
# epoch before, so that every producer can be fenced.
LAST_EPOCH = ProducerEpoch(32767)

# Levels of the feature ``transaction.version``.
FLEXIBLE_RECORDS = 1  # records of __transaction_state have tagged fields
EPOCH_BUMP = 2  # KIP-890 part 2: every end bumps the epoch, Produce adds its partitions itself


# A value of version 1: version, producer id, epoch, timeout, state · partitions · last update,
# start · tagged fields, each with its number, size and content.
_VALUE_HEAD = Struct(">hqhib")
_VALUE_TIMES = Struct(">qq")
_TAGGED_ID = Struct(">BBq")
_TAGGED_VERSION = Struct(">BBh")


class State(IntEnum):
    """The numbers are those of the records.

    How each state answers (add: AddPartitionsToTxn and partitions that Produce adds; end: EndTxn;
    init: InitProducerId):

    EMPTY             add begins a transaction; end gets INVALID_TXN_STATE, except that an abort
                      with transaction version 2 bumps the epoch; init bumps the epoch
    ONGOING           add extends; end prepares; init aborts and gets CONCURRENT_TRANSACTIONS
    PREPARE_COMMIT    add, init and a repeated end get CONCURRENT_TRANSACTIONS, the other end
    PREPARE_ABORT     INVALID_TXN_STATE; with transaction version 2 every end gets the former
    COMPLETE_COMMIT   as EMPTY; a repeated end is answered again, the other end gets
    COMPLETE_ABORT    INVALID_TXN_STATE
    DEAD              never in a record: only Kafka uses these two states; they are listed here
    EPOCH_FENCE       because ListTransactions may name them
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    EPOCH_FENCE = 7


STATE_NAMES = {
    State.EMPTY: "Empty",
    State.ONGOING: "Ongoing",
    State.PREPARE_COMMIT: "PrepareCommit",
    State.PREPARE_ABORT: "PrepareAbort",
    State.COMPLETE_COMMIT: "CompleteCommit",
    State.COMPLETE_ABORT: "CompleteAbort",
    State.DEAD: "Dead",
    State.EPOCH_FENCE: "PrepareEpochFence",
}
PREPARED = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
AT_REST = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


class Transaction(NamedTuple):
    """One transactional id and its current or last transaction."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    previous_producer_id: ProducerId  # as of the record before; mostly the same
    next_producer_id: ProducerId  # replaces the id when the prepared end completes; -1 if none
    timeout_ms: int
    state: State
    partitions: frozenset[TopicPartition]
    started_at: Millis  # of the open or the last transaction; NEVER after an init
    updated_at: Millis
    client_transaction_version: int  # of the client that made the last change: 0 or 2

    @property
    def epoch_exhausted(self) -> bool:
        """Whether another bump would leave no epoch for fencing."""
        return self.producer_epoch >= LAST_EPOCH - 1

    @property
    def is_commit(self) -> bool:
        return self.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)

    @property
    def times_out_at(self) -> Millis | None:
        """None if there is no limit: the largest timeout marks a two-phase commit (KIP-939)."""
        if self.state is not State.ONGOING or self.timeout_ms == 2**31 - 1:
            return None
        return Millis(self.started_at + self.timeout_ms)

    def bumped(self) -> ProducerEpoch:
        return ProducerEpoch(min(self.producer_epoch + 1, LAST_EPOCH))

    def producer_when_completed(self) -> tuple[ProducerId, ProducerEpoch]:
        """The prepared next producer id at epoch 0, if there is one; else the current pair."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return self.next_producer_id, ProducerEpoch(0)
        return self.producer_id, self.producer_epoch

    def completed(self, now: Millis) -> "Transaction":
        """The state after all markers are written."""
        producer_id, producer_epoch = self.producer_when_completed()
        return self._replace(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            state=State.COMPLETE_COMMIT if self.is_commit else State.COMPLETE_ABORT,
            partitions=frozenset(),
            updated_at=now,
        )


def record_of(transaction: Transaction, transaction_version: int) -> NewRecord:
    """The record, in the version that the cluster's ``transaction.version`` allows."""
    key = key_of(transaction.transactional_id)
    partitions = None if transaction.state is State.EMPTY else transaction.partitions
    if transaction_version >= FLEXIBLE_RECORDS:
        return NewRecord(key, _flexible_value(transaction, partitions))
    return NewRecord(key, encode_versioned(_plain_value(transaction, partitions), 0))


def _plain_value(
    transaction: Transaction, partitions: frozenset[TopicPartition] | None
) -> m.TransactionLogValue:
    """The fields of version 0."""
    return m.TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None if partitions is None else _by_topic(partitions),
        transaction_last_update_timestamp_ms=transaction.updated_at,
        transaction_start_timestamp_ms=transaction.started_at,
    )


def _flexible_value(
    transaction: Transaction, partitions: frozenset[TopicPartition] | None
) -> bytes:
    """Version 1, without the codec: each transaction writes three, with the same partitions."""
    head = _VALUE_HEAD.pack(
        *(1, transaction.producer_id, transaction.producer_epoch),
        *(transaction.timeout_ms, transaction.state),
    )
    times = _VALUE_TIMES.pack(transaction.updated_at, transaction.started_at)
    tagged = []
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        tagged.append(_TAGGED_ID.pack(0, 8, transaction.previous_producer_id))
    if transaction.next_producer_id != NO_PRODUCER_ID:
        tagged.append(_TAGGED_ID.pack(1, 8, transaction.next_producer_id))
    if transaction.client_transaction_version:
        tagged.append(_TAGGED_VERSION.pack(2, 2, transaction.client_transaction_version))
    return b"".join((head, _flexible_partitions(partitions), times, bytes((len(tagged),)), *tagged))


@lru_cache(maxsize=4096)
def _flexible_partitions(partitions: frozenset[TopicPartition] | None) -> bytes:
    listed = None if partitions is None else _by_topic(partitions)
    around = encode_versioned(m.TransactionLogValue(transaction_partitions=listed), 1)
    return around[_VALUE_HEAD.size : -_VALUE_TIMES.size - 1]  # no tagged fields after the times


# Each transaction writes three records with the same key.
@lru_cache(maxsize=4096)
def key_of(transactional_id: str) -> bytes:
    return encode_record_key(m.TransactionLogKey(transactional_id=transactional_id))


@lru_cache(maxsize=4096)
def read_key(record_key: bytes) -> str | None:
    """The transactional id; None for a key of an unknown type."""
    key = decode_record_key((m.TransactionLogKey,), record_key)
    return None if key is None else key.transactional_id


def read_value(transactional_id: str, record_value: bytes) -> Transaction:
    value = decode_versioned(m.TransactionLogValue, record_value)
    return Transaction(
        transactional_id,
        ProducerId(value.producer_id),
        ProducerEpoch(value.producer_epoch),
        ProducerId(value.previous_producer_id),
        ProducerId(value.next_producer_id),
        value.transaction_timeout_ms,
        State(value.transaction_status),
        frozenset(
            TopicPartition(topic.topic, partition)
            for topic in value.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        Millis(value.transaction_start_timestamp_ms),
        Millis(value.transaction_last_update_timestamp_ms),
        value.client_transaction_version,
    )


def _by_topic(
    partitions: Iterable[TopicPartition],
) -> list[m.TransactionLogValue.PartitionsSchema]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return [
        m.TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=ids)
        for topic, ids in by_topic.items()
    ]
