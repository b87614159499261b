"""Partitions that move between brokers of a cluster, under load and under failures."""

import pytest

from headrace.coordination import paths, values
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.broker.test_cluster import Acknowledged, create, read_all
from tests.fakes.clusters import ClusterOnOneLoop
from tests.fakes.raw_client import RawClient
from tests.fakes.waiting import wait_until


@pytest.fixture
def cluster(tmp_path):
    with ClusterOnOneLoop(tmp_path, 4) as running:
        yield running


def controller_address(cluster):
    ((host, port),) = cluster.brokers[cluster.controller_id].addresses.values()
    return f"{host}:{port}"


def reassign(cluster, targets, api_version=1, **fields):
    """Ask for new replicas by topic and partition; returns the error codes by these."""
    r = m.AlterPartitionReassignmentsRequest
    topics = {}
    for (name, partition), replicas in targets.items():
        topic = topics.setdefault(name, r.ReassignableTopic(name=name, partitions=[]))
        topic.partitions.append(
            r.ReassignablePartition(partition_index=partition, replicas=replicas)
        )
    with RawClient(controller_address(cluster)) as client:
        answer = client.ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            api_version,
            r(timeout_ms=10_000, topics=list(topics.values()), **fields),
        )
    assert answer.error_code == 0
    return {
        (topic.name, each.partition_index): each.error_code
        for topic in answer.responses
        for each in topic.partitions
    }


def in_progress(cluster):
    with RawClient(controller_address(cluster)) as client:
        answer = client.ask(
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            0,
            m.ListPartitionReassignmentsRequest(timeout_ms=10_000, topics=None),
        )
    assert answer.error_code == 0
    return {
        (topic.name, each.partition_index): (
            each.replicas,
            each.adding_replicas,
            each.removing_replicas,
        )
        for topic in answer.topics
        for each in topic.partitions
    }


def is_assigned(cluster, topic, partition, replicas):
    """Whether all brokers know that these are the replicas, all in sync, and host no others."""
    for broker_id, broker in cluster.brokers.items():
        state = broker.services.metadata.partition(topic, partition)
        if state.replicas != tuple(replicas) or set(state.isr) != set(replicas):
            return False
        hosted = broker.services.replicas.get(topic, partition) is not None
        if hosted is not (broker_id in replicas):
            return False
    return True


def node(cluster, path):
    found = cluster.run(cluster.tree_session().get(path))
    return None if found is None else found.value


def others(cluster, topic):
    return [each for each in cluster.brokers if each not in cluster.state(topic).replicas]


def test_a_partition_moves_to_other_brokers_with_all_its_records(cluster, tmp_path):
    create(cluster, replicas=2)
    producer = Acknowledged(cluster)
    producer.send(*(b"%d" % number for number in range(50)))
    source = cluster.state("orders").replicas
    target = others(cluster, "orders")
    assert reassign(cluster, {("orders", 0): target}) == {("orders", 0): 0}
    producer.send(*(b"later %d" % number for number in range(50)))
    wait_until(lambda: is_assigned(cluster, "orders", 0, target))
    assert in_progress(cluster) == {}
    assert cluster.state("orders").leader == target[0]
    stored = values.decode_topic("orders", node(cluster, paths.topic("orders")))
    assert (stored.replicas, stored.adding, stored.removing) == ([tuple(target)], {}, {})
    for broker_id in source:
        assert not (tmp_path / str(broker_id) / "orders-0").exists()
        assert (tmp_path / str(broker_id)).exists()
    producer.send(b"last")
    assert read_all(cluster, 101) == producer.values
