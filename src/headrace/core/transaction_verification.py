"""Transaction verification: is the partition of a batch part of the producer's transaction?

Only the first batch of a transaction in a partition needs the transaction coordinator: after it,
the partition knows the ongoing transaction. The coordinator verifies that the partition is part of
the transaction or, with transaction version 2, adds it. Without that, a late batch
could start a transaction that the coordinator never ends (KIP-890).

If the coordinator's response takes time, the transaction may end before the append. With
transaction version 1 ``Verification`` notices that: the marker has replaced the producer's entry
in the partition. With version 2 the marker's epoch fences the batch.
"""

from collections.abc import Iterable, Mapping
from struct import Struct

from headrace.core.producer_state import ProducerEntry, Producers
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

_PRODUCER = Struct(">qh")
_SEQUENCE = Struct(">i")
_POSTPONED_MAX = 10_000

Producer = tuple[ProducerId, ProducerEpoch]
Codes = Mapping[TopicPartition, ErrorCode]
# Partition, producer id and epoch -> the lowest sequence that the client must retry, because its
# transaction could not be verified. Losing an entry costs at most an abort.
Postponed = dict[tuple[TopicPartition, ProducerId, ProducerEpoch], int]

# The coordinator may answer otherwise soon: the client has to retry. A coordinator on another
# broker may not know a new topic yet; it then attempts none of the transaction's partitions.
RETRIED = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_REASONS = {
    ErrorCode.PRODUCER_FENCED: "a newer instance of the producer has fenced this one",
    ErrorCode.TRANSACTION_ABORTABLE: "the partition was not added to the transaction",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the transactional id belongs to another producer id",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "the batch is part of a transaction, but the request has no transactional id"
    ),
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "this broker no longer leads the partition",
    ErrorCode.KAFKA_STORAGE_ERROR: "the disk of the partition failed",
}
_NOT_YET = "the partition could not be verified yet; retry: "


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


def is_still_open(producers: Producers, producer: Producer, known: ProducerEntry | None) -> bool:
    """Whether a verified transaction is still open in a partition, after waiting for the answer.

    ``known`` is the producer's entry before. For transaction version 1 only: with version 2 an
    entry may also change due to the marker of the previous transaction.
    """
    return producers.has_ongoing_transaction(*producer) or (
        producers.entries.get(producer[0]) is known
    )


