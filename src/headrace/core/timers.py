"""Deadlines that move: each has a name, and most are pushed back before they come.

A heartbeat moves its member's deadline and comes a thousand times before one is missed. So a
deadline that moves back costs one dictionary entry; its place in the heap is corrected only when
it surfaces there.
"""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    __slots__ = ("_at", "_heap", "_order", "_queued_at")

    def __init__(self) -> None:
        self._at: dict[K, float] = {}  # all and only the deadlines that are set
        # Every name in ``_at`` is in the heap at its ``_queued_at``, which is no later than its
        # deadline. Entries of other times are left over and count for nothing.
        self._queued_at: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, name: K) -> bool:
        return name in self._at

    def at(self, name: K) -> float | None:
        return self._at.get(name)

    def set(self, name: K, at: float) -> None:
        """Set or move a deadline."""
        self._at[name] = at
        queued_at = self._queued_at.get(name)
        if queued_at is None or at < queued_at:
            self._push(name, at)

    def cancel(self, name: K) -> None:
        """Take a deadline back; nothing happens if there is none of that name."""
        self._at.pop(name, None)

    def next_deadline(self) -> float | None:
        """The earliest deadline, or an earlier moment at which to ask again."""
        heap = self._heap
        while heap:
            queued_at, _, name = heap[0]
            if self._queued_at.get(name) != queued_at:
                heapq.heappop(heap)  # left over
            elif name not in self._at:
                heapq.heappop(heap)
                del self._queued_at[name]
            else:
                return queued_at
        return None

    def pop_due(self, now: float) -> K | None:
        """Take out one deadline that is at or before ``now``, the earliest; None if none is."""
        while (queued_at := self.next_deadline()) is not None and queued_at <= now:
            name = heapq.heappop(self._heap)[2]
            del self._queued_at[name]
            at = self._at[name]
            if at <= now:
                del self._at[name]
                return name
            self._push(name, at)
        return None

    def _push(self, name: K, at: float) -> None:
        self._queued_at[name] = at
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, name))
