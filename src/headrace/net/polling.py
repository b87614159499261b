"""Waiting for sockets: awake for a moment while requests come close together, asleep otherwise.

To put a core to sleep and to wake it costs more than to answer a small request. A client that
sends the next one as soon as the last is answered would pay that every time.
"""

import asyncio
import os
import selectors
import time
from collections.abc import Callable

# A client on the same machine or in the same rack comes back well within this.
_WINDOW_S = 250e-6
# One short wait among others proves nothing; several do.
_STREAK = 8
# To yield the core to nobody takes a microsecond or less.
_WANTED_BY_OTHERS_S = 20e-6

if hasattr(selectors, "EpollSelector"):

    class PollingSelector(selectors.EpollSelector):
        """Looks again and again for a moment before it sleeps, if the last waits were short.

        It holds no core that somebody else could use: when another thread ran while we
        yielded, we sleep like everybody. And under full load it changes nothing, since
        there is always something to do and nothing to wait for.
        """

        def __init__(self) -> None:
            super().__init__()
            self.ready_count = 0  # when it was last looked
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
        """For a process that has nothing else to do."""

        def __init__(self) -> None:
            self.selector = PollingSelector()
            super().__init__(self.selector)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """For a process of its own: where clients share it, they need the core more."""
    return PollingLoop() if hasattr(selectors, "EpollSelector") else asyncio.new_event_loop()


def ready_counter(loop: asyncio.AbstractEventLoop) -> Callable[[], int]:
    """How many sockets a loop found ready for the turn it is in; other loops don't tell."""
    if hasattr(selectors, "EpollSelector") and isinstance(loop, PollingLoop):
        selector = loop.selector
        return lambda: selector.ready_count
    return lambda: 1
