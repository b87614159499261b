"""Produce: append batches to logs, and respond once they are written and replicated.

The requests of one connection's turn are staged first; ``finish_turn`` writes them with one write
per partition and then responds to all of them. A batch that must be opened (recompression, key
checks) is handled in a background task while its connection waits. So is a batch whose transaction
must be verified first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.broker.context import Context
from headrace.broker.handlers.transaction_verification import (
    TransactionVerification,
    may_be_appended,
)
from headrace.broker.replication.append import ACKS_ALL, ACKS_LEADER, ACKS_NONE, Appender
from headrace.broker.replication.replica import Replica
from headrace.broker.replication.waiting import Waiting
from headrace.core.leadership import Leadership
from headrace.core.parked import Event
from headrace.core.topics import is_internal
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Offset, TopicId
from headrace.net.link import Link, Slot
from headrace.records.batch import CODEC_MASK, FLAGS_AT, BadBatch, check_produced
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.wire.framing import encode_response
from headrace.wire.produce import ProduceShape, outcome_position

if TYPE_CHECKING:
    from headrace.broker.bugs import Bugs
    from headrace.broker.coordinators.markers import Codes
    from headrace.broker.coordinators.transaction import TransactionCoordinator
    from headrace.broker.replication.replica_manager import ReplicaManager
    from headrace.broker.tasks import BackgroundTasks
    from headrace.records.record import RecordFault
    from headrace.storage.validation.record_validator import RecordValidator

_log = logging.getLogger("headrace.broker")

TOPIC_ID_SINCE = 13
# Clients with this ID may write to internal topics, as in Kafka.
ADMIN_CLIENT_ID = "__admin_client"


class RememberedProduce:
    """A producer's usual request and its replica, valid while ``generation`` is current."""

    __slots__ = (
        "shape",
        "replica",
        "acks",
        "timeout_ms",
        "api_version",
        "replicas",
        "generation",
    )

    def __init__(
        self,
        shape: ProduceShape,
        replica: Replica,
        request: Any,
        api_version: int,
        replicas: "ReplicaManager",
    ) -> None:
        self.shape = shape
        self.replica = replica
        self.acks: int = request.acks
        self.timeout_ms: int = request.timeout_ms
        self.api_version = api_version
        self.replicas = replicas
        self.generation = replicas.generation


class _Outcome:
    """The result of one partition's batch.

    The defaults are class attributes, because one is created per batch and most change few.
    """

    replica: Replica | None = None
    leadership: Leadership | None = None  # in which the batch was staged
    error_code: int = ErrorCode.NONE
    error_message: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()
    base_offset: int = -1
    append_time: int = -1
    log_start: int = -1
    offset_end = Offset(-1)  # acks=all waits until the high watermark reaches it

    def refuse(self, refusal: Rejected) -> None:
        self.error_code = refusal.code
        self.error_message = refusal.message
        self.base_offset = self.append_time = self.log_start = -1
        self.offset_end = Offset(-1)

    @property
    def committed(self) -> bool:
        leadership = self.leadership
        return self.offset_end < 0 or (
            leadership is not None and leadership.high_watermark >= self.offset_end
        )

    def check_replicas_after_append(self) -> None:
        """Report an ISR that fell below min.insync.replicas while the batch waited."""
        leadership = self.leadership
        if leadership is not None and self.offset_end >= 0:
            code = leadership.acknowledgement(self.offset_end)
            if code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                self.error_code = code
                self.error_message = "there are now fewer in-sync replicas than min.insync.replicas"

    def refuse_if_lost(self, event: Event) -> None:
        """Refuse a batch that was not committed before ``event``: its records may be lost."""
        replica = self.replica
        if replica is None or self.committed:
            return
        if event is Event.DISK_OFFLINE:
            refusal = Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the disk of {replica.topic_partition} failed"
            )
        else:
            refusal = Rejected(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"this broker no longer leads {replica.topic_partition}",
            )
        self.refuse(refusal)


_LOSSES = frozenset({Event.LEADERSHIP_LOST, Event.TOPIC_DELETED, Event.DISK_OFFLINE})


