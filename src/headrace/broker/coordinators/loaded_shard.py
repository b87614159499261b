"""One shard of a coordinator while this broker leads its partition, and its waiting requests."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from headrace.core.leadership import Leadership
from headrace.core.outcome import Outcome, Reply, Shard, Ticket
from headrace.core.parked import NEVER
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, Offset

if TYPE_CHECKING:
    from headrace.broker.replication.replica import Replica
    from headrace.core.parked import Event

S = TypeVar("S", bound=Shard)
Tell = Callable[[S, Millis], Outcome]


class _Uncommitted(NamedTuple):
    """Replies and effects that wait until the high watermark reaches ``offset_end``.

    Replies wait until ``deadline``; effects for as long as it takes.
    """

    offset_end: Offset
    replies: tuple[Reply, ...]
    effects: tuple[object, ...]
    deadline: float


class LoadedShard(Generic[S]):
    """The shard of one partition, from the start of loading until leadership is lost.

    It waits for events of its replica and passes them to ``on_event``.
    """

    __slots__ = (
        "_on_event",
        "_queue",
        "_queued_events",
        "_run_effect",
        "_uncommitted",
        "_waiting",
        "appended_end",
        "is_loaded",
        "is_busy",
        "leadership",
        "partition",
        "problem",
        "replica",
        "shard",
    )

    def __init__(
        self,
        partition: int,
        replica: "Replica",
        leadership: Leadership,
        shard: S,
        on_event: "Callable[[LoadedShard[S], Event], bool]",
        run_effect: Callable[[int, object], None] | None,
    ) -> None:
        self.partition = partition
        self.replica = replica
        self.leadership = leadership  # another leadership needs another shard
        self.shard = shard
        self._on_event = on_event
        self._run_effect = run_effect
        self.is_loaded = False
        self.is_busy = False  # a thread or queued work changes the shard: new work must queue
        self._queue: deque[Callable[[], Awaitable[None] | None]] = deque()
        self.problem: str | None = None  # why it could not be loaded
        self.appended_end = Offset(0)  # exclusive end of the records that the shard has replayed
        self._queued_events: list[Tell[S]] = []  # that arrived while it was loading
        self._uncommitted: deque[_Uncommitted] = deque()
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}

    def is_current(self) -> bool:
        """Whether it can be asked: it is loaded, and its leadership has not changed since."""
        return self.is_loaded and self.leadership is self.replica.leadership

    @property
    def is_committed(self) -> bool:
        """Whether the high watermark has passed all records that the shard has replayed."""
        return not self._uncommitted and self.appended_end <= self.leadership.high_watermark

    @property
    def holds_back(self) -> bool:
        """Whether replies or effects wait for the high watermark."""
        return bool(self._uncommitted)

    def mark_loaded(self) -> None:
        """The shard has replayed the whole log."""
        self.is_loaded = True
        self.appended_end = self.replica.log.log_end

    def mark_unreadable(self, error: Exception) -> None:
        self.problem = f"{self.replica.topic_partition} cannot be read: {error}"

    def queue_event(self, decide: Tell[S]) -> None:
        """Keep an event until the shard is loaded."""
        self._queued_events.append(decide)

    def take_queued_events(self) -> list[Tell[S]]:
        events, self._queued_events = self._queued_events, []
        return events

    # --- the queue

    def enqueue(self, work: Callable[[], Awaitable[None] | None]) -> bool:
        """Run ``work`` after all queued work; returns whether ``run_queue`` must be called."""
        self._queue.append(work)
        was_busy, self.is_busy = self.is_busy, True
        return not was_busy

    async def run_queue(self) -> None:
        """Run queued work until none is left, or until the shard is dropped."""
        while self._queue and self.is_current():
            pending = self._queue.popleft()()
            if pending is not None:
                await pending
        self.is_busy = False

    # --- replication.waiting.Waiter

    def happened(self, event: "Event", replica: "Replica") -> bool:
        return self._on_event(self, event)

    def deadline_passed(self) -> None:
        raise AssertionError("a shard is parked without a deadline")

    # --- replies

    def future(self, ticket: Ticket) -> "asyncio.Future[Any]":
        """A future of the reply to ``ticket``."""
        future = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        return future

    def reply(self, replies: Iterable[Reply], own: Ticket | None = None) -> Any:
        """Deliver replies to the waiting requests; the reply to ``own`` is returned instead."""
        answer: Any = None
        waiting = self._waiting
        for ticket, response in replies:
            if ticket == own:
                answer = response
            elif (future := waiting.pop(ticket, None)) is not None and not future.done():
                future.set_result(response)
        return answer

    def refuse(self, replies: Iterable[Reply], error: Exception, own: Ticket | None = None) -> bool:
        """Fail the requests that wait for ``replies``; returns whether ``own`` is one of them."""
        found = False
        for ticket, _ in replies:
            if ticket == own:
                found = True
            elif (future := self._waiting.pop(ticket, None)) is not None and not future.done():
                future.set_exception(error)
        return found

    def run_effects(self, effects: Iterable[object]) -> None:
        for effect in effects:
            assert self._run_effect is not None
            self._run_effect(self.partition, effect)

    # --- replies and effects that wait for the high watermark

    def hold_back(
        self, replies: tuple[Reply, ...], effects: tuple[object, ...], deadline: float
    ) -> None:
        self._uncommitted.append(_Uncommitted(self.appended_end, replies, effects, deadline))

    def release_committed(self) -> None:
        """Deliver the replies and run the effects that the high watermark has passed."""
        queue = self._uncommitted
        while queue and queue[0].offset_end <= self.leadership.high_watermark:
            _, replies, effects, _ = queue.popleft()
            self.reply(replies)
            self.run_effects(effects)

    def refuse_overdue(self, now: Millis) -> float:
        """Refuse replies whose commit takes too long; returns the next deadline.

        The log keeps the records, and they may still be committed. The client has to retry.
        """
        overdue = Rejected(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "the in-sync replicas did not replicate the records in time",
        )
        for place, held in enumerate(self._uncommitted):
            if held.deadline > now:
                return held.deadline
            if held.replies:
                self.refuse(held.replies, overdue)
                self._uncommitted[place] = held._replace(replies=())
        return NEVER

    def drop(self, error: Rejected) -> None:
        """Drop all state; clients with waiting requests must find the coordinator again."""
        self.is_loaded = False
        self._uncommitted.clear()
        self._queue.clear()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)
