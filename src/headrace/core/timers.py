"""Named deadlines that move: most are postponed before they expire.

A heartbeat postpones its member's deadline, and thousands arrive before one is missed. Postponing
a deadline therefore costs one dictionary entry; its place in the heap is corrected only when it
reaches the top.
"""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """At most one deadline per name."""

    __slots__ = ("_at", "_heap", "_order", "_queued_at")

    def __init__(self) -> None:
        self._at: dict[K, float] = {}  # all and only the current deadlines
        # Every name in ``_at`` is in the heap at its ``_queued_at``, which is no later than its
        # deadline. Heap entries with other times are stale.
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
        """Remove a deadline, if there is one of that name."""
        self._at.pop(name, None)

    def next_deadline(self) -> float | None:
        """The earliest deadline, or an earlier time at which to ask again."""
        heap = self._heap
        while heap:
            queued_at, _, name = heap[0]
            if self._queued_at.get(name) != queued_at:
                heapq.heappop(heap)  # stale
            elif name not in self._at:
                heapq.heappop(heap)
                del self._queued_at[name]
            else:
                return queued_at
        return None

    def pop_due(self, now: float) -> K | None:
        """Remove the earliest deadline at or before ``now`` and return its name; else None."""
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
