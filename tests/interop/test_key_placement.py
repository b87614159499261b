"""A key has the same partition with our producer and with Kafka's Java producer."""

import random
import subprocess
import sys

import pytest

from bench import apache_kafka, topics
from bench.node import Node

from . import records

PARTITIONS = 12


def many_keys() -> list[str]:
    """Keys of every length modulo four, the cases of murmur2, and with non-ASCII characters."""
    dice = random.Random(11)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789-_.äß€語"
    keys = ["".join(dice.choices(letters, k=length)) for length in range(1, 40) for _ in range(40)]
    return list(dict.fromkeys(keys))


def placement(node: Node, topic: str) -> dict[bytes | None, int]:
    seen = records.read(node.address, topic, partitions=PARTITIONS)
    return {record.key: record.partition for record in seen}


@pytest.mark.usefixtures("kafka_jars")
def test_our_producer_puts_keys_where_kafkas_java_producer_puts_them(headrace_node: Node) -> None:
    keys = many_keys()
    lines = "".join(f"{key}:x\n" for key in keys)
    for topic in ("java", "ours"):
        topics.create(headrace_node.address, topic, partitions=PARTITIONS)
    done = apache_kafka.tool(
        "org.apache.kafka.tools.ConsoleProducer",
        *("--bootstrap-server", headrace_node.address, "--topic", "java"),
        *("--property", "parse.key=true", "--property", "key.separator=:"),
        stdin=lines,
    )
    assert done.returncode == 0, done.stderr
    ours = [sys.executable, "-m", "headrace", "produce", "ours", "-b", headrace_node.address]
    subprocess.run(
        [*ours, "--key-separator", ":"],
        input=lines.encode(),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    java = placement(headrace_node, "java")
    assert len(java) == len(keys)
    assert set(java.values()) == set(range(PARTITIONS))
    assert placement(headrace_node, "ours") == java
