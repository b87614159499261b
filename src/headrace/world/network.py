"""Sockets: the only place where a broker opens, accepts and uses network connections.

``net`` sees two kinds of objects, described here as protocols: a ``Listening`` and the
``Connection`` that it accepts. ``SystemNetwork`` makes real ones. A simulation passes another
object with the same methods.

Calls on a real connection are the methods of its socket themselves, bound once, so the hot path
pays for one attribute and no extra frame.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

# A flag of ``send`` and ``send_many``: more bytes follow at once, so a small packet may wait.
MORE_FOLLOWS: int = getattr(socket, "MSG_MORE", 0)
HAS_SENDFILE = hasattr(os, "sendfile")
_PIECE_SIZE = 1 << 18  # of a file, where the system cannot send from files


class Connection(Protocol):
    """One end of a TCP connection; no call waits.

    Receiving and sending raise BlockingIOError if they would have to wait, and any other OSError
    if the connection is broken.
    """

    peer: tuple[str, int]

    def receive_into(self, buffer: memoryview, /) -> int:
        """The number of bytes received; 0 if the peer has sent its last byte."""

    def send(self, part: Any, flags: int, /) -> int:
        """The number of bytes accepted, which may be less than the part has."""

    def send_many(self, parts: Sequence[Any], ancillary: tuple[()], flags: int, /) -> int:
        """As ``send`` for one part after the other. ``ancillary`` is sendmsg's, always empty."""

    def send_file(self, fd: int, position: int, size: int) -> int:
        """As ``send`` for a range of a file; 0 if the file ends before ``position``."""

    def on_readable(self, callback: Callable[[], None]) -> None:
        """Call back in each iteration of the loop in which ``receive_into`` would not block."""

    def stop_reading(self) -> None: ...
    def on_writable(self, callback: Callable[[], None]) -> None:
        """Call back in each iteration of the loop in which ``send`` would not block."""

    def stop_writing(self) -> None: ...
    def close(self) -> None:
        """Stop the callbacks first."""


class Listening(Protocol):
    """A bound address."""

    port: int

    def listen(self, backlog: int) -> None:
        """Let clients connect. They wait to be accepted."""

    def accept(self) -> Connection:
        """Raises BlockingIOError if no client waits."""

    def on_acceptable(self, callback: Callable[[], None]) -> None:
        """Call back in each iteration of the loop in which a client waits."""

    def stop_accepting(self) -> None: ...
    def close(self) -> None: ...


class Dial(Protocol):
    """Connects ``protocol`` to an address, or raises OSError.

    The protocol gets what asyncio's transports give: ``connection_made`` with a transport that has
    ``write`` and ``abort``, then ``get_buffer`` and ``buffer_updated`` for each receive, and
    ``connection_lost`` once, also after ``abort``.
    """

    async def __call__(self, protocol: asyncio.BufferedProtocol, host: str, port: int) -> None: ...


class Network(Protocol):
    """Where a broker listens and connects from."""

    def bind(
        self, host: str, port: int, *, send_buffer_size: int | None, receive_buffer_size: int | None
    ) -> Listening:
        """Bind an address: every interface if ``host`` is empty, any free port if it is 0.

        Accepted connections get buffers of the sizes given; None leaves a size to the kernel.
        """

    async def dial(self, protocol: asyncio.BufferedProtocol, host: str, port: int) -> None:
        """See ``Dial``."""


def set_receive_buffer(transport: asyncio.BaseTransport, size: int) -> None:
    """Set the size of a connected socket's receive buffer. A simulated one has no socket."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


async def dial(protocol: asyncio.BufferedProtocol, host: str, port: int) -> None:
    """Open a TCP connection. asyncio sets TCP_NODELAY on it."""
    await asyncio.get_running_loop().create_connection(lambda: protocol, host, port)


class SystemNetwork:
    """The real network. Its callbacks come from the loop that runs when ``bind`` is called."""

    dial = staticmethod(dial)

    @staticmethod
    def bind(
        host: str, port: int, *, send_buffer_size: int | None, receive_buffer_size: int | None
    ) -> "SystemListening":
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        if not host:
            # Every interface, including IPv6 if the machine has it.
            family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        elif family is socket.AF_INET:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            if family is socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if not host else 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if receive_buffer_size is not None:
                # Accepted sockets inherit it; setting it on them is too late for the TCP window.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_size)
            sock.setblocking(False)
            sock.bind((host, port))
        except OSError:
            sock.close()
            raise
        return SystemListening(sock, send_buffer_size, asyncio.get_running_loop())


class SystemListening:
    """A bound socket."""

    def __init__(
        self, sock: socket.socket, send_buffer_size: int | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._send_buffer_size = send_buffer_size
        self._loop = loop
        self.port: int = sock.getsockname()[1]
        self.listen = sock.listen
        self.close = sock.close

    def accept(self) -> "SystemConnection":
        sock, address = self._sock.accept()
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._send_buffer_size is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_size)
        except OSError as error:
            sock.close()
            raise ConnectionAbortedError("the client has already disconnected") from error
        # The host of an IPv4 client on a socket of both families has a prefix.
        return SystemConnection(sock, (address[0].removeprefix("::ffff:"), address[1]), self._loop)

    def on_acceptable(self, callback: Callable[[], None]) -> None:
        self._loop.add_reader(self._fd, callback)

    def stop_accepting(self) -> None:
        self._loop.remove_reader(self._fd)


class SystemConnection:
    """A connected socket, which must not block."""

    __slots__ = ("peer", "receive_into", "send", "send_many", "close", "_fd", "_loop")

    def __init__(
        self, sock: socket.socket, peer: tuple[str, int], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.peer = peer
        self.receive_into: Callable[[memoryview], int] = sock.recv_into
        self.send: Callable[[Any, int], int] = sock.send
        self.send_many: Callable[[Sequence[Any], tuple[()], int], int] = sock.sendmsg
        self.close: Callable[[], None] = sock.close
        self._fd = sock.fileno()
        self._loop = loop

    def send_file(self, fd: int, position: int, size: int) -> int:
        if HAS_SENDFILE:
            return os.sendfile(self._fd, fd, position, size)
        piece = os.pread(fd, min(size, _PIECE_SIZE), position)
        return self.send(piece, 0)

    def on_readable(self, callback: Callable[[], None]) -> None:
        self._loop.add_reader(self._fd, callback)

    def stop_reading(self) -> None:
        self._loop.remove_reader(self._fd)

    def on_writable(self, callback: Callable[[], None]) -> None:
        self._loop.add_writer(self._fd, callback)

    def stop_writing(self) -> None:
        self._loop.remove_writer(self._fd)


def is_unresolved(error: OSError) -> bool:
    """Whether the host name of an address could not be resolved."""
    return isinstance(error, socket.gaierror)
