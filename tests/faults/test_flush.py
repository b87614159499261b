"""``flush.messages=1``: acknowledged means fsynced, with any number of writers."""

import errno
import os
import select
import threading

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.model.errors import ErrorCode
from headrace.model.settings.resources import AlterOperation, ResourceType
from headrace.records.batch import headers
from headrace.records.record import Record, build_batch
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.world.files import SystemFiles
from tests.fakes.raw_client import RawClient
from tests.fakes.waiting import wait_until


def one_record():
    return build_batch([Record(0, -1, b"key", b"value")])


@pytest.fixture
def broker():
    with Broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        made = admin.create_topics([NewTopic("orders", 1, config={"flush.messages": "1"})])
        made["orders"].result()
        yield broker


def replace_fsync(monkeypatch, fsync):
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(SystemFiles, "fsync", staticmethod(fsync))


@pytest.fixture
def may_fsync(monkeypatch):
    """fsync waits until this is set."""
    event = threading.Event()
    fsync = os.fsync

    def slow_fsync(fd):
        assert event.wait(20)
        fsync(fd)

    replace_fsync(monkeypatch, slow_fsync)
    yield event
    event.set()


def wait_until_written(broker, topic, count):
    (log,) = (broker.data / f"{topic}-0").glob("*.log")
    wait_until(lambda: len(list(headers(log.read_bytes()))) == count)


def there_is_no_response(*clients):
    return select.select([client.sock for client in clients], [], [], 0.1)[0] == []


def test_no_producer_is_acknowledged_before_the_shared_fsync(broker, may_fsync):
    with (
        RawClient(broker.bootstrap_servers) as one,
        RawClient(broker.bootstrap_servers) as other,
        RawClient(broker.bootstrap_servers) as reader,
    ):
        one.produce("orders", one_record(), answer=False)
        wait_until_written(broker, "orders", 1)
        other.produce("orders", one_record(), answer=False)
        wait_until_written(broker, "orders", 2)
        assert reader.fetch("orders", 0).high_watermark == 0, "a power failure could lose it"
        assert there_is_no_response(one, other)
        may_fsync.set()
        for client in (one, other):
            answer = client.answer(ApiKey.PRODUCE, 9)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        assert reader.fetch("orders", 0).high_watermark == 2


def test_two_concurrent_writers_wait_for_the_same_fsync(broker, may_fsync):
    # Both turns come before the flush begins, so only one of them starts it.
    clients = [RawClient(broker.bootstrap_servers) for _ in range(8)]
    try:
        for client in clients:
            client.produce("orders", one_record(), answer=False)
        wait_until_written(broker, "orders", 8)
        assert there_is_no_response(*clients)
        may_fsync.set()
        for client in clients:
            client.answer(ApiKey.PRODUCE, 9)
    finally:
        for client in clients:
            client.sock.close()


def test_a_waiting_consumer_gets_the_records_after_the_fsync(broker, may_fsync):
    with (
        RawClient(broker.bootstrap_servers) as producer,
        RawClient(broker.bootstrap_servers) as reader,
    ):
        producer.produce("orders", one_record(), answer=False, acks=1)
        wait_until_written(broker, "orders", 1)
        threading.Timer(0.1, may_fsync.set).start()
        found = reader.fetch("orders", 0, max_wait_ms=20_000)
        assert len(found.records) == len(one_record())
        producer.answer(ApiKey.PRODUCE, 9)


def test_a_duplicate_waits_for_the_fsync_of_the_first(broker, may_fsync):
    batch = build_batch(
        [Record(0, -1, b"key", b"value")], producer_id=7, producer_epoch=0, base_sequence=0
    )
    with (
        RawClient(broker.bootstrap_servers) as one,
        RawClient(broker.bootstrap_servers) as again,
    ):
        one.produce("orders", batch, answer=False)
        wait_until_written(broker, "orders", 1)
        again.produce("orders", batch, answer=False)
        assert there_is_no_response(one, again)
        may_fsync.set()
        for client in (one, again):
            answer = client.answer(ApiKey.PRODUCE, 9)
            assert answer.responses[0].partition_responses[0].base_offset == 0