class Verification:
    """The rules for the transactional batches of one Produce request.

    Ask the transaction coordinator about ``partitions``, if there are any; pass its codes, or
    ``refused``, to ``refusal``.
    """

    def __init__(
        self,
        transactional_id: str | None,
        batches: Iterable[tuple[TopicPartition, Producers, memoryview]],
        postponed: Postponed,
        *,
        adds: bool,
        abortable: bool,
    ) -> None:
        """``batches`` come with the producers of their partition.

        ``adds``: the coordinator adds missing partitions, as with transaction version 2.
        ``abortable``: the client knows TRANSACTION_ABORTABLE.
        """
        self.adds = adds
        self.producer: Producer | None = None
        self.refused: Codes = {}  # without asking the coordinator
        self._abortable = abortable
        self._postponed = postponed
        # The partitions to verify, with the producer's entry before the verification.
        self._known: dict[TopicPartition, ProducerEntry | None] = {}
        producer_of: dict[TopicPartition, Producer] = {}
        everything: list[TopicPartition] = []
        for topic_partition, producers, records in batches:
            everything.append(topic_partition)
            producer = transactional_producer(records)
            if producer is not None:
                producer_of[topic_partition] = producer
                if not producers.has_ongoing_transaction(*producer):
                    self._known[topic_partition] = producers.entries.get(producer[0])
        if not producer_of:
            return
        if transactional_id is None:
            self.refused = dict.fromkeys(
                everything, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            )
        elif len(set(producer_of.values())) > 1:
            self.refused = dict.fromkeys(producer_of, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        else:
            self.producer = next(iter(producer_of.values()))

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that the coordinator has to verify or add for ``producer``."""
        return [] if self.refused or self.producer is None else list(self._known)

    def refusal(
        self,
        topic_partition: TopicPartition,
        producers: Producers,
        records: memoryview,
        codes: Codes,
    ) -> Rejected | None:
        """Why a batch cannot be appended; None if it can."""
        code = codes.get(topic_partition)
        if code is None:
            return self._ended_meanwhile(topic_partition, producers, records)
        if code is not ErrorCode.NONE:
            if code in RETRIED and topic_partition in self._known:
                self._postpone(topic_partition, records)
            return refusal_of(
                code,
                adds=self.adds,
                abortable=self._abortable,
                retriable=ErrorCode.NOT_ENOUGH_REPLICAS,
            )
        assert self.producer is not None
        # With ``adds`` the marker's newer epoch fences the batch of an ended transaction.
        if not self.adds and not is_still_open(
            producers, self.producer, self._known[topic_partition]
        ):
            return _ended()
        return self._gap(self.producer, topic_partition, producers, records)

    def _ended_meanwhile(
        self, topic_partition: TopicPartition, producers: Producers, records: memoryview
    ) -> Rejected | None:
        """Reject a batch whose transaction ended while it was being decompressed."""
        producer = transactional_producer(records)
        if (
            producer is None
            or self.adds  # the marker's epoch fences the batch
            or topic_partition in self._known  # verification is disabled
            or producers.has_ongoing_transaction(*producer)
        ):
            return None
        return _ended()

    def _postpone(self, topic_partition: TopicPartition, records: memoryview) -> None:
        """Remember that the client will retry the batch: later batches must not overtake it."""
        assert self.producer is not None
        postponed = self._postponed
        key = (topic_partition, *self.producer)
        sequence = _base_sequence(records)
        if len(postponed) >= _POSTPONED_MAX:
            postponed.clear()
        postponed[key] = min(postponed.get(key, sequence), sequence)

    def _gap(
        self,
        producer: Producer,
        topic_partition: TopicPartition,
        producers: Producers,
        records: memoryview,
    ) -> Rejected | None:
        """Reject a producer's first batch in the partition if an earlier one is missing.

        The partition itself accepts any first sequence, because it may have expired the producer.
        """
        if producers.entries.get(producer[0]) is not None:
            return None  # the partition checks that the sequence follows the last one
        key = (topic_partition, *producer)
        sequence = _base_sequence(records)
        # With transaction version 2 each transaction has its own epoch, so sequences start at 0.
        first = 0 if self.adds else self._postponed.get(key, sequence)
        if sequence > first:
            return Rejected(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"the first sequence of producer {producer[0]} in {topic_partition} "
                f"is {sequence}, expected {first}",
            )
        self._postponed.pop(key, None)
        return None


def refusal_of(code: ErrorCode, *, adds: bool, abortable: bool, retriable: ErrorCode) -> Rejected:
    """The error of a partition that was not verified, with a code that the client's version knows.

    ``abortable``: the version knows TRANSACTION_ABORTABLE. ``retriable``: the code that makes the
    client retry.
    """
    reason = _REASONS.get(code, "the transaction coordinator refused the partition")
    if code is ErrorCode.TRANSACTION_ABORTABLE and not abortable:
        code = ErrorCode.INVALID_TXN_STATE
    elif code is ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    elif code in RETRIED:
        reason = _NOT_YET + code.name
        if not (adds and code is ErrorCode.CONCURRENT_TRANSACTIONS):
            code = retriable
    return Rejected(code, reason)


def _base_sequence(records: memoryview) -> int:
    (sequence,) = _SEQUENCE.unpack_from(records, BASE_SEQUENCE_AT)
    return int(sequence)


def _ended() -> Rejected:
    return Rejected(ErrorCode.INVALID_TXN_STATE, "the transaction has ended meanwhile")
