"""Invalid requests: the client gets Kafka's error or is disconnected; others are not affected."""

import os
import socket
import struct
import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.client.errors import Disconnected
from headrace.model.errors import ErrorCode
from headrace.records.batch import read_header, seal, stamp
from headrace.records.record import Record, assemble, build_batch
from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import SERVED, ApiKey, request_class, response_class
from tests.fakes.inside import Inside
from tests.fakes.raw_client import RawClient


def a_batch(count=1, **fields):
    records = [Record(n, 1_700_000_000_000, b"k%d" % n, b"v%d" % n, ()) for n in range(count)]
    return bytearray(build_batch(records, **fields))


@pytest.fixture
def client(headrace_broker):
    with RawClient(headrace_broker.bootstrap_servers) as raw:
        yield raw


@pytest.fixture(autouse=True)
def others_are_served_all_the_while(request):
    """A connection to abuse; another client must work before and after."""
    if "headrace_broker" not in request.fixturenames:
        yield
        return
    broker = request.getfixturevalue("headrace_broker")
    with RawClient(broker.bootstrap_servers) as other:
        yield
        assert other.metadata().brokers


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes.fromhex("16030100a5010000a10303") + bytes(160),  # a TLS hello
        b"\x00\x00\x00\x00",  # an empty frame
        b"\xff\xff\xff\xff",  # a negative size
        b"\x7f\xff\xff\xff",  # a frame beyond socket.request.max.bytes
        struct.pack(">i", 5) + b"\x00\x03\x00\x01\x00",  # a header cut short
        struct.pack(">ihhih", 10, 3, 1, 7, 5000),  # a client id longer than its frame
        struct.pack(">ihhih", 10, 999, 0, 7, -1),  # no such API
        struct.pack(">ihhih", 10, 3, 999, 7, -1),  # a version that was not announced
        struct.pack(">ihhih", 10, -5, -5, 7, -1),
        struct.pack(">i", 300) + os.urandom(300),
    ],
)
def test_bytes_that_are_not_a_request_close_their_own_connection(client, data):
    client.send(data)
    assert client.is_closed_by_broker()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_before_version_3_closes_the_connection_as_kafka_4_does(client, version):
    client.send_frame(struct.pack(">hhih", 0, version, 1, -1) + bytes(20))
    assert client.is_closed_by_broker()


def test_an_unknown_version_of_apiversions_is_answered_in_version_0_with_error_35(client):
    client.send_frame(struct.pack(">hhih", 18, 999, 7, -1) + b"\0")
    frame = client.read_frame()
    correlation_id, error_code, count = struct.unpack_from(">ihi", frame)
    assert (correlation_id, error_code) == (7, ErrorCode.UNSUPPORTED_VERSION)
    keys = {struct.unpack_from(">hhh", frame, 10 + 6 * n)[0] for n in range(count)}
    assert 18 in keys
    assert client.ask(ApiKey.API_VERSIONS, 0, m.ApiVersionsRequest()).error_code == 0


def test_apiversions_announces_exactly_what_is_served(client):
    request = m.ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    response = client.ask(ApiKey.API_VERSIONS, 4, request)
    announced = {a.api_key: (a.min_version, a.max_version) for a in response.api_keys}
    assert announced == SERVED
    assert announced[ApiKey.PRODUCE] == (0, 13)
    assert announced[ApiKey.FIND_COORDINATOR][0] == 0


@pytest.mark.parametrize("api_key", sorted(SERVED), ids=lambda key: ApiKey(key).name)
def test_every_announced_version_of_every_api_is_answered(headrace_broker, api_key):
    """Empty requests: each version must be decoded, handled and encoded."""
    first, last = SERVED[api_key]
    for version in range(max(first, 3) if api_key == ApiKey.PRODUCE else first, last + 1):
        with RawClient(headrace_broker.bootstrap_servers) as raw:
            request = request_class(api_key)()
            if api_key == ApiKey.PRODUCE:
                request.acks = 1
            if api_key == ApiKey.API_VERSIONS:
                request.client_software_name = request.client_software_version = "a"
            assert type(raw.ask(api_key, version, request)) is response_class(api_key)


