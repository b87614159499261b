"""Paths are those of Kafka 3.9."""

import pytest

from headrace.coordination import paths
from headrace.model.ids import BrokerId, TopicId


def test_every_node_has_kafkas_path():
    assert paths.broker(BrokerId(3)) == "/brokers/ids/3"
    assert paths.topic("t") == "/brokers/topics/t"
    assert paths.partition("t", 7) == "/brokers/topics/t/partitions/7"
    assert paths.state("t", 7) == "/brokers/topics/t/partitions/7/state"
    assert paths.config("topics", "t") == "/config/topics/t"
    assert paths.delete_topic("t") == "/admin/delete_topics/t"


def test_nodes_of_our_own_are_under_one_root():
    broker_id = BrokerId(3)
    assert paths.topic_directories(broker_id, "t") == "/headrace/directory_assignment/3/t"
    topic_id = TopicId(bytes(16))
    assert (
        paths.pending_deletion(broker_id, topic_id)
        == "/headrace/pending_deletions/3/AAAAAAAAAAAAAAAAAAAAAA"
    )


def test_persistent_nodes_come_after_their_parents():
    seen = {""}
    for path in paths.PERSISTENT:
        assert path.rpartition("/")[0] in seen
        seen.add(path)


@pytest.mark.parametrize("name", ["plain", "a/b", "50%", "a%2Fb", "%25", "/", ""])
def test_any_name_is_one_node_below_its_kind_and_is_read_back(name):
    path = paths.config("groups", name)
    parent, _, node = path.rpartition("/")
    assert parent == "/config/groups"
    assert paths.config_name(node) == name