class Produced:
    """One request with staged batches. With acks=all it then waits for the in-sync replicas."""

    __slots__ = ("link", "slot", "acks", "outcomes", "timeout_ms")

    def __init__(self, link: Link, acks: int, timeout_ms: int) -> None:
        self.link = link
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.outcomes: list[_Outcome] = []
        self.slot: Slot | None = None

    @property
    def committed(self) -> bool:
        for outcome in self.outcomes:  # noqa: SIM110 - all() costs as much as encoding
            if not outcome.committed:
                return False
        return True

    def written(self, failed: dict[Replica, Rejected]) -> None:
        for outcome in self.outcomes:
            if outcome.replica in failed and outcome.error_code == ErrorCode.NONE:
                outcome.refuse(failed[outcome.replica])

    def encode(self) -> list[Any]:
        raise NotImplementedError

    # --- waiting for the in-sync replicas

    def waits_for(self) -> list[Replica]:
        return [
            outcome.replica
            for outcome in self.outcomes
            if outcome.replica is not None and not outcome.committed
        ]

    def happened(self, event: Event, replica: Replica) -> bool:
        if event in _LOSSES:
            for outcome in self.outcomes:
                if outcome.replica is replica:
                    outcome.refuse_if_lost(event)
        return self.answer_if_committed()

    def answer_if_committed(self) -> bool:
        """Respond if every batch is committed or has failed."""
        if not self.committed:
            return False
        for outcome in self.outcomes:
            outcome.check_replicas_after_append()
        assert self.slot is not None
        self.slot.answer(self.encode())
        return True

    def deadline_passed(self) -> None:
        for outcome in self.outcomes:
            if not outcome.committed:
                outcome.refuse(
                    Rejected(
                        ErrorCode.REQUEST_TIMED_OUT,
                        "the in-sync replicas did not replicate the batch within the request's "
                        "timeout; the batch may still be committed",
                    )
                )
        assert self.slot is not None
        self.slot.answer(self.encode())


class _ShapedProduced(Produced):
    __slots__ = ("remembered", "correlation_id")

    def __init__(self, link: Link, remembered: RememberedProduce, correlation_id: bytes) -> None:
        super().__init__(link, remembered.acks, remembered.timeout_ms)
        self.remembered = remembered
        self.correlation_id = correlation_id

    def encode(self) -> list[Any]:
        outcome = self.outcomes[0]
        if outcome.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return self._encode_with_leader()
        return [
            self.remembered.shape.answer(
                self.correlation_id,
                outcome.error_code,
                outcome.base_offset,
                outcome.append_time,
                outcome.log_start,
            )
        ]

    def _encode_with_leader(self) -> list[Any]:
        """The shape has no place for the current leader."""
        remembered, request = self.remembered, m.ProduceRequest
        (topic, partition), topic_id = (
            remembered.replica.topic_partition,
            remembered.replica.topic_id,
        )
        data = request.TopicProduceData(
            name=topic,
            topic_id=topic_id,
            partition_data=[request.PartitionProduceData(index=partition)],
        )
        response = _response(
            [data],
            self.outcomes,
            remembered.replicas,
            self.link.listener_name,
            remembered.api_version,
        )
        correlation_id = int.from_bytes(self.correlation_id, "big", signed=True)
        return [encode_response(ApiKey.PRODUCE, remembered.api_version, correlation_id, response)]


class _FullProduced(Produced):
    __slots__ = ("context", "request", "replicas")

    def __init__(
        self, link: Link, context: Context, request: Any, replicas: "ReplicaManager"
    ) -> None:
        super().__init__(link, request.acks, request.timeout_ms)
        self.context = context
        self.request = request
        self.replicas = replicas

    def encode(self) -> list[Any]:
        context = self.context
        response = _response(
            self.request.topic_data,
            self.outcomes,
            self.replicas,
            context.listener,
            context.api_version,
        )
        return [
            encode_response(context.api_key, context.api_version, context.correlation_id, response)
        ]


