"""Ships a stream, such as the output of a program, up to its end."""

import os
import select
import time
from collections.abc import Callable

from headrace.ship.acknowledgements import Acknowledgements
from headrace.ship.events import Events, Splitter
from headrace.ship.generations import START, Generation, Mark
from headrace.ship.sender import Delivery, Sender
from headrace.ship.shipper import Timing

_READ_SIZE = 1 << 18
_WAIT_S = 0.2


class StreamShipper:
    """Reads a descriptor. A stream cannot be read again: nothing is saved."""

    def __init__(
        self,
        descriptor: int,
        sender: Sender,
        splitter: Splitter,
        new_id: str,
        *,
        event_s: float = Timing.event_s,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``event_s``: wait this long for more lines of an event that begins with a pattern."""
        self._event_s = event_s
        self._clock = clock
        self._stopping = False
        self._descriptor = descriptor
        self._sender = sender
        self._splitter = splitter
        self._generation = Generation(new_id, "-", "-", 0, 0, START.tail)
        self._acknowledgements = Acknowledgements(self._generation)
        self._inside = False

    @property
    def unacknowledged(self) -> int:
        """Bytes that were read and not acknowledged."""
        return self._generation.size - self._generation.acknowledged.offset

    def stop(self) -> None:
        """End ``run`` soon. May be called by a signal handler."""
        self._stopping = True

    def run(self, progress: Callable[[], None], flush_s: float) -> None:
        """Ship until the stream ends or ``stop`` is called; then wait for acknowledgements."""
        rest = b""
        grown_at = self._clock()
        while not self._must_stop():
            ready, _, _ = select.select([self._descriptor], [], [], _WAIT_S)
            self._sender.poll(0)
            progress()
            if not ready:
                if self._splitter.holds_last_event and self._clock() - grown_at >= self._event_s:
                    rest = self._send_lines(rest)
                continue
            data = os.read(self._descriptor, _READ_SIZE)
            if not data:
                break
            grown_at = self._clock()
            self._generation.size += len(data)
            rest = self._send(rest + data)
        self._send(rest, final=True)
        self._sender.flush(flush_s)
        self._sender.publish_counts(lambda: None)
        self._sender.flush(flush_s)

    def _send_lines(self, data: bytes) -> bytes:
        """Send the complete lines as events that have ended, and return the partial last line."""
        end = data.rfind(b"\n") + 1
        return self._send(data[:end], final=True) + data[end:]

    def _send(self, data: bytes, final: bool = False) -> bytes:
        """Send the complete events, and return the rest."""
        offset = self._generation.read.offset
        events: Events = self._splitter.split(data, offset, inside=self._inside, final=final)
        if not events.values:
            return data
        after = Mark.after(offset + events.size, b"")
        self._inside = events.inside
        self._generation.advance(after)
        chunk = self._acknowledgements.sent(after, len(events.values), self._sender.failed)
        delivery = Delivery(self._generation, events, chunk)
        while not self._sender.send(delivery) and not self._must_stop():
            self._sender.poll(_WAIT_S)
        return data[events.size :]

    def _must_stop(self) -> bool:
        return self._stopping or self._sender.failure is not None
