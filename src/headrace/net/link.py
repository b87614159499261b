"""One client connection: receives requests and sends responses in the order of the requests.

The contract with the service:

1. The link calls ``Service.request(link, view, start, end)`` for every complete frame, in place in
   the receive buffer. Views into it are valid until ``Service.turn_ended`` returns.
2. The service answers each request in exactly one way: ``link.answer(parts)`` (now),
   ``slot = link.hold()`` or ``link.later()`` followed by one ``slot.answer(parts)``, or not at all
   (acks=0).
3. ``parts`` is a list of bytes-like objects and ``FileRange``s that begins with the size prefix.
   Responses are sent in the order of the requests, in whatever order the service gives them.
4. The link calls ``Service.turn_ended(link)`` once per readable event, after the last frame. The
   service writes there what the event staged. Only then are responses sent, together with those
   of other connections (``outbox``).
5. The link calls ``Service.unreadable(file_range, error)`` if a file cannot be read, and
   ``Service.peer_broken(link, broken)`` if the client sent invalid bytes. Then it closes the
   connection.

Back-pressure: the link parses no further request while a held request is unanswered, while
``IN_FLIGHT_MAX`` responses are pending, or while the client does not read its responses. It does
not read from a connection whose buffer is full, so a misbehaving client fills only its own buffer.
"""

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Any, Protocol

from headrace.model.errors import PeerBroken
from headrace.net.buffers import Buffer, BufferPool
from headrace.net.outbox import Outbox
from headrace.world.network import MORE_FOLLOWS, Connection

_log = logging.getLogger("headrace.network")

_SIZE = Struct(">i").unpack_from
IN_FLIGHT_MAX = 128
# Linux accepts at most IOV_MAX = 1024 buffers in one call.
_PARTS_PER_SEND = 512
_REST_SIZE_MAX = 1 << 14
# Errors of ``send_file`` that concern the file. All others count as errors of the connection: a
# client that disconnects in an unusual way must not take a disk offline.
_FILE_ERRNOS = frozenset(
    getattr(errno, name)
    for name in ("EIO", "EUCLEAN", "EBADMSG", "ESTALE", "ENXIO")
    if hasattr(errno, name)
)


# The first bytes of other protocols, where a request has its size.
_OTHER_PROTOCOLS = {
    "a TLS handshake; this listener does not use TLS": (b"\x16\x03",),
    "an HTTP request; this listener speaks the Kafka protocol": (b"GET ", b"HEAD", b"POST"),
}


def _impossible_size(size: int, size_max: int) -> str:
    first = size.to_bytes(4, "big", signed=True)
    for what, beginnings in _OTHER_PROTOCOLS.items():
        if first.startswith(beginnings):
            return what
    return f"a request of {size} bytes; socket.request.max.bytes is {size_max}"


class FileHandle(Protocol):
    @property
    def fd(self) -> int: ...
    @property
    def path(self) -> str: ...


class FileRange(Protocol):
    """Bytes of an open file; the file stays open while the range is referenced."""

    @property
    def file(self) -> FileHandle: ...
    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...


Part = bytes | bytearray | memoryview | FileRange


class Service(Protocol):
    """The broker's side of a connection."""

    def request(self, link: "Link", view: memoryview, start: int, end: int) -> None: ...
    def turn_ended(self, link: "Link") -> None: ...
    def unreadable(self, file_range: FileRange, error: OSError) -> None: ...
    def peer_broken(self, link: "Link", broken: PeerBroken) -> None: ...
    def link_closed(self, link: "Link") -> None: ...


