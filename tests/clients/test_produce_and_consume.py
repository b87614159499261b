"""Three stock clients produce and consume: records arrive unchanged and in order."""

import asyncio
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyTopicPartition

from headrace.testing import Broker

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def confluent_read(bootstrap, topic, count, partition=0, offset=0, **settings):
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "check.crcs": True, **settings}
    )
    consumer.assign([TopicPartition(topic, partition, offset)])
    records = []
    give_up_at = time.monotonic() + 20
    while len(records) < count and time.monotonic() < give_up_at:
        record = consumer.poll(0.5)
        if record is not None:
            assert record.error() is None, record.error()
            records.append(record)
    consumer.close()
    return records


@pytest.mark.parametrize("codec", CODECS)
def test_confluent_records_keep_key_value_headers_timestamp_and_order(
    headrace_broker, headrace_topic, codec
):
    bootstrap = headrace_broker.bootstrap_servers
    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 50}
    )
    failures = []
    for number in range(500):
        producer.produce(
            headrace_topic,
            key=f"key-{number}",
            value=b"value" * 20 + b"%d" % number,
            headers=[("trace", b"%d" % number), ("empty", None)],
            timestamp=1_700_000_000_000 + number,
            on_delivery=lambda error, record: failures.append(error) if error else None,
        )
    assert producer.flush(20) == 0
    assert failures == []
    records = confluent_read(bootstrap, headrace_topic, 500)
    assert [record.offset() for record in records] == list(range(500))
    assert [record.key() for record in records] == [b"key-%d" % n for n in range(500)]
    assert records[7].value() == b"value" * 20 + b"7"
    assert records[7].headers() == [("trace", b"7"), ("empty", None)]
    assert records[7].timestamp() == (1, 1_700_000_000_007)


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python_and_confluent_read_each_others_records(
    headrace_broker, headrace_topic, codec
):
    bootstrap = headrace_broker.bootstrap_servers
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec
    )
    for number in range(100):
        producer.send(headrace_topic, b"%d" % number * 50)
    producer.flush()
    producer.close()
    from_confluent = confluent_read(bootstrap, headrace_topic, 100)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=5000)
    consumer.assign([PyTopicPartition(headrace_topic, 0)])
    consumer.seek_to_beginning()
    from_python = [next(consumer) for _ in range(100)]
    consumer.close()
    expected = [b"%d" % number * 50 for number in range(100)]
    assert [record.value() for record in from_confluent] == expected
    assert [record.value for record in from_python] == expected


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_aiokafka_produces_and_consumes(headrace_broker, headrace_topic, acks):
    async def body():
        bootstrap = headrace_broker.bootstrap_servers
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks=acks)
        await producer.start()
        for number in range(50):
            await producer.send(headrace_topic, b"%d" % number)
        await producer.stop()
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([AioTopicPartition(headrace_topic, 0)])
        values = [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in range(50)]
        await consumer.stop()
        assert values == [b"%d" % number for number in range(50)]

    asyncio.run(body())


def test_a_consumer_starts_anywhere_rewinds_and_finds_offsets_by_time(
    headrace_broker, headrace_topic
):
    bootstrap = headrace_broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(100):
        producer.produce(headrace_topic, b"%d" % number, timestamp=1000 * number + 1000)
        if number % 10 == 9:
            producer.flush()  # ten batches, so that some offsets are inside a batch
    assert [r.offset() for r in confluent_read(bootstrap, headrace_topic, 5, offset=93)][0] == 93
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    assert consumer.get_watermark_offsets(TopicPartition(headrace_topic, 0)) == (0, 100)

    def at(timestamp):
        (found,) = consumer.offsets_for_times([TopicPartition(headrace_topic, 0, timestamp)], 10)
        return found.offset

    assert at(0) == 0
    assert at(1000) == 0
    assert at(1001) == 1
    assert at(55_500) == 55
    assert at(100_000) == 99
    assert at(100_001) == -1
    consumer.close()


