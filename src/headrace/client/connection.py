"""The asyncio client: one PLAINTEXT connection to one broker, with many requests in flight.

It owns no task and no timer but those of the waiting callers. The session is filled from the
transport's callbacks, and every wait is a wait for one future.

- A caller that is cancelled loses interest; its response is dropped when it arrives.
- A caller that times out closes the connection, as Kafka's clients do: responses come in order,
  so every later response is stuck behind the missing one.
- A broken connection raises Disconnected in every waiting caller and in every later one.

Writes are buffered without a limit. Callers bound them by the number of requests in flight.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self, TypeVar

from headrace.client.errors import Disconnected, Refused, error_code
from headrace.model.errors import ErrorCode, PeerBroken
from headrace.wire import messages as m
from headrace.wire.schema import Message
from headrace.wire.session import (
    API_VERSIONS_VERSION,
    FRAME_SIZE_MAX,
    Response,
    Session,
    UnsupportedVersion,
    VersionRanges,
    has_response,
)
from headrace.world.network import Dial, SystemNetwork, set_receive_buffer

_Answer = TypeVar("_Answer", bound=Message)


class Connection(asyncio.BufferedProtocol):
    """Made by ``Connection.open``."""

    def __init__(self, address: str, session: Session, timeout_s: float) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._session = session
        self._waiting: deque[asyncio.Future[Response]] = deque()
        self._transport: asyncio.Transport | None = None
        self._problem: str | None = None  # why the connection is closed
        self._lost = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str,
        versions: VersionRanges | None = None,
        timeout_s: float = 30.0,
        response_size_max: int = FRAME_SIZE_MAX,
        dial: Dial = SystemNetwork.dial,
        allocate: Callable[[int], bytearray] = bytearray,
        receive_buffer_size: int | None = None,
    ) -> Self:
        """Connect within ``timeout_s``, which is also the default timeout of a request.

        ``versions`` are the ranges that the broker serves; None asks the broker. Pass an empty
        mapping if every request names its version. ``allocate`` returns the buffer of a response
        (``wire.session.FrameReader``). Without ``receive_buffer_size`` the kernel chooses it.
        """
        session = Session(client_id, versions, size_max=response_size_max, allocate=allocate)
        connection = cls(f"{host}:{port}", session, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await dial(connection, host, port)
        except TimeoutError:
            raise Disconnected(
                f"cannot connect to {connection.address}: timed out after {timeout_s} s"
            ) from None
        except OSError as failed:
            raise Disconnected(f"cannot connect to {connection.address}: {failed}") from failed
        if receive_buffer_size is not None and connection._transport is not None:
            set_receive_buffer(connection._transport, receive_buffer_size)
        if versions is None:
            try:
                await connection._negotiate_versions()
            except BaseException:
                await connection.close()
                raise
        return connection

    async def close(self) -> None:
        """Close at once; requests in flight raise Disconnected."""
        self._break("closed by this client")
        await self._lost

    @property
    def is_open(self) -> bool:
        return self._problem is None

    @property
    def in_flight(self) -> int:
        """The number of requests without a response, those of cancelled callers included."""
        return len(self._waiting)

    async def request(
        self,
        request: Message,
        kind: type[_Answer],
        *,
        api_version: int | None = None,
        version_max: int | None = None,
        timeout_s: float | None = None,
    ) -> _Answer:
        """Send a request and wait for its response. Sending happens before the first wait."""
        response = await self.exchange(
            request, api_version=api_version, version_max=version_max, timeout_s=timeout_s
        )
        try:
            return response.decode(kind)
        except PeerBroken as broken:
            self._break(f"invalid response: {broken}")
            raise self._disconnected() from broken

    async def exchange(
        self,
        request: Message,
        *,
        api_version: int | None = None,
        version_max: int | None = None,
        timeout_s: float | None = None,
    ) -> Response:
        """As ``request``, for callers that decode the response themselves."""
        waiting = self._send(request, api_version, version_max)
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await waiting
        except TimeoutError:
            self._break(f"no response to {type(request).__name__} within {limit_s} s")
            raise self._disconnected() from None

    def _send(
        self, request: Message, api_version: int | None, version_max: int | None
    ) -> "asyncio.Future[Response]":
        if not has_response(request):
            raise ValueError("Produce with acks=0 has no response to wait for")
        if self._problem is not None or self._transport is None:
            raise self._disconnected()
        try:
            frame = self._session.encode(request, api_version=api_version, version_max=version_max)
        except UnsupportedVersion as unsupported:
            raise Refused(
                ErrorCode.UNSUPPORTED_VERSION, f"{self.address}: {unsupported}"
            ) from unsupported
        waiting: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._transport.write(frame)
        return waiting

    async def _negotiate_versions(self) -> None:
        response = await self.request(
            m.ApiVersionsRequest(), m.ApiVersionsResponse, api_version=API_VERSIONS_VERSION
        )
        if response.error_code:
            raise Refused(
                error_code(response.error_code), f"{self.address} does not report its API versions"
            )
        self._session.learn_versions(response)

    def _break(self, problem: str) -> None:
        """Close the connection for good; the first problem is the one that callers see."""
        if self._problem is not None:
            return
        self._problem = problem
        if self._transport is not None:
            self._transport.abort()
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(self._disconnected())

    def _disconnected(self) -> Disconnected:
        return Disconnected(f"connection to {self.address} lost: {self._problem}")

    # --- called by the transport -------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._session.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._session.advance(nbytes):
                response = self._session.response(frame)
                waiting = self._waiting.popleft()
                if not waiting.done():
                    waiting.set_result(response)
        except PeerBroken as broken:
            self._break(f"invalid response: {broken}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(str(exc) if exc is not None else "the broker closed the connection")
        if not self._lost.done():
            self._lost.set_result(None)
