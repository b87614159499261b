"""Partition directories: Kafka reads those of Headrace and vice versa, record for record."""

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bench import apache_kafka, topics
from bench.node import Node
from bench.run import wait_until

from . import directories, records

# The smallest segment that Kafka 4 allows; these tests fill several.
SMALL_SEGMENTS = {"segment.bytes": str(1 << 20)}


def write_log(node: Node, topic: str) -> list[records.Seen]:
    topics.create(node.address, topic, settings=SMALL_SEGMENTS)
    written = records.write_every_kind(node.address, topic)
    seen = records.read(node.address, topic)
    assert len(seen) == written
    return seen


@pytest.mark.usefixtures("kafka_jars")
def test_kafkas_dump_tool_accepts_a_directory_after_a_clean_shutdown(headrace_node: Node) -> None:
    seen = write_log(headrace_node, "closed")
    headrace_node.stop()
    directory = headrace_node.data / "closed-0"
    assert len(list(directory.glob("*.log"))) > 1
    dumped = directories.sound_to_kafka(directory)
    assert dumped.count("| offset:") == len(seen)
    for codec in records.CODECS:
        assert f"compresscodec: {codec}" in dumped


@pytest.mark.usefixtures("kafka_jars")
def test_kafkas_dump_tool_accepts_a_directory_recovered_after_a_kill(
    headrace_node: Node,
) -> None:
    seen = write_log(headrace_node, "killed")
    headrace_node.kill()
    headrace_node.start()
    assert records.read(headrace_node.address, "killed") == seen
    headrace_node.stop()
    dumped = directories.sound_to_kafka(headrace_node.data / "killed-0")
    assert dumped.count("| offset:") == len(seen)


@pytest.mark.usefixtures("kafka_jars")
def test_kafkas_dump_tool_accepts_a_compacted_directory(
    start_headrace: Callable[..., Node],
) -> None:
    node = start_headrace({"log.cleaner.backoff.ms": "100"})
    settings = SMALL_SEGMENTS | {"min.cleanable.dirty.ratio": "0.01"}
    topics.create(node.address, "compacted", settings=settings)
    records.write_every_kind(node.address, "compacted")
    before = sum(file.stat().st_size for file in (node.data / "compacted-0").glob("*.log"))
    newest = {r.key: r for r in records.read(node.address, "compacted") if r.key is not None}
    # A compacted topic refuses records without a key, so the policy is changed only now.
    topics.set_configs(node.address, "compacted", {"cleanup.policy": "compact"})
    directory = node.data / "compacted-0"
    wait_until(
        lambda: sum(f.stat().st_size for f in directory.glob("*.log") if f.exists()) < before * 0.8,
        60,
        "compaction",
    )
    left = {r.key: r for r in records.read(node.address, "compacted") if r.key is not None}
    assert left == newest
    node.stop()
    directories.sound_to_kafka(directory, with_holes=True)


def test_a_directory_of_kafka_opens_here_with_the_same_records_timestamps_and_producers(
    kafka_node: Node, headrace_node: Node
) -> None:
    write_log(kafka_node, "moved")
    records.write_transactions(kafka_node.address, "moved")
    everything = records.read(kafka_node.address, "moved")
    committed = records.read(kafka_node.address, "moved", isolation="read_committed")
    assert len(everything) - len(committed) == 50  # the aborted transaction
    kafka_node.stop()

    topics.create(headrace_node.address, "moved", settings=SMALL_SEGMENTS)
    headrace_node.stop()
    source, target = kafka_node.data / "moved-0", headrace_node.data / "moved-0"
    directories.carry(source, target)
    headrace_node.start()

    assert records.read(headrace_node.address, "moved") == everything
    ours = records.read(headrace_node.address, "moved", isolation="read_committed")
    assert ours == committed
    assert offsets_by_time(headrace_node, everything) == offsets_in(everything)
    headrace_node.stop()
    assert directories.producer_states(target) == directories.producer_states(source)
    directories.sound_to_kafka(target)


