"""Everything that waits, in one place: for replicas, for records, for a commit, for a deadline.

A waiter is parked under the replicas that it waits for. What happens to a replica is reported as
a typed event (``happened``); ``serve`` passes events on to the waiters of that replica, oldest
first. Whoever reports an event outside of a client's turn calls ``serve`` afterwards. One timer
serves all deadlines.

The last stable offset has no event of its own: it moves only when the high watermark passes a
marker.
"""

import asyncio
import enum
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Protocol

from headrace.core.parked import NEVER, Parked

if TYPE_CHECKING:
    from headrace.broker.replication.replica import Replica


class Event(enum.Enum):
    HIGH_WATERMARK = "the high watermark advanced"
    LEADERSHIP_GAINED = "this broker leads the partition now"
    LEADERSHIP_LOST = "this broker no longer leads the partition"
    TOPIC_DELETED = "the topic is deleted"
    DISK_OFFLINE = "the disk failed"


class Waiter(Hashable, Protocol):
    def happened(self, event: Event, replica: "Replica") -> bool:
        """Whether the waiter is done; it is then no longer parked."""
        ...

    def deadline_passed(self) -> None:
        """Its time is over, and it is no longer parked."""
        ...


class Waiting:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, fail: Callable[[BaseException], None]
    ) -> None:
        """``fail`` stops the broker: a bug here leaves it unclear who was answered."""
        self._loop = loop
        self._fail = fail
        self._parked: Parked[Waiter] = Parked()
        self._events: dict[Replica, dict[Event, None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, waiter: Waiter) -> bool:
        return waiter in self._parked

    # --- waiters -------------------------------------------------------------

    def park(
        self, waiter: Waiter, replicas: Iterable["Replica"], deadline_ms: float = NEVER
    ) -> None:
        """Wait for events of ``replicas``, until ``deadline_ms`` of the loop's time."""
        self._parked.add(waiter, replicas, deadline_ms)
        self._arm(deadline_ms)

    def park_for(self, waiter: Waiter, replicas: Iterable["Replica"], wait_ms: float) -> None:
        self.park(waiter, replicas, self._loop.time() * 1000 + wait_ms)

    def unpark(self, waiter: Waiter) -> None:
        """Forget the waiter: it was answered, or its client is gone."""
        self._parked.remove(waiter)

    def all(self) -> list[Waiter]:
        return self._parked.all()

    def next_deadline_ms(self) -> float | None:
        return self._parked.next_deadline()

    # --- events --------------------------------------------------------------

    def happened(self, replica: "Replica", event: Event) -> None:
        """Note an event for the next ``serve``. Later waiters see its outcome themselves."""
        if self._parked.has(replica):
            noted = self._events.get(replica)
            if noted is None:
                noted = self._events[replica] = {}
            noted[event] = None

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def serve(self) -> None:
        """Tell the waiters. What they do may cause further events; these are passed on too."""
        while self._events:
            noted, self._events = self._events, {}
            for replica, events in noted.items():
                for event in events:
                    for waiter in self._parked.woken(replica):
                        if waiter.happened(event, replica):
                            self._parked.remove(waiter)

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

    def _timer_fired(self) -> None:
        self._timer = None
        try:
            for waiter in self._parked.expired(self._loop.time() * 1000):
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
