"""What the coordination tree tells about leaders, the controller and replicas out of sync."""

import json

import pytest

from headrace.coordination import paths
from headrace.testing import cluster_state

TOPIC = "orders"


class FakeTree(dict):
    """Nodes by path; ``read`` is what the functions take."""

    def read(self, path):
        return self[path].encode() if path in self else None

    def put_topic(self, *replicas):
        partitions = {str(number): list(ids) for number, ids in enumerate(replicas)}
        self[paths.topic(TOPIC)] = json.dumps({"partitions": partitions, "version": 3})

    def put_state(self, partition, leader, isr):
        state = {"leader": leader, "leader_epoch": 0, "isr": isr, "controller_epoch": 1}
        self[paths.state(TOPIC, partition)] = json.dumps(state)


@pytest.fixture
def tree():
    return FakeTree()


def test_the_controller_is_the_owner_of_its_node(tree):
    assert cluster_state.controller_id(tree.read) is None
    tree[paths.CONTROLLER] = '{"version":2,"brokerid":2,"timestamp":"1"}'
    assert cluster_state.controller_id(tree.read) == 2


def test_a_partition_has_the_leader_of_its_state(tree):
    assert cluster_state.leader_of(tree.read, TOPIC, 0) is None
    tree.put_state(0, leader=-1, isr=[1])
    assert cluster_state.leader_of(tree.read, TOPIC, 0) is None
    tree.put_state(0, leader=0, isr=[0, 1])
    assert cluster_state.leader_of(tree.read, TOPIC, 0) == 0


def test_replicas_that_are_not_in_the_isr_are_out_of_sync(tree):
    with pytest.raises(LookupError, match="no topic orders"):
        cluster_state.out_of_sync(tree.read, TOPIC)
    tree.put_topic((0, 1, 2), (1, 2, 0))
    tree.put_state(0, leader=0, isr=[0, 2])
    assert cluster_state.out_of_sync(tree.read, TOPIC) == {0: [1], 1: [0, 1, 2]}
    tree.put_state(0, leader=0, isr=[0, 2, 1])
    tree.put_state(1, leader=1, isr=[1, 0, 2])
    assert cluster_state.out_of_sync(tree.read, TOPIC) == {}


def test_a_wait_ends_with_the_first_result_or_says_what_it_found(monkeypatch):
    answers = iter([None, None, 0])
    assert cluster_state.wait_for(lambda: next(answers), lambda: "") == 0
    monkeypatch.setattr(cluster_state, "TIMEOUT_S", 0.01)
    with pytest.raises(TimeoutError, match=r"the controller is None after 0\.01 s"):
        cluster_state.wait_for(lambda: None, lambda: "the controller is None")
