"""Produced batches of transactions: is their partition part of the producer's transaction?

A batch that follows others of its transaction needs no look at the coordinator: the partition
knows the open transaction. The first one is asked about (or, in the second generation of the
protocol, makes its partition part of the transaction), so that a late batch cannot open a
transaction that nobody would ever end (KIP-890).

Between the coordinator's answer and the append the transaction may have ended, if the answer had
to be waited for. Its marker then lies in the partition and has replaced what the partition knew
of the producer, which is how ``TransactionVerification`` sees it in the first generation; in the
second the marker's epoch fences the batch.
"""

from collections.abc import Awaitable, Sequence
from struct import Struct
from typing import TYPE_CHECKING

from headrace.broker.context import Context
from headrace.broker.coordinators.transaction import RETRIED, refusal_of
from headrace.broker.replication.replica import Replica
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import ProducerEpoch, ProducerId, TopicPartition
from headrace.records.batch import (
    BASE_SEQUENCE_AT,
    FLAGS_AT,
    MAGIC_AT,
    PRODUCER_ID_AT,
    RECORDS_AT,
    TRANSACTIONAL,
)

if TYPE_CHECKING:
    from headrace.broker.coordinators.markers import Codes
    from headrace.broker.coordinators.transaction import TransactionCoordinator
    from headrace.core.producer_state import ProducerEntry

_FIRST_ABORTABLE = 11
_FIRST_THAT_ADDS = 12
_PRODUCER = Struct(">qh")
_SEQUENCE = Struct(">i")
_POSTPONED_MAX = 10_000

Producer = tuple[ProducerId, ProducerEpoch]


def is_transactional(records: memoryview) -> bool:
    return (
        len(records) >= RECORDS_AT
        and records[FLAGS_AT] & TRANSACTIONAL != 0
        and records[MAGIC_AT] == 2
    )


def transactional_producer(records: memoryview) -> Producer | None:
    """Who sent the batch, if it is part of a transaction."""
    if not is_transactional(records):
        return None
    producer_id, producer_epoch = _PRODUCER.unpack_from(records, PRODUCER_ID_AT)
    return ProducerId(producer_id), ProducerEpoch(producer_epoch)


def may_be_appended(replica: Replica, records: memoryview) -> bool:
    """Whether nobody has to be asked about the batch."""
    producer = transactional_producer(records)
    return producer is None or replica.log.producers.has_ongoing_transaction(*producer)


class TransactionVerification:
    """The batches of one request that somebody has to be asked about."""

    def __init__(
        self,
        transactions: "TransactionCoordinator",
        context: Context,
        transactional_id: str | None,
        batches: Sequence[tuple[Replica, memoryview]],
    ) -> None:
        self._transactions = transactions
        self._transactional_id = transactional_id
        self._adds = context.api_version >= _FIRST_THAT_ADDS
        self._abortable = context.api_version >= _FIRST_ABORTABLE
        # What each partition knows of the producer before it is asked about.
        self._known: dict[TopicPartition, ProducerEntry | None] = {}
        self._producer: Producer | None = None
        self._refused: Codes = {}
        if transactional_id is None and not any(is_transactional(r) for _, r in batches):
            return
        producers: dict[TopicPartition, Producer] = {}
        for replica, records in batches:
            producer = transactional_producer(records)
            if producer is not None:
                producers[replica.topic_partition] = producer
                if not replica.log.producers.has_ongoing_transaction(*producer):
                    entry = replica.log.producers.entries.get(producer[0])
                    self._known[replica.topic_partition] = entry
        if not producers:
            return
        if transactional_id is None:
            everything = [replica.topic_partition for replica, _ in batches]
            self._refused = dict.fromkeys(
                everything, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            )
        elif len(set(producers.values())) > 1:
            self._refused = dict.fromkeys(producers, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        else:
            self._producer = next(iter(producers.values()))

    def ask(self) -> "Codes | Awaitable[Codes]":
        """Codes of the partitions that were looked at; the others may be appended."""
        if self._refused or not self._known or self._producer is None:
            return self._refused
        if not self._adds and not self._transactions.verifies_partitions:
            return {}
        assert self._transactional_id is not None
        return self._transactions.verify_or_add(
            self._transactional_id, self._producer, list(self._known), adds=self._adds
        )

    def refusal(self, replica: Replica, records: memoryview, codes: "Codes") -> Rejected | None:
        """Why a batch cannot be appended."""
        topic_partition = replica.topic_partition
        code = codes.get(topic_partition)
        if code is None:
            return self._ended_meanwhile(replica, records)
        if code is not ErrorCode.NONE:
            refusal = refusal_of(
                code,
                adds=self._adds,
                abortable=self._abortable,
                retriable=ErrorCode.NOT_ENOUGH_REPLICAS,
            )
            if code in RETRIED and topic_partition in self._known:
                self._come_again(replica, records)
            return refusal
        if not self._still_holds(replica):
            return _ended()
        return self._gap(replica, records)

    def _ended_meanwhile(self, replica: Replica, records: memoryview) -> Rejected | None:
        """Whether a batch that nobody was asked about was unpacked for so long that it is late."""
        producer = transactional_producer(records)
        if (
            producer is None
            or self._adds  # then its epoch is too old by now
            or replica.topic_partition in self._known  # nobody wants to know
            or replica.log.producers.has_ongoing_transaction(*producer)
        ):
            return None
        return _ended()

    def _still_holds(self, replica: Replica) -> bool:
        """Whether an answer that was perhaps waited for is still true of the partition."""
        assert self._producer is not None
        if self._adds:
            # The end of such a transaction brings a newer epoch, which refuses the batch by
            # itself. What changed meanwhile may be the end of the one before.
            return True
        producers = replica.log.producers
        return producers.has_ongoing_transaction(*self._producer) or (
            producers.entries.get(self._producer[0]) is self._known[replica.topic_partition]
        )

    def _come_again(self, replica: Replica, records: memoryview) -> None:
        """The batch will be sent once more; those behind it must not be taken before it."""
        assert self._producer is not None
        postponed = self._transactions.postponed
        key = (replica.topic_partition, *self._producer)
        (sequence,) = _SEQUENCE.unpack_from(records, BASE_SEQUENCE_AT)
        if len(postponed) >= _POSTPONED_MAX:
            postponed.clear()
        postponed[key] = min(postponed.get(key, sequence), sequence)

    def _gap(self, replica: Replica, records: memoryview) -> Rejected | None:
        """Whether a batch is missing before the first one of a producer in this partition.

        The partition would take any first sequence, since it may have forgotten the producer.
        """
        assert self._producer is not None
        if replica.log.producers.entries.get(self._producer[0]) is not None:
            return None  # the sequence must follow what is known
        key = (replica.topic_partition, *self._producer)
        (sequence,) = _SEQUENCE.unpack_from(records, BASE_SEQUENCE_AT)
        # Where every transaction has its own epoch, it begins with 0 everywhere.
        first = 0 if self._adds else self._transactions.postponed.get(key, sequence)
        if sequence > first:
            return Rejected(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {self._producer[0]} begins in {replica.topic_partition} with sequence "
                f"{sequence}, and {first} is missing",
            )
        self._transactions.postponed.pop(key, None)
        return None


def _ended() -> Rejected:
    return Rejected(ErrorCode.INVALID_TXN_STATE, "the transaction ended meanwhile")