def test_a_long_poll_returns_as_soon_as_a_record_arrives(headrace_broker, headrace_topic):
    bootstrap = headrace_broker.bootstrap_servers
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "fetch.wait.max.ms": 30_000}
    )
    consumer.assign([TopicPartition(headrace_topic, 0, 0)])
    assert consumer.poll(0.3) is None
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(headrace_topic, b"now")
    producer.flush()
    record = consumer.poll(20)
    assert record.value() == b"now"
    consumer.close()


def test_the_first_record_sent_to_a_topic_creates_it(headrace_broker):
    bootstrap = headrace_broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("made-on-demand", b"x")
    assert producer.flush(20) == 0
    assert len(confluent_read(bootstrap, "made-on-demand", 1)) == 1


def test_without_auto_creation_an_unknown_topic_is_reported_to_the_sender():
    with Broker(config={"auto.create.topics.enable": False}) as broker:
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "message.timeout.ms": 3000}
        )
        errors = []
        producer.produce("nowhere", b"x", on_delivery=lambda error, _: errors.append(error))
        producer.flush(20)
        assert errors[0] is not None
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        assert "nowhere" not in admin.list_topics(timeout=10).topics


def test_a_record_above_the_limit_is_reported_and_the_next_one_is_stored(
    headrace_broker, headrace_topic
):
    bootstrap = headrace_broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 3_000_000})
    outcomes = []
    producer.produce(
        headrace_topic, bytes(2_000_000), on_delivery=lambda error, _: outcomes.append(error)
    )
    producer.flush(20)
    producer.produce(headrace_topic, b"small", on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(20)
    assert outcomes[0].name() == "MSG_SIZE_TOO_LARGE"
    assert outcomes[1] is None


def test_an_offset_outside_the_log_is_reported_as_such_by_the_client(
    headrace_broker, headrace_topic
):
    consumer = Consumer(
        {
            "bootstrap.servers": headrace_broker.bootstrap_servers,
            "group.id": "unused",
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(headrace_topic, 0, 1000)])
    record = consumer.poll(20)
    assert record.error().name() == "_AUTO_OFFSET_RESET"
    consumer.close()


def test_large_responses_sent_with_sendfile_arrive_intact(headrace_broker, headrace_topic):
    bootstrap = headrace_broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 100})
    values = [bytes([number % 256]) * 100_000 for number in range(60)]
    for value in values:
        producer.produce(headrace_topic, value)
    assert producer.flush(30) == 0
    records = confluent_read(
        bootstrap, headrace_topic, 60, **{"fetch.message.max.bytes": 5_000_000}
    )
    assert [record.value() for record in records] == values


def test_a_consumer_with_a_tiny_limit_still_gets_every_batch(headrace_broker, headrace_topic):
    bootstrap = headrace_broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(10):
        producer.produce(headrace_topic, bytes(50_000))
        producer.flush()
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, max_partition_fetch_bytes=100, consumer_timeout_ms=5000
    )
    consumer.assign([PyTopicPartition(headrace_topic, 0)])
    consumer.seek_to_beginning()
    assert sum(1 for _ in zip(range(10), consumer, strict=False)) == 10
    consumer.close()


def test_keys_choose_the_partition_and_every_partition_keeps_its_order(headrace_broker):
    headrace_broker.create_topics({"keyed": 6})
    bootstrap = headrace_broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for number in range(600):
        producer.produce("keyed", key=f"member-{number % 30}", value=b"%d" % number)
    assert producer.flush(20) == 0
    places = {}
    for partition in range(6):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
        _, end = consumer.get_watermark_offsets(TopicPartition("keyed", partition))
        consumer.close()
        values = []
        for record in confluent_read(bootstrap, "keyed", end, partition=partition):
            places.setdefault(record.key(), set()).add(partition)
            values.append(int(record.value()))
        assert values == sorted(values)
    assert len(places) == 30
    assert all(len(partitions) == 1 for partitions in places.values())