def ends_only_after(event, work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    event.set()
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture
def flushing_broker():
    """A broker that flushes its internal topics too."""
    with Broker(config={"log.flush.interval.messages": 1}, topics=["orders"]) as broker:
        yield broker


def test_a_commit_waits_for_the_fsync_of_its_topic(flushing_broker, request):
    settings = {"bootstrap.servers": flushing_broker.bootstrap_servers, "group.id": "g"}
    consumer = Consumer(settings)
    try:
        consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
        may_fsync = request.getfixturevalue("may_fsync")
        place = [TopicPartition("orders", 0, 5)]
        ends_only_after(may_fsync, lambda: consumer.commit(offsets=place, asynchronous=False))
        (committed,) = consumer.committed([TopicPartition("orders", 0)], timeout=20)
        assert committed.offset == 5
    finally:
        consumer.close()


def with_open_transaction(broker, topic):
    """A transactional producer that has written one record."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"}
    producer = Producer(settings)
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"value")
    assert producer.flush(20) == 0
    return producer


def test_a_transaction_ends_with_the_fsyncs_of_its_topics(flushing_broker, request):
    producer = with_open_transaction(flushing_broker, "orders")
    may_fsync = request.getfixturevalue("may_fsync")
    ends_only_after(may_fsync, lambda: producer.commit_transaction(20))
    with RawClient(flushing_broker.bootstrap_servers) as reader:
        # The decision is durable by now; the marker follows.
        wait_until(lambda: reader.fetch("orders", 0).last_stable_offset == 2)


def test_a_failing_fsync_is_reported_to_all_waiting_producers(broker, monkeypatch):
    def fail(fd):
        raise OSError(errno.EIO, "Input/output error")

    with RawClient(broker.bootstrap_servers) as client:
        replace_fsync(monkeypatch, fail)
        refused = client.produce("orders", one_record())
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.undo()


def path_of(fd):
    return os.readlink(f"/proc/self/fd/{fd if isinstance(fd, int) else fd.fileno()}")


@pytest.fixture
def fsync_of(monkeypatch):
    """Run an action before the fsync of a path with a given end."""
    fsync = os.fsync
    instead = {}

    def changed(fd):
        for end, happens in instead.items():
            if path_of(fd).endswith(end):
                happens()
        fsync(fd)

    replace_fsync(monkeypatch, changed)
    return instead


def failing_once(code):
    failures = [OSError(code, os.strerror(code))]

    def fail():
        if failures:
            raise failures.pop()

    return fail


def codes_of(clients):
    answers = [client.answer(ApiKey.PRODUCE, 9) for client in clients]
    return [answer.responses[0].partition_responses[0].error_code for answer in answers]


def test_an_fsync_that_succeeds_after_a_failed_one_does_not_count(broker, fsync_of):
    # The kernel reports lost pages only once.
    may_fail, fail = threading.Event(), failing_once(errno.EIO)
    fsync_of["orders-0/00000000000000000000.log"] = lambda: (may_fail.wait(20), fail())
    clients = [RawClient(broker.bootstrap_servers) for _ in range(3)]
    try:
        for count, client in enumerate(clients, 1):
            client.produce("orders", one_record(), answer=False)
            wait_until_written(broker, "orders", count)
        may_fail.set()
        assert codes_of(clients) == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
    finally:
        for client in clients:
            client.sock.close()


def test_an_fsync_that_fails_temporarily_is_retried(broker, fsync_of):
    # After an error librdkafka takes the record for lost and reuses its sequence number.
    fsync_of["orders-0/00000000000000000000.log"] = failing_once(errno.EMFILE)
    with RawClient(broker.bootstrap_servers) as client:
        assert client.produce("orders", one_record(), acks=1).error_code == ErrorCode.NONE
        assert client.fetch("orders", 0).high_watermark == 1


def test_a_producer_that_waits_for_the_fsync_of_a_deleted_topic_gets_an_error(broker, fsync_of):
    is_there, may_end = threading.Event(), threading.Event()
    fsync_of["/orders-0"] = lambda: (is_there.set(), may_end.wait(20))  # the last of them
    with (
        RawClient(broker.bootstrap_servers) as producer,
        RawClient(broker.bootstrap_servers) as admin,
    ):
        producer.produce("orders", one_record(), answer=False)
        assert is_there.wait(20)
        request = m.DeleteTopicsRequest
        deleted = [request.DeleteTopicState(name="orders")]
        admin.ask(ApiKey.DELETE_TOPICS, 6, request(topics=deleted, timeout_ms=10_000))
        may_end.set()
        assert codes_of([producer]) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_marker_whose_fsync_fails_temporarily_counts_later(broker, fsync_of):
    producer = with_open_transaction(broker, "orders")
    fsync_of["orders-0/00000000000000000000.log"] = failing_once(errno.EMFILE)
    producer.commit_transaction(20)
    with RawClient(broker.bootstrap_servers) as reader:
        wait_until(lambda: reader.fetch("orders", 0).last_stable_offset == 2)


def test_a_marker_in_the_same_write_does_not_cancel_the_fsync_of_others(broker, fsync_of):
    may_end = threading.Event()
    with RawClient(broker.bootstrap_servers) as client:
        client.create_topic("other", flush_messages="1")
        producer = with_open_transaction(broker, "other")
        for topic in ("orders", "other"):
            fsync_of[f"{topic}-0/00000000000000000000.log"] = lambda: may_end.wait(20)
        producer.commit_transaction(20)
        wait_until_written(broker, "other", 2)
        change = m.IncrementalAlterConfigsRequest
        settings = [
            change.AlterableConfig(
                name="flush.messages", config_operation=AlterOperation.DELETE, value=None
            )
        ]
        asked = change.AlterConfigsResource(
            resource_type=ResourceType.TOPIC, resource_name="other", configs=settings
        )
        client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, change(resources=[asked]))
        request = m.ProduceRequest
        both = [
            request.TopicProduceData(
                name=topic,
                partition_data=[request.PartitionProduceData(index=0, records=one_record())],
            )
            for topic in ("orders", "other")
        ]
        client.post(ApiKey.PRODUCE, 9, request(acks=1, timeout_ms=10_000, topic_data=both))
        wait_until_written(broker, "other", 3)
        assert there_is_no_response(client)
        may_end.set()
        assert codes_of([client]) == [ErrorCode.NONE]
