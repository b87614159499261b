"""Injected faults: clients see the error or the delay that the test asked for, and no other."""

import time

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer

from headrace.model.errors import ErrorCode
from headrace.records.record import Record, build_batch
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.inside import Inside
from tests.fakes.raw_client import RawClient

DELAY_MS = 200


def a_batch():
    return bytearray(build_batch([Record(0, 1_700_000_000_000, b"key", b"value", ())]))


@pytest.fixture
def broker():
    with Broker(topics=["orders"]) as broker:
        yield broker


@pytest.fixture
def client(broker):
    with RawClient(broker.bootstrap_servers) as client:
        yield client


def values(broker):
    return [record.value for record in broker.records("orders")]


def dispatch(broker):
    return Inside(broker).node.dispatch


# --- errors


def test_a_produce_request_fails_once_and_is_not_handled(broker):
    broker.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(KafkaException) as refused:
        broker.produce("orders", ["refused"])
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    broker.produce("orders", ["taken"])
    assert values(broker) == [b"taken"]


def test_a_producer_that_repeats_its_requests_sees_the_error_too(broker, client):
    """The broker recognizes a repeated request without decoding it."""
    for _ in range(3):
        assert client.produce("orders", a_batch()).error_code == 0
    broker.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    codes = [client.produce("orders", a_batch()).error_code for _ in range(3)]
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2 + [ErrorCode.NONE]


def test_a_producer_retries_a_retriable_error(broker):
    broker.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    broker.produce("orders", ["a", "b"])
    assert values(broker) == [b"a", b"b"]


def test_a_failed_produce_without_acks_closes_the_connection(broker, client):
    broker.fail("Produce", "NOT_LEADER_OR_FOLLOWER")
    client.produce("orders", a_batch(), acks=0, answer=False)
    assert client.is_closed_by_broker()
    assert values(broker) == []


def test_a_consumer_that_repeats_its_requests_sees_the_error_too(broker, client):
    for _ in range(3):
        assert client.fetch("orders", 0).error_code == 0
    broker.fail("Fetch", "OFFSET_OUT_OF_RANGE")
    assert client.fetch("orders", 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert client.fetch("orders", 0).error_code == 0


def fetch_of_one_partition():
    request = m.FetchRequest
    partition = request.FetchPartition(partition=0, partition_max_bytes=1)
    topic = request.FetchTopic(topic="orders", partitions=[partition])
    return request(max_bytes=1, session_epoch=-1, topics=[topic])


@pytest.mark.parametrize(
    "error, top",
    [("OFFSET_OUT_OF_RANGE", "NONE"), ("FETCH_SESSION_ID_NOT_FOUND", "FETCH_SESSION_ID_NOT_FOUND")],
)
def test_a_fetch_fails_per_partition_unless_its_session_does(broker, client, error, top):
    broker.fail("Fetch", error)
    answer = client.ask(ApiKey.FETCH, 11, fetch_of_one_partition())
    assert answer.error_code == ErrorCode[top]
    assert answer.responses[0].partitions[0].error_code == ErrorCode[error]


def test_a_consumer_of_confluent_sees_the_error(broker):
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "test",
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition("orders", 0, 0)])
    broker.fail("Fetch", "OFFSET_OUT_OF_RANGE")
    assert consumer.poll(10).error().code() == KafkaError._AUTO_OFFSET_RESET
    consumer.close()


def test_a_consumer_of_kafka_python_goes_on_after_the_error(broker):
    """This client uses fetch sessions."""
    consumer = KafkaConsumer("orders", bootstrap_servers=broker.bootstrap_servers,
                             auto_offset_reset="earliest", consumer_timeout_ms=10_000)  # fmt: skip
    broker.produce("orders", ["a"])
    assert next(consumer).value == b"a"
    broker.fail("Fetch", "UNKNOWN_LEADER_EPOCH", times=2)
    broker.produce("orders", ["b"])
    assert next(consumer).value == b"b"
    consumer.close()


def test_a_commit_fails(broker):
    broker.produce("orders", ["a"])
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "test"})
    position = [TopicPartition("orders", 0, 1)]
    broker.fail("OffsetCommit", ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
        consumer.commit(offsets=position, asynchronous=False)
    consumer.commit(offsets=position, asynchronous=False)
    assert broker.group("test").lag() == 0
    consumer.close()


def test_every_request_fails_until_the_fault_is_removed(broker, client):
    handled = dispatch(broker).request
    broker.fail("Metadata", "LEADER_NOT_AVAILABLE", times=None)
    for _ in range(5):
        (topic,) = client.metadata("orders").topics
        assert topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    broker.fail("Metadata", "LEADER_NOT_AVAILABLE", times=0)
    assert client.metadata("orders").topics[0].error_code == 0
    assert dispatch(broker).request == handled


def test_a_second_call_replaces_the_first(broker, client):
    broker.fail("Metadata", "LEADER_NOT_AVAILABLE", times=5)
    broker.fail("Metadata", "REQUEST_TIMED_OUT")
    codes = [client.metadata("orders").topics[0].error_code for _ in range(2)]
    assert codes == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]