def test_an_unknown_acks_setting_is_refused_by_name(headrace_broker, headrace_topic):
    producer = Producer({"bootstrap.servers": headrace_broker.bootstrap_servers, "acks": 2})
    errors = []
    producer.produce(headrace_topic, b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(20)
    assert errors[0].name() == "INVALID_REQUIRED_ACKS"


def test_a_keyless_record_is_refused_by_a_compacted_topic(headrace_broker):
    bootstrap = headrace_broker.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": bootstrap})
    from confluent_kafka.cimpl import NewTopic

    request = NewTopic("compacted", num_partitions=1, config={"cleanup.policy": "compact"})
    admin.create_topics([request])["compacted"].result()
    producer = Producer({"bootstrap.servers": bootstrap})
    errors = []
    producer.produce("compacted", value=b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(20)
    producer.produce(
        "compacted", key=b"k", value=b"x", on_delivery=lambda error, _: errors.append(error)
    )
    producer.flush(20)
    assert errors[0].name() == "INVALID_RECORD"
    assert errors[1] is None


@pytest.mark.parametrize("wanted", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_a_topic_recompresses_to_its_codec(headrace_broker, wanted):
    bootstrap = headrace_broker.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": bootstrap})
    from confluent_kafka.cimpl import NewTopic

    topic = f"codec-{wanted}"
    request = NewTopic(topic, num_partitions=1, config={"compression.type": wanted})
    admin.create_topics([request])[topic].result()
    for sent in ("none", "lz4", "zstd"):
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": sent})
        for _ in range(20):
            producer.produce(topic, b"abc" * 100)
        assert producer.flush(20) == 0
    assert len(confluent_read(bootstrap, topic, 60)) == 60
    from headrace.records.batch import CODEC_NAMES, headers

    segment = (headrace_broker.data / f"{topic}-0" / f"{0:020d}.log").read_bytes()
    codecs = {CODEC_NAMES[header.codec] for _, header in headers(segment)}
    assert codecs == {"none" if wanted == "uncompressed" else wanted}


def test_the_broker_stamps_the_append_time(headrace_broker):
    bootstrap = headrace_broker.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": bootstrap})
    from confluent_kafka.cimpl import NewTopic

    request = NewTopic("stamped", 1, config={"message.timestamp.type": "LogAppendTime"})
    admin.create_topics([request])["stamped"].result()
    before = int(time.time() * 1000)
    producer = Producer({"bootstrap.servers": bootstrap})
    reported = []
    producer.produce(
        "stamped", b"x", timestamp=12345, on_delivery=lambda _, r: reported.append(r.timestamp())
    )
    producer.flush(20)
    (record,) = confluent_read(bootstrap, "stamped", 1)  # with check.crcs
    kind, timestamp = record.timestamp()
    assert kind == 2
    assert before <= timestamp <= int(time.time() * 1000)
    assert reported == [(2, timestamp)]


def test_an_idempotent_producer_keeps_order_and_loses_nothing_across_a_restart():
    with Broker(topics=["once"]) as broker:
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "enable.idempotence": True,
                "message.timeout.ms": 30_000,
            }
        )
        for number in range(2000):
            producer.produce("once", b"%d" % number)
            if number == 1000:
                producer.poll(0)
                broker.restart()
        assert producer.flush(30) == 0
        records = confluent_read(broker.bootstrap_servers, "once", 2000)
        assert [int(record.value()) for record in records] == list(range(2000))


def test_delete_records_moves_the_start_for_every_reader(headrace_broker, headrace_topic):
    bootstrap = headrace_broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(20):
        producer.produce(headrace_topic, b"%d" % number)
    producer.flush(20)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(headrace_topic, 0, 15)]).values()
    assert deleted.result().low_watermark == 15
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    assert consumer.get_watermark_offsets(TopicPartition(headrace_topic, 0)) == (15, 20)
    consumer.close()
    with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
        (beyond,) = admin.delete_records([TopicPartition(headrace_topic, 0, 21)]).values()
        beyond.result()
