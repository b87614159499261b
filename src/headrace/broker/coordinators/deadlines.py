"""One timer for all shards of a coordinator, set for their earliest deadline."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.core.parked import NEVER, Event
from headrace.model.ids import Millis

if TYPE_CHECKING:
    from headrace.broker.replication.waiting import Waiting


class Deadlines:
    """A waiter that waits for no replica."""

    def __init__(self, waiting: "Waiting", wake: Callable[[], None]) -> None:
        """``wake`` is called at the deadline, and arms the next one."""
        self._waiting = waiting
        self._wake = wake
        self._is_closed = False
        self.next = NEVER

    def arm(self, deadline: float, now: Millis) -> None:
        """Wake at ``deadline``, unless an earlier one is set. Both are on the shards' clock."""
        if self._is_closed or deadline >= self.next:
            return
        self.next = deadline
        # Not rounded up: a client that waits for exactly its session timeout finds it expired.
        self._waiting.park(self, (), max(0.0, deadline - now))

    def close(self) -> None:
        self._is_closed = True
        self._waiting.unpark(self)

    # --- replication.waiting.Waiter

    def happened(self, event: Event, replica: object) -> bool:
        raise AssertionError("deadlines are parked under no replica")

    def deadline_passed(self) -> None:
        self.next = NEVER
        self._wake()
