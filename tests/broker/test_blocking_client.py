"""The blocking client with a running broker."""

import struct

import pytest

from headrace.client.blocking import Connection
from headrace.client.errors import Disconnected, Refused
from headrace.model.errors import ErrorCode
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import SERVED, ApiKey

VERSION = 12


@pytest.fixture(scope="module")
def broker():
    with Broker(topics={"t": 2}) as broker:
        yield broker


@pytest.fixture
def connection(broker):
    with connect(broker.bootstrap_servers) as connection:
        yield connection


def connect(address, **settings):
    host, _, port = str(address).rpartition(":")
    return Connection(host or "127.0.0.1", int(port), client_id="test", **settings)


def metadata(*topics):
    kind = m.MetadataRequest.MetadataRequestTopic
    return m.MetadataRequest(topics=[kind(name=name) for name in topics])


def names(response):
    return [topic.name for topic in response.topics]


def test_versions_are_negotiated_with_the_broker(connection):
    assert connection.version_of(m.MetadataRequest) == SERVED[ApiKey.METADATA][1]
    assert connection.version_of(m.MetadataRequest, version_max=3) == 3
    assert names(connection.request(metadata("t"), m.MetadataResponse)) == ["t"]
    assert names(connection.request(metadata("t"), m.MetadataResponse, version_max=1)) == ["t"]


def test_a_request_that_the_broker_does_not_serve_is_refused(connection):
    with pytest.raises(Refused, match="no common version of VoteRequest") as refused:
        connection.request(m.VoteRequest(), m.VoteResponse)
    assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
    assert not refused.value.retriable
    assert names(connection.request(metadata("t"), m.MetadataResponse)) == ["t"]


def test_without_negotiation_each_request_names_its_version(broker):
    with connect(broker.bootstrap_servers, versions={}) as connection:
        response = connection.request(metadata("t"), m.MetadataResponse, api_version=VERSION)
        assert names(response) == ["t"]
        with pytest.raises(Refused):
            connection.version_of(m.MetadataRequest)


def test_responses_are_received_in_the_order_of_the_requests(connection):
    for topic in ("t", "u", "v"):
        connection.send(metadata(topic))
    assert connection.in_flight == 3
    found = [connection.receive(m.MetadataResponse) for _ in range(3)]
    assert [names(response) for response in found] == [["t"], ["u"], ["v"]]
    assert connection.in_flight == 0


def test_a_request_keeps_earlier_responses_for_their_receivers(connection):
    connection.send(metadata("t"))
    connection.send(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    assert names(connection.request(metadata("u"), m.MetadataResponse)) == ["u"]
    assert connection.in_flight == 2
    assert names(connection.receive(m.MetadataResponse)) == ["t"]
    (found,) = connection.receive(m.FindCoordinatorResponse).coordinators
    assert found.key == "g"


def test_a_response_can_be_received_without_being_decoded(connection):
    connection.send(metadata("t"))
    response = connection.receive_response()
    assert response.api_key == ApiKey.METADATA
    assert b"t" in bytes(response.body)


def test_a_prepared_frame_is_sent_and_its_response_returned_as_it_is(connection):
    frame = struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 99, -1)
    connection.send_bytes(struct.pack(">i", len(frame)) + frame)
    assert connection.receive_frame()[:4] == struct.pack(">i", 99)


def test_a_response_that_was_never_asked_for_on_this_connection_is_lost(connection):
    with pytest.raises(Disconnected, match="was replaced"):
        connection.receive(m.MetadataResponse)
