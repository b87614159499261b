"""The asyncio client with a running broker."""

import asyncio

import pytest

from headrace.client.connection import Connection
from headrace.client.errors import Disconnected, Refused
from headrace.model.errors import ErrorCode
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.standin import in_loop

VERSION = 12


@pytest.fixture(scope="module")
def address():
    with Broker(topics={"t": 1}) as broker:
        yield broker.bootstrap_servers


def long_poll(max_wait_ms):
    """A fetch that waits for a record."""
    kind = m.FetchRequest
    partition = kind.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return kind(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[kind.FetchTopic(topic="t", partitions=[partition])],
    )


async def connect(address, **settings):
    host, _, port = str(address).rpartition(":")
    return await Connection.open(host or "127.0.0.1", int(port), client_id="test", **settings)


def metadata(*topics):
    kind = m.MetadataRequest.MetadataRequestTopic
    return m.MetadataRequest(topics=[kind(name=name) for name in topics])


async def topics_of(connection, *topics, **settings):
    response = await connection.request(metadata(*topics), m.MetadataResponse, **settings)
    return [topic.name for topic in response.topics]


@in_loop
async def test_versions_are_negotiated_or_fixed(address):
    for versions, settings in (
        (None, {}),
        ({ApiKey.METADATA: (VERSION, VERSION)}, {}),
        ({}, {"api_version": VERSION}),
    ):
        connection = await connect(address, versions=versions)
        assert await topics_of(connection, "t", **settings) == ["t"]
        await connection.close()


@in_loop
async def test_many_requests_are_in_flight_at_once(address):
    connection = await connect(address)
    names = [f"topic-{number}" for number in range(50)]
    tasks = [asyncio.ensure_future(topics_of(connection, name)) for name in names]
    await asyncio.sleep(0)
    assert connection.in_flight == 50
    assert await asyncio.gather(*tasks) == [[name] for name in names]
    assert connection.in_flight == 0
    await connection.close()


@in_loop
async def test_a_response_can_be_taken_without_being_decoded(address):
    connection = await connect(address)
    response = await connection.exchange(metadata("t"))
    assert response.api_key == ApiKey.METADATA
    assert isinstance(response.body, memoryview)
    await connection.close()


@in_loop
async def test_a_request_that_the_broker_does_not_serve_is_refused(address):
    connection = await connect(address)
    with pytest.raises(Refused, match="no common version of VoteRequest") as refused:
        await connection.request(m.VoteRequest(), m.VoteResponse)
    assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
    with pytest.raises(ValueError, match="acks=0"):
        await connection.request(m.ProduceRequest(acks=0), m.ProduceResponse)
    assert await topics_of(connection, "t") == ["t"]
    await connection.close()


@in_loop
async def test_the_response_of_a_cancelled_caller_reaches_no_other(address):
    connection = await connect(address)
    waiting = asyncio.ensure_future(
        connection.request(long_poll(200), m.FetchResponse, api_version=11)
    )
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert connection.in_flight == 1
    assert await topics_of(connection, "t") == ["t"]
    assert connection.in_flight == 0
    await connection.close()


@in_loop
async def test_a_timeout_closes_the_connection_for_all_callers(address):
    connection = await connect(address)
    patient = asyncio.ensure_future(
        connection.request(long_poll(30_000), m.FetchResponse, api_version=11)
    )
    await asyncio.sleep(0)
    why = "no response to MetadataRequest within 0.05 s"
    with pytest.raises(Disconnected, match=why):
        await topics_of(connection, "t", timeout_s=0.05)
    assert not connection.is_open
    with pytest.raises(Disconnected, match=why):
        await patient
    with pytest.raises(Disconnected, match=why):
        await topics_of(connection, "t")
    await connection.close()


@in_loop
async def test_closing_fails_the_requests_in_flight(address):
    connection = await connect(address)
    waiting = asyncio.ensure_future(
        connection.request(long_poll(30_000), m.FetchResponse, api_version=11)
    )
    await asyncio.sleep(0)
    await connection.close()
    await connection.close()
    with pytest.raises(Disconnected, match="closed by this client"):
        await waiting
