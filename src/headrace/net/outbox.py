"""Answers of several connections that leave together.

To send to a client that sleeps is to wake it, which costs more than the sending. Where one
process or one machine has many connections, it is awake for all answers but the first.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger(__name__)

# An answer waits for no more of the turns behind it than fit into this.
_WAIT_S = 500e-6


class Sender(Protocol):
    def send_answers(self) -> None: ...
    def close(self) -> None: ...


class Outbox:
    """The connections of one event loop that have been served since it last looked for events."""

    __slots__ = ("_loop", "_ready_count", "_senders", "_since")

    def __init__(self, loop: asyncio.AbstractEventLoop, ready_count: Callable[[], int]) -> None:
        """``ready_count`` tells how many connections this turn of the loop serves."""
        self._loop = loop
        self._ready_count = ready_count
        self._senders: list[Sender] = []
        self._since = 0.0

    def put(self, sender: Sender, now: float) -> None:
        """Let it send its answers with the others, at once if there are none.

        ``now`` is the loop's time when its turn began.
        """
        if not self._senders:
            if self._ready_count() < 2:
                _send(sender)
                return
            self._since = now
            # Some who were ready may have nothing to say, and then nobody is the last.
            self._loop.call_soon(self.send)
        self._senders.append(sender)
        if len(self._senders) >= self._ready_count():
            self.send()

    def turn_begins(self, now: float) -> None:
        """Somebody else is served next: those who have waited long do not wait for that, too."""
        if self._senders and now - self._since > _WAIT_S:
            self.send()

    def send(self) -> None:
        senders, self._senders = self._senders, []
        for sender in senders:
            _send(sender)


def _send(sender: Sender) -> None:
    try:
        sender.send_answers()
    except Exception as bug:  # noqa: BLE001 - a bug costs its own connection
        _log.error("closing the connection from %s, which met a bug", sender, exc_info=bug)
        sender.close()
