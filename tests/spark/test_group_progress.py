"""Progress in a consumer group, and two queries that commit to the same group."""

import logging

import pytest

from headrace.client.cluster import ClientSettings
from headrace.model.ids import TopicPartition
from headrace.spark.cluster import Cluster
from headrace.spark.group_progress import GroupProgress

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def cluster(bootstrap):
    made = Cluster(ClientSettings(bootstrap))
    yield made
    made.close()


def committed(cluster, group, query, topic, offset, progress=None, look_for_others=True):
    progress = progress or GroupProgress()
    progress.commit(
        cluster,
        group,
        query,
        {TopicPartition(topic, 0): offset},
        look_for_others=look_for_others,
        within_s=30,
    )


def test_two_queries_with_one_group_are_warned_of_each_other(topics, cluster, caplog):
    topic, group = topics.create(), topics.name("shared")

    with caplog.at_level(logging.WARNING, "headrace.spark.group_progress"):
        committed(cluster, group, "query-a", topic, 3)
        committed(cluster, group, "query-b", topic, 1, look_for_others=False)
        assert not caplog.messages
        committed(cluster, group, "query-a", topic, 4)
        committed(cluster, group, "query-b", topic, 2)

    assert topics.committed(group, topic) == {0: 2}
    first, second = caplog.messages
    assert first.startswith("Spark query query-b on ") and "this query, query-a on " in first
    assert second.startswith("Spark query query-a on ") and "this query, query-b on " in second
    assert all(f"group '{group}'" in text and "kafka.group.id" in text for text in (first, second))


def test_a_query_alone_with_its_group_is_not_warned(topics, cluster, caplog):
    topic, group = topics.create(), topics.name("alone")
    other_topic = topics.create("other")

    with caplog.at_level(logging.WARNING, "headrace.spark.group_progress"):
        for offset in (1, 2):
            committed(cluster, group, "query-a", topic, offset)
            committed(cluster, group, "query-b", other_topic, offset)

    assert not caplog.messages


def test_the_warning_is_given_once(topics, cluster, caplog):
    topic, group = topics.create(), topics.name("shared")
    progress = GroupProgress()

    with caplog.at_level(logging.WARNING, "headrace.spark.group_progress"):
        committed(cluster, group, "query-b", topic, 1)
        for offset in (2, 3, 4):
            committed(cluster, group, "query-a", topic, offset, progress)

    assert len(caplog.messages) == 1
