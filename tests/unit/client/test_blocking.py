"""The blocking client against peers that misbehave."""

import struct

import pytest

from headrace.client.blocking import Connection
from headrace.client.errors import Disconnected, Refused
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.wire.framing import encode_response
from tests.fakes.peers import peer

VERSION = 12


def connect(address, **settings):
    host, _, port = str(address).rpartition(":")
    return Connection(host or "127.0.0.1", int(port), client_id="test", **settings)


def metadata(*topics):
    kind = m.MetadataRequest.MetadataRequestTopic
    return m.MetadataRequest(topics=[kind(name=name) for name in topics])


def names(response):
    return [topic.name for topic in response.topics]


def metadata_response(correlation_id):
    return bytes(encode_response(ApiKey.METADATA, VERSION, correlation_id, m.MetadataResponse()))


def test_an_address_without_a_listener_is_named():
    with pytest.raises(Disconnected, match="cannot connect to 127.0.0.1:1: .*refused"):
        connect("127.0.0.1:1")


def test_a_broker_that_does_not_answer_times_out():
    with peer() as port, connect(port, versions={}, timeout_s=0.05) as connection:
        with pytest.raises(Disconnected, match=f"no response from 127.0.0.1:{port}: timed out"):
            connection.request(metadata("t"), m.MetadataResponse, api_version=VERSION)
        with pytest.raises(Disconnected):
            connection.send(metadata("t"), api_version=VERSION)


@pytest.mark.parametrize("length", [0, 1, 4, 6, 12])
def test_a_peer_that_closes_in_the_middle_of_a_frame(length):
    with (
        peer(metadata_response(1)[:length], closes=True) as port,
        connect(port, versions={}) as connection,
        pytest.raises(Disconnected, match="no response .*the broker closed the connection"),
    ):
        connection.request(metadata("t"), m.MetadataResponse, api_version=VERSION)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (metadata_response(7), "response 7 to request 1"),
        (struct.pack(">i", (1 << 30) + 1), f"a response of {(1 << 30) + 1} bytes"),
        (b"HTTP/1.1 400 Bad Request", f"a response of {0x48545450} bytes"),
        (struct.pack(">i", -1), "a response of -1 bytes"),
        (struct.pack(">ii", 6, 1) + b"\0\0", "."),
    ],
    ids=["another id", "huge", "http", "negative", "cut body"],
)
def test_nonsense_closes_the_connection(answer, why):
    with peer(answer) as port, connect(port, versions={}) as connection:
        with pytest.raises(Disconnected, match=f"invalid response from 127.0.0.1:{port}: .*{why}"):
            connection.request(metadata("t"), m.MetadataResponse, api_version=VERSION)
        assert connection.socket.fileno() == -1


def test_a_broker_that_hides_its_versions_is_refused():
    answer = m.ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    with (
        peer(bytes(encode_response(ApiKey.API_VERSIONS, 0, 1, answer))) as port,
        pytest.raises(Refused, match="does not report its API versions: UNSUPPORTED_VERSION"),
    ):
        connect(port)
