"""Throttles are set and removed whatever becomes of the brokers meanwhile."""

import pytest

from headrace.cli import reassignment_throttles
from headrace.cli.reassignment_plan import Move
from headrace.cli.reassignment_throttles import remove_throttles, throttle, throttled
from headrace.client.errors import Disconnected, Refused
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m

MOVE = Move("orders", 0, [1, 2], [2, 3], 100)
LEADERS, FOLLOWERS = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)


class Settings:
    """A cluster of brokers 1 to 3 that keeps its settings, and a log of the changes."""

    def __init__(self):
        self.of_topics = {"orders": {}}
        self.of_brokers = {}
        self.failures = {}  # of brokers
        self.restarted = set()  # since the last request
        self.changed = []

    def ask(self, broker, request, kind):
        if broker in self.restarted:
            self.restarted.remove(broker)
            raise Disconnected("the connection was closed")
        if broker in self.failures:
            raise self.failures[broker]
        return self._alter(request)

    def ask_controller(self, request, kind, errors, what):
        return self._alter(request)

    def persistently(self, attempt, what):
        return attempt()

    def ask_any(self, request, kind):
        result = m.DescribeConfigsResponse.DescribeConfigsResult
        setting = m.DescribeConfigsResponse.DescribeConfigsResourceResult
        return m.DescribeConfigsResponse(
            results=[
                result(
                    resource_name=one.resource_name,
                    configs=[
                        setting(name=name, value=self.of_topics[one.resource_name].get(name, ""))
                        for name in one.configuration_keys
                    ],
                )
                for one in request.resources
            ]
        )

    def _alter(self, request):
        (resource,) = request.resources
        name = resource.resource_name
        settings = self.of_brokers if name.isdigit() else self.of_topics
        self.changed.append(name)
        values = {one.name: one.value for one in resource.configs}
        kept = settings.get(name, {}) | values
        settings[name] = {key: value for key, value in kept.items() if value is not None}
        return m.IncrementalAlterConfigsResponse(
            responses=[m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse()]
        )


@pytest.fixture
def cluster():
    return Settings()


def test_a_topic_shows_the_throttle_as_long_as_a_broker_has_it(cluster):
    """So that a command that is run again finds what a killed one has left."""
    throttle(cluster, [MOVE], 1000, {1, 2, 3})
    assert cluster.changed == ["orders", "1", "2", "3"]
    assert throttled(cluster, ["orders"]) == {"orders": {1, 2, 3}}
    cluster.changed.clear()
    remove_throttles(cluster, ["orders"], [1, 2, 3], [])
    assert cluster.changed == ["1", "2", "3", "orders"]
    assert throttled(cluster, ["orders"]) == {}
    assert not any(cluster.of_brokers.values())


@pytest.mark.parametrize(
    "failure",
    [Refused(ErrorCode.BROKER_NOT_AVAILABLE, "unknown broker 2"), Disconnected("refused")],
    ids=["left the metadata", "does not answer"],
)
def test_a_broker_that_leaves_meanwhile_does_not_stop_the_removal(cluster, failure):
    throttle(cluster, [MOVE], 1000, {1, 2, 3})
    cluster.failures[2] = failure
    remove_throttles(cluster, ["orders"], [1, 2, 3], [])
    assert cluster.of_topics["orders"] == {}
    assert not any(cluster.of_brokers.values()), "the controller removes the rate of broker 2"


def test_a_broker_that_was_restarted_is_asked_again(cluster):
    """Only itself can change its settings while it is registered."""
    throttle(cluster, [MOVE], 1000, {1, 2, 3})
    cluster.restarted = {2}
    cluster.ask_controller = None  # not needed
    remove_throttles(cluster, [], [1, 2, 3], [])
    assert not any(cluster.of_brokers.values())


def test_the_rate_of_a_source_that_is_gone_is_removed(cluster):
    """Nothing but the topic's list names broker 1: it has no replicas any more."""
    throttle(cluster, [MOVE], 1000, {1, 2, 3})
    remove_throttles(cluster, ["orders"], [2, 3], [])
    assert not any(cluster.of_brokers.values())


def test_replicas_that_were_throttled_before_come_back(cluster):
    cluster.of_topics["orders"] = {LEADERS: "5:1"}
    earlier = throttle(cluster, [MOVE], 1000, {1, 2, 3})
    assert cluster.of_topics["orders"] == {LEADERS: "5:1,0:1,0:2", FOLLOWERS: "0:3"}
    reassignment_throttles.restore(cluster, earlier)
    assert cluster.of_topics["orders"] == {LEADERS: "5:1"}
