"""Network faults: the connections that a broker opens, cut or slowed by the port they lead to.

Brokers reach each other only through connections that one of them opens, so the opening side can
hold back both directions. As in a real network cut, nothing arrives and nothing is reported: open
connections stall, new ones wait. After the cut they continue, if their owners still wait.

No root, no firewall: a ``FaultyNetwork`` takes the place of the network in a broker's ``World``.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headrace.world.network import Listening, Network, SystemNetwork

_BUFFER_SIZE = 1 << 16


class Impairment(NamedTuple):
    """The state of the link to one port."""

    cut: bool = False
    delay_s: float = 0.0  # of each direction


NO_IMPAIRMENT = Impairment()


class FaultyNetwork:
    """The network of one broker. Use it on the event loop of the broker only."""

    def __init__(
        self, impairments: Mapping[int, Impairment] | None = None, network: Network | None = None
    ) -> None:
        self._network = network or SystemNetwork()
        self._impairments = dict(impairments or {})
        self._connections: dict[_Dialed, None] = {}
        self._waiting: list[asyncio.Future[None]] = []  # to dial, while the link is cut

    def bind(
        self, host: str, port: int, *, send_buffer_size: int | None, receive_buffer_size: int | None
    ) -> Listening:
        return self._network.bind(
            host, port, send_buffer_size=send_buffer_size, receive_buffer_size=receive_buffer_size
        )

    async def dial(self, protocol: asyncio.BufferedProtocol, host: str, port: int) -> None:
        while (impairment := self.impairment(port)).cut:
            changed = asyncio.get_running_loop().create_future()
            self._waiting.append(changed)
            await changed
        if impairment.delay_s:
            await asyncio.sleep(2 * impairment.delay_s)  # the handshake goes there and back
        dialed = _Dialed(protocol, port, impairment, self._forget)
        self._connections[dialed] = None
        try:
            await self._network.dial(dialed, host, port)
        except BaseException:
            self._forget(dialed)
            raise
        # The link may have changed while the connection was opened.
        dialed.impair(self.impairment(port))

    def _forget(self, dialed: "_Dialed") -> None:
        # A dial that is cancelled may have connected: it is lost, too.
        self._connections.pop(dialed, None)

    def impairment(self, port: int) -> Impairment:
        return self._impairments.get(port, NO_IMPAIRMENT)

    def impair(self, impairments: Mapping[int, Impairment]) -> None:
        """Set the state of every link; a port that is not named has none."""
        self._impairments = dict(impairments)
        for dialed in list(self._connections):
            dialed.impair(self.impairment(dialed.port))
        waiting, self._waiting = self._waiting, []
        for changed in waiting:
            if not changed.done():
                changed.set_result(None)

    def close(self) -> None:
        """Close the connections that a cut has kept open."""
        for dialed in list(self._connections):
            dialed.close()


class _Direction:
    """One direction: delivers in order and after the delay, and nothing during a cut."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._held: deque[tuple[float, Callable[[], None]]] = deque()
        self._impairment = NO_IMPAIRMENT
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_clear(self) -> bool:
        """Whether bytes may pass without being held."""
        return not self._held and self._impairment == NO_IMPAIRMENT

    def put(self, deliver: Callable[[], None]) -> None:
        self._held.append((self._loop.time() + self._impairment.delay_s, deliver))
        self._deliver_due()

    def impair(self, impairment: Impairment) -> None:
        self._impairment = impairment
        self._deliver_due()

    def clear(self) -> None:
        self._held.clear()

    def _deliver_due(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._held and not self._impairment.cut:
            due = self._held[0][0]
            if due > self._loop.time():
                self._timer = self._loop.call_at(due, self._deliver_due)
                return
            self._held.popleft()[1]()


class _Dialed(asyncio.Transport, asyncio.BufferedProtocol):
    """Stands between a protocol and the transport of its connection."""

    def __init__(
        self,
        owner: asyncio.BufferedProtocol,
        port: int,
        impairment: Impairment,
        forget: Callable[["_Dialed"], None],
    ) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self.port = port
        self._loop = loop
        self._owner = owner
        self._forget = forget
        self._transport: asyncio.Transport | None = None
        self._impairment = impairment
        self._out, self._in = _Direction(loop), _Direction(loop)
        self._buffer: bytearray | None = None  # lent to the transport, if bytes are held
        self._is_closed = False  # for the owner
        self._is_lost = False  # the owner knows

    def impair(self, impairment: Impairment) -> None:
        was_cut, self._impairment = self._impairment.cut, impairment
        transport = self._transport
        if transport is not None:
            if self._is_closed and not impairment.cut:
                transport.abort()  # only now may the other end hear of it
            elif impairment.cut and not was_cut:
                transport.pause_reading()
            elif was_cut and not impairment.cut:
                transport.resume_reading()
        self._out.impair(impairment)
        self._in.impair(impairment)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- the transport of the owner

    def write(self, data: Any) -> None:
        if self._is_closed or self._transport is None:
            return
        if self._out.is_clear:
            self._transport.write(data)
        else:
            held = bytes(data)
            self._out.put(lambda: self._send(held))

    def _send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def abort(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._out.clear()
        self._in.clear()
        if self._impairment.cut:
            self._loop.call_soon(self._tell_lost, None)
        elif self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        return self._is_closed

    # --- the protocol of the real transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._out.impair(self._impairment)
        self._in.impair(self._impairment)
        self._owner.connection_made(self)

    def get_buffer(self, sizehint: int) -> Any:
        if self._in.is_clear:
            self._buffer = None
            return self._owner.get_buffer(sizehint)
        self._buffer = bytearray(_BUFFER_SIZE)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._buffer is None:
            self._owner.buffer_updated(nbytes)
        else:
            held = memoryview(self._buffer)[:nbytes]
            self._in.put(lambda: self._receive(held))

    def _receive(self, data: memoryview) -> None:
        while data and not self._is_closed:
            buffer = memoryview(self._owner.get_buffer(len(data))).cast("B")
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self._owner.buffer_updated(count)
            data = data[count:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._is_lost:
            self._forget(self)
        elif self._is_closed:
            self._tell_lost(exc)
        else:
            self._in.put(lambda: self._tell_lost(exc))

    def _tell_lost(self, exc: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_closed = self._is_lost = True
        if self._transport is None:
            self._forget(self)
        self._owner.connection_lost(exc)
