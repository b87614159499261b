"""A simulated network: TCP between named hosts, in virtual time, with cuts, delays and deaths.

Bytes arrive in order, after a delay drawn from the dice, and possibly in pieces. What a cut holds
back arrives after ``heal``, as TCP sends it again, unless the sender gives up before. What
remains of a connection whose other end is gone is half open: it learns that from the reset that
answers its next bytes.

``SimulatedNetwork.host`` gives a process its end of the network, with the methods of
``headrace.world.network.SystemNetwork``. The order of calls is the only order: nothing depends on
the identity or the hash of an object.
"""

import asyncio
import contextvars
import errno
import os
import random
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

LATENCY_S = (0.000_05, 0.001)
GIVE_UP_S = 30.0  # after that a sender whose bytes do not arrive breaks its connection
_RETRANSMIT_MAX_S = 1.0  # from the end of a cut to the next attempt
_CONNECT_AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0)
_SPLIT_CHANCE = 0.1
_EPHEMERAL_PORT_MIN = 40_000
_END = b""  # in flight: no byte follows


def os_error(code: int) -> OSError:
    """Python makes it a ConnectionResetError, a BlockingIOError and so on."""
    return OSError(code, os.strerror(code))


class SimulatedNetwork:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, dice: random.Random, *, buffer_size: int = 1 << 16
    ) -> None:
        """``buffer_size`` bounds the bytes per direction that are sent and not yet received."""
        self.loop = loop
        self.dice = dice
        self.buffer_size = buffer_size
        # Of no process: bytes go on to arrive while their sender is paused.
        self.context = contextvars.Context()
        self._hosts: dict[str, SimulatedHost] = {}  # with a process that runs
        self._names: dict[str, None] = {}  # of all hosts that ever ran a process
        self._powered_off: dict[str, None] = {}
        self._cuts: dict[tuple[str, str], None] = {}
        self._slow_by_s: dict[tuple[str, str], float] = {}
        self._blocked: dict[int, SimulatedConnection] = {}
        self._connection_count = 0

    def host(self, name: str, files: Any = None) -> "SimulatedHost":
        """Start a process on a host. ``files`` is what ``send_file`` reads from."""
        assert name not in self._hosts, f"{name} already runs a process"
        self._names[name] = None
        self._powered_off.pop(name, None)
        self._hosts[name] = SimulatedHost(self, name, files)
        self._unblock()
        return self._hosts[name]

    # --- faults

    def cut(self, a: str, b: str) -> None:
        """Nothing passes between two hosts until ``heal``."""
        self._cuts[_pair(a, b)] = None

    def slow(self, a: str, b: str, ms: float) -> None:
        """Everything between two hosts takes longer until ``heal``."""
        self._slow_by_s[_pair(a, b)] = ms / 1000

    def mend(self, a: str, b: str) -> None:
        """No cut and no delay between two hosts any more."""
        self._cuts.pop(_pair(a, b), None)
        self._slow_by_s.pop(_pair(a, b), None)
        self._unblock()

    def heal(self) -> None:
        """No cuts and no delays any more. Hosts without a process stay as they are."""
        self._cuts.clear()
        self._slow_by_s.clear()
        self._unblock()

    def kill(self, name: str) -> None:
        """The process is gone; its kernel closes its connections, and so the others learn it."""
        self._hosts.pop(name).kill()

    def lose_power(self, name: str) -> None:
        """The machine is gone, so the others learn nothing before it is back, or time out."""
        self._powered_off[name] = None
        self._hosts.pop(name).lose_power()

    def reset_connections(self, name: str) -> None:
        """Every connection of a host breaks, on both ends; requests may or may not have arrived."""
        host = self._hosts.get(name)
        for connection in list(host.connections.values()) if host is not None else []:
            connection.break_off(errno.ECONNRESET)
            connection.other.break_off(errno.ECONNRESET)

    # --- what hosts and connections use

    def next_number(self) -> int:
        self._connection_count += 1
        return self._connection_count

    def running(self, name: str) -> "SimulatedHost | None":
        return self._hosts.get(name)

    def knows(self, name: str) -> bool:
        return name in self._names

    def is_open_between(self, a: str, b: str) -> bool:
        off = self._powered_off
        return _pair(a, b) not in self._cuts and a not in off and b not in off

    def latency_s(self, a: str, b: str) -> float:
        return self.dice.uniform(*LATENCY_S) + self._slow_by_s.get(_pair(a, b), 0.0)

    def send_packet(self, a: str, b: str, deliver: Callable[..., None], *arguments: Any) -> None:
        """Deliver once or never: a packet that TCP does not send again."""

        def arrive() -> None:
            if self.is_open_between(a, b):
                deliver(*arguments)

        self.loop.call_later(self.latency_s(a, b), arrive, context=self.context)

    def blocked(self, connection: "SimulatedConnection") -> None:
        self._blocked[connection.number] = connection

    def unblocked(self, connection: "SimulatedConnection") -> None:
        self._blocked.pop(connection.number, None)

    def _unblock(self) -> None:
        for connection in list(self._blocked.values()):
            connection.send_again()


