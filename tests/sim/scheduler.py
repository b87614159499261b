"""A heap of things to do at a time, and one source of dice: a run is a function of its seed."""

import heapq
import random


class Scheduler:
    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.now = 0.0  # ms
        self._heap = []
        self._count = 0

    def after(self, delay_ms, action, *arguments):
        """Call ``action`` later; what is due at the same time keeps its order."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_ms, self._count, action, arguments))

    def run(self, until, limit_ms):
        """Run until the condition holds; False if simulated time ran out first."""
        end = self.now + limit_ms
        while not until():
            if self.now >= end:
                return False
            self.now, _, action, arguments = heapq.heappop(self._heap)
            action(*arguments)
        return True