def _response(
    topic_data: Iterable[Any],
    outcomes: Iterable[_Outcome],
    replicas: "ReplicaManager",
    listener: str,
    api_version: int,
) -> m.ProduceResponse:
    response = m.ProduceResponse
    topics, leaders = [], []
    next_outcome = iter(outcomes)
    for topic in topic_data:
        partitions = []
        for data in topic.partition_data:
            outcome = next(next_outcome)
            answer = response.PartitionProduceResponse(
                index=data.index,
                error_code=outcome.error_code,
                base_offset=outcome.base_offset,
                log_append_time_ms=outcome.append_time,
                log_start_offset=outcome.log_start,
                record_errors=[
                    response.BatchIndexAndErrorMessage(
                        batch_index=index, batch_index_error_message=message
                    )
                    for index, message in outcome.record_errors
                ],
                error_message=outcome.error_message,
            )
            if outcome.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                ref = topic.name if api_version < TOPIC_ID_SINCE else topic.topic_id
                known = replicas.leader_of(ref, data.index)
                if known is not None:
                    leaders.append(known[0])
                    answer.current_leader = response.LeaderIdAndEpoch(
                        leader_id=known[0], leader_epoch=known[1]
                    )
            partitions.append(answer)
        topics.append(
            response.TopicProduceResponse(
                name=topic.name, topic_id=topic.topic_id, partition_responses=partitions
            )
        )
    endpoints = [
        response.NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
        for node_id, host, port, rack in replicas.endpoints_of(leaders, listener)
    ]
    return response(responses=topics, node_endpoints=endpoints)


