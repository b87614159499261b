"""Whether too many of the newest records are bad, so that the load must stop. Pure.

A broken producer must not drain a topic into the dead letters, and one bad record in a small batch
must not stop a load. So a share is judged over at least a hundred records: those of the batch, and
of the batches before it if it is small.
"""

from collections import deque
from typing import NamedTuple

JUDGED_MIN = 100


class Judged(NamedTuple):
    bad: int
    total: int


class BadShare:
    """The bad records of the newest batches of one load."""

    def __init__(self, share_max: float) -> None:
        self._share_max = share_max
        self._batches: deque[Judged] = deque()

    def too_many(self, bad: int, total: int) -> Judged | None:
        """The bad records and all records judged if the load must stop; None if it may go on."""
        judged = self._judged(bad, total)
        if judged.total < JUDGED_MIN or judged.bad <= self._share_max * judged.total:
            return None
        return judged

    def add(self, bad: int, total: int) -> None:
        """Remember a batch that was loaded, as long as later ones are judged with it."""
        self._batches.append(Judged(bad, total))
        while sum(one.total for one in self._batches) - self._batches[0].total >= JUDGED_MIN:
            self._batches.popleft()

    def _judged(self, bad: int, total: int) -> Judged:
        for batch in reversed(self._batches):
            if total >= JUDGED_MIN:
                break
            bad, total = bad + batch.bad, total + batch.total
        return Judged(bad, total)
