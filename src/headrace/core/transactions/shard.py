"""The transactional ids behind one partition of ``__transaction_state``.

Hard state is ``transactions``: the last record of each id, written by ``replay`` alone. Soft are
the markers still to be written, the deadlines, and the epoch before the last (``_handed_out``).

What an epoch protects: the coordinator takes a request only with the epoch it handed out last.
Under transaction version 2 every end hands out the next one and the markers carry it, so that a
batch, a commit or an abort that comes late finds a newer epoch wherever it arrives (KIP-890).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headrace.core.outcome import NOTHING, NewRecord, Outcome, Reply, Ticket
from headrace.core.timers import Timers
from headrace.core.transactions import answers
from headrace.core.transactions.answers import answer
from headrace.core.transactions.listing import Filter
from headrace.core.transactions.transaction import (
    AT_REST,
    EPOCH_BUMP,
    FLEXIBLE_RECORDS,
    LAST_EPOCH,
    NEVER,
    NO_PRODUCER_EPOCH,
    PREPARED,
    State,
    Transaction,
    key_of,
    read_key,
    read_value,
    record_of,
)
from headrace.model.errors import ErrorCode
from headrace.model.ids import (
    NO_PRODUCER_ID,
    Millis,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from headrace.wire import messages as m

RETRY_MS = 100
_TOMBSTONES_MAX = 1000  # in one go, so that other requests get their turn between


class Settings(NamedTuple):
    """What the cluster and the broker say, as of now."""

    transaction_version: int  # the finalized level of the feature
    timeout_ms_max: int
    expiration_ms: int
    expiration_interval_ms: int


class WriteMarkers(NamedTuple):
    """Effect: end this transaction in these partitions, then say so (``markers_answered``)."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    coordinator_epoch: int
    commit: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


class DrawProducerId(NamedTuple):
    """Effect: a time-out waits for a fresh producer id (``producer_id_drawn``)."""


class NeedsProducerId(Exception):
    """The request can only be decided with a fresh producer id: draw one, and ask again."""


