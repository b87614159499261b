"""World: how a broker reaches its machine: clock, randomness, files, network, child processes.

Monotonic time, timers and sleeps come from the running event loop, and so does work for threads
(its executor). Nothing in ``broker``, ``storage``, ``net`` and ``coordination`` may use the machine
in another way, so that a simulation can control all of it.
"""

import asyncio
import errno
import os
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.model.ids import Millis
from headrace.world.files import SystemFiles
from headrace.world.jobs import SystemJobs
from headrace.world.network import Network, SystemNetwork

_THREAD_COUNT = min(32, (os.cpu_count() or 1) + 4)  # as many as asyncio would start over time
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # Linux
MORE_THREADS = "Raise the limit on processes and threads (ulimit -u, or pids of the container)"


class World:
    """The real machine. A simulation passes another object with the same methods."""

    def __init__(self) -> None:
        # Not seeded: ids drawn by two brokers must never be equal.
        self.random: random.Random = random.SystemRandom()
        self.files = SystemFiles()
        self.network: Network = SystemNetwork()
        self.jobs = SystemJobs()

    def now(self) -> Millis:
        """Wall-clock time; it may jump. Use the loop's time to measure waits."""
        return Millis(time.time_ns() // 1_000_000)

    def host_name(self) -> str:
        """The name by which other machines may reach this one."""
        return socket.getfqdn()

    def boot_id(self) -> str | None:
        """Differs after every start of the machine; None if the system does not tell.

        What was written and not fsynced survives the end of a process, but not of a boot.
        """
        try:
            return _BOOT_ID.read_text().strip() or None
        except OSError:
            return None

    def start_threads(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start all threads of the loop's executor now, or raise OSError.

        A thread that the system refuses later would stop the broker while it works.
        """
        executor = ThreadPoolExecutor(_THREAD_COUNT, thread_name_prefix="headrace")
        let_go = threading.Event()
        try:
            for _ in range(_THREAD_COUNT):
                executor.submit(let_go.wait)  # keeps its thread busy, so the next gets another
        except RuntimeError as refusal:
            executor.shutdown(wait=False)
            raise OSError(errno.EAGAIN, f"{refusal}. {MORE_THREADS}") from refusal
        finally:
            let_go.set()
        loop.set_default_executor(executor)
