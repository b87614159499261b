"""Partitions on their way from one of ``log.dirs`` to another, in the background.

Each move is a task of its own, but one at a time copies: several would only take the disks from
each other, and the threads from everybody else. A move that fails leaves the partition where it
was. One that a stop interrupts begins anew at the next start, because the folder of its copy
stays; what was copied does not.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import TopicPartition
from headrace.storage.log import Log
from headrace.storage.log_directory import LogDirectory
from headrace.storage.log_move import LogMove

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

_log = logging.getLogger(__name__)


class _Move(NamedTuple):
    relocation: LogMove
    task: "asyncio.Task[None]"

    def is_the_same(self, log: Log, target: LogDirectory) -> bool:
        return self.relocation.log is log and self.relocation.target is target

    def give_up(self) -> None:
        """Unless there is nothing to be given up any more."""
        if not self.relocation.is_switched:
            self.task.cancel()


class LogDirMoves:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._latest: dict[TopicPartition, _Move] = {}  # those before it only clear away
        self._under_way: set[_Move] = set()
        self._turn = asyncio.Lock()
        self._stopping = False

    def ask(self, log: Log, target: LogDirectory) -> None:
        """Move a log, unless that is under way; asked for another folder before, it forgets that.

        Raises Rejected if there can be no copy in the target.
        """
        if self._stopping:
            raise Rejected(ErrorCode.BROKER_NOT_AVAILABLE, "the broker stops")
        before = self._latest.get(log.topic_partition)
        if before is not None and before.is_the_same(log, target):
            return
        # First: if there can be no copy, the request before it stays.
        relocation = LogMove(log, target) if log.directory is not target else None
        if before is not None:
            before.give_up()
            del self._latest[log.topic_partition]
        if relocation is not None:
            self._begin(relocation, before)

    def _begin(self, relocation: LogMove, before: _Move | None) -> None:
        task = self._broker.loop.create_task(self._run(relocation, before))
        move = _Move(relocation, task)
        self._latest[relocation.topic_partition] = move
        self._under_way.add(move)
        task.add_done_callback(lambda _: self._ended(move))

    async def _run(self, relocation: LogMove, before: _Move | None) -> None:
        if before is not None:
            await asyncio.wait([before.task])
        async with self._turn:
            try:
                await relocation.run()
            except (Rejected, OSError) as problem:
                self._failed(relocation, problem)
        if relocation.is_switched:
            try:
                await self._broker.control.moved(
                    relocation.topic_partition, relocation.target.directory_id
                )
            except Rejected as refusal:
                _log.error(
                    "%s lies in %s, and the tree does not know of it before the next start: %s",
                    relocation.topic_partition,
                    relocation.target.path,
                    refusal,
                )

    def _failed(self, relocation: LogMove, problem: Exception) -> None:
        if relocation.is_switched:
            _log.error(
                "%s is served from %s, which did not get its proper name: %s. The next start "
                "gives it",
                relocation.topic_partition,
                relocation.path,
                problem,
            )
        elif relocation.log.closed:
            _log.info("%s: the move ends, %s", relocation.topic_partition, problem)
        else:
            _log.error(
                "%s stays in %s, because it could not be moved to %s: %s. Put that right and "
                "ask for the move again",
                relocation.topic_partition,
                relocation.source.path,
                relocation.target.path,
                problem,
            )

    def _ended(self, move: _Move) -> None:
        self._under_way.discard(move)
        relocation, task = move
        is_wanted = self._latest.get(relocation.topic_partition) is move
        if not relocation.is_switched and not (is_wanted and self._stopping):
            relocation.discard()
        if is_wanted:
            del self._latest[relocation.topic_partition]
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._broker.fail(bug)

    # --- what others ask -----------------------------------------------------

    def is_moving(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._latest

    def copies_in(self, directory: LogDirectory) -> list[LogMove]:
        """The copies that a folder holds besides its logs."""
        return [
            relocation
            for relocation, _ in self._latest.values()
            if relocation.target is directory and not relocation.is_switched
        ]

    def topics_deleted(self) -> None:
        """End the moves of logs that are no more."""
        for topic_partition, move in list(self._latest.items()):
            if move.relocation.log.closed:
                move.give_up()
                del self._latest[topic_partition]

    # --- beginning and end ---------------------------------------------------

    def resume(self) -> None:
        """Go on with what the last stop interrupted."""
        for topic_partition, target in self._broker.logs.unfinished_moves.items():
            replica = self._broker.replicas.get(*topic_partition)
            if replica is not None:
                try:
                    self.ask(replica.log, target)
                except Rejected as refusal:
                    _log.error(
                        "%s: a move that a stop interrupted does not go on: %s. Put that right "
                        "and ask for the move again",
                        topic_partition,
                        refusal,
                    )

    async def stop(self) -> None:
        """End all moves; those of which only names are missing are finished."""
        self._stopping = True
        interrupted = [move.relocation for move in self._latest.values()]
        for move in self._under_way:
            move.give_up()
        await self._all_ended()
        for relocation in interrupted:
            if not relocation.is_switched:
                await asyncio.to_thread(relocation.empty)

    async def crash(self) -> None:
        """End all moves, and leave their files as they are."""
        self._stopping = True
        for move in self._under_way:
            move.task.cancel()
        await self._all_ended()

    async def _all_ended(self) -> None:
        await asyncio.gather(*(move.task for move in self._under_way), return_exceptions=True)