def test_used_faults_leave_the_broker_as_it_was(broker, client):
    handled = dispatch(broker).request
    broker.fail("Metadata", "LEADER_NOT_AVAILABLE")
    assert dispatch(broker).request != handled
    client.metadata("orders")
    assert dispatch(broker).request == handled


def test_a_restart_removes_faults(broker):
    broker.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", times=None)
    broker.restart()
    broker.produce("orders", ["a"])
    assert values(broker) == [b"a"]


# --- delays


def seconds(action):
    begun_at = time.monotonic()
    action()
    return time.monotonic() - begun_at


def test_a_request_is_handled_late(broker, client):
    assert client.produce("orders", a_batch()).base_offset == 0
    broker.delay("Produce", DELAY_MS)
    assert seconds(lambda: client.produce("orders", a_batch())) >= DELAY_MS / 1000
    broker.delay("Produce", 0)
    assert client.produce("orders", a_batch()).base_offset == 2
    assert len(broker.records("orders")) == 3


def test_requests_behind_a_delayed_one_keep_their_order(broker, client):
    broker.delay("Produce", DELAY_MS)
    client.produce("orders", a_batch(), answer=False)
    client.post(ApiKey.FETCH, 11, fetch_of_one_partition())
    produced = client.answer(ApiKey.PRODUCE, 9).responses[0].partition_responses[0]
    assert produced.base_offset == 0
    fetched = client.answer(ApiKey.FETCH, 11).responses[0].partitions[0]
    assert fetched.high_watermark == 1


def test_a_delayed_fetch_still_waits_for_records(broker, client):
    broker.delay("Fetch", DELAY_MS)
    request = fetch_of_one_partition()
    request.max_wait_ms, request.min_bytes = 20_000, 1
    client.post(ApiKey.FETCH, 11, request)
    broker.produce("orders", ["a"])
    fetched = client.answer(ApiKey.FETCH, 11).responses[0].partitions[0]
    assert fetched.high_watermark == 1


def test_a_request_can_be_late_and_fail(broker, client):
    broker.delay("Metadata", DELAY_MS)
    broker.fail("Metadata", "LEADER_NOT_AVAILABLE")
    begun_at = time.monotonic()
    assert client.metadata("orders").topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert time.monotonic() - begun_at >= DELAY_MS / 1000


def test_other_connections_do_not_wait(broker, client):
    broker.delay("Metadata", 600_000)
    client.post(ApiKey.METADATA, 12, m.MetadataRequest(topics=[]))
    with RawClient(broker.bootstrap_servers) as other:
        assert other.produce("orders", a_batch()).error_code == 0


def test_the_request_of_a_client_that_leaves_during_the_delay_is_dropped(broker, client):
    broker.delay("Produce", DELAY_MS)
    with RawClient(broker.bootstrap_servers) as leaving:
        leaving.produce("orders", a_batch(), answer=False)
    assert client.produce("orders", a_batch()).base_offset == 0
    assert len(broker.records("orders")) == 1


@pytest.mark.slow
def test_a_producer_sees_a_delay_as_a_timeout(broker):
    broker.delay("Produce", 600_000)
    reports = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "message.timeout.ms": 300})
    producer.produce("orders", "a", on_delivery=lambda error, _: reports.append(error.code()))
    producer.flush(10)
    assert reports == [KafkaError._MSG_TIMED_OUT]


# --- arguments


@pytest.mark.parametrize("api", ["Produce", "produce", "PRODUCE", 0, ApiKey.PRODUCE])
def test_an_api_has_a_name_and_a_number(broker, api):
    broker.fail(api, "TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(KafkaException):
        broker.produce("orders", ["a"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("Prodice", "UNKNOWN_SERVER_ERROR"), "api: expected the name of an API .*; got 'Prodice'"),
        ((True, "UNKNOWN_SERVER_ERROR"), "api: expected .*; got True"),
        ((4, "UNKNOWN_SERVER_ERROR"), "api: expected .*; got 4"),
        (("Produce", "NO_SUCH_ERROR"), "error: expected the name of a Kafka .*'NO_SUCH_ERROR'"),
        (("Produce", "NONE"), "error: expected .*; got 'NONE'"),
        (("Produce", 12345), "error: expected .*; got 12345"),
        (("Produce", 1, -1), "times: expected .*; got -1"),
        (("Produce", 1, True), "times: expected .*; got True"),
    ],
)
def test_a_wrong_argument_of_fail_is_named(broker, arguments, message):
    with pytest.raises(ValueError, match=message):
        broker.fail(*arguments)


@pytest.mark.parametrize("ms", [-1, "5", None, True, float("nan")])
def test_a_wrong_delay_is_named(broker, ms):
    with pytest.raises(ValueError, match="ms: expected a number of milliseconds; got"):
        broker.delay("Produce", ms)


def test_a_broker_in_another_process_takes_no_faults():
    with Broker(process=True) as broker:
        with pytest.raises(RuntimeError, match=r"fail\(\) reaches only a broker in this process"):
            broker.fail("Produce", "UNKNOWN_SERVER_ERROR")
        with pytest.raises(RuntimeError, match=r"delay\(\) reaches only a broker in this process"):
            broker.delay("Produce", 5)
