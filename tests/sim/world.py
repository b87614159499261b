"""A simulated machine: everything that a broker gets from its world comes from one seed."""

import asyncio
import random

from headrace.model.ids import Millis
from tests.sim.files import SimulatedDisk, SimulatedFiles
from tests.sim.jobs import SimulatedJobs
from tests.sim.network import SimulatedNetwork

_EPOCH_MS = 1_767_225_600_000  # 2026-01-01, when every simulation begins


def wall_clock_ns(loop: asyncio.AbstractEventLoop) -> int:
    """Wall-clock time without a skew, for disks."""
    return _EPOCH_MS * 1_000_000 + round(loop.time() * 1e9)


class SimulatedWorld:
    """One process on a host, with the methods of ``headrace.world.world.World``.

    The disk outlives it: after ``kill``, make another world with the same disk.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dice: random.Random,
        network: SimulatedNetwork,
        disk: SimulatedDisk,
        host: str,
        skew_ms: int = 0,
    ) -> None:
        """``skew_ms`` is how far its wall clock is ahead."""
        self.host = host
        # Its own, so that one host's draws do not depend on how many the others made.
        self.random = random.Random(dice.getrandbits(64))
        self.files = SimulatedFiles(disk)
        self.jobs = SimulatedJobs(self.files)
        self.network = network.host(host, self.files)
        self._loop = loop
        self._network = network
        self._skew_ms = skew_ms

    def now(self) -> Millis:
        return Millis(_EPOCH_MS + self._skew_ms + int(self._loop.time() * 1000))

    def jump_clock(self, by_ms: int) -> None:
        self._skew_ms += by_ms

    def host_name(self) -> str:
        return self.host

    def boot_id(self) -> str:
        return self.files.boot_id

    def start_threads(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop runs the work of threads inline."""

    def kill(self) -> None:
        """End the process. Its host keeps what the disk was given."""
        self._network.kill(self.host)
        self.files.kill()

    def lose_power(self) -> None:
        """As ``kill``, but the other hosts are not told. The disk loses its power separately."""
        self._network.lose_power(self.host)
        self.files.kill()
