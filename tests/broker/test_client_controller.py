"""The client finds the controller, and the next one when it has moved."""

from contextlib import closing

import pytest

from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.errors import Disconnected
from headrace.model.errors import ErrorCode
from headrace.testing import Broker
from headrace.wire import messages as m


@pytest.fixture
def broker():
    with Broker() as running:
        yield running


def client_of(broker, **settings):
    return closing(Cluster(ClientSettings(broker.bootstrap_servers, **settings)))


def elect(cluster):
    request = m.ElectLeadersRequest(topic_partitions=None, timeout_ms=1000)
    return cluster.ask_controller(
        request, m.ElectLeadersResponse, lambda answer: [answer.error_code], "electing"
    )


def test_a_request_goes_to_the_next_controller_after_a_refusal(broker):
    with client_of(broker) as cluster:
        broker.fail("ElectLeaders", "NOT_CONTROLLER", times=2)
        assert elect(cluster).error_code == ErrorCode.NONE
        broker.fail("ElectLeaders", "CLUSTER_AUTHORIZATION_FAILED")
        assert elect(cluster).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_cluster_without_a_controller_is_named_in_the_error(broker):
    with client_of(broker, api_timeout_ms=200) as cluster:
        broker.fail("ElectLeaders", "NOT_CONTROLLER", times=None)
        with pytest.raises(Disconnected, match="electing did not .* broker 1: NOT_CONTROLLER"):
            elect(cluster)
