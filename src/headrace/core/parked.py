"""Requests that wait: for data, for replicas, or for their time to be over.

A parked request waits on one or more keys (partitions) and has a deadline. Who holds a key says
``woken(key)`` and gets the requests to try again; the shell arms one timer for
``next_deadline()``. Kafka calls this place a purgatory.
"""

import heapq
from collections.abc import Hashable, Iterable
from itertools import count
from typing import Generic, TypeVar

R = TypeVar("R", bound=Hashable)

NEVER = float("inf")  # the deadline of a request that waits as long as it takes


class Parked(Generic[R]):
    """All and only the requests that are neither answered nor given up."""

    __slots__ = ("_keys", "_by_key", "_deadlines", "_order")

    def __init__(self) -> None:
        self._keys: dict[R, tuple[Hashable, ...]] = {}
        self._by_key: dict[Hashable, dict[R, None]] = {}  # a dict keeps the order of arrival
        # Entries of requests that are gone stay until they surface or are too many.
        self._deadlines: list[tuple[float, int, R]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, request: R) -> bool:
        return request in self._keys

    def add(self, request: R, keys: Iterable[Hashable], deadline: float) -> None:
        self._keys[request] = taken = tuple(keys)
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
        """Take it out, answered or given up; False if it was not there."""
        keys = self._keys.pop(request, None)
        if keys is None:
            return False
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

    def woken(self, key: Hashable) -> list[R]:
        """Those that wait on ``key``, longest first. They stay parked until removed."""
        waiting = self._by_key.get(key)
        return list(waiting) if waiting else []

    def all(self) -> list[R]:
        return list(self._keys)

    def next_deadline(self) -> float | None:
        deadlines = self._deadlines
        while deadlines and deadlines[0][2] not in self._keys:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def expired(self, now: float) -> list[R]:
        """Take out and return those whose time is over at ``now``, inclusive."""
        over = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now:
            request = heapq.heappop(deadlines)[2]
            if self.remove(request):
                over.append(request)
        return over
