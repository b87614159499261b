"""The pytest plugin: ``headrace_broker`` and ``headrace_topic``, with nothing to import.

    def test_orders(headrace_broker, headrace_topic):
        producer = Producer({"bootstrap.servers": headrace_broker.bootstrap_servers})

One broker serves a whole test session (under pytest-xdist one per worker); each test that asks
for ``headrace_topic`` gets a fresh topic with a name of its own.
"""

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.testing.broker import Broker

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def headrace_broker() -> "Iterator[Broker]":
    """A running broker for the whole session."""
    # Here, not above: a test session that never asks for a broker should not load one.
    from headrace.testing.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def headrace_topic(headrace_broker: "Broker", request: pytest.FixtureRequest) -> str:
    """The name of a fresh topic with one partition, named after the test."""
    readable = re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name)[:200]
    name = f"{readable}-{next(_numbers)}"
    headrace_broker.create_topics([name])
    return name