class _Rest:
    """The part of a file range that is not sent yet."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: FileHandle, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size


class Slot:
    """The place of a pending response."""

    __slots__ = ("link", "holds", "parts")

    def __init__(self, link: "Link", holds: bool) -> None:
        self.link = link
        self.holds = holds
        self.parts: Sequence[Part] | None = None

    def answer(self, parts: Sequence[Part]) -> None:
        """Set the response. It is sent after those of earlier requests."""
        self.parts = parts
        self.link.slot_answered(self)


class Link:
    __slots__ = (
        "peer_host",
        "peer_port",
        "listener_name",
        "state",
        "closed",
        "active_at",
        "_connection",
        "_loop",
        "_service",
        "_pool",
        "_outbox",
        "_frame_size_max",
        "_buffer",
        "_read_at",
        "_filled_to",
        "_rest",
        "_frame_size_hint",
        "_out",
        "_slots",
        "_held",
        "_reading",
        "_writing",
        "_in_turn",
        "_muted",
        "_close_when_sent",
    )

    def __init__(
        self,
        connection: Connection,
        listener_name: str,
        service: Service,
        pool: BufferPool,
        outbox: Outbox,
        frame_size_max: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.peer_host, self.peer_port = connection.peer
        self.listener_name = listener_name
        self.state: Any = None  # of the service, per connection
        self.closed = False
        self.active_at = loop.time()
        self._connection = connection
        self._loop = loop
        self._service = service
        self._pool = pool
        self._outbox = outbox
        self._frame_size_max = frame_size_max
        self._buffer: Buffer | None = None  # borrowed only while bytes are pending
        self._read_at = 0
        self._filled_to = 0
        self._rest = b""  # the first bytes of a frame, kept without a buffer
        self._frame_size_hint = 0
        self._out: list[Any] = []
        self._slots: deque[Slot] = deque()
        self._held = 0
        self._reading = True
        self._writing = False
        self._in_turn = False
        self._muted = False
        self._close_when_sent = False
        connection.on_readable(self._readable)

    def __str__(self) -> str:
        return f"{self.peer_host}:{self.peer_port}"

    # --- responses -----------------------------------------------------------

    def answer(self, parts: Sequence[Part]) -> None:
        """Answer the current request now."""
        if self._slots:
            slot = Slot(self, False)
            slot.parts = parts
            self._slots.append(slot)
        else:
            self._out += parts

    def hold(self) -> Slot:
        """Answer later, and handle no other request of this connection until then."""
        slot = Slot(self, True)
        self._held += 1
        self._slots.append(slot)
        return slot

    def later(self) -> Slot:
        """Answer later, and handle the following requests in the meantime."""
        slot = Slot(self, False)
        self._slots.append(slot)
        return slot

    def slot_answered(self, slot: Slot) -> None:
        if slot.holds:
            self._held -= 1
        slots = self._slots
        while slots and slots[0].parts is not None:
            self._out += slots.popleft().parts or ()
        if not self._in_turn and not self.closed and self._flush():
            if self._filled_to > self._read_at and not self._stalled():
                # Handle the frames received after the held one. Not here: this may be the turn of
                # another connection.
                self._loop.call_soon(self._resume)
            elif not self._reading:
                self._update_reading()

    def close_when_sent(self) -> None:
        """Handle no further request, and close after the responses are sent."""
        self._close_when_sent = True
        self.mute()

    def mute(self) -> None:
        """Handle no further request of this client."""
        self._muted = True

    # --- reading -------------------------------------------------------------

    def _stalled(self) -> bool:
        return self._held > 0 or self._muted or self._writing or len(self._slots) >= IN_FLIGHT_MAX

    def _readable(self) -> None:
        buffer = self._buffer
        if buffer is None:
            buffer = self._buffer = self._pool.borrow(self._frame_size_hint)
            self._read_at = self._filled_to = 0
            if self._rest:
                self._filled_to = len(self._rest)
                buffer.view[: self._filled_to] = self._rest
                self._rest = b""
        try:
            filled_to = self._filled_to
            view = buffer.view
            count = self._connection.receive_into(view[filled_to:] if filled_to else view)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.close()
            return
        self.active_at = now = self._loop.time()
        self._outbox.turn_begins(now)
        if self.closed:  # while its responses were sent
            return
        self._filled_to += count
        if self._stalled():
            self._update_reading()
        else:
            self._take_turn()

    def _resume(self) -> None:
        if not self.closed and not self._stalled() and self._buffer is not None:
            self._take_turn()
        elif not self.closed:
            self._update_reading()

    def _take_turn(self) -> None:
        """Handle every complete frame, then let the service write and respond."""
        buffer = self._buffer
        assert buffer is not None
        view = buffer.view
        read_at = self._read_at
        filled_to = self._filled_to
        size_needed = 0
        request = self._service.request
        self._in_turn = True
        try:
            while filled_to - read_at >= 4:
                (size,) = _SIZE(view, read_at)
                if not 0 <= size <= self._frame_size_max:
                    # The next request cannot be found, so the connection is over.
                    raise PeerBroken(_impossible_size(size, self._frame_size_max))
                frame_end = read_at + 4 + size
                if frame_end > filled_to:
                    size_needed = size + 4
                    break
                request(self, view, read_at + 4, frame_end)
                read_at = frame_end
                if self._held or self._muted or len(self._slots) >= IN_FLIGHT_MAX:
                    break
                if self.closed:
                    break
        except PeerBroken as broken:
            self._service.peer_broken(self, broken)
            self.close_when_sent()
        except Exception as bug:  # noqa: BLE001 - a bug closes only its own connection
            # The service handles its own bugs, unless that fails too. Continuing here would handle
            # the same requests again.
            _log.error("Internal error; closing the connection from %s", self, exc_info=bug)
            self.close()
        finally:
            self._service.turn_ended(self)
            self._in_turn = False
        if self.closed:
            self._return_buffer()
            return
        if self._out or self._close_when_sent:
            self._outbox.put(self, self.active_at)
        if self._keep_rest(read_at, filled_to, size_needed):
            self._update_reading()

    def _keep_rest(self, read_at: int, filled_to: int, size_needed: int) -> bool:
        """Make room for the rest of the last frame; False if the link is closed."""
        buffer = self._buffer
        if buffer is None:
            return False  # closed after its last responses were sent
        pending = filled_to - read_at
        if not pending:
            self._return_buffer()
            return True
        capacity = len(buffer.view)
        if size_needed:
            self._frame_size_hint = size_needed
        if pending <= _REST_SIZE_MAX and (size_needed or pending < 4):
            # The rest may take long, and the buffers of ten thousand such clients would take
            # gigabytes. Copying so little costs less than the call that receives the rest.
            self._rest = bytes(buffer.view[read_at:filled_to])
            self._return_buffer()
            return True
        if size_needed > capacity and pending == capacity - read_at:
            # Double as bytes arrive, instead of allocating the announced size: memory goes to
            # clients that send, not to those that only announce.
            larger = self._pool.grow(buffer, read_at, filled_to, size_needed)
            if larger is None:
                _log.warning(
                    "Closing the connection from %s: no memory for its request of %d bytes; "
                    "partly received requests use %d bytes and queued.max.request.bytes is %d",
                    self,
                    size_needed,
                    self._pool.large_size,
                    self._pool.size_max,
                )
                self.close()
                return False
            self._buffer = larger
            read_at, filled_to = 0, pending
        elif read_at and (filled_to == capacity or size_needed > capacity - read_at):
            buffer.view[:pending] = buffer.view[read_at:filled_to]
            read_at, filled_to = 0, pending
        self._read_at = read_at
        self._filled_to = filled_to
        return True

    def _update_reading(self) -> None:
        buffer = self._buffer
        full = buffer is not None and self._filled_to == len(buffer.view)
        wanted = not full and not self._close_when_sent
        if wanted and not self._reading:
            self._connection.on_readable(self._readable)
        elif not wanted and self._reading:
            self._connection.stop_reading()
        self._reading = wanted

    def _return_buffer(self) -> None:
        buffer = self._buffer
        if buffer is not None:
            self._buffer = None
            self._read_at = self._filled_to = 0
            self._pool.give_back(buffer)

    # --- writing -------------------------------------------------------------

    def send_answers(self) -> None:
        if not self.closed:
            self._flush()

    def _flush(self) -> bool:
        """Send what the connection accepts now; False if the connection is closed."""
        out = self._out
        if out and not self._writing:
            self._send(out)
            if out:  # closing clears it
                self._writing = True
                self._connection.on_writable(self._writable)
        if self._close_when_sent and not out and not self._slots:
            self.close()
        return not self.closed

    def _writable(self) -> None:
        self.active_at = self._loop.time()
        self._send(self._out)
        if self.closed or self._out:
            return
        self._writing = False
        self._connection.stop_writing()
        if self._close_when_sent and not self._slots:
            self.close()
            return
        self._resume()

    def _send(self, out: list[Any]) -> None:
        connection = self._connection
        try:
            while out:
                first = out[0]
                if not isinstance(first, (bytes, bytearray, memoryview)):
                    self._send_range(out, first)
                    continue
                count = 1
                limit = min(len(out), _PARTS_PER_SEND)
                while count < limit and isinstance(out[count], (bytes, bytearray, memoryview)):
                    count += 1
                flags = MORE_FOLLOWS if count < len(out) else 0
                if count == 1:
                    sent = connection.send(first, flags)
                else:
                    sent = connection.send_many(out[:count], (), flags)
                done = 0
                while done < count and sent >= len(out[done]):
                    sent -= len(out[done])
                    done += 1
                del out[:done]
                if done < count:
                    if sent:
                        out[0] = memoryview(out[0])[sent:]
                    return
        except BlockingIOError:
            return
        except OSError as error:
            _log.debug("The connection from %s failed while sending: %s", self, error)
            self.close()

    def _send_range(self, out: list[Any], rest: FileRange) -> None:
        """Send the first part of ``out``, a file range, as far as the connection accepts it."""
        try:
            sent = self._connection.send_file(rest.file.fd, rest.position, rest.size)
        except OSError as error:
            if error.errno in _FILE_ERRNOS:
                self._service.unreadable(rest, error)
            raise
        if sent == rest.size:
            del out[0]
        elif sent == 0:
            # The log was truncated after the response was built. The size prefix is sent, so the
            # connection must be closed.
            raise OSError("the log was truncated while it was being sent")
        else:
            out[0] = _Rest(rest.file, rest.position + sent, rest.size - sent)

    # --- closing -------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """No response is pending; a request may be partly received."""
        return not self._slots and not self._out

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._reading:
            self._connection.stop_reading()
            self._reading = False
        if self._writing:
            self._connection.stop_writing()
            self._writing = False
        self._out.clear()
        self._slots.clear()
        if not self._in_turn:
            self._return_buffer()
        self._connection.close()
        self._service.link_closed(self)
