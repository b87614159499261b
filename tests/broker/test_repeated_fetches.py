"""Repeated fetches of the same partition are decoded once."""

import time

import pytest

from headrace.model.errors import ErrorCode
from headrace.records.record import Record, build_batch, iter_records
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire import schema
from headrace.wire.api import ApiKey
from headrace.wire.session import Session, parse_response
from tests.fakes.raw_client import RawClient

VERSION = 17


@pytest.fixture
def broker():
    with Broker(topics=["t"]) as broker:
        yield broker


@pytest.fixture
def client(broker):
    with RawClient(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def topic_id(client):
    return bytes(client.metadata("t").topics[0].topic_id)


@pytest.fixture
def decoded(monkeypatch):
    """The kinds of all messages that were decoded."""
    kinds = []
    decoder = schema.decoder

    def noted(kind, version):
        kinds.append(kind)
        return decoder(kind, version)

    monkeypatch.setattr(schema, "decoder", noted)
    return kinds


def produce(client, value):
    record = Record(0, int(time.time() * 1000), None, value)
    assert client.produce("t", build_batch([record])).error_code == 0


def request(topic_id, offset, session_id=0, session_epoch=-1, max_wait_ms=10_000):
    fetch = m.FetchRequest
    partition = fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return fetch(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[fetch.FetchTopic(topic_id=topic_id, partitions=[partition])],
    )


def next_answer(client):
    response = parse_response(client.read_frame(), ApiKey.FETCH, VERSION)
    return response.correlation_id, response.decode(m.FetchResponse)


def values(response):
    """The values in the first batch of every partition."""
    return [
        record.value
        for topic in response.responses
        for partition in topic.partitions
        for record in iter_records(partition.records)
    ]


def test_each_of_several_pipelined_fetches_gets_its_own_response(broker, client, topic_id, decoded):
    with RawClient(broker.bootstrap_servers) as producer:
        for value in (b"a", b"b"):
            produce(producer, value)
        # The third fetch waits, and the fourth must not replace it.
        session = Session("raw")
        fetches = [request(topic_id, offset) for offset in range(4)]
        client.send(b"".join(session.encode(fetch, api_version=VERSION) for fetch in fetches))
        answers = [next_answer(client) for _ in range(2)]
        produce(producer, b"c")
        answers.append(next_answer(client))
        produce(producer, b"d")
        answers.append(next_answer(client))
    received = [(correlation_id, *values(response)) for correlation_id, response in answers]
    assert received == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]
    assert decoded.count(m.FetchRequest) == 1


def test_the_epochs_of_a_session_are_read_from_each_request(client, topic_id, decoded):
    produce(client, b"a")
    produce(client, b"b")
    opened = client.ask(ApiKey.FETCH, VERSION, request(topic_id, 0, 0, 0))
    session_id = opened.session_id
    assert session_id
    for epoch, offset in ((1, 1), (2, 0), (3, 1)):
        again = client.ask(ApiKey.FETCH, VERSION, request(topic_id, offset, session_id, epoch))
        assert again.error_code == 0
        assert values(again) == [b"ab"[offset : offset + 1]]
    late = client.ask(ApiKey.FETCH, VERSION, request(topic_id, 0, session_id, 2))
    assert late.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    # The request that opens the session has no session id yet, so its shape differs.
    assert decoded.count(m.FetchRequest) == 2


def test_a_fetch_sees_records_produced_before_on_the_same_connection(client, topic_id, decoded):
    produce(client, b"a")
    assert values(client.ask(ApiKey.FETCH, VERSION, request(topic_id, 0))) == [b"a"]
    asked = m.ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            m.ProduceRequest.TopicProduceData(
                name="t",
                partition_data=[
                    m.ProduceRequest.PartitionProduceData(
                        index=0, records=build_batch([Record(0, -1, None, b"b")])
                    )
                ],
            )
        ],
    )
    session = Session("raw")
    both = session.encode(asked, api_version=9)
    both += session.encode(request(topic_id, 1, max_wait_ms=0), api_version=VERSION)
    client.send(both)
    client.read_frame()
    correlation_id, response = next_answer(client)
    assert (correlation_id, values(response)) == (2, [b"b"])


def test_a_request_too_large_to_remember_is_decoded_each_time(client, topic_id, decoded):
    produce(client, b"a")
    asked = request(topic_id, 0)
    asked.rack_id = "r" * 2000
    for _ in range(2):
        assert values(client.ask(ApiKey.FETCH, VERSION, asked)) == [b"a"]
    assert decoded.count(m.FetchRequest) == 2
