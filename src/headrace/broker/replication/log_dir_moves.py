"""Moves of partitions between log directories, in the background.

Each move is a task, but only one copies at a time: several would compete for disks and threads.
If a move fails, the partition stays in its directory. A move that a shutdown interrupts resumes
at the next start and keeps the bytes copied so far.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import TopicPartition
from headrace.storage.log import Log
from headrace.storage.log_directory import LogDirectory
from headrace.storage.log_move import LogMove
from headrace.storage.move_throttle import MoveThrottle

if TYPE_CHECKING:
    from headrace.broker.metadata.dynamic_config import DynamicConfig
    from headrace.broker.replication.replica_manager import ReplicaManager
    from headrace.storage.log_manager import LogManager

_log = logging.getLogger("headrace.replication")


class _Move(NamedTuple):
    log_move: LogMove
    task: "asyncio.Task[None]"

    def is_the_same(self, log: Log, target: LogDirectory) -> bool:
        return self.log_move.log is log and self.log_move.target is target

    def give_up(self) -> None:
        """Cancel the move, unless the log has switched to the copy already."""
        if not self.log_move.is_switched:
            self.task.cancel()


class LogDirMoves:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        logs: "LogManager",
        replicas: "ReplicaManager",
        dynamic_config: "DynamicConfig",
        moved: Callable[[TopicPartition, str], Awaitable[None]],
        fail: Callable[[BaseException], None],
    ) -> None:
        """``moved`` records the new directory of a partition in the coordination tree."""
        self._loop = loop
        self._logs = logs
        self._replicas = replicas
        self._moved = moved
        self._fail = fail
        self._latest: dict[TopicPartition, _Move] = {}  # replaced moves only clean up
        self._in_progress: dict[_Move, None] = {}
        self._turn = asyncio.Lock()
        self._stopping = False
        self._throttle = MoveThrottle(
            lambda: dynamic_config.config.int("replica.alter.log.dirs.io.max.bytes.per.second")
        )

    def request(self, log: Log, target: LogDirectory, copy: Path | None = None) -> None:
        """Move a log, unless the same move is in progress; replaces an earlier request.

        ``copy`` is the directory of an interrupted move to resume. Raises Rejected if the copy
        cannot be created in the target.
        """
        if self._stopping:
            raise Rejected(ErrorCode.BROKER_NOT_AVAILABLE, "the broker is shutting down")
        before = self._latest.get(log.topic_partition)
        if before is not None and before.is_the_same(log, target):
            return
        # First: if the copy cannot be created, the earlier request stays.
        log_move = None
        if log.directory is not target:
            log_move = LogMove(log, target, copy=copy, throttle=self._throttle)
        if before is not None:
            before.give_up()
            del self._latest[log.topic_partition]
        if log_move is not None:
            self._begin(log_move, before)

    def _begin(self, log_move: LogMove, before: _Move | None) -> None:
        task = self._loop.create_task(self._run(log_move, before))
        move = _Move(log_move, task)
        self._latest[log_move.topic_partition] = move
        self._in_progress[move] = None
        task.add_done_callback(lambda _: self._ended(move))

    async def _run(self, log_move: LogMove, before: _Move | None) -> None:
        if before is not None:
            await asyncio.wait([before.task])
        async with self._turn:
            try:
                await log_move.run()
            except (Rejected, OSError) as problem:
                self._failed(log_move, problem)
        if log_move.is_switched:
            try:
                await self._moved(log_move.topic_partition, log_move.target.directory_id)
            except Rejected as refusal:
                _log.error(
                    "%s is now in %s, but this could not be recorded in the cluster metadata: %s. "
                    "The next start records it",
                    log_move.topic_partition,
                    log_move.target.path,
                    refusal,
                )

    def _failed(self, log_move: LogMove, problem: Exception) -> None:
        if log_move.is_switched:
            _log.error(
                "%s is served from %s, which could not be renamed: %s. It will be renamed at the "
                "next start",
                log_move.topic_partition,
                log_move.path,
                problem,
            )
        elif log_move.log.closed:
            _log.info("The move of %s ended: %s", log_move.topic_partition, problem)
        else:
            _log.error(
                "%s stays in %s, because it could not be moved to %s: %s. Solve the problem and "
                "request the move again",
                log_move.topic_partition,
                log_move.source.path,
                log_move.target.path,
                problem,
            )

    def _ended(self, move: _Move) -> None:
        self._in_progress.pop(move, None)
        log_move, task = move
        is_latest = self._latest.get(log_move.topic_partition) is move
        if not log_move.is_switched and not (is_latest and self._stopping):
            log_move.discard()
        if is_latest:
            del self._latest[log_move.topic_partition]
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._fail(bug)

    # --- queries -------------------------------------------------------------

    def is_moving(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._latest

    def copies_in(self, directory: LogDirectory) -> list[LogMove]:
        """The moves whose copy is in ``directory``."""
        return [
            log_move
            for log_move, _ in self._latest.values()
            if log_move.target is directory and not log_move.is_switched
        ]

    def topics_changed(self) -> None:
        """End the moves of deleted logs."""
        for topic_partition, move in list(self._latest.items()):
            if move.log_move.log.closed:
                move.give_up()
                del self._latest[topic_partition]

    # --- start and shutdown --------------------------------------------------

    def resume(self) -> None:
        """Continue the moves that the last shutdown interrupted, if the partitions are hosted."""
        for topic_partition in list(self._logs.unfinished_moves):
            replica = self._replicas.get(*topic_partition)
            if replica is not None:
                copy = self._logs.take_unfinished_move(topic_partition)
                try:
                    self.request(replica.log, copy.directory, copy.path)
                except Rejected as refusal:
                    _log.error(
                        "Cannot resume the interrupted move of %s: %s. Solve the problem and "
                        "request the move again",
                        topic_partition,
                        refusal,
                    )

    async def stop(self) -> None:
        """End all moves; finish the moves that only need the final rename."""
        self._stopping = True
        interrupted = [move.log_move for move in self._latest.values()]
        for move in self._in_progress:
            move.give_up()
        await self._all_ended()
        for log_move in interrupted:
            if not log_move.is_switched:
                await asyncio.to_thread(log_move.suspend)

    async def crash(self) -> None:
        """End all moves, and leave their files as they are."""
        self._stopping = True
        for move in self._in_progress:
            move.task.cancel()
        await self._all_ended()

    async def _all_ended(self) -> None:
        await asyncio.gather(*(move.task for move in self._in_progress), return_exceptions=True)
