"""Connections whose requests arrive in one turn of the loop do not see each other's bytes.

They use the same receive buffer one after the other. A batch that cannot be appended at once must
be copied out of it before.
"""

import threading

import pytest

from headrace.model.errors import ErrorCode
from headrace.records.record import Record, build_batch
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.inside import Inside
from tests.fakes.transactional_client import TransactionalClient, records_in, transactional_batch

PRODUCE_VERSION = 12


@pytest.fixture
def broker():
    with Broker(topics=["t"]) as broker:
        yield broker


@pytest.fixture
def clients(broker):
    with (
        TransactionalClient(broker.bootstrap_servers) as first,
        TransactionalClient(broker.bootstrap_servers) as second,
    ):
        yield first, second


def produce(client, transactional_id=None, **batches):
    request = m.ProduceRequest
    topics = [
        request.TopicProduceData(
            name=topic, partition_data=[request.PartitionProduceData(index=0, records=records)]
        )
        for topic, records in batches.items()
    ]
    asked = request(
        transactional_id=transactional_id, acks=-1, timeout_ms=10_000, topic_data=topics
    )
    client.post(ApiKey.PRODUCE, PRODUCE_VERSION, asked)


def codes(client):
    answer = client.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
    return [ErrorCode(topic.partition_responses[0].error_code) for topic in answer.responses]


class OneTurn:
    """Blocks the broker's loop, so that it receives everything sent meanwhile in one turn."""

    def __init__(self, broker):
        self._loop = Inside(broker).loop
        self._asleep, self._sent = threading.Event(), threading.Event()

    def __enter__(self):
        self._loop.call_soon_threadsafe(self._sleep)
        assert self._asleep.wait(20)

    def _sleep(self):
        self._asleep.set()
        self._sent.wait(20)

    def __exit__(self, *_):
        self._sent.set()


@pytest.fixture
def waited_for(broker, monkeypatch):
    """The coordinator responds later, as while the previous transaction ends."""
    transactions = Inside(broker).services.transactions
    verify_or_add = transactions.verify_or_add

    async def verify_later(*batch, **how):
        return verify_or_add(*batch, **how)

    monkeypatch.setattr(transactions, "verify_or_add", verify_later)


@pytest.mark.usefixtures("waited_for")
def test_the_first_batches_of_two_transactions(broker, clients):
    names = ("one", "two")
    producers = [client.start(name) for client, name in zip(clients, names, strict=True)]
    with OneTurn(broker):
        for client, name, producer in zip(clients, names, producers, strict=True):
            batch = transactional_batch(producer, 0, name.encode())
            produce(client, name, t=batch)
    for client, name, producer in zip(clients, names, producers, strict=True):
        assert codes(client) == [ErrorCode.NONE]
        assert client.end(name, producer, True, version=5)[0] is ErrorCode.NONE
    values = [record.value for record in records_in(clients[0].partition_of("t").records)]
    assert sorted(values[:2]) == [b"one", b"two"]


def test_a_batch_that_waits_for_another_of_its_request_to_be_unpacked(broker, clients):
    clients[0].create_topic("table", cleanup_policy="compact")
    with OneTurn(broker):
        for client, value in zip(clients, (b"one", b"two"), strict=True):
            batch = build_batch([Record(0, -1, b"key", value)])
            produce(client, t=batch, table=batch)
    for client in clients:
        assert codes(client) == [ErrorCode.NONE, ErrorCode.NONE]
    for topic in ("t", "table"):
        values = [record.value for record in records_in(clients[0].partition_of(topic).records)]
        assert sorted(values) == [b"one", b"two"]