class _HandedOut(NamedTuple):
    """The epoch that came before a certain one; it holds for that one alone.

    Not in the log, as in Kafka: after a restart a repeated InitProducerId is fenced.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_epoch: ProducerEpoch


_EXPIRY = ("", "expiry")  # no transactional id is empty
_MARKERS = "markers"
_TIMEOUT = "timeout"


class TransactionShard:
    """Satisfies ``outcome.Shard``."""

    def __init__(self, coordinator_epoch: int, settings: Callable[[], Settings]) -> None:
        self.coordinator_epoch = coordinator_epoch
        self.transactions: dict[str, Transaction] = {}
        self._settings = settings
        self._timers: Timers[tuple[str, str]] = Timers()
        # All and only the prepared transactions: the partitions that have no marker yet.
        self._unmarked: dict[str, set[TopicPartition]] = {}
        self._handed_out: dict[str, _HandedOut] = {}
        self._spare_producer_ids: list[ProducerId] = []
        # The value of the last record made here, and what it says: replay need not read it.
        self._just_written: tuple[bytes | None, Transaction] | None = None
        self._running = False

    # --- InitProducerId --------------------------------------------------------

    def init_producer_id(
        self,
        ticket: Ticket,
        transactional_id: str,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        now: Millis,
    ) -> Outcome:
        """Hand out a producer id and epoch that fence whoever had this transactional id before.

        ``expected`` is the pair of a producer that goes on after an error of its own (KIP-360):
        it must not fence a newer one. Raises NeedsProducerId.
        """
        if not 0 < timeout_ms <= self._settings().timeout_ms_max:
            return answers.init_refused(ticket, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        known = self.transactions.get(transactional_id)
        if known is None:
            made = Transaction(
                transactional_id,
                self._spare_producer_id(),
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
            return self._init(ticket, made, made.producer_id, made.bumped(), timeout_ms, now)
        if known.state in PREPARED:
            return answers.init_refused(ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
        if expected is not None and not self._may_go_on(known, expected):
            return answers.init_refused(ticket, ErrorCode.PRODUCER_FENCED)
        if known.state is State.ONGOING:
            if expected is not None and expected[1] != known.producer_epoch:
                # Kafka would abort here too, and refuse only the next attempt.
                return answers.init_refused(ticket, ErrorCode.PRODUCER_FENCED)
            # The client asks again, and then gets an epoch beyond the one that ends this.
            return self._fence(known, now) + answers.init_refused(
                ticket, ErrorCode.CONCURRENT_TRANSACTIONS
            )
        return self._init_at_rest(ticket, known, expected, timeout_ms, now)

    def _init_at_rest(
        self,
        ticket: Ticket,
        known: Transaction,
        expected: tuple[int, int] | None,
        timeout_ms: int,
        now: Millis,
    ) -> Outcome:
        last_epoch = self._last_epoch(known)
        expected_epoch = None if expected is None else ProducerEpoch(expected[1])
        repeated = expected_epoch == last_epoch != NO_PRODUCER_EPOCH
        if repeated and known.producer_epoch < LAST_EPOCH:
            # The answer got lost, and nobody came between: the same answer once more.
            return self._init(
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
            producer_id, producer_epoch = self._spare_producer_id(), ProducerEpoch(0)
        else:
            producer_id, producer_epoch = known.producer_id, known.bumped()
        return self._init(
            ticket, known, producer_id, producer_epoch, timeout_ms, now, last_epoch=last_epoch
        )

    def _init(
        self,
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
        self._remember_last_epoch(known.transactional_id, (producer_id, producer_epoch), last_epoch)
        handed = m.InitProducerIdResponse(producer_id=producer_id, producer_epoch=producer_epoch)
        return Outcome((self._record(changed),), (Reply(ticket, handed),))

    @staticmethod
    def _may_go_on(known: Transaction, expected: tuple[int, int]) -> bool:
        """Its id is the present one, or the one before whose epochs had run out."""
        producer_id, producer_epoch = expected
        return producer_id == known.producer_id or (
            producer_id == known.previous_producer_id and producer_epoch >= LAST_EPOCH - 1
        )

    # --- AddPartitionsToTxn, AddOffsetsToTxn, and Produce by itself ------------

    def add_partitions(
        self,
        ticket: Ticket,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Sequence[TopicPartition],
        client_transaction_version: int,
        now: Millis,
    ) -> Outcome:
        """Begin or widen a transaction: all of the partitions, or none."""
        code, records = self._adding(
            transactional_id, producer, partitions, client_transaction_version, now
        )
        added = answers.results(transactional_id, partitions, code)
        return Outcome(records, (Reply(ticket, added),))

    def verify_or_add(
        self,
        ticket: Ticket,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Sequence[TopicPartition],
        now: Millis,
    ) -> Outcome:
        """For a broker that is about to write (KIP-890); answers ``VerifiedPartitions``."""
        code, records = self._adding(transactional_id, producer, partitions, EPOCH_BUMP, now)
        verified = answers.VerifiedPartitions(dict.fromkeys(partitions, code))
        return Outcome(records, (Reply(ticket, verified),))

    def _adding(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Sequence[TopicPartition],
        client_transaction_version: int,
        now: Millis,
    ) -> tuple[ErrorCode, tuple[NewRecord, ...]]:
        known = self.transactions.get(transactional_id)
        if known is not None and known.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS, ()
        code = self._refusal(known, producer)
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
        return code, (self._record(changed),)

    def verify_partitions(
        self,
        ticket: Ticket,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Sequence[TopicPartition],
        now: Millis,
    ) -> Outcome:
        """Say of each partition whether it is part of the producer's open transaction."""
        known = self.transactions.get(transactional_id)
        code = self._refusal(known, producer)
        if known is None or code is not ErrorCode.NONE:
            return answer(ticket, answers.results(transactional_id, partitions, code))
        codes = {
            partition: (
                ErrorCode.NONE if partition in known.partitions else ErrorCode.TRANSACTION_ABORTABLE
            )
            for partition in partitions
        }
        return answer(ticket, answers.results(transactional_id, partitions, codes))

    @staticmethod
    def _refusal(known: Transaction | None, producer: tuple[int, int]) -> ErrorCode:
        producer_id, producer_epoch = producer
        if known is None or known.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if known.producer_epoch != producer_epoch or producer_epoch == LAST_EPOCH:
            return ErrorCode.PRODUCER_FENCED
        if known.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.NONE

    # --- EndTxn ------------------------------------------------------------------

    def end(
        self,
        ticket: Ticket,
        transactional_id: str,
        producer: tuple[int, int],
        commit: bool,
        client_transaction_version: int,
        now: Millis,
    ) -> Outcome:
        """Decide the end of a transaction; it is certain once this is answered.

        Raises NeedsProducerId.
        """
        known = self.transactions.get(transactional_id)
        if known is None:
            return answers.end_refused(ticket, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if client_transaction_version >= EPOCH_BUMP:
            return self._end_with_bump(ticket, known, producer, commit, now)
        return self._end_without_bump(ticket, known, producer, commit, now)

    def _end_without_bump(
        self,
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
            prepared = self._prepared(known, commit, now, known.producer_epoch, version=0)
            return self._ending(prepared) + answer(ticket, m.EndTxnResponse())
        if known.state is State.EMPTY or known.is_commit != commit:
            return answers.end_refused(ticket, ErrorCode.INVALID_TXN_STATE)
        if known.state in PREPARED:
            return answers.end_refused(ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
        return answer(ticket, m.EndTxnResponse())

    def _end_with_bump(
        self,
        ticket: Ticket,
        known: Transaction,
        producer: tuple[int, int],
        commit: bool,
        now: Millis,
    ) -> Outcome:
        if known.state in PREPARED:
            # Whoever asks, be it with the epoch that the last answer gave: it may have to wait.
            return answers.end_refused(ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
        producer_id, producer_epoch = producer
        # The same end once more, its answer lost. The state has the next epoch already, or the
        # first one of the next producer id. With the present epoch it is a new end.
        rotated = (
            known.state in AT_REST
            and known.producer_epoch == 0
            and producer == (known.previous_producer_id, LAST_EPOCH - 1)
        )
        repeated = known.producer_epoch == producer_epoch + 1 or rotated
        if known.producer_id != producer_id and not rotated:
            return answers.end_refused(ticket, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        is_current = known.producer_epoch == producer_epoch < LAST_EPOCH
        if known.state in (State.ONGOING, State.EMPTY):
            valid = is_current
        else:
            valid = repeated or is_current
        if not valid:
            return answers.end_refused(ticket, ErrorCode.PRODUCER_FENCED)
        if known.state is State.ONGOING:
            return self._bump_and_end(ticket, known, commit, now)
        if repeated:
            if known.is_commit != commit:
                return answers.end_refused(ticket, ErrorCode.INVALID_TXN_STATE)
            return answer(ticket, answers.ended(known))
        if commit:
            return answers.end_refused(ticket, ErrorCode.INVALID_TXN_STATE)
        # A producer that aborts before it has sent anything wants the next epoch all the same.
        return self._bump_and_end(ticket, known, commit, now)

    def _bump_and_end(
        self, ticket: Ticket, known: Transaction, commit: bool, now: Millis
    ) -> Outcome:
        prepared = self._prepared(known, commit, now, known.bumped(), version=EPOCH_BUMP)
        reply = Reply(ticket, answers.ended(prepared))
        return self._ending(prepared)._replace(replies=(reply,))

    def _fence(self, known: Transaction, now: Millis) -> Outcome:
        """Abort a transaction against its producer's will; the bumped epoch shuts it out."""
        bumps = self._settings().transaction_version >= EPOCH_BUMP
        version = EPOCH_BUMP if bumps else 0
        return self._ending(self._prepared(known, False, now, known.bumped(), version=version))

    def _prepared(
        self,
        known: Transaction,
        commit: bool,
        now: Millis,
        producer_epoch: ProducerEpoch,
        *,
        version: int,
    ) -> Transaction:
        next_producer_id = NO_PRODUCER_ID
        # Older records have no place for the next producer id.
        rotates = self._settings().transaction_version >= FLEXIBLE_RECORDS
        if version >= EPOCH_BUMP and known.epoch_exhausted and rotates:
            next_producer_id = self._spare_producer_id()
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
            self._remember_last_epoch(
                known.transactional_id, prepared.producer_when_completed(), known.producer_epoch
            )
        # Without partitions nobody waits for a marker.
        return prepared if prepared.partitions else prepared.completed(now)

    def _ending(self, prepared: Transaction) -> Outcome:
        return Outcome((self._record(prepared),), (), self._markers_of(prepared))

    def _markers_of(self, prepared: Transaction) -> tuple[WriteMarkers, ...]:
        partitions = self._unmarked.get(prepared.transactional_id, prepared.partitions)
        if not partitions:
            return ()
        return (
            WriteMarkers(
                prepared.transactional_id,
                prepared.producer_id,
                prepared.producer_epoch,
                self.coordinator_epoch,
                prepared.is_commit,
                prepared.client_transaction_version,
                tuple(sorted(partitions)),
            ),
        )

    # --- markers -------------------------------------------------------------------

    def markers_answered(
        self,
        written: WriteMarkers,
        codes: Mapping[TopicPartition, ErrorCode],
        now: Millis,
    ) -> Outcome:
        """What became of the markers; a partition that is not named is tried again later."""
        transactional_id = written.transactional_id
        known = self.transactions.get(transactional_id)
        unmarked = self._unmarked.get(transactional_id)
        if (
            known is None
            or unmarked is None
            or (known.producer_id, known.producer_epoch)
            != (written.producer_id, written.producer_epoch)
        ):
            return NOTHING  # of an earlier transaction: that one was told before
        for partition, code in codes.items():
            # A newer epoch in the partition has ended the transaction there already. All else is
            # tried again: a leader moves, a disk recovers, and if it is we who are fenced by a
            # newer coordinator, this shard will not live long.
            if code in (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH):
                unmarked.discard(partition)
        # Also without partitions left: the record that completes may fail to be written.
        self._timers.set((transactional_id, _MARKERS), now + RETRY_MS)
        return NOTHING if unmarked else self._completing(known, now)

    def _completing(self, prepared: Transaction, now: Millis) -> Outcome:
        return Outcome((self._record(prepared.completed(now)),))

    def pending_markers(self) -> list[WriteMarkers]:
        """Those of all prepared transactions."""
        return [
            marker
            for transactional_id in self._unmarked
            for marker in self._markers_of(self.transactions[transactional_id])
        ]

    # --- time ------------------------------------------------------------------------

    def loaded(self, now: Millis) -> Outcome:
        self._running = True
        self._timers.set(_EXPIRY, now + self._settings().expiration_interval_ms)
        for transaction in self.transactions.values():
            self._watch(transaction)
            if transaction.state in PREPARED and not transaction.partitions:
                self._timers.set((transaction.transactional_id, _MARKERS), now)
        return Outcome(effects=tuple(self.pending_markers()))

    def tick(self, now: Millis) -> Outcome:
        due = self._timers.pop_due(now)
        if due is None:
            return NOTHING
        if due == _EXPIRY:
            return self._expire(now)
        known = self.transactions.get(due[0])
        if known is None:
            return NOTHING
        if due[1] == _MARKERS and self._unmarked[known.transactional_id]:
            # No deadline: the shell answers, and that sets the next one.
            return Outcome(effects=self._markers_of(known))
        # There is a next time until the record that settles it is written.
        self._timers.set(due, now + RETRY_MS)
        return (self._time_out if due[1] == _TIMEOUT else self._completing)(known, now)

    def _time_out(self, known: Transaction, now: Millis) -> Outcome:
        try:
            return self._fence(known, now)
        except NeedsProducerId:
            return Outcome(effects=(DrawProducerId(),))

    def next_deadline(self) -> float | None:
        return self._timers.next_deadline()

    def _expire(self, now: Millis) -> Outcome:
        """Forget transactional ids that nobody used for long; a few at a time."""
        settings = self._settings()
        idle_since = now - settings.expiration_ms
        expired = [
            transaction.transactional_id
            for transaction in self.transactions.values()
            if transaction.state in AT_REST and transaction.updated_at <= idle_since
        ]
        more = len(expired) > _TOMBSTONES_MAX
        self._timers.set(_EXPIRY, now if more else now + settings.expiration_interval_ms)
        tombstones = tuple(NewRecord(key_of(each), None) for each in expired[:_TOMBSTONES_MAX])
        return Outcome(tombstones, splittable=True)

    def _watch(self, transaction: Transaction) -> None:
        """Set the deadlines that follow from a record."""
        transactional_id = transaction.transactional_id
        times_out_at = transaction.times_out_at
        if times_out_at is None:
            self._timers.cancel((transactional_id, _TIMEOUT))
        else:
            self._timers.set((transactional_id, _TIMEOUT), times_out_at)
        if transaction.state not in PREPARED:
            self._timers.cancel((transactional_id, _MARKERS))

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
        self._unmarked.pop(transactional_id, None)
        if record_value is None:
            self.transactions.pop(transactional_id, None)
            self._handed_out.pop(transactional_id, None)
            self._timers.cancel((transactional_id, _TIMEOUT))
            self._timers.cancel((transactional_id, _MARKERS))
            return
        written = self._just_written
        if written is not None and record_value is written[0]:
            transaction = written[1]
        else:
            transaction = read_value(transactional_id, record_value)
        self.transactions[transactional_id] = transaction
        if transaction.state in PREPARED:
            self._unmarked[transactional_id] = set(transaction.partitions)
        if self._running:
            self._watch(transaction)

    def replay_marker(
        self, producer_id: int, producer_epoch: int, committed: bool, offset: int
    ) -> None:
        """No record here belongs to a transaction."""

    # --- reading -------------------------------------------------------------------------

    def describe(self, ticket: Ticket, transactional_id: str, now: Millis) -> Outcome:
        known = self.transactions.get(transactional_id)
        if known is None:
            return answer(ticket, answers.not_described(transactional_id))
        unmarked = self._unmarked.get(transactional_id, known.partitions)
        return answer(ticket, answers.described(known, unmarked))

    def list_transactions(self, ticket: Ticket, wanted: Filter, now: Millis) -> Outcome:
        return answer(ticket, answers.listed(wanted.of(self.transactions.values(), now)))

    # --- what the decisions share ----------------------------------------------------------

    def producer_id_drawn(self, producer_id: ProducerId) -> None:
        self._spare_producer_ids.append(producer_id)

    def _spare_producer_id(self) -> ProducerId:
        if not self._spare_producer_ids:
            raise NeedsProducerId
        return self._spare_producer_ids.pop()

    def _record(self, transaction: Transaction) -> NewRecord:
        version = self._settings().transaction_version
        record = record_of(transaction, version)
        if version >= FLEXIBLE_RECORDS:  # older ones have no place for every field
            self._just_written = record.value, transaction
        return record

    def _remember_last_epoch(
        self,
        transactional_id: str,
        producer: tuple[ProducerId, ProducerEpoch],
        last_epoch: ProducerEpoch,
    ) -> None:
        self._handed_out[transactional_id] = _HandedOut(*producer, last_epoch)

    def _last_epoch(self, known: Transaction) -> ProducerEpoch:
        handed_out = self._handed_out.get(known.transactional_id)
        if handed_out is None or handed_out[:2] != (known.producer_id, known.producer_epoch):
            return NO_PRODUCER_EPOCH
        return handed_out.last_epoch
