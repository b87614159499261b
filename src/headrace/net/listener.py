"""A listener: accepts connections within Kafka's limits.

Above ``max.connections``, ``max.connections.per.ip`` and its overrides, a connection is closed
immediately, with at most one log line per second, so that a flood of connections fills neither
memory nor the log. Connections above ``max.connection.creation.rate`` wait in the kernel's backlog.
If the process has no file descriptors left, the listener pauses briefly instead of spinning.
"""

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Mapping

from headrace.net.buffers import BufferPool
from headrace.net.link import Link, Service
from headrace.net.outbox import Outbox

_log = logging.getLogger("headrace.network")

_ACCEPTS_PER_EVENT = 64  # then other events are handled
_PAUSE_S = 0.2


class CreationRate:
    """Limits connections per second; after an idle second, that many may come at once."""

    def __init__(self, per_second: int) -> None:
        self.per_second = per_second
        self._allowance = float(per_second)
        self._counted_at = 0.0

    def wait_s(self, now: float) -> float:
        """Seconds until the next connection may be accepted; 0 if now."""
        earned = (now - self._counted_at) * self.per_second
        self._allowance = min(self._allowance + earned, float(max(self.per_second, 1)))
        self._counted_at = now
        if self._allowance >= 1:
            return 0
        return min((1 - self._allowance) / self.per_second, 1) if self.per_second else 1

    def came(self) -> None:
        self._allowance -= 1


class ConnectionLimits:
    """Counts and limits the connections of all listeners of a broker."""

    def __init__(
        self,
        total_max: int,
        per_ip_max: int,
        per_ip: Mapping[str, int],
        creation_rate: CreationRate,
    ) -> None:
        self.total_max = total_max
        self.creation_rate = creation_rate
        self.count_by_listener: Counter[str] = Counter()
        self.per_ip_max = per_ip_max
        self.per_ip = dict(per_ip)
        self.links: set[Link] = set()
        self.count_by_ip: Counter[str] = Counter()

    def refusal(self, ip: str) -> str | None:
        """Why another connection from ``ip`` is refused; None if it is accepted."""
        if len(self.links) >= self.total_max:
            return f"{len(self.links)} connections are open; max.connections is {self.total_max}"
        allowed = self.per_ip.get(ip, self.per_ip_max)
        if self.count_by_ip[ip] >= allowed:
            return f"it has {self.count_by_ip[ip]} connections; max.connections.per.ip is {allowed}"
        return None

    def opened(self, link: Link) -> None:
        self.links.add(link)
        self.count_by_ip[link.peer_host] += 1
        self.count_by_listener[link.listener_name] += 1

    def closed(self, link: Link) -> None:
        if link in self.links:
            self.links.discard(link)
            self.count_by_listener[link.listener_name] -= 1
            self.count_by_ip[link.peer_host] -= 1
            if not self.count_by_ip[link.peer_host]:
                del self.count_by_ip[link.peer_host]


class Listener:
    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        *,
        limits: ConnectionLimits,
        pool: BufferPool,
        outbox: Outbox,
        frame_size_max: int,
        send_buffer_size: int | None,
        receive_buffer_size: int | None,
        backlog: int,
        connections_max: int,
        creation_rate: CreationRate,
    ) -> None:
        self.name = name
        self._host = host
        self._port = port
        self._service: Service | None = None  # once it accepts
        self._limits = limits
        self._pool = pool
        self._outbox = outbox
        self._frame_size_max = frame_size_max
        self._send_buffer_size = send_buffer_size
        self._receive_buffer_size = receive_buffer_size
        self._backlog = backlog
        self._connections_max = connections_max
        self._creation_rates = (creation_rate, limits.creation_rate)
        self._sock: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._refusal_logged_at = 0.0

    def bind(self) -> tuple[str, int]:
        """Bind the address, without accepting yet. Returns the host and the actual port."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        host = self._host
        if not host:
            # Every interface, including IPv6 if the machine has it.
            family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        elif family is socket.AF_INET:
            family = socket.getaddrinfo(host, self._port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            if family is socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if not host else 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._receive_buffer_size is not None:
                # Accepted sockets inherit it; setting it on them is too late for the TCP window.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_size)
            sock.setblocking(False)
            sock.bind((host, self._port))
        except OSError as error:
            sock.close()
            raise OSError(
                error.errno,
                f"listener {self.name} cannot listen on {host or '*'}:{self._port}: "
                f"{error.strerror}",
            ) from error
        self._sock = sock
        return host, sock.getsockname()[1]

    def accept_from_now_on(self, loop: asyncio.AbstractEventLoop, service: Service) -> None:
        assert self._sock is not None
        self._loop = loop
        self._service = service
        self._sock.listen(self._backlog)
        loop.add_reader(self._sock.fileno(), self._acceptable)

    def _acceptable(self) -> None:
        assert self._sock is not None and self._loop is not None
        for _ in range(_ACCEPTS_PER_EVENT):
            wait_s = max(rate.wait_s(self._loop.time()) for rate in self._creation_rates)
            if wait_s > 0:
                self._pause_accepting(wait_s)
                return
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                # accept(2) also reports network errors of the new connection. The next call may
                # fail in the same way.
                advice = ""
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    advice = ". Raise the limit of open files (ulimit -n) or lower max.connections"
                _log.error(
                    "listener %s pauses accepting; %d connections are open: %s%s",
                    self.name,
                    len(self._limits.links),
                    error.strerror,
                    advice,
                )
                self._pause_accepting(_PAUSE_S)
                return
            for rate in self._creation_rates:
                rate.came()
            self._accepted(sock, address)

    def _accepted(self, sock: socket.socket, address: tuple[str, int]) -> None:
        assert self._loop is not None
        host = address[0].removeprefix("::ffff:")
        refusal = self._limits.refusal(host)
        count = self._limits.count_by_listener[self.name]
        if refusal is None and count >= self._connections_max:
            refusal = f"{count} connections are open on this listener, its limit"
        if refusal is not None:
            sock.close()
            now = self._loop.time()
            if now - self._refusal_logged_at >= 1:
                self._refusal_logged_at = now
                _log.warning("refused a connection from %s on %s: %s", host, self.name, refusal)
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._send_buffer_size is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_size)
        except OSError:
            sock.close()  # the client has already disconnected
            return
        assert self._service is not None
        link = Link(
            sock,
            (host, address[1]),
            self.name,
            self._service,
            self._pool,
            self._outbox,
            self._frame_size_max,
            self._loop,
        )
        self._limits.opened(link)

    def _pause_accepting(self, wait_s: float) -> None:
        """Clients wait in the kernel's backlog in the meantime."""
        assert self._sock is not None and self._loop is not None
        self._loop.remove_reader(self._sock.fileno())
        self._pause = self._loop.call_later(wait_s, self._accept_again)

    def _accept_again(self) -> None:
        assert self._sock is not None and self._loop is not None
        self._pause = None
        self._loop.add_reader(self._sock.fileno(), self._acceptable)

    def close(self) -> None:
        """Stop accepting; existing connections stay open."""
        if self._sock is None:
            return
        if self._pause is not None:
            self._pause.cancel()
        if self._loop is not None:
            self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._sock = None
