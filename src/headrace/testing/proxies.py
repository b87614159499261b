"""TCP proxies on the loopback interface, which cut or slow the link to a server of another kind.

A broker in a child process reaches ZooKeeper through a proxy of its own, so a test can cut that
broker alone. The proxies share one thread.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headrace.testing.network_faults import FaultyNetwork, Impairment

_HOST = "127.0.0.1"
_BUFFER_SIZE = 1 << 16
_CALL_TIMEOUT_S = 30

Result = TypeVar("Result")


class Proxies:
    """Proxies to one server. All methods block, and may be called from any thread."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._loop = asyncio.new_event_loop()
        self._networks: dict[int, FaultyNetwork] = {}  # by the port of the proxy
        self._listeners: list[asyncio.Server] = []
        self._connections: list[_Near] = []
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="headrace-proxies", daemon=True
        )
        self._thread.start()

    def add(self) -> int:
        """Start a proxy and return its port."""
        return self._run(self._add())

    def impair(self, port: int, impairment: Impairment) -> None:
        """Set the state of the link through one proxy."""
        self._run(self._impair(port, impairment))

    def impairment(self, port: int) -> Impairment:
        return self._networks[port].impairment(self._server[1])

    def close(self) -> None:
        """Close all proxies and their connections."""
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_TIMEOUT_S)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT_S)

    async def _add(self) -> int:
        network = FaultyNetwork()

        def near() -> _Near:
            connection = _Near(network, self._server, self._connections.remove)
            self._connections.append(connection)
            return connection

        listener = await self._loop.create_server(near, _HOST, 0)
        self._listeners.append(listener)
        port: int = listener.sockets[0].getsockname()[1]
        self._networks[port] = network
        return port

    async def _impair(self, port: int, impairment: Impairment) -> None:
        self._networks[port].impair({self._server[1]: impairment})

    async def _close(self) -> None:
        # asyncio loses the socket of a connection that it is accepting when its server closes, so
        # let every connection appear and close it first.
        while self._connections or len(asyncio.all_tasks()) > 1:
            for connection in self._connections:
                connection.abort()
            await asyncio.sleep(0)
        for listener in self._listeners:
            listener.close()
        for network in self._networks.values():
            network.close()
        await asyncio.sleep(0)


class _Near(asyncio.Protocol):
    """The connection of a client to the proxy."""

    def __init__(
        self,
        network: FaultyNetwork,
        server: tuple[str, int],
        forget: Callable[["_Near"], None],
    ) -> None:
        self._network = network
        self._server = server
        self._forget = forget
        self._transport: asyncio.Transport | None = None
        self._far = _Far(self)
        self._dialing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._dialing = asyncio.ensure_future(self._dial())

    async def _dial(self) -> None:
        try:
            await self._network.dial(self._far, *self._server)
        except OSError:
            self.abort()

    def data_received(self, data: bytes) -> None:
        self._far.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget(self)
        if self._dialing is not None:
            self._dialing.cancel()
        self._far.abort()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _Far(asyncio.BufferedProtocol):
    """The connection of the proxy to the server, which may not be open yet."""

    def __init__(self, near: _Near) -> None:
        self._near = near
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._buffer = bytearray(_BUFFER_SIZE)

    def write(self, data: bytes) -> None:
        if self._transport is None:
            self._early.append(data)
        else:
            self._transport.write(data)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        for data in self._early:
            transport.write(data)
        self._early.clear()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._near.write(bytes(self._buffer[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._near.abort()