def test_our_directory_opens_in_kafka_with_the_same_records_timestamps_and_producers(
    kafka_node: Node, headrace_node: Node
) -> None:
    write_log(headrace_node, "moved")
    records.write_transactions(headrace_node.address, "moved")
    everything = records.read(headrace_node.address, "moved")
    committed = records.read(headrace_node.address, "moved", isolation="read_committed")
    assert len(everything) - len(committed) == 50  # the aborted transaction
    headrace_node.stop()

    topics.create(kafka_node.address, "moved", settings=SMALL_SEGMENTS)
    kafka_node.stop()
    source, target = headrace_node.data / "moved-0", kafka_node.data / "moved-0"
    directories.carry(source, target)
    kafka_node.start()

    assert records.read(kafka_node.address, "moved") == everything
    theirs = records.read(kafka_node.address, "moved", isolation="read_committed")
    assert theirs == committed
    assert offsets_by_time(kafka_node, everything) == offsets_in(everything)
    append_one(kafka_node, "moved")
    assert len(records.read(kafka_node.address, "moved")) == len(everything) + 1
    shown = apache_kafka.tool(
        "org.apache.kafka.tools.TransactionsCommand",
        *("--bootstrap-server", kafka_node.address),
        *("describe-producers", "--topic", "moved", "--partition", "0"),
    ).stdout
    known = {line.split()[1] for line in directories.producer_states(source)}
    assert known
    assert known <= {line.split()[0] for line in shown.splitlines()[1:]}, shown
    kafka_node.stop()
    assert directories.producer_states(source) == [
        line for line in directories.producer_states(target) if line.split()[1] in known
    ]


def test_a_directory_of_kafka_that_headrace_wrote_to_opens_in_kafka(
    kafka_node: Node, headrace_node: Node
) -> None:
    write_log(kafka_node, "guest")
    records.write_transactions(kafka_node.address, "guest")
    kafka_node.stop()
    topics.create(headrace_node.address, "guest", settings=SMALL_SEGMENTS)
    headrace_node.stop()
    kafka_directory, headrace_directory = (
        kafka_node.data / "guest-0",
        headrace_node.data / "guest-0",
    )

    directories.carry(kafka_directory, headrace_directory)
    headrace_node.start()
    # Without idempotence: both brokers count producer IDs from 0, and the log has them already.
    records.write_every_kind(
        headrace_node.address, "guest", start_ms=records.minutes_ago(20), idempotent=False
    )
    everything = records.read(headrace_node.address, "guest")
    committed = records.read(headrace_node.address, "guest", isolation="read_committed")
    headrace_node.stop()

    directories.carry(headrace_directory, kafka_directory)
    kafka_node.start()
    assert records.read(kafka_node.address, "guest") == everything
    theirs = records.read(kafka_node.address, "guest", isolation="read_committed")
    assert theirs == committed
    assert len(everything) - len(committed) == 50


def offsets_in(seen: list[records.Seen]) -> list[int]:
    """For a few records: the first offset with the same or a later timestamp."""
    return [
        min(other.offset for other in seen if other.timestamp[1] >= record.timestamp[1])
        for record in seen[:: len(seen) // 10]
    ]


def offsets_by_time(node: Node, seen: list[records.Seen]) -> list[int]:
    """The same, as answered by ListOffsets."""
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": "reader"})
    topic = "moved"
    found = [
        consumer.offsets_for_times([TopicPartition(topic, 0, record.timestamp[1])], timeout=30)
        for record in seen[:: len(seen) // 10]
    ]
    consumer.close()
    return [places[0].offset for places in found]


def append_one(node: Node, topic: str) -> None:
    producer = Producer({"bootstrap.servers": node.address})
    producer.produce(topic, b"one more", partition=0)
    assert producer.flush(30) == 0
