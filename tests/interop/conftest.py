"""Nodes and tools for the tests with Apache Kafka's own programs.

Every test of this directory has the mark ``interop``. The tests require Java and Maven, which
downloads Apache Kafka once into ``.cache``.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from bench import apache_kafka, node
from bench.node import Node

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """Apache Kafka's newest jars; skips the test if they are not available."""
    if reason := apache_kafka.missing():
        pytest.skip(f"Apache Kafka {reason}")
    return apache_kafka.jars()


@pytest.fixture
def start_headrace(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Start a Headrace node with settings; stop it at the end."""
    started: list[Node] = []

    def start(settings: Mapping[str, str] | None = None, *, advertise: bool = False) -> Node:
        made = node.HeadraceNode(tmp_path / "headrace", settings=settings)
        if advertise:
            made.settings["advertised.listeners"] = f"PLAINTEXT://{made.address}"
        started.append(made)
        made.start()
        return made

    yield start
    for made in started:
        if made.running:
            made.stop()


@pytest.fixture
def headrace_node(start_headrace: Callable[..., Node]) -> Node:
    """A new Headrace node, started as a user starts it."""
    return start_headrace()


@pytest.fixture
def kafka_node(kafka_jars: Path, tmp_path: Path) -> Iterator[Node]:
    """A new Apache Kafka node."""
    made = apache_kafka.KafkaNode(tmp_path / "kafka")
    made.start()
    yield made
    if made.running:
        made.stop()
