"""World: the one source of wall-clock time, randomness, files and child processes of a broker.

Monotonic time, timers, sleeps and threads come from the running event loop (its ``time()``, its
timers, its executor). Nothing else in ``broker``, ``storage``, ``net`` and ``coordination`` may
read a clock or draw a random number, so that a simulation can control both.
"""

import random
import time

from headrace.model.ids import Millis
from headrace.world.files import SystemFiles
from headrace.world.jobs import SystemJobs


class World:
    """The real machine. A simulation passes another object with the same methods."""

    def __init__(self) -> None:
        # Not seeded: ids drawn by two brokers must never be equal.
        self.dice: random.Random = random.SystemRandom()
        self.files = SystemFiles()
        self.jobs = SystemJobs()

    def now(self) -> Millis:
        """Wall-clock time; it may jump. Use the loop's time to measure waits."""
        return Millis(time.time_ns() // 1_000_000)
