"""Topics that the test kit creates, and topics that exist already."""

import pytest
from confluent_kafka import KafkaException

from headrace.testing import Broker, Cluster


@pytest.mark.parametrize("process", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_existing_topics_of_the_same_shape_are_kept(tmp_path, process):
    topics = {"a": 1, "b": {"partitions": 2, "cleanup.policy": "compact"}}
    with Broker(data=tmp_path, topics=topics, process=process) as broker:
        broker_data = sorted(path.name for path in broker.data.glob("[ab]-*"))
    with Broker(data=tmp_path, topics=topics | {"c": 1}, process=process) as broker:
        assert sorted(path.name for path in broker.data.glob("[ab]-*")) == broker_data
        assert (broker.data / "c-0").is_dir()


@pytest.mark.parametrize(
    "asked, described",
    [
        ({"a": 3}, "3 partitions"),
        (["a"], "1 partition"),
        ({"a": {"partitions": 2, "cleanup.policy": "delete"}}, "2 partitions, cleanup.policy=del"),
    ],
)
def test_an_existing_topic_of_another_shape_is_refused_with_both_shapes(tmp_path, asked, described):
    existing = {"a": {"partitions": 2, "cleanup.policy": "compact"}}
    with Broker(data=tmp_path, topics=existing):
        pass
    message = rf"'a'.* has this topic with 2 partitions, cleanup.policy=compact; .* {described}"
    with pytest.raises(ValueError, match=message), Broker(data=tmp_path, topics=asked):
        pass


def test_create_topics_refuses_a_topic_that_exists():
    with Broker(topics=["a"]) as broker, pytest.raises(KafkaException, match="TOPIC_ALREADY_EXIST"):
        broker.create_topics(["a"])


def test_topics_are_created_also_if_the_controller_has_just_moved():
    with Cluster() as cluster:
        cluster.fail("CreateTopics", "NOT_CONTROLLER", times=2)
        cluster.create_topics({"orders": 2})
        cluster.wait_in_sync("orders")
        cluster.produce("orders", ["1 book"])
        assert [record.value for record in cluster.records("orders")] == [b"1 book"]
