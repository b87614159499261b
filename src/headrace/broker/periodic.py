"""Periodic tasks: retention, flushes, checkpoints, compaction, idle clients.

Each task is a loop: it waits, reads its settings again, because they may have changed, and does
one round over all hosted partitions, led or not. A round pauses regularly to let requests run.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from headrace.broker.handlers import load_all
from headrace.broker.needs import (
    NeedsConfig,
    NeedsConnections,
    NeedsLogDirs,
    NeedsReplicas,
    NeedsToFail,
    NeedsWorld,
)
from headrace.broker.replication.replica import Replica
from headrace.model.errors import Corrupt, Rejected
from headrace.storage.log_retention import (
    DELETED_AT_ONCE_MAX,
    apply_retention,
    learn_times,
)

if TYPE_CHECKING:
    from headrace.storage.compaction.log_cleaner import LogCleaner

_log = logging.getLogger("headrace.broker")

_SEGMENTS_PER_STEP = 100  # visited without a pause
_NEVER_MS = 2**62
_LOAD_HANDLERS_AFTER_S = 0.5  # so that loading does not delay the first requests
_WAIT_S_MAX = 3600  # until the interval is read again


class Needs(
    NeedsConfig,
    NeedsConnections,
    NeedsLogDirs,
    NeedsReplicas,
    NeedsToFail,
    NeedsWorld,
    Protocol,
):
    """What the periodic tasks use of the broker."""


class PeriodicTasks:
    def __init__(self, broker: Needs, *, segments_per_step: int = _SEGMENTS_PER_STEP) -> None:
        self._broker = broker
        self._segments_per_step = segments_per_step
        self._tasks: list[asyncio.Task[None]] = []
        self._compaction: LogCleaner | None = None
        self._settings_changed = asyncio.Event()

    def start(self) -> None:
        self._broker.dynamic_config.on_change(lambda config: self._wake_disabled())
        self._broker.replicas.on_change(self._wake_disabled)
        rounds: list[tuple[Callable[[], int], Callable[[], Awaitable[None]]]] = [
            (self._setting("log.retention.check.interval.ms"), self.retain),
            (self._flush_interval_ms, self.flush),
            (self._setting("replica.high.watermark.checkpoint.interval.ms"), self.checkpoint),
            (self._setting("producer.id.expiration.check.interval.ms"), self.expire_producers),
            (self._idle_check_interval_ms, self.close_idle),
            (self._setting("log.cleaner.backoff.ms"), self.compact),
        ]
        for interval_ms, work in rounds:
            self._tasks.append(asyncio.create_task(self._repeat(interval_ms, work)))
        self._tasks.append(asyncio.create_task(self._load_handlers()))

    async def _load_handlers(self) -> None:
        await asyncio.sleep(_LOAD_HANDLERS_AFTER_S)
        await load_all()

    def _setting(self, name: str) -> Callable[[], int]:
        return lambda: self._broker.config.int(name)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(
        self, interval_ms: Callable[[], int], work: Callable[[], Awaitable[None]]
    ) -> None:
        loop = self._broker.loop
        waits_since = loop.time()
        while True:
            wait_ms = interval_ms()
            if wait_ms >= _NEVER_MS:
                await self._settings_changed.wait()
                waits_since = loop.time()
                continue
            wait_s = waits_since + wait_ms / 1000 - loop.time()
            if wait_s > _WAIT_S_MAX:
                await asyncio.sleep(_WAIT_S_MAX)
                continue
            await asyncio.sleep(wait_s)
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - a bug, and the state of files is unknown
                self._broker.fail(error)
                return
            waits_since = loop.time()

    def _wake_disabled(self) -> None:
        """Let tasks without an interval read it again: a topic may have got flush.ms."""
        self._settings_changed.set()
        self._settings_changed = asyncio.Event()

    async def _hosted(self) -> AsyncIterator[Replica]:
        """All hosted partitions whose disk works, with pauses that let requests run."""
        segment_count = 0
        for replica in self._broker.replicas.online():
            segment_count += len(replica.log.segments)
            if segment_count >= self._segments_per_step:
                segment_count = 0
                await asyncio.sleep(0)
            if not replica.is_gone:
                yield replica

    # --- rounds --------------------------------------------------------------

    async def retain(self) -> None:
        async for replica in self._hosted():
            try:
                await learn_times(replica.log)
                while not replica.log.closed:
                    now = self._broker.world.now()
                    expiry = apply_retention(replica.log, replica.high_watermark, now)
                    if expiry.segment_count <= DELETED_AT_ONCE_MAX:
                        break
                    await asyncio.sleep(0)
            except Rejected as later:
                _log.info(
                    "Retention of %s postponed to the next round: %s",
                    replica.topic_partition,
                    later,
                )
            except (Corrupt, OSError) as problem:
                replica.unreadable(problem)

    async def compact(self) -> None:
        """Clean the dirtiest log, in a child process, until no log is dirty enough."""
        # Imported here: it is first needed seconds after the start.
        from headrace.storage.compaction.log_cleaner import CleanerSettings, LogCleaner

        if self._compaction is None:
            self._compaction = LogCleaner()
        # Read the setting each time: under a steady load this loop may run for days.
        while (config := self._broker.config).bool("log.cleaner.enable"):
            logs = [
                (replica.log, replica.log.last_stable_offset(replica.high_watermark))
                for replica in self._broker.replicas.online()
                if "compact" in replica.log.config.cleanup_policy
                # As in Kafka: compaction would force a copy in progress to start over.
                and not self._broker.moves.is_moving(replica.topic_partition)
            ]
            settings = CleanerSettings.of(config)
            if not await self._compaction.clean_dirtiest(logs, settings, self._broker.world.now()):
                return

    def _flush_interval_ms(self) -> int:
        """How often to look for logs to flush because of ``flush.ms``."""
        shortest = min((log.config.flush_ms for log in self._broker.logs), default=_NEVER_MS)
        scheduled = self._broker.config.int("log.flush.scheduler.interval.ms")
        return min(max(shortest, 10), scheduled, 1000 if shortest < _NEVER_MS else scheduled)

    async def flush(self) -> None:
        async for replica in self._hosted():
            if replica.log.flusher.turn.locked():
                continue  # a flush or a move has it; a move may take long, and other logs are due
            if replica.log.flusher.needs_flush(self._broker.world.now()):
                try:
                    await replica.log.flusher.flush()
                except OSError as error:
                    replica.log.directory.partition_failed(error)

    async def checkpoint(self) -> None:
        async for replica in self._hosted():
            self._broker.logs.note_offsets(replica.log, replica.high_watermark)
        self._broker.logs.checkpoint_noted()

    async def expire_producers(self) -> None:
        async for replica in self._hosted():
            replica.log.producers.expire(self._broker.world.now())

    def _idle_check_interval_ms(self) -> int:
        idle_ms = self._broker.config.int("connections.max.idle.ms")
        return max(100, min(idle_ms // 4, 60_000)) if idle_ms > 0 else _NEVER_MS

    async def close_idle(self) -> None:
        idle_ms = self._broker.config.int("connections.max.idle.ms")
        too_long_ago = self._broker.loop.time() - idle_ms / 1000
        for link in list(self._broker.limits.links):
            if link.active_at < too_long_ago:
                _log.info(
                    "Closing the connection from %s: idle for more than connections.max.idle.ms",
                    link,
                )
                link.close()
