"""Requests of a coordinator to other brokers: one in flight to each of them.

What is queued for a broker meanwhile goes into the next request to it, all at once.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from headrace.model.ids import BrokerId

if TYPE_CHECKING:
    from headrace.broker.peers import Peer
    from headrace.broker.tasks import BackgroundTasks

J = TypeVar("J")


class _Queue(Generic[J]):
    """The jobs for one broker."""

    __slots__ = ("is_sending", "jobs", "peer")

    def __init__(self, peer: "Peer") -> None:
        self.peer = peer
        self.jobs: list[J] = []
        self.is_sending = False


class Outgoing(Generic[J]):
    def __init__(
        self,
        tasks: "BackgroundTasks",
        connect: Callable[[BrokerId], "Peer"],
        exchange: "Callable[[Peer, list[J]], Awaitable[None]]",
    ) -> None:
        """``exchange`` sends jobs to a broker and gives each of them its result; it never fails."""
        self._tasks = tasks
        self._connect = connect
        self._exchange = exchange
        self._queues: dict[BrokerId, _Queue[J]] = {}

    def add(self, broker_id: BrokerId, job: J) -> None:
        """Send ``job`` to a broker, after the request that is in flight to it."""
        queue = self._queues.get(broker_id)
        if queue is None:
            queue = self._queues[broker_id] = _Queue(self._connect(broker_id))
        queue.jobs.append(job)
        if not queue.is_sending:
            queue.is_sending = True
            self._tasks.spawn(self._send_all(queue))

    async def _send_all(self, queue: _Queue[J]) -> None:
        while queue.jobs:
            jobs, queue.jobs = queue.jobs, []
            await self._exchange(queue.peer, jobs)
        queue.is_sending = False

    async def close(self) -> None:
        """Close all connections; the requests in flight fail."""
        for queue in self._queues.values():
            await queue.peer.close()


def distinct(jobs: Iterable[J], key: Callable[[J], Hashable]) -> Iterator[list[J]]:
    """The jobs in order, in as few batches as possible, no batch with two jobs of one key."""
    rest = list(jobs)
    while rest:
        batch: dict[Hashable, J] = {}
        later: list[J] = []
        for job in rest:
            if batch.setdefault(key(job), job) is not job:
                later.append(job)
        yield list(batch.values())
        rest = later
