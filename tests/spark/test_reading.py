"""Reading a range with outdated metadata of its topic."""

import pytest

from headrace.client.cluster import ClientSettings
from headrace.model.ids import TopicPartition
from headrace.spark.cluster import Cluster
from headrace.spark.failures import DataLost
from headrace.spark.fetching import RangeReader
from headrace.spark.offsets import Range
from headrace.spark.options import FetchSettings

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def cluster(bootstrap):
    client = Cluster(ClientSettings(bootstrap))
    yield client
    client.close()


def create_again(topics, topic, values):
    topics.delete(topic)
    topics.create(name=topic)
    topics.send(topic, values)


def read(cluster, topic, offset_end, topic_id):
    range_ = Range(TopicPartition(topic, 0), 0, offset_end)
    found = []
    for records in RangeReader(cluster, range_, topic_id, FetchSettings()):
        found += records.values().to_pylist()
    return found


def test_a_topic_created_again_is_read_by_a_worker_with_outdated_metadata(
    topics, cluster, bootstrap
):
    topic = topics.create()
    topics.send(topic, ["old"])
    old_id = cluster.topic(topic).topic_id
    create_again(topics, topic, ["new", "newer"])
    planner = Cluster(ClientSettings(bootstrap))
    new_id = planner.topic(topic).topic_id
    planner.close()

    assert new_id != old_id
    assert read(cluster, topic, 2, new_id) == [b"new", b"newer"]


def test_a_topic_created_again_after_planning_is_data_loss(topics, cluster):
    topic = topics.create()
    topics.send(topic, ["old"])
    old_id = cluster.topic(topic).topic_id
    create_again(topics, topic, ["new"])

    with pytest.raises(DataLost, match="was deleted and created again"):
        read(cluster, topic, 1, old_id)
