"""Appends by the leader: check leadership and ISR, stage, write, and flush if required.

Produce stages the batches of a client's turn (``stage``) and writes them together
(``write_staged``). Coordinators append a single batch of records or a marker (``append``). Either
way the batch is committed once the high watermark reaches its end; ``waiting`` reports that.

Errors are those of a partition's leader: NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS,
KAFKA_STORAGE_ERROR and the errors of an invalid batch. Coordinators translate them.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.broker.replication.effects import Effects
from headrace.broker.replication.waiting import Waiting
from headrace.core.parked import Event
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, Offset
from headrace.storage.log import COORDINATOR, Appended

if TYPE_CHECKING:
    from headrace.broker.replication.replica import Replica
    from headrace.broker.tasks import BackgroundTasks
    from headrace.world.world import World

ACKS_ALL, ACKS_NONE, ACKS_LEADER = -1, 0, 1
_FLUSH_TRIES = 3
_FLUSH_AGAIN_AFTER_S = 1


class Appender:
    def __init__(
        self, world: "World", waiting: Waiting, effects: Effects, tasks: "BackgroundTasks"
    ) -> None:
        self._world = world
        self._waiting = waiting
        self._effects = effects
        self._tasks = tasks
        self.staged: dict[Replica, None] = {}  # the replicas with staged batches
        self._flushing: dict[Replica, None] = {}

    # --- produced batches ----------------------------------------------------

    def stage(
        self, replica: "Replica", records: memoryview, acks: int, produce_version: int
    ) -> Appended:
        """Stage one produced batch; ``write_staged`` writes it."""
        leadership = replica.require_leadership()
        if acks == ACKS_ALL and not leadership.enough_replicas:
            raise _not_enough_replicas(replica)
        appended = replica.log.append_as_leader(
            records, leadership.leader_epoch, self._world.now(), produce_version=produce_version
        )
        self.staged[replica] = None
        return appended

    def forget(self, replica: "Replica") -> None:
        """The partition is deleted, with its staged batches."""
        self.staged.pop(replica, None)

    def write_staged(self) -> tuple[dict["Replica", Rejected], dict["Replica", Offset]]:
        """Write every staged batch.

        Returns the partitions that could not be written, with the error, and the partitions whose
        records are committed only after a ``flush``, with the exclusive end offset to flush to.
        """
        failed: dict[Replica, Rejected] = {}
        unflushed: dict[Replica, Offset] = {}
        staged, self.staged = self.staged, {}
        for replica in staged:
            try:
                if self._write(replica):
                    unflushed[replica] = replica.log.log_end
            except Rejected as refusal:
                failed[replica] = refusal
        return failed, unflushed

    # --- batches of coordinators ---------------------------------------------

    def append(
        self, replica: "Replica", batch: bytearray, now: Millis, *, transaction_version: int = 0
    ) -> Appended:
        """Append one batch of a coordinator, as with acks=all."""
        leadership = replica.require_leadership()
        if not leadership.enough_replicas:
            raise _not_enough_replicas(replica)
        appended = replica.log.append_as_leader(
            memoryview(batch),
            leadership.leader_epoch,
            now,
            origin=COORDINATOR,
            transaction_version=transaction_version,
        )
        if self._write(replica):
            self.flush_later(replica)
        if leadership.followers:
            # A coordinator waits for its followers, which wait for this batch.
            self._waiting.serve_soon()
        return appended

    def _write(self, replica: "Replica") -> bool:
        """Write the staged batches; True if the records are committed only after an fsync."""
        log, leadership = replica.log, replica.leadership
        log.write_staged()
        if leadership is None:
            return False
        if leadership.followers:
            self._waiting.happened(replica, Event.LOG_END)
        effects = leadership.appended(log.log_end, log.flusher.recovery_point)
        self._effects.carry_out(replica, effects)
        return leadership.log_end < log.log_end

    # --- flushing ------------------------------------------------------------

    async def flush(self, unflushed: Mapping["Replica", Offset]) -> dict["Replica", Rejected]:
        """Make records durable; returns the partitions that were not flushed, with the error."""
        ends = unflushed.items()
        await asyncio.gather(*(self._flush_until(replica, end) for replica, end in ends))
        return {
            replica: Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{replica.topic_partition} could not be flushed, as flush.messages requires",
            )
            for replica, end in ends
            if replica.log.flusher.recovery_point < end
        }

    def flush_later(self, replica: "Replica") -> None:
        """Flush in the background; waiters see a higher high watermark afterwards."""
        if replica not in self._flushing:
            self._flushing[replica] = None
            self._tasks.spawn(self._flush_all_of(replica))

    async def _flush_all_of(self, replica: "Replica") -> None:
        # Retry without a limit: a marker waits for its fsync without a deadline.
        while replica.awaits_flush:
            await self.flush({replica: replica.log.log_end})
            self._waiting.serve()
        self._flushing.pop(replica, None)

    async def _flush_until(self, replica: "Replica", offset_end: Offset) -> None:
        """Return once the records are durable, or after the last retry.

        A flush may fail because no file descriptor is left. It is retried, because the records
        stay in the log: a client that gets an error could reuse their sequence numbers for other
        records, and the broker would take those for duplicates.
        """
        log = replica.log
        for tries_left in reversed(range(_FLUSH_TRIES)):
            if replica.is_gone or log.flusher.recovery_point >= offset_end:
                break
            try:
                await log.flusher.flush()
            except OSError as error:
                log.directory.partition_failed(error)
            if log.flusher.recovery_point < offset_end and tries_left and not replica.is_gone:
                await asyncio.sleep(_FLUSH_AGAIN_AFTER_S)
        leadership = replica.leadership
        if leadership is not None:
            effects = leadership.appended(log.log_end, log.flusher.recovery_point)
            self._effects.carry_out(replica, effects)


def _not_enough_replicas(replica: "Replica") -> Rejected:
    leadership = replica.require_leadership()
    return Rejected(
        ErrorCode.NOT_ENOUGH_REPLICAS,
        f"{replica.topic_partition} has {leadership.insync_count} in-sync replicas; "
        f"min.insync.replicas is {leadership.insync_required}",
    )
