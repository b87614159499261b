"""Transaction verification: is the partition of a batch part of the producer's transaction?

Only the first batch of a transaction in a partition needs the transaction coordinator: after it,
the partition knows the ongoing transaction. The coordinator verifies that the partition is part of
the transaction or, in the second generation of the protocol, adds it. Without that, a late batch
could start a transaction that the coordinator never ends (KIP-890).

If the coordinator's response takes time, the transaction may end before the append. In the first
generation ``TransactionVerification`` notices that: the marker has replaced the producer's entry
in the partition. In the second generation the marker's epoch fences the batch.
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
    """The producer of the batch, if the batch is part of a transaction."""
    if not is_transactional(records):
        return None
    producer_id, producer_epoch = _PRODUCER.unpack_from(records, PRODUCER_ID_AT)
    return ProducerId(producer_id), ProducerEpoch(producer_epoch)


def may_be_appended(replica: Replica, records: memoryview) -> bool:
    """Whether the batch can be appended without asking the transaction coordinator."""
    producer = transactional_producer(records)
    return producer is None or replica.log.producers.has_ongoing_transaction(*producer)


class TransactionVerification:
    """The verification of one request's transactional batches."""

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
        # The partitions to verify, with the producer's entry before the verification.
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
        """Error codes of the verified partitions; the others need no verification."""
        if self._refused or not self._known or self._producer is None:
            return self._refused
        if not self._adds and not self._transactions.verifies_partitions:
            return {}
        assert self._transactional_id is not None
        return self._transactions.verify_or_add(
            self._transactional_id, self._producer, list(self._known), adds=self._adds
        )

    def refusal(self, replica: Replica, records: memoryview, codes: "Codes") -> Rejected | None:
        """Why a batch cannot be appended; None if it can."""
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
                self._postpone(replica, records)
            return refusal
        if not self._still_holds(replica):
            return _ended()
        return self._gap(replica, records)

    def _ended_meanwhile(self, replica: Replica, records: memoryview) -> Rejected | None:
        """Reject a batch whose transaction ended while it was being decompressed."""
        producer = transactional_producer(records)
        if (
            producer is None
            or self._adds  # the marker's epoch fences the batch
            or replica.topic_partition in self._known  # verification is disabled
            or replica.log.producers.has_ongoing_transaction(*producer)
        ):
            return None
        return _ended()

    def _still_holds(self, replica: Replica) -> bool:
        """Whether the transaction is still ongoing after waiting for the coordinator."""
        assert self._producer is not None
        if self._adds:
            # The marker's newer epoch fences the batch. A changed entry does not prove an end: it
            # may be due to the marker of the previous transaction.
            return True
        producers = replica.log.producers
        return producers.has_ongoing_transaction(*self._producer) or (
            producers.entries.get(self._producer[0]) is self._known[replica.topic_partition]
        )

    def _postpone(self, replica: Replica, records: memoryview) -> None:
        """Remember that the client will retry the batch: later batches must not overtake it."""
        assert self._producer is not None
        postponed = self._transactions.postponed
        key = (replica.topic_partition, *self._producer)
        (sequence,) = _SEQUENCE.unpack_from(records, BASE_SEQUENCE_AT)
        if len(postponed) >= _POSTPONED_MAX:
            postponed.clear()
        postponed[key] = min(postponed.get(key, sequence), sequence)

    def _gap(self, replica: Replica, records: memoryview) -> Rejected | None:
        """Reject a producer's first batch in the partition if an earlier one is missing.

        The partition itself accepts any first sequence, because it may have expired the producer.
        """
        assert self._producer is not None
        if replica.log.producers.entries.get(self._producer[0]) is not None:
            return None  # the partition checks that the sequence follows the last one
        key = (replica.topic_partition, *self._producer)
        (sequence,) = _SEQUENCE.unpack_from(records, BASE_SEQUENCE_AT)
        # In the second generation each transaction has its own epoch, so sequences start at 0.
        first = 0 if self._adds else self._transactions.postponed.get(key, sequence)
        if sequence > first:
            return Rejected(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"the first sequence of producer {self._producer[0]} in {replica.topic_partition} "
                f"is {sequence}, expected {first}",
            )
        self._transactions.postponed.pop(key, None)
        return None


def _ended() -> Rejected:
    return Rejected(ErrorCode.INVALID_TXN_STATE, "the transaction has ended meanwhile")
