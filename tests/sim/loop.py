"""An event loop whose time is virtual: a week passes as fast as its callbacks run.

Everything of a simulation shares one such loop. ``time()`` advances only when no callback is
ready, to the next timer. Work for threads runs inline, at a later time, drawn at random. So
the order of calls is the only order there is, and one seed gives one run.

Several simulated processes may share the loop. What belongs to one is known by the context in
which it was scheduled (``SimulatedProcess``), so that one process can be paused.
"""

import asyncio
import contextvars
import functools
import heapq
import random
from asyncio import base_events
from collections.abc import Callable, Coroutine
from typing import Any

_ITERATIONS_MAX = 100_000  # at one time


class Deadlock(AssertionError):
    """Nothing is ready and no timer is set, so nothing will ever happen."""


class Livelock(AssertionError):
    """Callbacks call each other without end, so time does not advance."""


_process: contextvars.ContextVar["SimulatedProcess | None"] = contextvars.ContextVar(
    "process", default=None
)


class SimulatedProcess:
    """The callbacks and tasks of one process. A paused process runs none of them, like SIGSTOP."""

    def __init__(self, loop: "SimulatedLoop") -> None:
        self.is_paused = False
        self.held: list[asyncio.Handle] = []
        self._loop = loop
        self._context = contextvars.Context()
        self._context.run(_process.set, self)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """A task of this process; what it starts belongs to this process too."""
        return self._loop.create_task(work, context=self._context.copy())

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        held, self.held = self.held, []
        self._loop.run_again(held)


def current_process() -> SimulatedProcess | None:
    return _process.get()


class _Handle(asyncio.Handle):
    """A callback that a paused process holds."""

    __slots__ = ("process",)
    process: SimulatedProcess

    def _run(self) -> None:
        if self.process.is_paused:
            self.process.held.append(self)
        else:
            asyncio.Handle._run(self)


class _TimerHandle(asyncio.TimerHandle):
    __slots__ = ("process",)
    process: SimulatedProcess
    _run = _Handle._run


class _VirtualSelector:
    """Waits for nothing but time."""

    def __init__(self, loop: "SimulatedLoop") -> None:
        self._loop = loop
        self._iteration_count = 0  # since time advanced

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.count_iteration()
        if timeout is None:
            raise Deadlock("the simulation waits for an event that cannot come")
        if timeout > 0:
            self._loop.advance(timeout)
            self._iteration_count = 0
        self._iteration_count += 1
        if self._iteration_count > _ITERATIONS_MAX:
            self._iteration_count = 0
            raise Livelock("the simulation is always busy, so its time stands still")
        return []

    def close(self) -> None:
        pass


class SimulatedLoop(base_events.BaseEventLoop):
    def __init__(
        self,
        dice: random.Random,
        *,
        thread_delay_max_s: float = 0.002,
        iterations_left: float = float("inf"),
    ) -> None:
        """``iterations_left`` ends a run that takes too much work, at the same point every time."""
        super().__init__()
        self._iterations_left = iterations_left
        self._now = 1000.0  # any start will do, but not 0: bugs hide there
        self._dice = dice
        self._thread_delay_max_s = thread_delay_max_s
        self._selector = _VirtualSelector(self)

    # --- time

    def time(self) -> float:
        return self._now

    def advance(self, by_s: float) -> None:
        self._now += by_s

    def count_iteration(self) -> None:
        self._iterations_left -= 1
        if self._iterations_left < 0:
            self._iterations_left = float("inf")
            raise Livelock("the simulation takes too much work")

    # --- processes

    def run_again(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def _call_soon(self, callback: Any, args: Any, context: Any) -> asyncio.Handle:
        process = _process.get() if context is None else context.get(_process)
        if process is None:
            return super()._call_soon(callback, args, context)
        handle = _Handle(callback, args, self, context)
        handle.process = process
        self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        process = _process.get() if context is None else context.get(_process)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        timer = _TimerHandle(when, callback, args, self, context)
        timer.process = process
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    # --- threads: inline, later

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        future = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self._dice.uniform(0, self._thread_delay_max_s), run)
        return future

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_soon(callback, *args, context=context)

    # --- what BaseEventLoop leaves to its subclasses

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        pass


def in_virtual_time(story: Callable[..., Any]) -> Callable[..., None]:
    """A test that is a coroutine, on a loop whose time passes at once."""

    @functools.wraps(story)
    def run(*arguments: Any, **fixtures: Any) -> None:
        run_simulated(story(*arguments, **fixtures), random.Random(0))

    return run


def run_simulated(main: Any, dice: random.Random, *, iterations_max: float = float("inf")) -> Any:
    """Run a coroutine to its end on a loop of its own, then cancel what it left running."""
    loop = SimulatedLoop(dice, iterations_left=iterations_max)
    asyncio.set_event_loop(loop)
    try:
        try:
            return loop.run_until_complete(main)
        finally:
            _cancel_tasks(loop)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _cancel_tasks(loop: SimulatedLoop) -> None:
    left = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
