"""Kafka Streams, exactly once, while it and the broker under it are killed."""

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bench import apache_kafka, topics
from bench.node import Node
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.usefixtures("kafka_jars")

APPLICATION = Path(__file__).parent / "WordCounts.java"
# Beside Kafka's own jars, which hold all else that it needs.
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
def application(node: Node, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    jars = f"{apache_kafka.jars()}/*:{streams_jars()}/*"
    with (folder / "streams.log").open("ab") as log:
        process = subprocess.Popen(
            [
                "java",
                "-Xmx256m",
                "-cp",
                jars,
                str(APPLICATION),
                node.address,
                str(folder / "state"),
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def feed(node: Node, start: int) -> None:
    producer = Producer({"bootstrap.servers": node.address})
    for number in range(start, start + FEED):
        word = WORDS[number % len(WORDS)]
        producer.produce("words", word, key=str(number), partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def committed(node: Node, topic: str) -> list[tuple[str, str]]:
    """Keys and values, those of each partition in their order."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.address,
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
    for topic in ("words", "capitals", "counted"):
        topics.create(node.address, topic, PARTITIONS)

    def copied() -> int:
        return len(committed(node, "capitals"))

    def counts() -> dict[str, int]:
        return {word: int(count) for word, count in committed(node, "counted")}

    feed(node, 0)
    with application(node, tmp_path):
        wait_until(lambda: copied() >= FEED, LIMIT_S)
        feed(node, FEED)
    with application(node, tmp_path):
        feed(node, 2 * FEED)
        wait_until(lambda: copied() > FEED, LIMIT_S)
        node.kill()
        node.start()
        feed(node, 3 * FEED)
        wait_until(lambda: sum(counts().values()) >= 4 * FEED, LIMIT_S)

        wanted = Counter(WORDS[number % len(WORDS)] for number in range(4 * FEED))
        assert counts() == wanted
        copies = committed(node, "capitals")
        assert sorted(int(key) for key, _ in copies) == list(range(4 * FEED))
        assert Counter(word.lower() for _, word in copies) == wanted
