"""Delayed jobs of slow system calls (fsync, unlink), one at a time, in the loop's executor.

The jobs release the GIL in system calls. Loops over records in Python would block the event loop
even from a thread; child processes run those (``world.jobs``).
"""

import asyncio
import heapq
import logging
from collections.abc import Callable

from headrace.world.locks import Lock
from headrace.world.world import MORE_THREADS

_log = logging.getLogger("headrace.storage")

Job = Callable[[], None]


class Background:
    """Runs jobs in order of their due time.

    If the system refuses a thread, the jobs wait, and each new job tries again.
    """

    def __init__(self, on_bug: Callable[[Exception], None]) -> None:
        """On the event loop whose executor runs the jobs."""
        self._loop = asyncio.get_running_loop()
        self._on_bug = on_bug
        self._jobs: list[tuple[float, int, Job]] = []  # a heap: due time, number, job
        self._count = 0
        self._guard = Lock()  # of the heap
        self._turn = Lock()  # held while a job runs
        self._in_executor = False  # the executor was asked to run a job, and has not yet
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False

    def later(self, delay_ms: int, job: Job) -> None:
        """Run ``job`` in a thread, not before ``delay_ms`` have passed. For any thread."""
        with self._guard:
            if self._closing:
                return  # the next start deletes the files instead
            self._count += 1
            heapq.heappush(self._jobs, (self._loop.time() + delay_ms / 1000, self._count, job))
        self._loop.call_soon_threadsafe(self._schedule)

    def _schedule(self) -> None:
        """Have the next job run when it is due; on the loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self._guard:
            due_at = self._jobs[0][0] if self._jobs else None
        if due_at is None or self._in_executor or self._closing:
            return
        if due_at > self._loop.time():
            self._timer = self._loop.call_at(due_at, self._schedule)
            return
        try:
            future = self._loop.run_in_executor(None, self._run_next)
        except RuntimeError as refusal:
            _log.error("Flushes and deletions are delayed: %s. %s", refusal, MORE_THREADS)
            return
        self._in_executor = True
        future.add_done_callback(self._run_done)

    def _run_done(self, future: "asyncio.Future[bool]") -> None:
        self._in_executor = False
        self._schedule()

    def _run_next(self) -> bool:
        """Run the next job; False if none is due."""
        with self._turn:
            with self._guard:
                if not self._jobs or self._jobs[0][0] > self._loop.time():
                    return False
                _, _, job = heapq.heappop(self._jobs)
            try:
                job()
            except OSError as error:
                _log.warning("A background file operation failed: %s", error)
            except Exception as error:  # noqa: BLE001 - a bug; the other jobs still run
                _log.error("Internal error in a background file operation", exc_info=error)
                self._on_bug(error)
        return True

    def close(self) -> None:
        """Wait for the job that runs, run the due jobs here, drop the rest. For any thread."""
        with self._guard:
            self._closing = True
        while self._run_next():
            pass
        with self._guard:
            self._jobs.clear()
