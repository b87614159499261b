"""A listener: accepts connections within Kafka's limits.

Above ``max.connections``, ``max.connections.per.ip`` and its overrides, a connection is closed
immediately, with at most one log line per second, so that a flood of connections fills neither
memory nor the log. Connections above ``max.connection.creation.rate`` wait in the kernel's backlog.
If the process has no file descriptors left, the listener pauses briefly instead of spinning.
"""

import asyncio
import errno
import logging
from collections import Counter
from collections.abc import Mapping

from headrace.net.buffers import BufferPool
from headrace.net.link import Link, Service
from headrace.net.outbox import Outbox
from headrace.world.network import Connection, Listening, Network, is_unresolved

_log = logging.getLogger("headrace.network")

_ACCEPTS_PER_EVENT = 64  # then other events are handled
_PAUSE_S = 0.2  # after an error of accept


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

    def connection_created(self) -> None:
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
        self._total_max = total_max
        self.creation_rate = creation_rate
        self.count_by_listener: Counter[str] = Counter()
        self._per_ip_max = per_ip_max
        self._per_ip = dict(per_ip)
        self.links: dict[Link, None] = {}  # in the order in which they were opened
        self.count_by_ip: Counter[str] = Counter()

    def update(
        self, total_max: int, per_ip_max: int, per_ip: Mapping[str, int], rate_max: int
    ) -> None:
        """Change the limits; connections that are open stay open."""
        self._total_max = total_max
        self._per_ip_max = per_ip_max
        self._per_ip = dict(per_ip)
        self.creation_rate.per_second = rate_max

    def refusal(self, ip: str) -> str | None:
        """Why another connection from ``ip`` is refused; None if it is accepted."""
        if len(self.links) >= self._total_max:
            return f"{len(self.links)} connections are open; max.connections is {self._total_max}"
        allowed = self._per_ip.get(ip, self._per_ip_max)
        if self.count_by_ip[ip] >= allowed:
            return f"it has {self.count_by_ip[ip]} connections; max.connections.per.ip is {allowed}"
        return None

    def opened(self, link: Link) -> None:
        self.links[link] = None
        self.count_by_ip[link.peer_host] += 1
        self.count_by_listener[link.listener_name] += 1

    def closed(self, link: Link) -> None:
        if link in self.links:
            del self.links[link]
            self.count_by_listener[link.listener_name] -= 1
            self.count_by_ip[link.peer_host] -= 1
            if not self.count_by_ip[link.peer_host]:
                del self.count_by_ip[link.peer_host]


class Listener:
    def __init__(
        self,
        network: Network,
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
        pause_s: float = _PAUSE_S,
    ) -> None:
        self.name = name
        self._network = network
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
        self._listening: Listening | None = None  # once it is bound
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._pause_s = pause_s
        self._refusal_logged_at = 0.0

    def bind(self) -> tuple[str, int]:
        """Bind the address, without accepting yet. Returns the host and the actual port."""
        try:
            self._listening = self._network.bind(
                self._host,
                self._port,
                send_buffer_size=self._send_buffer_size,
                receive_buffer_size=self._receive_buffer_size,
            )
        except OSError as error:
            raise type(error)(
                error.errno,
                f"Cannot listen on {self._host or '*'}:{self._port} (listener {self.name}): "
                f"{_why_unbound(error)}",
            ) from error
        return self._host, self._listening.port

    def accept_from_now_on(self, loop: asyncio.AbstractEventLoop, service: Service) -> None:
        assert self._listening is not None
        self._loop = loop
        self._service = service
        self._listening.listen(self._backlog)
        self._listening.on_acceptable(self._acceptable)

    def _acceptable(self) -> None:
        assert self._listening is not None and self._loop is not None
        for _ in range(_ACCEPTS_PER_EVENT):
            wait_s = max(rate.wait_s(self._loop.time()) for rate in self._creation_rates)
            if wait_s > 0:
                self._pause_accepting(wait_s)
                return
            try:
                connection = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                # accept(2) also reports network errors of the new connection. The next call may
                # fail in the same way.
                advice = ""
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    advice = ". Raise the limit of open files (ulimit -n) or lower max.connections"
                _log.error(
                    "Listener %s pauses accepting; %d connections are open: %s%s",
                    self.name,
                    len(self._limits.links),
                    error.strerror,
                    advice,
                )
                self._pause_accepting(self._pause_s)
                return
            for rate in self._creation_rates:
                rate.connection_created()
            self._accepted(connection)

    def _accepted(self, connection: Connection) -> None:
        assert self._loop is not None and self._service is not None
        host, _ = connection.peer
        refusal = self._limits.refusal(host)
        count = self._limits.count_by_listener[self.name]
        if refusal is None and count >= self._connections_max:
            refusal = f"{count} connections are open on this listener, its limit"
        if refusal is not None:
            connection.close()
            now = self._loop.time()
            if now - self._refusal_logged_at >= 1:
                self._refusal_logged_at = now
                _log.warning("Refused a connection from %s on %s: %s", host, self.name, refusal)
            return
        link = Link(
            connection,
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
        assert self._listening is not None and self._loop is not None
        self._listening.stop_accepting()
        self._pause = self._loop.call_later(wait_s, self._accept_again)

    def _accept_again(self) -> None:
        assert self._listening is not None
        self._pause = None
        self._listening.on_acceptable(self._acceptable)

    def close(self) -> None:
        """Stop accepting; existing connections stay open."""
        if self._listening is None:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._listening.stop_accepting()
        self._listening.close()
        self._listening = None


def _why_unbound(error: OSError) -> str:
    if is_unresolved(error):
        return "the host name cannot be resolved"
    reasons = {
        errno.EADDRINUSE: "the address is in use",
        errno.EADDRNOTAVAIL: "this machine has no such address",
    }
    return reasons.get(error.errno or 0, error.strerror or str(error))
