"""Responses of several connections, sent together.

Sending to a client that sleeps wakes it, which costs more than the sending. If one process or
machine has many connections, it is already awake for all responses but the first.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger("headrace.network")

# A response waits for later turns no longer than this.
_WAIT_S = 500e-6


class Sender(Protocol):
    def send_answers(self) -> None: ...
    def close(self) -> None: ...


class Outbox:
    """The connections served since the event loop last polled for events."""

    __slots__ = ("_loop", "_ready_count", "_senders", "_since")

    def __init__(self, loop: asyncio.AbstractEventLoop, ready_count: Callable[[], int]) -> None:
        """``ready_count`` returns the number of connections in this iteration of the loop."""
        self._loop = loop
        self._ready_count = ready_count
        self._senders: list[Sender] = []
        self._since = 0.0

    def put(self, sender: Sender, now: float) -> None:
        """Send its responses with those of the others, or immediately if it is alone.

        ``now`` is the loop's time at the beginning of the connection's turn.
        """
        if not self._senders:
            if self._ready_count() < 2:
                _send(sender)
                return
            self._since = now
            # A ready connection may have no response; then none of them counts as the last.
            self._loop.call_soon(self.send)
        self._senders.append(sender)
        if len(self._senders) >= self._ready_count():
            self.send()

    def turn_begins(self, now: float) -> None:
        """Another connection is served next: send responses that have waited too long."""
        if self._senders and now - self._since > _WAIT_S:
            self.send()

    def send(self) -> None:
        senders, self._senders = self._senders, []
        for sender in senders:
            _send(sender)


def _send(sender: Sender) -> None:
    try:
        sender.send_answers()
    except Exception as bug:  # noqa: BLE001 - a bug closes only its own connection
        _log.error("Internal error; closing the connection from %s", sender, exc_info=bug)
        sender.close()
