"""The lifecycle of a broker: steps to start it, and their undo steps in reverse order to stop it.

    NEW ── start ──► STARTING ──► RUNNING ── stop, fail, crash ──► STOPPING ──► STOPPED
                        └──────────── a step failed ────────────────────▲

Each step that has something to undo registers it with ``on_stop``. There are two ways to undo:

    clean       finish the requests in progress, flush, write the clean shutdown marker
    not clean   after a failure or a simulated kill: finish, flush and mark nothing. The next
                start recovers the logs

A failure during a clean stop makes the remaining steps unclean, so that no marker is written.
"""

import asyncio
import enum
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

_log = logging.getLogger("headrace.broker")

Undo = Callable[[bool], Awaitable[None] | None]


class State(enum.Enum):
    NEW = enum.auto()
    STARTING = enum.auto()
    RUNNING = enum.auto()
    STOPPING = enum.auto()
    STOPPED = enum.auto()


class _Step(NamedTuple):
    name: str
    undo: Undo


class Lifecycle:
    def __init__(self, drop_clients: Callable[[], None]) -> None:
        """A failure calls ``drop_clients`` at once: nothing may be acknowledged after it."""
        self._drop_clients = drop_clients
        self.state = State.NEW
        self.failure: BaseException | None = None
        self._clean = False
        self._steps: list[_Step] = []
        self._starting: asyncio.Task[None] | None = None
        self._start_ended = asyncio.Event()  # the broker runs, or has stopped again
        self._stopping: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        return self.state in (State.STOPPING, State.STOPPED)

    def on_stop(self, name: str, undo: Undo) -> None:
        """Register what undoes a step; ``undo`` gets whether the stop is still clean."""
        self._steps.append(_Step(name, undo))

    async def start(self, steps: Callable[[], Awaitable[None]]) -> None:
        """Run ``steps``. If one fails, undo those before it and raise the failure."""
        self.state = State.STARTING
        # A task, so that a failure elsewhere can cancel the start.
        self._starting = asyncio.ensure_future(steps())
        try:
            await self._starting
            self._raise_failure()  # it came too late to cancel the last step
            self.state = State.RUNNING
        except BaseException as error:
            self.state = State.STOPPING
            await self._undo_all()
            if self.failure is not None and self.failure is not error:
                raise self.failure from error
            raise
        finally:
            self._start_ended.set()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def stop(self) -> None:
        """Stop cleanly. Returns once the broker has stopped, by this or by another call.

        A start in progress is finished first. A broker that was never started has nothing to stop.
        """
        if self.state is State.NEW:
            return
        await self._start_ended.wait()
        if self.state is State.RUNNING:
            self.state, self._clean = State.STOPPING, True
            await self._undo_all()
            if self.failure is None:
                _log.info("Stopped cleanly")
        await self._stopped.wait()

    async def crash(self) -> None:
        """Stop like a killed process: finish, flush and mark nothing."""
        if self.state is State.NEW:
            return
        await self._start_ended.wait()
        if self.state is State.RUNNING:
            self.state = State.STOPPING
            self._drop_clients()
            await self._undo_all()
        await self._stopped.wait()

    def fail(self, error: BaseException) -> None:
        """Stop at once: it is unknown what was written."""
        match self.state:
            case State.STARTING if self.failure is None:
                self.failure = error
                if self._starting is not None:
                    self._starting.cancel()  # ``start`` undoes the steps and raises the failure
            case State.RUNNING:
                self.state, self.failure = State.STOPPING, error
                self._report(error)
                self._drop_clients()
                self._stopping = asyncio.ensure_future(self._undo_all())
            case State.STOPPING if self._clean and self.failure is None:
                self.failure = error  # the remaining steps are no longer clean
                self._report(error)
            case _:
                pass

    async def wait_stopped(self) -> None:
        await self._stopped.wait()

    async def _undo_all(self) -> None:
        while self._steps:
            name, undo = self._steps.pop()
            try:
                undoing = undo(self._clean and self.failure is None)
                if inspect.isawaitable(undoing):
                    await undoing
            except Exception as error:  # noqa: BLE001 - a bug stops the broker, not its process
                _log.exception("Could not stop the %s", name)
                if self._clean and self.failure is None:
                    self.failure = error
        self.state = State.STOPPED
        self._stopped.set()

    @staticmethod
    def _report(error: BaseException) -> None:
        _log.critical(
            "The broker stops, because it cannot know what was written: %s. Start it again; it "
            "recovers its logs",
            error,
            exc_info=error,
        )
