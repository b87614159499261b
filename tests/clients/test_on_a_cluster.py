"""Stock clients on a cluster of three brokers: programs of the other files, unchanged."""

import pytest

from headrace.testing import Cluster
from tests.clients.test_transactions import (  # noqa: F401 - pytest runs them here once more
    test_aiokafka_commits_are_seen_and_aborts_are_not,
    test_confluent_commits_are_seen_and_aborts_are_not,
    test_confluent_copies_exactly_once_though_attempts_are_aborted,
    test_kafka_python_commits_are_seen_and_aborts_are_not,
)


@pytest.fixture(scope="module")
def headrace_broker():
    with Cluster(brokers=3) as cluster:
        yield cluster
