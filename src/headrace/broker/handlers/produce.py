"""Produce: append batches to logs, and respond once they are written and replicated.

The requests of one connection's turn are staged first; ``finish_turn`` writes them with one write
per partition and then responds to all of them. A batch that must be opened (recompression, key
checks) is handled in a background task while its connection waits. So is a batch whose transaction
must be verified first.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from headrace.broker.context import Context
from headrace.broker.handlers.produced import (
    TOPIC_ID_SINCE,
    FullProduced,
    Outcome,
    Produced,
    RememberedProduce,
    ShapedProduced,
)
from headrace.broker.handlers.transaction_verification import (
    TransactionVerification,
    may_be_appended,
)
from headrace.broker.replication.append import ACKS_ALL, ACKS_LEADER, ACKS_NONE, Appender
from headrace.broker.replication.replica import Replica
from headrace.broker.replication.waiting import Waiting
from headrace.core.parked import Event
from headrace.core.topics import is_internal
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Offset, TopicId
from headrace.net.link import Link
from headrace.records.batch import CODEC_MASK, FLAGS_AT, BadBatch, check_produced
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

# Clients with this ID may write to internal topics, as in Kafka.
ADMIN_CLIENT_ID = "__admin_client"


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
        produced = ShapedProduced(link, remembered, correlation_id)
        outcome = Outcome()
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
        produced = FullProduced(link, context, request, self._replicas)
        staged: list[tuple[Outcome, Replica, memoryview]] = []
        opening: list[tuple[Outcome, Replica, bytearray]] = []
        for topic in request.topic_data:
            for data in topic.partition_data:
                outcome = Outcome()
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
        self, replica: Replica, records: memoryview, acks: int, outcome: Outcome, api_version: int
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
        outcome: Outcome,
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
        template = FullProduced(link, context, request, self._replicas)
        template.outcomes.append(Outcome())
        shape.learn_answer(
            bytes(template.encode()[0]), outcome_position(context.api_version, name_size)
        )
        link.state.remembered_produce = RememberedProduce(
            shape, replica, request, context.api_version, self._replicas
        )

    # --- batches that must be opened or verified -----------------------------

    async def _append_later(
        self,
        produced: FullProduced,
        opening: list[tuple[Outcome, Replica, bytearray]],
        copies: list[tuple[Outcome, Replica, bytearray]],
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
            codes = await verification.wait(self._waiting, codes)
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
        self, opening: list[tuple[Outcome, Replica, bytearray]], api_version: int
    ) -> list[tuple[Outcome, Replica, memoryview]]:
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

    def _answer_bug(self, produced: FullProduced, error: Exception) -> None:
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
