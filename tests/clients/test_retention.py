"""Retention as a stock client sees it: records expire by time and by size."""

import time
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from headrace.testing import Broker
from tests.fakes.waiting import wait_until

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker():
    with Broker(config={"log.retention.check.interval.ms": 50}) as broker:
        yield broker


@pytest.fixture
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@contextmanager
def a_consumer(broker):
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "retention",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": False,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def create(admin, name, **settings):
    config = {key.replace("_", "."): value for key, value in settings.items()}
    admin.create_topics([NewTopic(name, 1, config=config)])[name].result()


def produce(broker, topic, *values, age_ms=0):
    """Produce each value in a separate batch."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, timestamp=int(time.time() * 1000) - age_ms)
        assert producer.flush(20) == 0


def first_message(consumer, topic):
    """The message that a consumer reads if it starts at offset 0."""
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(20)
    assert message is not None and message.error() is None
    return message


def test_records_expire_by_time(broker, admin):
    for topic in ("by-time", "kept"):
        create(admin, topic, retention_ms="-1")
        produce(broker, topic, b"a", b"b", b"c", age_ms=2 * HOUR_MS)
    place = TopicPartition("by-time", 0)
    with a_consumer(broker) as consumer:
        assert first_message(consumer, "by-time").value() == b"a"
        change = ConfigEntry(
            "retention.ms", str(HOUR_MS), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, "by-time", incremental_configs=[change])
        admin.incremental_alter_configs([resource])[resource].result()
        wait_until(lambda: consumer.get_watermark_offsets(place) == (3, 3))
        assert consumer.get_watermark_offsets(TopicPartition("kept", 0)) == (0, 3)
        produce(broker, "by-time", b"d")
        message = first_message(consumer, "by-time")
        assert (message.offset(), message.value()) == (3, b"d")


def test_records_expire_by_size(broker, admin):
    create(admin, "by-size", retention_bytes="5000", internal_segment_bytes="1500")
    values = [b"%04d" % number + bytes(1_000) for number in range(20)]
    produce(broker, "by-size", *values)
    place = TopicPartition("by-size", 0)
    with a_consumer(broker) as consumer:
        # One record per segment of 1,100 bytes: four are kept, and one more would be too many.
        wait_until(lambda: consumer.get_watermark_offsets(place)[0] >= 15)
        low, high = consumer.get_watermark_offsets(place)
        assert 15 <= low <= 16 and high == 20
        message = first_message(consumer, "by-size")
        assert (message.offset(), message.value()) == (low, values[low])
