"""One worker thread for slow system calls (fsync, unlink), and starting child processes.

The jobs of the thread release the GIL in system calls. Loops over records in Python would block
the event loop even from a thread; child processes run those.
"""

import asyncio
import errno
import heapq
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import headrace
from headrace.world.world import MORE_THREADS

log = logging.getLogger("headrace.storage")

Job = Callable[[], None]


class Background:
    """Runs jobs in order of their due time; the thread starts with the first one.

    If the system refuses a thread, the jobs wait, and each new job tries again.
    """

    def __init__(self, on_bug: Callable[[Exception], None]) -> None:
        self._on_bug = on_bug
        self._jobs: list[tuple[float, int, Job]] = []
        self._count = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    def later(self, delay_ms: int, job: Job) -> None:
        """Run ``job`` in the worker thread, not before ``delay_ms`` have passed."""
        with self._changed:
            if self._closing:
                return  # the next start deletes the files instead
            self._count += 1
            heapq.heappush(self._jobs, (time.monotonic() + delay_ms / 1000, self._count, job))
            if self._thread is None:
                self._start()
            self._changed.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="headrace-storage", daemon=True)
        try:
            thread.start()
        except RuntimeError as refusal:
            log.error("Flushes and deletions are delayed: %s. %s", refusal, MORE_THREADS)
        else:
            self._thread = thread

    def close(self) -> None:
        """Run the due jobs, drop the rest, end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs or self._jobs[0][0] > time.monotonic():
                    if self._closing:
                        return
                    wait_s = self._jobs[0][0] - time.monotonic() if self._jobs else None
                    self._changed.wait(wait_s)
                job = heapq.heappop(self._jobs)[2]
            try:
                job()
            except OSError as error:
                log.warning("A background file operation failed: %s", error)
            except Exception as error:  # a bug; the other jobs still run
                log.error("Internal error in a background file operation", exc_info=error)
                self._on_bug(error)


async def start_child(module: str, *, line_size_max: int = 1 << 16) -> asyncio.subprocess.Process:
    """Start ``python -m module`` with pipes; OSError if the system refuses another process."""
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # do not import from the current directory
            "-m",
            module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=child_environment(),
            limit=line_size_max,
        )
    except RuntimeError as refusal:  # no thread to wait for its end
        raise OSError(errno.EAGAIN, str(refusal)) from refusal


def child_environment() -> dict[str, str]:
    """The environment for a child that must import the same package as this process."""
    package_root = str(Path(headrace.__file__).parents[1])
    inherited = os.environ.get("PYTHONPATH")
    path = f"{package_root}{os.pathsep}{inherited}" if inherited else package_root
    return {**os.environ, "PYTHONPATH": path}
