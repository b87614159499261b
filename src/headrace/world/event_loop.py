"""Waiting for sockets: poll briefly while requests follow each other closely, sleep otherwise.

Sleeping and waking up takes longer than answering a small request. A client that sends its next
request right after a response would pay for that every time.
"""

import asyncio
import os
import selectors
import time
from collections.abc import Callable

# A client on the same machine or in the same rack sends its next request well within this.
_WINDOW_S = 250e-6
# Short waits in a row before polling begins: a single one proves nothing.
_STREAK = 8
# Yielding takes a microsecond or less if no other thread wants the core.
_WANTED_BY_OTHERS_S = 20e-6

if hasattr(selectors, "EpollSelector"):

    class PollingSelector(selectors.EpollSelector):
        """Polls for a moment before it sleeps, if the last waits were short.

        It does not take the core from others: if another thread ran while it yielded, it sleeps.
        Under full load it changes nothing, because some socket is always ready.
        """

        def __init__(self) -> None:
            super().__init__()
            self.ready_count = 0  # at the last poll
            self._short_waits = 0

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            ready = self._select(timeout)
            self.ready_count = len(ready)
            return ready

        def _select(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
            ready = super().select(0)
            if ready:
                self._short_waits = max(self._short_waits - 1, 0)
            if ready or (timeout is not None and timeout <= 0):
                return ready
            started = time.monotonic()
            if self._short_waits >= _STREAK:
                window = _WINDOW_S if timeout is None else min(_WINDOW_S, timeout)
                ready = self._poll(started, started + window)
                if timeout is not None:
                    timeout = max(timeout - (time.monotonic() - started), 0)
            ready = ready or super().select(timeout)
            if time.monotonic() - started < _WINDOW_S:
                self._short_waits = min(self._short_waits + 1, 2 * _STREAK)
            else:
                self._short_waits = 0
            return ready

        def _poll(self, now: float, until: float) -> list[tuple[selectors.SelectorKey, int]]:
            ready: list[tuple[selectors.SelectorKey, int]] = []
            while not ready and now < until:
                os.sched_yield()
                if time.monotonic() - now > _WANTED_BY_OTHERS_S:
                    break
                ready = super().select(0)
                now = time.monotonic()
            return ready

    class PollingLoop(asyncio.SelectorEventLoop):
        """For a process that only runs the broker."""

        def __init__(self) -> None:
            self.selector = PollingSelector()
            super().__init__(self.selector)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A polling loop. Not for a process that also runs clients: they need the core more."""
    return PollingLoop() if hasattr(selectors, "EpollSelector") else asyncio.new_event_loop()


def ready_counter(loop: asyncio.AbstractEventLoop) -> Callable[[], int]:
    """A function that returns how many sockets are ready in this iteration; 1 for other loops."""
    if hasattr(selectors, "EpollSelector") and isinstance(loop, PollingLoop):
        selector = loop.selector
        return lambda: selector.ready_count
    return lambda: 1
