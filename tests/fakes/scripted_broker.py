"""Another broker of the cluster: a server in the test's loop that answers as a function says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import NamedTuple

from headrace.model.cluster_metadata import BrokerEntry, Endpoint
from headrace.model.ids import BrokerId
from headrace.wire import messages as m
from headrace.wire import schema
from headrace.wire.api import SERVED, ApiKey, request_class
from headrace.wire.framing import encode_response, parse_request_header
from headrace.wire.schema import Message

Answer = Callable[[Message], Message | Awaitable[Message]]


class Received(NamedTuple):
    client_id: str | None
    api_version: int
    request: Message


class ScriptedBroker:
    """It announces the versions that we serve; ``highest`` lowers the maximum of an API."""

    def __init__(self, answer: Answer, highest: dict[ApiKey, int]) -> None:
        self.answer = answer
        self.highest = highest
        self.received: list[Received] = []  # without ApiVersions
        self.connections: list[asyncio.StreamWriter] = []
        self.port = -1

    def entry(self, broker_id: int) -> BrokerEntry:
        endpoint = Endpoint("127.0.0.1", self.port)
        return BrokerEntry(BrokerId(broker_id), {"PLAINTEXT": endpoint}, None, 7)

    def hang_up(self) -> None:
        for connection in self.connections:
            connection.transport.abort()
        self.connections.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                writer.write(await self._answer(await reader.readexactly(size)))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, frame: bytes) -> bytes:
        header = parse_request_header(frame, 0, len(frame))
        key, version = ApiKey(header.api_key), header.api_version
        decode = schema.decoder(request_class(key), version)
        request, _ = decode(frame, header.body_position, len(frame))
        if key is ApiKey.API_VERSIONS:
            response: Message = self._versions()
        else:
            self.received.append(Received(header.client_id, version, request))
            answer = self.answer(request)
            response = await answer if isawaitable(answer) else answer
        return bytes(encode_response(key, version, header.correlation_id, response))

    def _versions(self) -> Message:
        return m.ApiVersionsResponse(
            api_keys=[
                m.ApiVersionsResponse.ApiVersion(
                    api_key=key, min_version=first, max_version=self.highest.get(key, last)
                )
                for key, (first, last) in SERVED.items()
            ]
        )


@asynccontextmanager
async def scripted_broker(
    answer: Answer, highest: dict[ApiKey, int] | None = None
) -> AsyncIterator[ScriptedBroker]:
    broker = ScriptedBroker(answer, highest or {})
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        yield broker
    finally:
        server.close()
        broker.hang_up()