def _pair(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a < b else (b, a)


class SimulatedHost:
    """The network as one process sees it."""

    def __init__(self, network: SimulatedNetwork, name: str, files: Any) -> None:
        self.network = network
        self.name = name
        self.files = files
        self.is_alive = True
        self.connections: dict[int, SimulatedConnection] = {}  # open ones, by number
        self.listening: dict[int, SimulatedListening] = {}  # by port
        self._last_port = _EPHEMERAL_PORT_MIN - 1

    def kill(self) -> None:
        self.is_alive = False
        for listening in list(self.listening.values()):
            listening.close()
        for connection in list(self.connections.values()):
            connection.close()

    def lose_power(self) -> None:
        self.is_alive = False
        for listening in list(self.listening.values()):
            listening.stop_accepting()
        self.listening.clear()
        for connection in list(self.connections.values()):
            connection.vanish()

    def next_port(self) -> int:
        self._last_port += 1
        return self._last_port

    def bind(
        self, host: str, port: int, *, send_buffer_size: int | None, receive_buffer_size: int | None
    ) -> "SimulatedListening":
        if not self.is_alive or host not in ("", self.name):
            raise os_error(errno.EADDRNOTAVAIL)
        port = port or self.next_port()
        if port in self.listening:
            raise os_error(errno.EADDRINUSE)
        self.listening[port] = SimulatedListening(self, port)
        return self.listening[port]

    async def dial(self, protocol: asyncio.BufferedProtocol, host: str, port: int) -> None:
        SimulatedTransport(await self.connect(host, port), protocol)

    async def connect(self, host: str, port: int) -> "SimulatedConnection":
        """Open a connection, or raise OSError."""
        network = self.network
        if not network.knows(host):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        for wait_s in _CONNECT_AGAIN_S:
            await asyncio.sleep(network.latency_s(self.name, host))
            if not self.is_alive:
                raise os_error(errno.ENETDOWN)
            if network.is_open_between(self.name, host):
                target = network.running(host)
                listening = target.listening.get(port) if target is not None else None
                if listening is None or not listening.is_listening:
                    await asyncio.sleep(network.latency_s(host, self.name))
                    raise os_error(errno.ECONNREFUSED)
                if listening.has_room:
                    return await self._connected(listening)
            await asyncio.sleep(wait_s)
        raise os_error(errno.ETIMEDOUT)

    async def _connected(self, listening: "SimulatedListening") -> "SimulatedConnection":
        remote, port = listening.host, self.next_port()
        ours = SimulatedConnection(self, port, (remote.name, listening.port))
        theirs = SimulatedConnection(remote, listening.port, (self.name, port))
        ours.other, theirs.other = theirs, ours
        listening.arrived(theirs)
        try:
            await asyncio.sleep(self.network.latency_s(remote.name, self.name))
        except asyncio.CancelledError:
            ours.close()
            raise
        return ours


class _Watch:
    """Calls back in each iteration of the loop in which a condition holds, as a selector does."""

    def __init__(self, loop: asyncio.AbstractEventLoop, holds: Callable[[], bool]) -> None:
        self._loop = loop
        self._holds = holds
        self._callback: Callable[[], None] | None = None
        self._context: contextvars.Context | None = None
        self._is_scheduled = False

    def start(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._context = contextvars.copy_context()
        self.look()

    def stop(self) -> None:
        self._callback = None

    def look(self) -> None:
        """The condition may hold now."""
        if self._callback is not None and not self._is_scheduled and self._holds():
            self._is_scheduled = True
            self._loop.call_soon(self._call, context=self._context)

    def _call(self) -> None:
        self._is_scheduled = False
        if self._callback is None or not self._holds():
            return
        try:
            self._callback()
        finally:
            self.look()


class SimulatedListening:
    def __init__(self, host: SimulatedHost, port: int) -> None:
        self.host = host
        self.port = port
        self.is_listening = False
        self._backlog = 0
        self._waiting: deque[SimulatedConnection] = deque()
        self._watch = _Watch(host.network.loop, lambda: bool(self._waiting))

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < self._backlog

    def listen(self, backlog: int) -> None:
        self.is_listening = True
        self._backlog = backlog

    def arrived(self, connection: "SimulatedConnection") -> None:
        self._waiting.append(connection)
        self._watch.look()

    def accept(self) -> "SimulatedConnection":
        if not self._waiting:
            raise os_error(errno.EAGAIN)
        return self._waiting.popleft()

    def on_acceptable(self, callback: Callable[[], None]) -> None:
        self._watch.start(callback)

    def stop_accepting(self) -> None:
        self._watch.stop()

    def close(self) -> None:
        self._watch.stop()
        self.host.listening.pop(self.port, None)
        while self._waiting:
            self._waiting.popleft().reset()


class SimulatedConnection:
    """One end of a connection; see ``headrace.world.network.Connection``.

    It outlives its process: a kernel sends what it accepted, and then the end, after a close.
    """

    other: "SimulatedConnection"

    def __init__(self, host: SimulatedHost, port: int, peer: tuple[str, int]) -> None:
        self.network = host.network
        self.number = host.network.next_number()
        self.address = (host.name, port)
        self.peer = peer
        self.is_closed = False
        self._host = host
        self.received = bytearray()
        self._has_ended = False  # the peer sends no more
        self._broken: int | None = None  # the errno of every call from now on
        self._has_sent_end = False
        self._in_flight: deque[tuple[float, bytes]] = deque()  # with the time of arrival
        self._in_flight_size = 0
        self._arrival: asyncio.TimerHandle | None = None  # of the first bytes in flight
        self._giving_up: asyncio.TimerHandle | None = None  # while the way is blocked
        self._readable = _Watch(self.network.loop, self._can_receive)
        self._writable = _Watch(self.network.loop, self._can_send)
        host.connections[self.number] = self

    # --- what a process calls

    def receive_into(self, buffer: Any) -> int:
        if self.is_closed:
            raise os_error(errno.EBADF)
        if self.received:
            count = min(len(buffer), len(self.received))
            buffer[:count] = self.received[:count]
            del self.received[:count]
            # A cut does not hold this back, for brevity: TCP probes a closed window.
            delay_s = self.network.latency_s(*self._way())
            self.network.loop.call_later(delay_s, self.other.window_opened)
            return count
        if self._broken is not None:
            raise os_error(self._broken)
        if self._has_ended:
            return 0
        raise os_error(errno.EAGAIN)

    def send(self, part: Any, flags: int = 0) -> int:
        if self.is_closed:
            raise os_error(errno.EBADF)
        if self._broken is not None:
            raise os_error(self._broken)
        if self._has_sent_end:
            raise os_error(errno.EPIPE)
        accepted = bytes(part[: self._room()])
        if part and not accepted:
            raise os_error(errno.EAGAIN)
        dice = self.network.dice
        if len(accepted) > 1 and dice.random() < _SPLIT_CHANCE:
            cut_at = dice.randrange(1, len(accepted))
            self._put_in_flight(accepted[:cut_at])
            self._put_in_flight(accepted[cut_at:])
        elif accepted:
            self._put_in_flight(accepted)
        return len(accepted)

    def send_many(self, parts: Sequence[Any], ancillary: tuple[()] = (), flags: int = 0) -> int:
        return self.send(b"".join(parts), flags)

    def send_file(self, fd: int, position: int, size: int) -> int:
        size = min(size, max(self._room(), 1))  # one byte finds out that there is no room
        return self.send(self._host.files.pread(fd, size, position))

    def send_end(self) -> None:
        """Send no more bytes; receiving goes on."""
        if not self._has_sent_end and self._broken is None:
            self._has_sent_end = True
            self._put_in_flight(_END)

    def on_readable(self, callback: Callable[[], None]) -> None:
        self._readable.start(callback)

    def stop_reading(self) -> None:
        self._readable.stop()

    def on_writable(self, callback: Callable[[], None]) -> None:
        self._writable.start(callback)

    def stop_writing(self) -> None:
        self._writable.stop()

    def close(self) -> None:
        if self.is_closed:
            return
        if self.received:
            self.reset()  # as TCP does: the peer must not believe that its bytes were read
        else:
            self._forget()
            self.send_end()

    # --- what happens to it

    def reset(self) -> None:
        """Close without sending what is in flight."""
        self.vanish()
        self._send_reset()

    def vanish(self) -> None:
        """Close without telling the peer."""
        self._forget()
        self._lose_in_flight()

    def break_off(self, code: int) -> None:
        """The connection is lost; calls fail after the received bytes are read."""
        if self._broken is None:
            self._broken = code
            self._lose_in_flight()
            self._readable.look()
            self._writable.look()

    def window_opened(self) -> None:
        """The peer has read bytes."""
        self._writable.look()

    def send_again(self) -> None:
        """The way may be open again."""
        self._stop_giving_up()
        arrives_at = self._soonest_arrival() + self.network.dice.uniform(0, _RETRANSMIT_MAX_S)
        self._in_flight = deque((max(at, arrives_at), piece) for at, piece in self._in_flight)
        self._schedule_arrival()

    def arrived(self, piece: bytes) -> None:
        """From the peer. An end that is gone answers bytes with a reset."""
        if self.is_closed:
            if piece:
                self._send_reset()
            return
        if piece:
            self.received += piece
        else:
            self._has_ended = True
        self._readable.look()

    def _forget(self) -> None:
        self.is_closed = True
        self.received.clear()
        self._readable.stop()
        self._writable.stop()
        self._host.connections.pop(self.number, None)

    def _send_reset(self) -> None:
        self.network.send_packet(*self._way(), self.other.break_off, errno.ECONNRESET)

    # --- bytes in flight

    def _way(self) -> tuple[str, str]:
        return self.address[0], self.peer[0]

    def _room(self) -> int:
        return self.network.buffer_size - self._in_flight_size - len(self.other.received)

    def _can_send(self) -> bool:
        return self._broken is not None or self._room() > 0

    def _can_receive(self) -> bool:
        return bool(self.received) or self._has_ended or self._broken is not None

    def _soonest_arrival(self) -> float:
        return self.network.loop.time() + self.network.latency_s(*self._way())

    def _put_in_flight(self, piece: bytes) -> None:
        arrives_at = self._soonest_arrival()
        if self._in_flight:
            arrives_at = max(arrives_at, self._in_flight[-1][0])
        self._in_flight.append((arrives_at, piece))
        self._in_flight_size += len(piece)
        if self._arrival is None and self._giving_up is None:
            self._schedule_arrival()

    def _schedule_arrival(self) -> None:
        if self._in_flight:
            self._arrival = self.network.loop.call_at(
                self._in_flight[0][0], self._arrive, context=self.network.context
            )

    def _arrive(self) -> None:
        self._arrival = None
        if not self.network.is_open_between(*self._way()):
            self.network.blocked(self)
            self._giving_up = self.network.loop.call_later(
                GIVE_UP_S, self.break_off, errno.ETIMEDOUT, context=self.network.context
            )
            return
        _, piece = self._in_flight.popleft()
        self._in_flight_size -= len(piece)
        self.other.arrived(piece)
        self._schedule_arrival()

    def _lose_in_flight(self) -> None:
        self._in_flight.clear()
        self._in_flight_size = 0
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
        self._stop_giving_up()

    def _stop_giving_up(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
            self.network.unblocked(self)


class SimulatedTransport(asyncio.Transport):
    """What ``dial`` gives a protocol; writes are buffered without a limit, as asyncio's are."""

    def __init__(self, connection: SimulatedConnection, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__({"peername": connection.peer, "sockname": connection.address})
        self._connection = connection
        self._protocol = protocol
        self._loop = connection.network.loop
        self._unsent = bytearray()
        self._is_closing = False
        self._has_eof = False
        protocol.connection_made(self)
        if not self._is_closing:
            connection.on_readable(self._read)

    def write(self, data: Any) -> None:
        if self._is_closing:
            return
        was_empty = not self._unsent
        self._unsent += data
        if was_empty:
            self._write()

    def write_eof(self) -> None:
        self._has_eof = True
        if not self._unsent:
            self._connection.send_end()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def pause_reading(self) -> None:
        self._connection.stop_reading()

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._connection.on_readable(self._read)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Send what was written, then close."""
        if not self._is_closing:
            self._is_closing = True
            self._connection.stop_reading()
            if not self._unsent:
                self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self._break_off(None)

    def _break_off(self, error: Exception | None) -> None:
        if self._is_closing and not self._unsent:
            return  # ``_lose`` is on its way
        self._is_closing = True
        self._unsent.clear()
        self._connection.stop_reading()
        self._connection.stop_writing()
        self._loop.call_soon(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        self._connection.close()
        self._protocol.connection_lost(error)

    def _read(self) -> None:
        try:
            count = self._connection.receive_into(self._protocol.get_buffer(-1))
        except OSError as error:
            self._break_off(error)
            return
        if count:
            self._protocol.buffer_updated(count)
        elif self._protocol.eof_received():
            self._connection.stop_reading()  # the protocol still writes
        else:
            self.close()

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent)]
        except BlockingIOError:
            self._connection.on_writable(self._write)
            return
        except OSError as error:
            self._break_off(error)
            return
        self._connection.stop_writing()
        if self._is_closing:
            self._loop.call_soon(self._lose, None)
        elif self._has_eof:
            self._connection.send_end()