class Producing:
    """The Produce requests of one broker."""

    def __init__(
        self,
        replicas: "ReplicaManager",
        appender: Appender,
        waiting: Waiting,
        transactions: "TransactionCoordinator",
        tasks: "BackgroundTasks",
        bugs: "Bugs",
    ) -> None:
        self._replicas = replicas
        self._appender = appender
        self._waiting = waiting
        self._transactions = transactions
        self._tasks = tasks
        self._bugs = bugs
        self._turn: list[Produced] = []
        self._validator: RecordValidator | None = None

    @property
    def turn_open(self) -> bool:
        return bool(self._turn)

    # --- staging -------------------------------------------------------------

    def shaped(
        self, link: Link, remembered: RememberedProduce, correlation_id: bytes, records: memoryview
    ) -> bool:
        """Stage a request of the remembered shape; False if it must be decoded instead."""
        replica = remembered.replica
        if replica.must_unpack(records) or not may_be_appended(replica, records):
            return False
        produced = _ShapedProduced(link, remembered, correlation_id)
        outcome = _Outcome()
        try:
            self._stage(replica, records, remembered.acks, outcome, remembered.api_version)
        except Rejected:
            return False  # ``full`` responds with the error and its message
        produced.outcomes.append(outcome)
        self._turn.append(produced)
        return True

    def full(
        self, link: Link, context: Context, request: Any, frame: memoryview, *, is_known: bool
    ) -> None:
        """Stage a decoded request; ``is_known`` if its shape is remembered already."""
        produced = _FullProduced(link, context, request, self._replicas)
        staged: list[tuple[_Outcome, Replica, memoryview]] = []
        opening: list[tuple[_Outcome, Replica, bytearray]] = []
        for topic in request.topic_data:
            for data in topic.partition_data:
                outcome = _Outcome()
                produced.outcomes.append(outcome)
                try:
                    replica = self._find(context, request, topic, data)
                    if replica.must_unpack(data.records):
                        opening.append((outcome, replica, bytearray(data.records)))
                    else:
                        staged.append((outcome, replica, data.records))
                except Rejected as refusal:
                    outcome.refuse(refusal)
        batches = [(replica, records) for _, replica, records in staged]
        batches += [(replica, memoryview(records)) for _, replica, records in opening]
        verification = TransactionVerification(
            self._transactions, context, request.transactional_id, batches
        )
        codes: Codes | Awaitable[Codes] = {} if opening else verification.ask()
        if opening or isinstance(codes, Awaitable):
            self.finish_turn()
            produced.slot = link.hold()
            # Copy the records: the receive buffer may go to another link before the task runs.
            copies = [
                (outcome, replica, bytearray(records)) for outcome, replica, records in staged
            ]
            self._tasks.spawn(
                self._append_later(produced, opening, copies, context, verification, codes)
            )
            return
        for outcome, replica, records in staged:
            unverified = verification.refusal(replica, records, codes)
            if unverified is not None:
                outcome.refuse(unverified)
            else:
                self._stage_or_refuse(replica, records, produced.acks, outcome, context)
        self._turn.append(produced)
        # A second topic, even without partitions, makes the shape unusual.
        is_single = len(request.topic_data) == len(produced.outcomes) == 1
        if is_single and staged and not is_known:
            self._remember(link, context, request, frame, staged[0][1])

    def _find(self, context: Context, request: Any, topic: Any, data: Any) -> Replica:
        replicas = self._replicas
        if context.api_version >= TOPIC_ID_SINCE:
            replica = replicas.get_by_id(TopicId(bytes(topic.topic_id)), data.index)
        else:
            replica = replicas.get(topic.name, data.index)
        if replica is None:
            raise replicas.unhosted(
                topic.name if context.api_version < TOPIC_ID_SINCE else topic.topic_id, data.index
            )
        if data.records is None or not len(data.records):
            raise Rejected(
                ErrorCode.INVALID_RECORD,
                f"no records for {replica.topic_partition}; a produce request must have "
                "exactly one batch per partition",
            )
        if request.acks not in (ACKS_ALL, ACKS_NONE, ACKS_LEADER):
            raise Rejected(
                ErrorCode.INVALID_REQUIRED_ACKS,
                f"acks={request.acks}: expected -1 (all), 0 (none) or 1 (leader)",
            )
        if is_internal(replica.topic_partition.topic) and context.client_id != ADMIN_CLIENT_ID:
            raise Rejected(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{replica.topic_partition.topic} is an internal topic; only the broker may write "
                "to it",
            )
        return replica

    def _stage(
        self, replica: Replica, records: memoryview, acks: int, outcome: _Outcome, api_version: int
    ) -> None:
        appended = self._appender.stage(replica, records, acks, api_version)
        outcome.replica = replica
        outcome.base_offset = appended.base_offset
        outcome.append_time = appended.append_time
        outcome.log_start = appended.log_start
        if acks == ACKS_ALL:
            outcome.leadership = replica.leadership
            outcome.offset_end = Offset(appended.last_offset + 1)

    def _stage_or_refuse(
        self,
        replica: Replica,
        records: memoryview,
        acks: int,
        outcome: _Outcome,
        context: Context,
    ) -> None:
        try:
            self._stage(replica, records, acks, outcome, context.api_version)
        except Rejected as refusal:
            outcome.refuse(refusal)
            reason, partition = str(refusal), str(replica.topic_partition)
            _log.info(
                "Refused a batch from %s: %s",
                context.described_client(),
                reason if partition in reason else f"{partition}: {reason}",
            )

    def _remember(
        self, link: Link, context: Context, request: Any, frame: memoryview, replica: Replica
    ) -> None:
        """Remember the shape of this request and its response for the client's next request."""
        topic = request.topic_data[0]
        records = topic.partition_data[0].records
        shape = ProduceShape(frame, context.api_version, records)
        name_size = len(topic.name.encode()) if context.api_version < TOPIC_ID_SINCE else 0
        template = _FullProduced(link, context, request, self._replicas)
        template.outcomes.append(_Outcome())
        shape.learn_answer(
            bytes(template.encode()[0]), outcome_position(context.api_version, name_size)
        )
        link.state.remembered_produce = RememberedProduce(
            shape, replica, request, context.api_version, self._replicas
        )

    # --- batches that must be opened or verified -----------------------------

    async def _append_later(
        self,
        produced: _FullProduced,
        opening: list[tuple[_Outcome, Replica, bytearray]],
        copies: list[tuple[_Outcome, Replica, bytearray]],
        context: Context,
        verification: TransactionVerification,
        codes: "Codes | Awaitable[Codes]",
    ) -> None:
        ready = [(outcome, replica, memoryview(records)) for outcome, replica, records in copies]
        try:
            ready += await self._open_all(opening, context.api_version)
        except Exception as error:  # noqa: BLE001 - a bug, and nothing has been appended yet
            self._answer_bug(produced, error)
            return
        if opening:
            codes = verification.ask()
        if isinstance(codes, Awaitable):
            codes = await codes
        for outcome, replica, view in ready:
            unverified = verification.refusal(replica, view, codes)
            if unverified is not None:
                outcome.refuse(unverified)
            else:
                self._stage_or_refuse(replica, view, produced.acks, outcome, context)
        failed, unflushed = self._appender.write_staged()
        produced.written(failed)
        await self._flush_and_answer([produced], unflushed)

    async def _open_all(
        self, opening: list[tuple[_Outcome, Replica, bytearray]], api_version: int
    ) -> list[tuple[_Outcome, Replica, memoryview]]:
        """The valid batches, opened; the outcomes of the others get the error."""
        opened = []
        for outcome, replica, records in opening:
            try:
                check_produced(memoryview(records), api_version)
                content, faults = await self._open_batch(replica, records)
            except Rejected as refusal:
                outcome.refuse(refusal)
                continue
            except BadBatch as bad:
                outcome.refuse(Rejected(bad.code, f"{replica.topic_partition}: {bad.reason}"))
                continue
            if faults:
                outcome.refuse(
                    Rejected(faults[0].code, f"the batch has {len(faults)} invalid records")
                )
                outcome.record_errors = [(fault.record_index, fault.message) for fault in faults]
            else:
                opened.append((outcome, replica, memoryview(content)))
        return opened

    async def _open_batch(
        self, replica: Replica, records: bytearray
    ) -> "tuple[bytearray, list[RecordFault]]":
        """Validate and recompress one batch; returns the batch and the faults found in it."""
        # Imported here: most brokers never open a batch.
        from headrace.records.record import recompress
        from headrace.storage.validation.record_validator import RecordValidator

        compacted = "compact" in replica.log.config.cleanup_policy
        if replica.opens_batches:
            if self._validator is None:
                self._validator = RecordValidator(replica.log.directory.world.jobs)
            faults = await self._validator.check(records, compacted=compacted)
            if faults:
                return records, faults
        codec = replica.codec_wanted
        if codec is not None and records[FLAGS_AT] & CODEC_MASK != codec:
            # A thread is enough: only native code processes the records.
            return bytearray(
                await asyncio.to_thread(recompress, records, codec, replica.codec_level)
            ), []
        return records, []

    async def close(self) -> None:
        if self._validator is not None:
            await self._validator.close()

    # --- responding ----------------------------------------------------------

    def finish_turn(self) -> None:
        """Write all staged batches, then respond in the order of the requests."""
        turn, self._turn = self._turn, []
        failed, unflushed = self._appender.write_staged()
        if failed:
            for produced in turn:
                produced.written(failed)
        if unflushed:
            for produced in turn:
                produced.slot = produced.link.later()
            self._tasks.spawn(self._flush_and_answer(turn, unflushed))
            return
        for produced in turn:
            self._answer_or_park(produced)

    async def _flush_and_answer(
        self, turn: list[Produced], unflushed: dict[Replica, Offset]
    ) -> None:
        """Acknowledge batches that ``flush.messages`` wants durable, after an fsync."""
        failed = await self._appender.flush(unflushed)
        for replica in failed:
            self._appender.flush_later(replica)  # the log keeps the records, so retry the fsync
        for produced in turn:
            produced.written(failed)
            self._answer_or_park(produced)
        self._waiting.serve()

    def _answer_or_park(self, produced: Produced) -> None:
        link = produced.link
        if produced.acks == ACKS_NONE:
            self._end_unacknowledged(produced)
        elif produced.committed:
            if produced.slot is None:
                link.answer(produced.encode())
            else:
                produced.slot.answer(produced.encode())
        else:
            if produced.slot is None:
                produced.slot = link.later()
            self._park(produced)

    def _park(self, produced: Produced) -> None:
        # If leadership was lost during the fsync, the waiter has missed that event.
        for outcome in produced.outcomes:
            replica = outcome.replica
            if replica is not None and replica.leadership is not outcome.leadership:
                outcome.refuse_if_lost(Event.LEADERSHIP_LOST)
        if not produced.answer_if_committed():
            self._waiting.park(produced, produced.waits_for(), produced.timeout_ms)

    def _answer_bug(self, produced: _FullProduced, error: Exception) -> None:
        frame = self._bugs.frame(produced.link, produced.context, produced.request, error)
        assert produced.slot is not None
        produced.slot.answer([frame] if produced.acks != ACKS_NONE else ())

    def _end_unacknowledged(self, produced: Produced) -> None:
        """Close the connection if a batch failed: acks=0 has no response to report it in."""
        for outcome in produced.outcomes:
            if outcome.error_code != ErrorCode.NONE:
                _log.info(
                    "Closing the connection from %s: its batch with acks=0 failed: %s",
                    produced.link,
                    outcome.error_message,
                )
                produced.link.close_when_sent()
                break
        if produced.slot is not None:
            produced.slot.answer(())
