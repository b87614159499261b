"""The asyncio client: with peers that misbehave, and without sockets."""

import asyncio
import struct

import pytest

from headrace.client.connection import Connection
from headrace.client.errors import Disconnected
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.wire.framing import encode_response
from tests.fakes.peers import peer
from tests.fakes.standin import in_loop

VERSION = 12


async def connect(address, **settings):
    host, _, port = str(address).rpartition(":")
    return await Connection.open(host or "127.0.0.1", int(port), client_id="test", **settings)


def metadata(*topics):
    kind = m.MetadataRequest.MetadataRequestTopic
    return m.MetadataRequest(topics=[kind(name=name) for name in topics])


async def topics_of(connection, *topics, **settings):
    response = await connection.request(metadata(*topics), m.MetadataResponse, **settings)
    return [topic.name for topic in response.topics]


def metadata_response(correlation_id):
    return bytes(encode_response(ApiKey.METADATA, VERSION, correlation_id, m.MetadataResponse()))


@in_loop
async def test_an_address_without_a_listener_is_named():
    with pytest.raises(Disconnected, match="cannot connect to 127.0.0.1:1"):
        await connect("127.0.0.1:1")


@in_loop
async def test_a_network_that_does_not_connect_times_out():
    async def dial(protocol, host, port):
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Disconnected, match="cannot connect to nowhere:9092: timed out"):
        await Connection.open("nowhere", 9092, client_id="test", timeout_s=0.01, dial=dial)


@in_loop
async def test_a_broker_that_does_not_report_its_versions_in_time_is_left():
    with peer() as port, pytest.raises(Disconnected, match="no response to ApiVersionsRequest"):
        await connect(port, timeout_s=0.05)


@pytest.mark.parametrize("length", [0, 1, 4, 6, 12])
@in_loop
async def test_a_peer_that_closes_in_the_middle_of_a_frame(length):
    with peer(metadata_response(1)[:length], closes=True) as port:
        connection = await connect(port, versions={})
        with pytest.raises(Disconnected, match="the broker closed the connection"):
            await topics_of(connection, "t", api_version=VERSION)
        await connection.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (metadata_response(7), "response 7 to request 1"),
        (struct.pack(">i", 1001), "a response of 1001 bytes"),
        (b"HTTP/1.1 400 Bad Request", "a response of"),
        (struct.pack(">i", -1), "a response of -1 bytes"),
        (struct.pack(">ii", 6, 1) + b"\0\0", "."),
        (metadata_response(1) + metadata_response(2), "to no request"),
    ],
    ids=["another id", "huge", "http", "negative", "cut body", "one too many"],
)
@in_loop
async def test_nonsense_closes_the_connection(answer, why):
    with peer(answer) as port:
        connection = await connect(port, versions={}, response_size_max=1000)
        with pytest.raises(Disconnected, match=f"invalid response: .*{why}"):
            await topics_of(connection, "t", api_version=VERSION)
            await topics_of(connection, "t", api_version=VERSION)
        assert not connection.is_open
        await connection.close()


class Loopback(asyncio.Transport):
    """A network without sockets: answers every request with an empty Metadata response."""

    def __init__(self, protocol):
        super().__init__()
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._correlation_id = 0

    def write(self, data):
        self._correlation_id += 1
        self._loop.call_soon(self._deliver, metadata_response(self._correlation_id))

    def abort(self):
        self._loop.call_soon(self._protocol.connection_lost, None)

    def _deliver(self, data):
        while data:
            buffer = self._protocol.get_buffer(-1)
            count = min(len(buffer), len(data), 7)
            buffer[:count] = data[:count]
            data = data[count:]
            self._protocol.buffer_updated(count)


@in_loop
async def test_another_network_can_replace_the_sockets():
    async def dial(protocol, host, port):
        protocol.connection_made(Loopback(protocol))

    connection = await Connection.open(
        "simulated", 1, client_id="test", versions={ApiKey.METADATA: (VERSION, VERSION)}, dial=dial
    )
    assert await asyncio.gather(*[topics_of(connection, "t") for _ in range(3)]) == [[], [], []]
    await connection.close()
