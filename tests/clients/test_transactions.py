"""Transactions of three stock clients: all or nothing, fenced zombies, exactly once."""

import asyncio
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyTopicPartition
from kafka.structs import OffsetAndMetadata

from headrace.testing import Broker

LIMIT_S = 30


def confluent_producer(bootstrap, transactional_id, **settings):
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, **settings}
    )
    producer.init_transactions(LIMIT_S)
    return producer


def committed_values(bootstrap, topic, *, isolation="read_committed", partition=0):
    """All records that a consumer sees, up to the end that its isolation level allows."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    values = []
    give_up_at = time.monotonic() + LIMIT_S
    while time.monotonic() < give_up_at:
        record = consumer.poll(0.5)
        if record is None:
            continue
        if record.error() is not None:
            assert record.error().code() == KafkaError._PARTITION_EOF
            break
        values.append(record.value())
    consumer.close()
    return values


# --- all or nothing


def test_confluent_commits_are_seen_and_aborts_are_not(headrace_broker, headrace_topic):
    bootstrap = headrace_broker.bootstrap_servers
    producer = confluent_producer(bootstrap, headrace_topic)
    for number in range(10):
        producer.begin_transaction()
        for part in range(5):
            producer.produce(headrace_topic, b"%d.%d" % (number, part))
        if number % 3 == 0:
            producer.flush(LIMIT_S)  # written to the log before the abort
            producer.abort_transaction(LIMIT_S)
        else:
            producer.commit_transaction(LIMIT_S)
    expected = [b"%d.%d" % (n, part) for n in range(10) if n % 3 for part in range(5)]
    assert committed_values(bootstrap, headrace_topic) == expected
    everything = committed_values(bootstrap, headrace_topic, isolation="read_uncommitted")
    assert len(everything) == 50


def test_kafka_python_commits_are_seen_and_aborts_are_not(headrace_broker, headrace_topic):
    bootstrap = headrace_broker.bootstrap_servers
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=headrace_topic)
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        for part in range(5):
            producer.send(headrace_topic, b"%d.%d" % (number, part))
        if number % 2:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()
    expected = [b"%d.%d" % (n, part) for n in (0, 2, 4) for part in range(5)]
    assert committed_values(bootstrap, headrace_topic) == expected
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", consumer_timeout_ms=10_000
    )
    consumer.assign([PyTopicPartition(headrace_topic, 0)])
    consumer.seek_to_beginning()
    assert [next(consumer).value for _ in expected] == expected
    consumer.close()


def test_aiokafka_commits_are_seen_and_aborts_are_not(headrace_broker, headrace_topic):
    bootstrap = headrace_broker.bootstrap_servers

    async def body():
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=headrace_topic)
        await producer.start()
        for number in range(6):
            await producer.begin_transaction()
            for part in range(5):
                await producer.send_and_wait(headrace_topic, b"%d.%d" % (number, part))
            if number % 2:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
        await producer.stop()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        await consumer.start()
        consumer.assign([AioTopicPartition(headrace_topic, 0)])
        values = [(await asyncio.wait_for(consumer.getone(), LIMIT_S)).value for _ in range(15)]
        await consumer.stop()
        return values

    expected = [b"%d.%d" % (n, part) for n in (0, 2, 4) for part in range(5)]
    assert asyncio.run(body()) == expected
    assert committed_values(bootstrap, headrace_topic) == expected


@pytest.mark.slow
def test_a_transaction_spans_topics_and_partitions(headrace_broker):
    bootstrap = headrace_broker.bootstrap_servers
    headrace_broker.create_topics({"span-a": 3, "span-b": 2})
    producer = confluent_producer(bootstrap, "span")
    places = [("span-a", 0), ("span-a", 1), ("span-a", 2), ("span-b", 0), ("span-b", 1)]
    for number, ends in enumerate((producer.commit_transaction, producer.abort_transaction)):
        producer.begin_transaction()
        for topic, partition in places:
            producer.produce(topic, b"%d" % number, partition=partition)
        producer.flush(LIMIT_S)
        ends(LIMIT_S)
    for topic, partition in places:
        assert committed_values(bootstrap, topic, partition=partition) == [b"0"]


# --- zombies


def test_a_second_producer_with_the_same_id_fences_the_first(headrace_broker, headrace_topic):
    bootstrap = headrace_broker.bootstrap_servers
    first = confluent_producer(bootstrap, headrace_topic)
    first.begin_transaction()
    first.produce(headrace_topic, b"first")
    first.flush(LIMIT_S)
    second = confluent_producer(bootstrap, headrace_topic)
    second.begin_transaction()
    second.produce(headrace_topic, b"second")
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(LIMIT_S)
    assert fenced.value.args[0].fatal()
    assert fenced.value.args[0].code() in (
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    )
    second.commit_transaction(LIMIT_S)
    assert committed_values(bootstrap, headrace_topic) == [b"second"]


def test_aiokafka_reports_that_it_is_fenced(headrace_broker, headrace_topic):
    bootstrap = headrace_broker.bootstrap_servers

    async def body():
        first = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=headrace_topic)
        second = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=headrace_topic)
        await first.start()
        await first.begin_transaction()
        await first.send_and_wait(headrace_topic, b"first")
        await second.start()
        with pytest.raises(ProducerFenced):
            await first.commit_transaction()
        async with second.transaction():
            await second.send_and_wait(headrace_topic, b"second")
        await second.stop()
        await first.stop()

    asyncio.run(body())
    assert committed_values(bootstrap, headrace_topic) == [b"second"]


@pytest.mark.slow
def test_a_producer_that_pauses_too_long_loses_its_transaction(headrace_broker, headrace_topic):
    bootstrap = headrace_broker.bootstrap_servers
    sleeper = confluent_producer(
        bootstrap, headrace_topic, **{"transaction.timeout.ms": 1_000, "message.timeout.ms": 1_000}
    )
    sleeper.begin_transaction()
    sleeper.produce(headrace_topic, b"slept")
    sleeper.flush(LIMIT_S)
    other = confluent_producer(bootstrap, headrace_topic + "-other")
    other.begin_transaction()
    other.produce(headrace_topic, b"awake")
    other.commit_transaction(LIMIT_S)
    give_up_at = time.monotonic() + LIMIT_S
    # A read_committed consumer waits until the transaction of the paused producer has ended.
    while committed_values(bootstrap, headrace_topic) != [b"awake"]:
        assert time.monotonic() < give_up_at
    with pytest.raises(KafkaException):
        sleeper.commit_transaction(LIMIT_S)


# --- exactly once: consume, transform, produce, with the offsets inside


def filled(broker, name, count=200):
    broker.create_topics({f"{name}-in": 2, f"{name}-out": 1})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(count):
        producer.produce(f"{name}-in", b"%d" % number, partition=number % 2)
    assert producer.flush(LIMIT_S) == 0
    return [b"%d" % number for number in range(count)]


def copied(broker, name):
    return sorted(committed_values(broker.bootstrap_servers, f"{name}-out"), key=int)


@pytest.mark.slow
def test_confluent_copies_exactly_once_though_attempts_are_aborted(headrace_broker):
    name = "confluent-copy"
    expected = filled(headrace_broker, name)
    bootstrap = headrace_broker.bootstrap_servers
    producer = confluent_producer(bootstrap, name)
    done, attempt = 0, 0
    while done < len(expected):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        consumer.subscribe([f"{name}-in"])
        records = consumer.consume(50, timeout=LIMIT_S)
        assert records and all(record.error() is None for record in records)
        producer.begin_transaction()
        for record in records:
            producer.produce(f"{name}-out", record.value())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), LIMIT_S
        )
        attempt += 1
        if attempt % 2:
            producer.abort_transaction(LIMIT_S)
        else:
            producer.commit_transaction(LIMIT_S)
            done += len(records)
        consumer.close()  # the next consumer starts at the group's offsets
    assert copied(headrace_broker, name) == expected


@pytest.mark.slow
def test_kafka_python_copies_exactly_once_though_attempts_are_aborted(headrace_broker):
    name = "kafka-python-copy"
    expected = filled(headrace_broker, name)
    bootstrap = headrace_broker.bootstrap_servers
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    producer.init_transactions()
    done, attempt = 0, 0
    while done < len(expected):
        consumer = KafkaConsumer(
            f"{name}-in",
            bootstrap_servers=bootstrap,
            group_id=name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            max_poll_records=60,
        )
        give_up_at = time.monotonic() + LIMIT_S
        batches = {}
        while not batches:
            batches = consumer.poll(timeout_ms=500)
            assert time.monotonic() < give_up_at
        records = [record for batch in batches.values() for record in batch]
        producer.begin_transaction()
        for record in records:
            producer.send(f"{name}-out", record.value)
        positions = {
            partition: OffsetAndMetadata(consumer.position(partition), "", -1)
            for partition in batches
        }
        producer.send_offsets_to_transaction(positions, name)
        attempt += 1
        if attempt % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            done += len(records)
        consumer.close()
    producer.close()
    assert copied(headrace_broker, name) == expected


@pytest.mark.slow
def test_aiokafka_copies_exactly_once_though_attempts_are_aborted(headrace_broker):
    name = "aiokafka-copy"
    expected = filled(headrace_broker, name)
    bootstrap = headrace_broker.bootstrap_servers

    async def attempt(producer, commits):
        consumer = AIOKafkaConsumer(
            f"{name}-in",
            bootstrap_servers=bootstrap,
            group_id=name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        batches = await consumer.getmany(timeout_ms=LIMIT_S * 1000, max_records=60)
        await producer.begin_transaction()
        positions = {}
        for partition, batch in batches.items():
            for record in batch:
                await producer.send(f"{name}-out", record.value)
            positions[partition] = batch[-1].offset + 1
        await producer.send_offsets_to_transaction(positions, name)
        if commits:
            await producer.commit_transaction()
        else:
            await producer.abort_transaction()
        await consumer.stop()
        return sum(len(batch) for batch in batches.values()) if commits else 0

    async def body():
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        await producer.start()
        done, attempts = 0, 0
        while done < len(expected):
            attempts += 1
            done += await attempt(producer, attempts % 2 == 0)
        await producer.stop()

    asyncio.run(body())
    assert copied(headrace_broker, name) == expected


# --- a broker that dies


@pytest.mark.slow
def test_a_transaction_continues_after_kill_9_and_commits(tmp_path):
    with Broker(data=tmp_path, topics=["t"]) as broker:
        producer = confluent_producer(broker.bootstrap_servers, "tx", **{"log_level": 0})
        producer.begin_transaction()
        producer.produce("t", b"before")
        producer.flush(LIMIT_S)
        broker.kill()
        broker.start()
        producer.produce("t", b"after")
        producer.commit_transaction(LIMIT_S)
        assert committed_values(broker.bootstrap_servers, "t") == [b"before", b"after"]
