"""What a request has looked at may have changed by the time that it has waited for something."""

import threading

import pytest

from headrace.model.errors import ErrorCode
from headrace.records import record
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.transactional_client import TransactionalClient
from tests.fakes.waiting import wait_until


class Held:
    """A function whose callers, in threads, wait until they are let go."""

    def __init__(self, function):
        self._function = function
        self.reached, self.let_go = threading.Event(), threading.Event()

    def __call__(self, *arguments):
        self.reached.set()
        assert self.let_go.wait(20)
        return self._function(*arguments)


@pytest.fixture
def clients():
    with (
        Broker(topics=["t"]) as broker,
        TransactionalClient(broker.bootstrap_servers) as first,
        TransactionalClient(broker.bootstrap_servers) as second,
    ):
        yield first, second


def create_packed(client, name):
    """A topic whose batches are packed anew, in a thread."""
    request = m.CreateTopicsRequest
    setting = request.CreatableTopicConfig(name="compression.type", value="gzip")
    topic = request.CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, configs=[setting]
    )
    client.ask(ApiKey.CREATE_TOPICS, 7, request(topics=[topic], timeout_ms=10_000))


def test_a_batch_that_was_unpacked_while_its_transaction_ended_opens_no_other(clients, monkeypatch):
    late, ending = clients
    create_packed(late, "packed")
    producer = late.start("tx")
    assert late.add("tx", producer, "packed", 0) is ErrorCode.NONE
    assert late.put("tx", producer, "packed", b"in time") is ErrorCode.NONE
    held = Held(record.recompress)
    monkeypatch.setattr(record, "recompress", held)
    codes = []
    putting = threading.Thread(
        target=lambda: codes.append(late.put("tx", producer, "packed", b"late", sequence=1))
    )
    putting.start()
    assert held.reached.wait(20)
    assert ending.end("tx", producer, False) is ErrorCode.NONE
    wait_until(lambda: ending.state("tx") == "CompleteAbort")
    held.let_go.set()
    putting.join(20)
    assert codes == [ErrorCode.INVALID_TXN_STATE]
    partition = ending.partition_of("packed")
    assert partition.last_stable_offset == partition.high_watermark  # nobody waits for an end
