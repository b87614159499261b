"""Connections to the brokers of the cluster, each opened when it is first used.

A ``Peer`` is one connection to one broker for one purpose, as Kafka's brokers keep them: the
controller's requests, one fetcher, markers. A lost connection is opened again by the next request,
at the address that the broker has by then.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from headrace.client.errors import Disconnected
from headrace.model.cluster_metadata import BrokerEntry
from headrace.model.ids import BrokerId
from headrace.wire.schema import Message
from headrace.world.network import Dial

if TYPE_CHECKING:
    from headrace.client.connection import Connection
    from headrace.wire.session import Response

_Answer = TypeVar("_Answer", bound=Message)

# How often a request in flight looks whether it still goes to the right broker.
_LOOK_AGAIN_S = 0.1

FindBroker = Callable[[BrokerId], BrokerEntry | None]


class Peer:
    """One connection to one broker. Made by ``Peers.peer``; ``close`` it in the end."""

    def __init__(
        self,
        broker_id: BrokerId,
        address: Callable[[BrokerId], tuple[str, int]],
        dial: Dial,
        client_id: str,
        *,
        negotiates: bool,
        timeout_s: float,
        allocate: Callable[[int], bytearray],
        receive_buffer_size: int | None,
    ) -> None:
        self.broker_id = broker_id
        self._address = address
        self._dial = dial
        self._client_id = client_id
        self._negotiates = negotiates
        self._timeout_s = timeout_s
        self._allocate = allocate
        self._receive_buffer_size = receive_buffer_size
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def request(
        self,
        request: Message,
        kind: type[_Answer],
        *,
        api_version: int | None = None,
        timeout_s: float | None = None,
    ) -> _Answer:
        """Send a request and wait for its response. Raises Disconnected: the outcome is unknown.

        A peer that does not negotiate versions needs an ``api_version`` with every request.
        """
        connection = await self._open()
        return await connection.request(request, kind, api_version=api_version, timeout_s=timeout_s)

    async def exchange(
        self, request: Message, *, api_version: int | None = None, timeout_s: float | None = None
    ) -> "Response":
        """As ``request``, for callers that decode the response themselves."""
        connection = await self._open()
        return await connection.exchange(request, api_version=api_version, timeout_s=timeout_s)

    async def _open(self) -> "Connection":
        # Imported here: one node opens none.
        from headrace.client.connection import Connection

        async with self._opening:
            if self._closed:
                raise Disconnected(f"the connection to broker {self.broker_id} is closed")
            if self._connection is None or not self._connection.is_open:
                host, port = self._address(self.broker_id)
                self._connection = await Connection.open(
                    host,
                    port,
                    client_id=self._client_id,
                    versions=None if self._negotiates else {},
                    timeout_s=self._timeout_s,
                    dial=self._dial,
                    allocate=self._allocate,
                    receive_buffer_size=self._receive_buffer_size,
                )
                if self.is_closed:  # meanwhile
                    await self._connection.close()
            return self._connection

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def close(self) -> None:
        """Close for good; requests in flight raise Disconnected."""
        self._closed = True
        if self._connection is not None:
            await self._connection.close()


async def request_while(
    peer: Peer,
    is_current: Callable[[], bool],
    request: Message,
    kind: type[_Answer],
    *,
    api_version: int,
) -> _Answer:
    """As ``Peer.request``, but close the peer once another broker is to be asked.

    A controller that is paused never answers. Its successor must not be asked a timeout later.
    """
    asking = asyncio.get_running_loop().create_task(
        peer.request(request, kind, api_version=api_version)
    )
    try:
        while not asking.done() and is_current():
            await asyncio.wait((asking,), timeout=_LOOK_AGAIN_S)
        if not asking.done():
            await peer.close()
        return await asking
    finally:
        asking.cancel()


class Peers:
    def __init__(self, find_broker: FindBroker, inter_broker_listener: str, dial: Dial) -> None:
        """``find_broker`` looks a live broker up, as the metadata cache knows it."""
        self._find_broker = find_broker
        self._inter_broker_listener = inter_broker_listener
        self._dial = dial

    def peer(
        self,
        broker_id: BrokerId,
        client_id: str,
        *,
        negotiates: bool = False,
        timeout_s: float = 30.0,
        find_broker: FindBroker | None = None,
        allocate: Callable[[int], bytearray] = bytearray,
        receive_buffer_size: int | None = None,
    ) -> Peer:
        """A connection to ``broker_id``, which may be this broker, opened by its first request.

        With ``negotiates`` it asks for the versions of the broker first. ``find_broker`` replaces
        the metadata cache for a caller that knows better, such as the controller. ``allocate``
        and ``receive_buffer_size`` are those of ``Connection.open``.
        """
        find = find_broker or self._find_broker

        def address(broker_id: BrokerId) -> tuple[str, int]:
            broker = find(broker_id)
            endpoint = (
                broker.endpoints.get(self._inter_broker_listener) if broker is not None else None
            )
            if endpoint is None:
                raise Disconnected(
                    f"broker {broker_id} has no known address for listener "
                    f"{self._inter_broker_listener}"
                )
            return endpoint.host, endpoint.port

        return Peer(
            broker_id,
            address,
            self._dial,
            client_id,
            negotiates=negotiates,
            timeout_s=timeout_s,
            allocate=allocate,
            receive_buffer_size=receive_buffer_size,
        )
