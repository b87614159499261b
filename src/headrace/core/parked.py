"""Requests that wait: for records, for replicas, or for their deadline. Kafka calls it purgatory.

A parked request waits on one or more keys (replicas) until an event of one of them affects it:

    event                   affects
    HIGH_WATERMARK          requests that wait for it: acks=all, coordinator replies, markers,
                            fetches of uncommitted records
    LAST_STABLE_OFFSET      requests that wait for it: fetches of committed records
    LOG_END                 requests that wait for it: fetches of followers
    FOLLOWER_LOG_START      requests that wait for it: DeleteRecords
    LEADERSHIP_GAINED       every request that waits on the replica
    LEADERSHIP_LOST         every request that waits on the replica
    TOPIC_DELETED           every request that waits on the replica
    DISK_OFFLINE            every request that waits on the replica
    DEADLINE                the one request whose time is over

``Parked`` says which requests an event affects; the broker tries them again, and removes those
that it answered. The broker arms one timer for ``next_deadline()``.
"""

import heapq
from collections.abc import Hashable, Iterable
from enum import Enum, auto
from itertools import count
from typing import Generic, TypeVar

R = TypeVar("R", bound=Hashable)

NEVER = float("inf")  # the deadline of a request that waits as long as it takes


class Event(Enum):
    """An event that a parked request gets. The replica has the details."""

    HIGH_WATERMARK = auto()
    LAST_STABLE_OFFSET = auto()
    LOG_END = auto()
    FOLLOWER_LOG_START = auto()
    LEADERSHIP_GAINED = auto()
    LEADERSHIP_LOST = auto()
    TOPIC_DELETED = auto()
    DISK_OFFLINE = auto()
    DEADLINE = auto()


# Only requests that wait for such an offset are affected when it moves.
OFFSETS = frozenset(
    {Event.HIGH_WATERMARK, Event.LAST_STABLE_OFFSET, Event.LOG_END, Event.FOLLOWER_LOG_START}
)
# This broker can no longer answer for the partition.
LOSSES = frozenset({Event.LEADERSHIP_LOST, Event.TOPIC_DELETED, Event.DISK_OFFLINE})
# Read for every batch: a global name is found faster than an enumeration's attribute.
_HIGH_WATERMARK = Event.HIGH_WATERMARK


class Parked(Generic[R]):
    """All and only the requests that are neither answered nor given up."""

    __slots__ = ("_keys", "_by_key", "_deadlines", "_order", "_until")

    def __init__(self) -> None:
        self._keys: dict[R, tuple[Hashable, ...]] = {}
        self._by_key: dict[Hashable, dict[R, None]] = {}  # a dict keeps the order of arrival
        # The offset that a request waits for; all others wait for the high watermark.
        self._until: dict[R, Event] = {}
        # Entries of removed requests stay until they reach the top or are too many.
        self._deadlines: list[tuple[float, int, R]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, request: R) -> bool:
        return request in self._keys

    def add(
        self,
        request: R,
        keys: Iterable[Hashable],
        deadline: float,
        until: Event = Event.HIGH_WATERMARK,
    ) -> None:
        """Park a request until the one of ``OFFSETS`` that it names moves."""
        self._keys[request] = taken = tuple(keys)
        if until is not _HIGH_WATERMARK:
            self._until[request] = until
        for key in taken:
            waiting = self._by_key.get(key)
            if waiting is None:
                waiting = self._by_key[key] = {}
            waiting[request] = None
        if len(self._deadlines) > 64 + 4 * len(self._keys):
            self._deadlines = [entry for entry in self._deadlines if entry[2] in self._keys]
            heapq.heapify(self._deadlines)
        if deadline != NEVER:
            heapq.heappush(self._deadlines, (deadline, next(self._order), request))

    def remove(self, request: R) -> bool:
        """Remove a request that was answered or given up; False if it was not parked."""
        keys = self._keys.pop(request, None)
        if keys is None:
            return False
        if self._until:
            self._until.pop(request, None)
        for key in keys:
            waiting = self._by_key.get(key)
            if waiting is not None:
                waiting.pop(request, None)
                if not waiting:
                    del self._by_key[key]
        return True

    def has(self, key: Hashable) -> bool:
        """Whether any request waits on ``key``."""
        return key in self._by_key

    def affected_by(self, key: Hashable, event: Event) -> list[R]:
        """The requests that an event of ``key`` affects, oldest first.

        They stay parked until they are removed. DEADLINE is no event of a key: see ``expired``.
        """
        waiting = self._by_key.get(key)
        if not waiting:
            return []
        until = self._until
        if event is _HIGH_WATERMARK:
            if until:
                return [request for request in waiting if request not in until]
        elif event in OFFSETS:
            return [request for request in waiting if until.get(request) is event]
        return list(waiting)

    def all(self) -> list[R]:
        return list(self._keys)

    def next_deadline(self) -> float | None:
        deadlines = self._deadlines
        while deadlines and deadlines[0][2] not in self._keys:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def expired(self, now: float) -> list[R]:
        """Remove and return the requests whose deadline is ``now`` or earlier."""
        over = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now:
            request = heapq.heappop(deadlines)[2]
            if self.remove(request):
                over.append(request)
        return over
