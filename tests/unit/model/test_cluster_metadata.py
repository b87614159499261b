"""Cluster metadata: what is shared between versions, and what a change costs."""

from headrace.model.cluster_metadata import ClusterMetadata
from tests.fakes.groups import a_topic


def a_cluster(topic_count):
    topics = [a_topic(f"t{number}", 3) for number in range(topic_count)]
    return ClusterMetadata("c").with_topics(topics)


def test_a_topic_that_comes_or_goes_leaves_the_older_metadata_as_it_was():
    before = a_cluster(2)
    after = before.with_topics([a_topic("new", 1)], ["t0"])
    assert list(before.topics) == ["t0", "t1"] and list(after.topics) == ["t1", "new"]
    assert after.topic_by_id(before.topics["t0"].topic_id) is None
    assert after.generation == before.generation + 1


def test_a_re_created_topic_replaces_its_old_id():
    before = a_cluster(1)
    after = before.with_topics([a_topic("t0", 3, fill="new")])
    assert after.topic_by_id(before.topics["t0"].topic_id) is None
    assert after.topic_by_id(after.topics["t0"].topic_id) is after.topics["t0"]


def test_a_new_state_of_a_partition_copies_nothing_of_other_topics():
    metadata = a_cluster(10)
    topics, old = metadata.topics, metadata.topics["t3"]
    reading = iter(topics.values())
    next(reading)
    generation = metadata.generation
    metadata.change_partitions([old.partitions[1]._replace(partition_epoch=9)])
    assert metadata.topics is topics and metadata.generation == generation + 1
    changed = metadata.topics["t3"]
    assert changed is metadata.topic_by_id(old.topic_id) is not old
    assert changed.partitions[1].partition_epoch == 9
    assert changed.partitions[::2] == old.partitions[::2]
    assert old.partitions[1].partition_epoch != 9, "a reader keeps the state that it got"
    assert len(list(reading)) == 9, "an iteration that was in progress stays valid"