def test_a_frame_cut_by_a_closing_client_gives_its_memory_back():
    size = 1_000_000
    config = {"socket.request.max.bytes": size, "queued.max.request.bytes": size}
    with Broker(config=config, topics=["t"]) as broker:
        for _ in range(3):
            with RawClient(broker.bootstrap_servers) as client:
                client.send(struct.pack(">i", size) + bytes(700_000))
                client.sock.shutdown(socket.SHUT_WR)
                assert client.is_closed_by_broker()
        with RawClient(broker.bootstrap_servers) as client:
            large = build_batch([Record(0, -1, None, bytes(size - 1_000))])
            assert client.produce("t", large).error_code == 0


@pytest.mark.parametrize("version", [3, 7, 9, 12])
def test_a_wrong_crc_is_refused(client, headrace_topic, version):
    batch = a_batch()
    batch[-1] ^= 1
    assert client.produce(headrace_topic, batch, version=version).error_code == 2


def damaged(change, reseal=True):
    batch = a_batch(3)
    change(batch)
    if reseal:
        seal(batch)
    return batch


@pytest.mark.parametrize(
    ("what", "batch", "code"),
    [
        ("count too high", damaged(lambda b: struct.pack_into(">i", b, 57, 4)), 87),
        ("count of 0", damaged(lambda b: struct.pack_into(">i", b, 57, 0)), 87),
        ("delta of -1", damaged(lambda b: struct.pack_into(">i", b, 23, -1)), 87),
        ("control bit", damaged(lambda b: struct.pack_into(">h", b, 21, 0x20)), 87),
        ("codec 7", damaged(lambda b: struct.pack_into(">h", b, 21, 7)), 87),
        ("two batches", a_batch() + a_batch(), 87),
        ("magic 1", damaged(lambda b: struct.pack_into(">b", b, 16, 1), False), 87),
        ("a length beyond", damaged(lambda b: struct.pack_into(">i", b, 8, 5000), False), 87),
        ("nothing", bytearray(), 87),
        ("a few bytes", bytearray(b"abc"), 87),
        ("base offset of 5", damaged(lambda b: stamp(b, 5, -1)), 87),
        ("a time far ahead", damaged(lambda b: struct.pack_into(">q", b, 35, 1 << 60)), 32),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_inconsistent_batch_is_refused_with_kafkas_code(
    client, headrace_topic, what, batch, code
):
    assert client.produce(headrace_topic, batch).error_code == code
    assert client.produce(headrace_topic, a_batch()).base_offset == 0, "nothing was appended"


@pytest.mark.parametrize("setting", ["cleanup.policy=compact", "compression.type=uncompressed"])
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_cannot_be_decompressed_is_refused_where_it_must_be(
    headrace_broker, client, setting, codec
):
    name, _, value = setting.partition("=")
    topic = f"opened-{name}-{codec}"
    admin = AdminClient({"bootstrap.servers": headrace_broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, config={name: value})])[topic].result()
    good = build_batch([Record(0, -1, b"key", b"value")])
    header = read_header(good)
    garbage = assemble(header._replace(attributes=header.attributes | codec), b"no records at all")
    assert client.produce(topic, garbage).error_code == ErrorCode.INVALID_RECORD
    assert client.produce(topic, good).base_offset == 0


@pytest.mark.parametrize("place", [0, 1])
def test_a_topic_without_partitions_is_accepted(client, headrace_topic, place):
    request = m.ProduceRequest
    for number in range(3):
        data = [request.PartitionProduceData(index=0, records=a_batch())]
        topics = [request.TopicProduceData(name=headrace_topic, partition_data=data)]
        topics.insert(place, request.TopicProduceData(name="of-no-use", partition_data=[]))
        answer = client.ask(
            ApiKey.PRODUCE, 9, request(acks=-1, timeout_ms=10_000, topic_data=topics)
        )
        parts = [(topic.name, len(topic.partition_responses)) for topic in answer.responses]
        assert sorted(parts) == sorted([("of-no-use", 0), (headrace_topic, 1)])
        (told,) = answer.responses[1 - place].partition_responses
        assert (told.error_code, told.base_offset) == (0, number)


def test_null_records_are_refused(client, headrace_topic):
    assert client.produce(headrace_topic, None).error_code == ErrorCode.INVALID_RECORD


def test_unknown_topics_and_partitions_are_named(client, headrace_topic):
    assert client.produce("no-such-topic", a_batch()).error_code == 3
    assert client.produce(headrace_topic, a_batch(), partition=7).error_code == 3
    assert client.produce(headrace_topic, a_batch(), partition=-1).error_code == 3
    assert client.fetch("no-such-topic", 0).error_code == 3
    assert client.fetch(os.urandom(16), 0, version=13).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_acks_0_is_not_answered_and_a_failure_closes(headrace_broker, headrace_topic):
    with RawClient(headrace_broker.bootstrap_servers) as raw:
        raw.produce(headrace_topic, a_batch(), acks=0, answer=False)
        assert raw.fetch(headrace_topic, 0, max_wait_ms=5000).high_watermark == 1
        raw.produce("no-such-topic", a_batch(), acks=0, answer=False)
        assert raw.is_closed_by_broker()


def test_an_unknown_acks_counts_only_where_something_could_be_appended(client, headrace_topic):
    refused = client.produce(headrace_topic, a_batch(), acks=2)
    assert refused.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    refused = client.produce(headrace_topic, a_batch(), acks=2, partition=7)
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    refused = client.produce(headrace_topic, b"", acks=2)
    assert refused.error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("offset", [-1, -(2**63), 1, 2**63 - 1])
def test_an_offset_outside_the_log_is_out_of_range(client, headrace_topic, offset):
    assert client.fetch(headrace_topic, offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_another_leader_epoch_is_fenced_or_unknown(client, headrace_topic):
    (topic,) = client.metadata(headrace_topic).topics
    current = topic.partitions[0].leader_epoch
    newer = client.fetch(headrace_topic, 0, current_leader_epoch=current + 1)
    assert newer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    for epoch in {current - 1, -2} - {-1}:  # -1: any
        older = client.fetch(headrace_topic, 0, current_leader_epoch=epoch)
        assert older.error_code == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("name", ["..", ".", "", "a" * 250, "a/b", "a b", "ü"])
def test_an_illegal_topic_name_is_refused(client, name):
    request = m.CreateTopicsRequest
    response = client.ask(
        ApiKey.CREATE_TOPICS,
        5,
        request(
            topics=[request.CreatableTopic(name=name, num_partitions=1, replication_factor=1)],
            timeout_ms=5000,
        ),
    )
    assert response.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_names_that_metrics_could_not_tell_apart_are_refused(headrace_broker):
    admin = AdminClient({"bootstrap.servers": headrace_broker.bootstrap_servers})
    admin.create_topics([NewTopic("collide.one", 1)])["collide.one"].result()
    with pytest.raises(Exception, match="collide") as refusal:
        admin.create_topics([NewTopic("collide_one", 1)])["collide_one"].result()
    assert refusal.value.args[0].name() == "TOPIC_EXCEPTION"


def test_metadata_for_a_hundred_thousand_topics_is_answered_and_others_are_served(headrace_broker):
    names = [f"none-{number}" for number in range(100_000)]
    answered = threading.Event()
    waited = []

    def ask_for_all():
        with RawClient(headrace_broker.bootstrap_servers, timeout_s=60) as raw:
            response = raw.metadata(*names)
            assert len(response.topics) == len(names)
            assert {topic.error_code for topic in response.topics} == {3}
        answered.set()

    thread = threading.Thread(target=ask_for_all)
    thread.start()
    with RawClient(headrace_broker.bootstrap_servers) as other:
        while not answered.is_set():
            assert other.metadata().brokers
            waited.append(1)
            if not thread.is_alive():
                break
    thread.join()
    assert answered.is_set() and waited


def test_a_million_partitions_are_refused_in_time(client):
    request = m.CreateTopicsRequest
    response = client.ask(
        ApiKey.CREATE_TOPICS,
        5,
        request(
            topics=[
                request.CreatableTopic(
                    name="too-many", num_partitions=1_000_000, replication_factor=1
                )
            ],
            timeout_ms=5000,
        ),
    )
    assert response.topics[0].error_code != 0


def test_a_duplicate_batch_is_answered_with_its_first_offset(client, headrace_topic):
    batch = a_batch(2, producer_id=4000, producer_epoch=0, base_sequence=0)
    first = client.produce(headrace_topic, bytes(batch))
    again = client.produce(headrace_topic, bytes(batch))
    assert (first.error_code, first.base_offset) == (0, 0)
    assert (again.error_code, again.base_offset) == (0, 0)
    assert client.fetch(headrace_topic, 0).high_watermark == 2


def test_sequences_with_gaps_and_old_epochs_are_refused(client, headrace_topic):
    def send(sequence, epoch=0):
        batch = a_batch(1, producer_id=4001, producer_epoch=epoch, base_sequence=sequence)
        return client.produce(headrace_topic, batch).error_code

    assert send(0) == 0
    assert send(2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(1) == 0
    assert send(5, epoch=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(0, epoch=1) == 0
    assert send(2, epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.fetch(headrace_topic, 0).high_watermark == 3


@pytest.mark.parametrize(("version", "timestamp"), [(11, -7), (1, -7), (6, -3), (10, -6)])
def test_a_special_timestamp_of_a_later_version_is_not_an_invalid_request(
    client, headrace_topic, version, timestamp
):
    request = m.ListOffsetsRequest
    asked = request.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=timestamp
    )
    names = (headrace_topic, "absent")
    topics = [request.ListOffsetsTopic(name=name, partitions=[asked]) for name in names]
    answer = client.ask(ApiKey.LIST_OFFSETS, version, request(replica_id=-1, topics=topics))
    for topic in answer.topics:
        assert topic.partitions[0].error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize(
    ("topic_id", "name"), [(b"n" * 16, None), (b"n" * 16, "t"), (bytes(16), None)]
)
def test_metadata_by_id_is_refused_where_the_response_needs_a_name(client, version, topic_id, name):
    wanted = m.MetadataRequest.MetadataRequestTopic(topic_id=topic_id, name=name)
    answer = client.ask(ApiKey.METADATA, version, m.MetadataRequest(topics=[wanted]))
    (topic,) = answer.topics
    assert topic.error_code == ErrorCode.INVALID_REQUEST
    assert (topic.topic_id, topic.name) == (topic_id, name or "")


def test_a_topic_re_created_under_a_reader_has_another_id(headrace_broker):
    headrace_broker.create_topics(["reborn"])
    admin = AdminClient({"bootstrap.servers": headrace_broker.bootstrap_servers})
    with RawClient(headrace_broker.bootstrap_servers) as raw:
        old_id = raw.metadata("reborn").topics[0].topic_id
        assert raw.fetch(old_id, 0, version=13).error_code == 0
        admin.delete_topics(["reborn"])["reborn"].result()
        assert raw.fetch(old_id, 0, version=13).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        headrace_broker.create_topics(["reborn"])
        assert raw.fetch(old_id, 0, version=13).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        new_id = raw.metadata("reborn").topics[0].topic_id
        assert new_id != old_id
        assert raw.fetch(new_id, 0, version=13).error_code == 0


def test_a_fetch_parked_on_a_deleted_topic_is_answered(headrace_broker):
    headrace_broker.create_topics(["deleted"])
    admin = AdminClient({"bootstrap.servers": headrace_broker.bootstrap_servers})
    answers = []

    def wait():
        with RawClient(headrace_broker.bootstrap_servers) as raw:
            answers.append(raw.fetch("deleted", 0, max_wait_ms=15_000).error_code)

    thread = threading.Thread(target=wait)
    thread.start()
    admin.delete_topics(["deleted"])["deleted"].result()
    thread.join()
    assert answers == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_bug_in_a_handler_closes_one_connection_and_fails_the_test(monkeypatch):
    """The client gets UNKNOWN_SERVER_ERROR and is disconnected; the kit reports it to the test."""
    from headrace.broker import handlers
    from headrace.testing import BrokerFailed

    def broken(*_):
        raise ZeroDivisionError("a bug")

    find = handlers.handler

    def handler(api_key):
        return broken if api_key == ApiKey.LIST_OFFSETS else find(api_key)

    monkeypatch.setattr(handlers, "handler", handler)
    with pytest.raises(BrokerFailed, match="a bug"), Broker(topics=["t"]) as broker:
        with RawClient(broker.bootstrap_servers) as raw:
            raw.ask(ApiKey.LIST_OFFSETS, 5, m.ListOffsetsRequest())
            assert raw.is_closed_by_broker()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("t", b"others go on")
        assert producer.flush(10) == 0


@pytest.mark.parametrize(
    ("api_key", "version", "request_message", "is_answered"),
    [
        (ApiKey.FETCH, 11, m.FetchRequest(), True),
        (ApiKey.PRODUCE, 9, m.ProduceRequest(acks=-1), True),
        (ApiKey.PRODUCE, 9, m.ProduceRequest(acks=0), False),
    ],
)
def test_a_bug_before_anything_is_staged_closes_one_connection(
    monkeypatch, api_key, version, request_message, is_answered
):
    from headrace.broker.handlers.fetch import Fetching
    from headrace.broker.handlers.produce import Producing
    from headrace.testing import BrokerFailed

    def broken(*_, **__):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Fetching, "fetch", broken)
    monkeypatch.setattr(Producing, "full", broken)
    with pytest.raises(BrokerFailed, match="a bug"), Broker() as broker:
        with RawClient(broker.bootstrap_servers) as raw:
            raw.post(api_key, version, request_message)
            if is_answered:
                raw.answer(api_key, version)
            assert raw.is_closed_by_broker()
        with RawClient(broker.bootstrap_servers) as other:
            assert other.metadata().brokers


@pytest.mark.parametrize("acks", [-1, 0])
def test_a_bug_while_a_batch_is_validated_closes_one_connection(monkeypatch, acks):
    from headrace.storage.validation import record_validator
    from headrace.testing import BrokerFailed

    def broken(*_, **__):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(record_validator, "validate_records", broken)
    config = {"headrace.validate.records": "true"}
    with pytest.raises(BrokerFailed, match="a bug"), Broker(config=config, topics=["t"]) as broker:
        with RawClient(broker.bootstrap_servers) as raw:
            answer = raw.produce("t", a_batch(), acks=acks, answer=acks != 0)
            assert acks == 0 or answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            assert raw.is_closed_by_broker()
        with RawClient(broker.bootstrap_servers) as other:
            assert other.fetch("t", 0).high_watermark == 0, "nothing was appended"


def test_a_bug_in_the_worker_thread_stops_the_broker_too(tmp_path):
    from headrace.testing import BrokerFailed

    with Broker(data=tmp_path, topics=["t"]) as broker, RawClient(broker.bootstrap_servers) as raw:
        Inside(broker).services.logs.directories[0].later(0, lambda: 1 / 0)
        assert raw.is_closed_by_broker()
        with pytest.raises(BrokerFailed, match="ZeroDivisionError"):
            broker.stop()


@pytest.mark.parametrize("opened", ["true", "false"])
def test_a_bug_while_writing_stops_the_broker_and_not_the_process(monkeypatch, tmp_path, opened):
    from headrace.storage.log import Log
    from headrace.testing import BrokerFailed

    with (
        Broker(data=tmp_path, config={"headrace.validate.records": opened}, topics=["t"]) as broker,
        RawClient(broker.bootstrap_servers) as raw,
    ):
        assert raw.produce("t", a_batch(3)).base_offset == 0
        with monkeypatch.context() as patch:
            patch.setattr(Log, "write_staged", lambda self: 1 / 0)
            with pytest.raises(Disconnected):
                raw.produce("t", a_batch())
            with pytest.raises(BrokerFailed, match="ZeroDivisionError"):
                broker.stop()
        broker.start()
        with RawClient(broker.bootstrap_servers) as again:
            assert again.fetch("t", 0).high_watermark == 3


def test_a_client_that_keeps_connecting_with_tls_is_logged_once(caplog):
    with Broker() as broker:
        for _ in range(20):
            with RawClient(broker.bootstrap_servers) as client:
                client.send(bytes.fromhex("16030100a5010000a10303"))
                assert client.is_closed_by_broker()
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "a TLS handshake" in line]) == 1
