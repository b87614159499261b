"""The transactional ids behind one partition of ``__transaction_state``.

Hard state is ``transactions``: the last record of each id, written by ``replay`` alone. Soft are
the markers still to be written, the deadlines, and the epoch before the last (``_handed_out``).

The coordinator accepts a request only with the epoch that it handed out last. With transaction
version 2, every end hands out the next epoch and the markers carry it. A batch, commit or abort
that arrives late then meets a newer epoch everywhere (KIP-890).
"""

from collections.abc import Callable
from typing import NamedTuple

from headrace.core.outcome import NOTHING, NewRecord, Outcome, Ticket
from headrace.core.timers import Timers
from headrace.core.transactions import answers, expiration, markers
from headrace.core.transactions.answers import answer
from headrace.core.transactions.effects import NeedsProducerId
from headrace.core.transactions.expiration import EXPIRATION, TIMEOUT
from headrace.core.transactions.listing import Filter
from headrace.core.transactions.markers import MARKERS, RETRY_MS
from headrace.core.transactions.transaction import (
    FLEXIBLE_RECORDS,
    NO_PRODUCER_EPOCH,
    PREPARED,
    Transaction,
    read_key,
    read_value,
    record_of,
)
from headrace.model.ids import Millis, ProducerEpoch, ProducerId, TopicPartition


class Settings(NamedTuple):
    """Current settings of the cluster and the broker."""

    transaction_version: int  # the finalized level of the feature
    timeout_ms_max: int
    expiration_ms: int
    expiration_interval_ms: int


class _HandedOut(NamedTuple):
    """The epoch before the current one; valid only together with the current one.

    It is not in the log, as in Kafka: after a restart, a repeated InitProducerId is fenced.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_epoch: ProducerEpoch


class TransactionShard:
    """Satisfies ``outcome.Shard``. Requests are functions of their modules that take the shard."""

    def __init__(
        self, coordinator_epoch: Callable[[], int], settings: Callable[[], Settings]
    ) -> None:
        """``coordinator_epoch`` is the leader epoch of the partition, which may be bumped."""
        self.coordinator_epoch = coordinator_epoch
        self.settings = settings
        self.transactions: dict[str, Transaction] = {}
        self.timers: Timers[tuple[str, str]] = Timers()
        # All and only the prepared transactions: their partitions that have no marker yet.
        self.unmarked: dict[str, set[TopicPartition]] = {}
        self._handed_out: dict[str, _HandedOut] = {}
        self._spare_producer_ids: list[ProducerId] = []
        # The value of the last record made here, and its content: replay need not decode it.
        self._just_written: tuple[bytes | None, Transaction] | None = None
        self._is_loaded = False

    # --- replay ------------------------------------------------------------------------

    def replay(
        self,
        record_key: bytes,
        record_value: bytes | None,
        offset: int,
        producer_id: int,
        producer_epoch: int,
    ) -> None:
        transactional_id = read_key(record_key)
        if transactional_id is None:
            return
        self.unmarked.pop(transactional_id, None)
        if record_value is None:
            self.transactions.pop(transactional_id, None)
            self._handed_out.pop(transactional_id, None)
            self.timers.cancel((transactional_id, TIMEOUT))
            self.timers.cancel((transactional_id, MARKERS))
            return
        written = self._just_written
        if written is not None and record_value is written[0]:
            transaction = written[1]
        else:
            transaction = read_value(transactional_id, record_value)
        self.transactions[transactional_id] = transaction
        if transaction.state in PREPARED:
            self.unmarked[transactional_id] = set(transaction.partitions)
        if self._is_loaded:
            self._watch(transaction)

    def replay_marker(
        self, producer_id: int, producer_epoch: int, committed: bool, offset: int
    ) -> None:
        """The records of this topic are not part of transactions."""

    # --- time ------------------------------------------------------------------------

    def loaded(self, now: Millis) -> Outcome:
        self._is_loaded = True
        expiration.schedule(self, now)
        for transaction in self.transactions.values():
            self._watch(transaction)
            if transaction.state in PREPARED and not transaction.partitions:
                self.timers.set((transaction.transactional_id, MARKERS), now)
        return Outcome(effects=tuple(markers.pending(self)))

    def tick(self, now: Millis) -> Outcome:
        due = self.timers.pop_due(now)
        if due is None:
            return NOTHING
        if due == EXPIRATION:
            return expiration.expire(self, now)
        transactional_id, kind = due
        known = self.transactions.get(transactional_id)
        if known is None:
            return NOTHING
        if kind == MARKERS and self.unmarked[transactional_id]:
            # Sets no deadline: the answer to this effect sets the next one.
            return Outcome(effects=markers.markers_of(self, known))
        # Try again until the record that settles it is written.
        self.timers.set(due, now + RETRY_MS)
        if kind == TIMEOUT:
            return expiration.time_out(self, known, now)
        return markers.complete(self, known, now)

    def next_deadline(self) -> float | None:
        return self.timers.next_deadline()

    def _watch(self, transaction: Transaction) -> None:
        """Set the deadlines that follow from a record."""
        transactional_id = transaction.transactional_id
        times_out_at = transaction.times_out_at
        if times_out_at is None:
            self.timers.cancel((transactional_id, TIMEOUT))
        else:
            self.timers.set((transactional_id, TIMEOUT), times_out_at)
        if transaction.state not in PREPARED:
            self.timers.cancel((transactional_id, MARKERS))

    # --- reading -------------------------------------------------------------------------

    def describe(self, ticket: Ticket, transactional_id: str, now: Millis) -> Outcome:
        known = self.transactions.get(transactional_id)
        if known is None:
            return answer(ticket, answers.not_described(transactional_id))
        unmarked = self.unmarked.get(transactional_id, known.partitions)
        return answer(ticket, answers.described(known, unmarked))

    def list_transactions(self, ticket: Ticket, wanted: Filter, now: Millis) -> Outcome:
        return answer(ticket, answers.listed(wanted.of(self.transactions.values(), now)))

    # --- what the decisions share ----------------------------------------------------------

    def producer_id_drawn(self, producer_id: ProducerId) -> None:
        self._spare_producer_ids.append(producer_id)

    def spare_producer_id(self) -> ProducerId:
        if not self._spare_producer_ids:
            raise NeedsProducerId
        return self._spare_producer_ids.pop()

    def record(self, transaction: Transaction) -> NewRecord:
        version = self.settings().transaction_version
        record = record_of(transaction, version)
        if version >= FLEXIBLE_RECORDS:  # older records do not hold every field
            self._just_written = record.value, transaction
        return record

    def remember_last_epoch(
        self,
        transactional_id: str,
        producer: tuple[ProducerId, ProducerEpoch],
        last_epoch: ProducerEpoch,
    ) -> None:
        self._handed_out[transactional_id] = _HandedOut(*producer, last_epoch)

    def last_epoch(self, known: Transaction) -> ProducerEpoch:
        handed_out = self._handed_out.get(known.transactional_id)
        if handed_out is None or handed_out[:2] != (known.producer_id, known.producer_epoch):
            return NO_PRODUCER_EPOCH
        return handed_out.last_epoch
