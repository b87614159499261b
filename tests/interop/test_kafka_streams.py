"""Kafka Streams, exactly once, while the application and a broker are killed."""

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bench import apache_kafka, topics
from bench.node import Node
from headrace.testing import Cluster
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.usefixtures("kafka_jars")

APPLICATION = Path(__file__).parent / "WordCounts.java"
# In addition to Kafka's jars, which contain everything else.
STREAMS = (
    f"org.apache.kafka:kafka-streams:{apache_kafka.NEWEST}",
    "org.rocksdb:rocksdbjni:10.1.3",
)
CACHE = apache_kafka.CACHE.parent / "kafka-streams" / apache_kafka.NEWEST
PARTITIONS = 3
WORDS = ("oats", "rye", "spelt", "corn", "rice")
FEED = 2_000
LIMIT_S = 120


def streams_jars() -> Path:
    for artifact in STREAMS:
        name = "-".join(artifact.split(":")[1:])
        if not (CACHE / f"{name}.jar").exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            copy = ("dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={CACHE}")
            subprocess.run(["mvn", "-q", "-B", *copy], cwd=CACHE, check=True)
    return CACHE


@contextmanager
def application(address: str, directory: Path) -> Iterator["subprocess.Popen[bytes]"]:
    jars = f"{apache_kafka.jars()}/*:{streams_jars()}/*"
    with (directory / "streams.log").open("ab") as log:
        process = subprocess.Popen(
            [
                "java",
                "-Xmx256m",
                "-cp",
                jars,
                str(APPLICATION),
                address,
                str(directory / "state"),
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def feed(address: str, start: int) -> None:
    producer = Producer({"bootstrap.servers": address})
    for number in range(start, start + FEED):
        word = WORDS[number % len(WORDS)]
        producer.produce("words", word, key=str(number), partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def committed(address: str, topic: str) -> list[tuple[str, str]]:
    """Keys and values; those of each partition in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found, ended = [], 0
    while ended < PARTITIONS:
        for message in consumer.consume(500, 1):
            if message.error():
                ended += 1
            else:
                found.append((message.key().decode(), message.value().decode()))
    consumer.close()
    return found


def test_every_word_is_copied_and_counted_once_despite_kills(
    start_headrace: Callable[..., Node], tmp_path: Path
) -> None:
    node = start_headrace({"group.initial.rebalance.delay.ms": "0"})

    def kill_and_start() -> None:
        node.kill()
        node.start()

    assert_copied_and_counted_once(node.address, 1, kill_and_start, tmp_path)


def test_every_word_is_copied_and_counted_once_although_a_leader_dies(tmp_path: Path) -> None:
    with Cluster(brokers=3, process=True) as cluster:

        def replace_leader() -> None:
            leader = cluster.leader_of("words")
            cluster.kill(leader)
            wait_until(lambda: cluster.leader_of("words") != leader, LIMIT_S)
            cluster.restart(leader)

        assert_copied_and_counted_once(cluster.bootstrap_servers, 3, replace_leader, tmp_path)


def assert_copied_and_counted_once(
    address: str, replicas: int, disturb: Callable[[], None], directory: Path
) -> None:
    """Kill the application, then let ``disturb`` kill a broker."""
    for topic in ("words", "capitals", "counted"):
        topics.create(address, topic, PARTITIONS, replication_factor=replicas)

    def copied() -> int:
        return len(committed(address, "capitals"))

    def counts() -> dict[str, int]:
        return {word: int(count) for word, count in committed(address, "counted")}

    feed(address, 0)
    with application(address, directory):
        wait_until(lambda: copied() >= FEED, LIMIT_S)
        feed(address, FEED)
    with application(address, directory):
        feed(address, 2 * FEED)
        wait_until(lambda: copied() > FEED, LIMIT_S)
        disturb()
        feed(address, 3 * FEED)
        wait_until(lambda: sum(counts().values()) >= 4 * FEED, LIMIT_S)

        wanted = Counter(WORDS[number % len(WORDS)] for number in range(4 * FEED))
        assert counts() == wanted
        copies = committed(address, "capitals")
        assert sorted(int(key) for key, _ in copies) == list(range(4 * FEED))
        assert Counter(word.lower() for _, word in copies) == wanted
