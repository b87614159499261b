"""Parked waiters (Kafka's purgatory): requests that wait for records, a commit or a deadline.

A waiter is parked under the replicas that it waits for. ``happened`` records a typed event of a
replica, and ``serve`` passes events on to the waiters of that replica, oldest first. Code that
reports an event outside of a client's turn calls ``serve`` afterwards. One timer serves all
deadlines.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Protocol

from headrace.core.parked import NEVER, OFFSETS, Event, Parked

if TYPE_CHECKING:
    from headrace.broker.replication.replica import Replica


class Waiter(Hashable, Protocol):
    def happened(self, event: Event, replica: "Replica") -> bool:
        """React to an event; True if the waiter is done and no longer parked."""
        ...

    def deadline_passed(self) -> None:
        """React to the deadline; the waiter is no longer parked."""
        ...


class Waiting:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, fail: Callable[[BaseException], None]
    ) -> None:
        """``fail`` stops the broker: after a bug here it is unknown which waiters were served."""
        self._loop = loop
        self._fail = fail
        self._parked: Parked[Waiter] = Parked()
        self._watching: dict[Replica, Waiter] = {}
        self._events: dict[Replica, dict[Event, None]] = {}
        self._is_serving_soon = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER  # the deadline that the timer is set for

    def __contains__(self, waiter: Waiter) -> bool:
        return waiter in self._parked

    # --- waiters -------------------------------------------------------------

    def park(
        self,
        waiter: Waiter,
        replicas: Iterable["Replica"],
        wait_ms: float = NEVER,
        until: Event = Event.HIGH_WATERMARK,
    ) -> None:
        """Wait for events of ``replicas``, at most for ``wait_ms``.

        ``until`` is the offset that the waiter waits for, one of ``core.parked.OFFSETS``.
        """
        deadline_ms = self._loop.time() * 1000 + wait_ms
        self._parked.add(waiter, replicas, deadline_ms, until)
        self._arm(deadline_ms)

    def unpark(self, waiter: Waiter) -> None:
        """Forget the waiter: it was answered, or its client is gone."""
        self._parked.remove(waiter)

    def watch(self, waiter: Waiter, replica: "Replica") -> None:
        """Tell ``waiter`` of every event of ``replica`` but its offsets, until ``unwatch``.

        A coordinator watches its partition: most of the time it does not wait for an offset.
        """
        self._watching[replica] = waiter

    def unwatch(self, waiter: Waiter, replica: "Replica") -> None:
        if self._watching.get(replica) is waiter:
            del self._watching[replica]

    def all(self) -> list[Waiter]:
        return self._parked.all()

    def next_deadline_ms(self) -> float | None:
        return self._parked.next_deadline()

    # --- events --------------------------------------------------------------

    def is_awaited(self, replica: "Replica") -> bool:
        """Whether anything waits for events of ``replica``."""
        return self._parked.has(replica)

    def happened(self, replica: "Replica", event: Event) -> None:
        """Record an event for the next ``serve``. Later waiters see its outcome themselves."""
        if self._parked.has(replica) or (replica in self._watching and event not in OFFSETS):
            noted = self._events.get(replica)
            if noted is None:
                noted = self._events[replica] = {}
            noted[event] = None

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def serve(self) -> None:
        """Pass the events to the waiters, and also the events that these cause in turn."""
        while self._events:
            noted, self._events = self._events, {}
            for replica, events in noted.items():
                for event in events:
                    watching = self._watching.get(replica)
                    if watching is not None and event not in OFFSETS:
                        watching.happened(event, replica)
                    for waiter in self._parked.affected_by(replica, event):
                        if waiter.happened(event, replica):
                            self._parked.remove(waiter)

    def serve_soon(self) -> None:
        """Serve in the next iteration of the loop, for callers that may be outside of a turn."""
        if self._events and not self._is_serving_soon:
            self._is_serving_soon = True
            self._loop.call_soon(self._serve_now)

    def _serve_now(self) -> None:
        self._is_serving_soon = False
        try:
            self.serve()
        except Exception as error:  # noqa: BLE001 - see ``fail``
            self._fail(error)

    # --- deadlines -----------------------------------------------------------

    def _arm(self, deadline_ms: float) -> None:
        if deadline_ms == NEVER:
            return
        at = deadline_ms / 1000
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._timer_fired)
        self._timer_ms = deadline_ms

    def _timer_fired(self) -> None:
        self._timer = None
        # Never before the deadline that it was set for: rounding would fire it again at once.
        now_ms = max(self._loop.time() * 1000, self._timer_ms)
        try:
            for waiter in self._parked.expired(now_ms):
                waiter.deadline_passed()
            self.serve()
        except Exception as error:  # noqa: BLE001 - see ``fail``
            self._fail(error)
        else:
            deadline_ms = self.next_deadline_ms()
            if deadline_ms is not None:
                self._arm(deadline_ms)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
