"""The pytest plugin: brokers and topics as fixtures, with nothing to import.

    def test_orders(headrace_broker, headrace_topic):
        headrace_broker.produce(headrace_topic, ["1 book"])

``headrace_broker`` serves the whole test session (with pytest-xdist: one broker per worker).
``headrace_fresh_broker`` and ``headrace_async_broker`` serve one test, as do the clusters of three
brokers ``headrace_cluster`` and ``headrace_process_cluster``.
"""

import importlib
import importlib.util
import itertools
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from headrace.testing.broker import Broker
    from headrace.testing.cluster import Cluster

# Fixtures import the broker when they use it: most test sessions load this plugin only because
# it is installed, and never start a broker.

Function = TypeVar("Function", bound=Callable[..., object])

_TOPIC_NAME_LENGTH_MAX = 200
_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "headrace_config",
        "Broker settings for the Headrace fixtures, one NAME=VALUE per line.",
        type="linelist",
    )
    parser.getgroup("headrace").addoption(
        "--headrace-config",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Broker setting for the Headrace fixtures; overrides headrace_config. Repeatable.",
    )


def broker_settings(config: pytest.Config) -> dict[str, str]:
    """The settings of the ini file, with those of the command line over them."""
    settings = {}
    for source, lines in (
        ("headrace_config", config.getini("headrace_config")),
        ("--headrace-config", config.getoption("--headrace-config")),
    ):
        for line in lines:
            name, equals, value = line.partition("=")
            if not equals or not name.strip():
                raise pytest.UsageError(f"{source}: expected NAME=VALUE; got {line!r}")
            settings[name.strip()] = value.strip()
    return settings


@pytest.fixture(scope="session")
def headrace_broker(pytestconfig: pytest.Config) -> "Iterator[Broker]":
    """A broker for the whole test session."""
    from headrace.testing.broker import Broker

    with Broker(config=broker_settings(pytestconfig)) as broker:
        yield broker


@pytest.fixture
def headrace_topic(headrace_broker: "Broker", request: pytest.FixtureRequest) -> str:
    """The name of a new topic of ``headrace_broker``, with one partition, for one test."""
    readable = re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name)[:_TOPIC_NAME_LENGTH_MAX]
    name = f"{readable}-{next(_numbers)}"
    headrace_broker.create_topics([name])
    return name


@pytest.fixture
def headrace_fresh_broker(pytestconfig: pytest.Config) -> "Iterator[Broker]":
    """A broker for one test, which may kill it or inject faults."""
    from headrace.testing.broker import Broker

    with Broker(config=broker_settings(pytestconfig)) as broker:
        yield broker


@pytest.fixture
def headrace_cluster(pytestconfig: pytest.Config) -> "Iterator[Cluster]":
    """Three brokers for one test, on threads of this process."""
    from headrace.testing.cluster import Cluster

    with Cluster(config=broker_settings(pytestconfig)) as cluster:
        yield cluster


@pytest.fixture
def headrace_process_cluster(pytestconfig: pytest.Config) -> "Iterator[Cluster]":
    """Three brokers for one test, in child processes, with a ZooKeeper. Requires Java."""
    from headrace.testing.cluster import Cluster

    with Cluster(process=True, config=broker_settings(pytestconfig)) as cluster:
        yield cluster


def _async_fixture(function: Function) -> Function:
    # In its strict mode, pytest-asyncio runs only fixtures made with its own decorator. AnyIO
    # runs any async fixture.
    has_pytest_asyncio = importlib.util.find_spec("pytest_asyncio") is not None
    module = importlib.import_module("pytest_asyncio" if has_pytest_asyncio else "pytest")
    fixture: Function = module.fixture(function)
    return fixture


@_async_fixture
async def headrace_async_broker(pytestconfig: pytest.Config) -> "AsyncIterator[Broker]":
    """A broker for one async test. Requires pytest-asyncio or AnyIO."""
    from headrace.testing.broker import Broker

    async with Broker(config=broker_settings(pytestconfig)) as broker:
        yield broker
