"""Both ends of a connection, for tests of networks: a protocol that collects, and waits."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.world.network import Connection


class Client(asyncio.BufferedProtocol):
    """Collects what it receives."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.transport: Any = None
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._buffer = bytearray(1 << 14)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)

    async def has_received(self, size: int) -> bytes:
        await until(lambda: len(self.received) >= size)
        return bytes(self.received)


async def until(condition: Callable[[], Any]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.001)


def _called(
    start: Callable[[Callable[[], None]], None], stop: Callable[[], None]
) -> Awaitable[None]:
    """A future that is done at the first call back."""
    called = asyncio.get_running_loop().create_future()

    def callback() -> None:
        stop()
        called.set_result(None)

    start(callback)
    return called


async def accept(listening: Any) -> Connection:
    await _called(listening.on_acceptable, listening.stop_accepting)
    accepted: Connection = listening.accept()
    return accepted


async def receive(connection: Connection, size: int = 1 << 16) -> bytes:
    """What is there, once something is; b"" at the end."""
    await _called(connection.on_readable, connection.stop_reading)
    buffer = bytearray(size)
    return bytes(buffer[: connection.receive_into(memoryview(buffer))])


async def receive_all(connection: Connection, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = await receive(connection)
        assert piece, "the peer closed the connection"
        received += piece
    return received


async def writable(connection: Connection) -> None:
    await _called(connection.on_writable, connection.stop_writing)


async def send_all(connection: Connection, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        await writable(connection)
        rest = rest[connection.send(rest, 0) :]
