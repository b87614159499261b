"""The ``topics`` argument of the test kit: what it takes, what it refuses, what exists already."""

import pytest
from confluent_kafka import KafkaException

from headrace.testing import Broker
from headrace.testing.topics import TopicShape, parse_topics


@pytest.mark.parametrize(
    "topics",
    [
        ["orders"],
        ("orders",),
        {"orders"},
        {"orders": 1},
        {"orders": {}},
        {"orders": {"partitions": 1}},
    ],
)
def test_one_partition_is_the_default(topics):
    assert parse_topics(topics) == {"orders": TopicShape(1, {})}


def test_a_topic_takes_settings_as_python_values():
    parsed = parse_topics({"t": {"partitions": 3, "cleanup.policy": "compact", "retention.ms": 5}})
    assert parsed == {"t": TopicShape(3, {"cleanup.policy": "compact", "retention.ms": "5"})}


def test_one_name_is_not_taken_for_a_list_of_letters():
    with pytest.raises(TypeError, match=r"topics takes several names: topics=\['orders'\]"):
        Broker(topics="orders")


@pytest.mark.parametrize(
    "topics, message",
    [
        (5, "topics: expected names, or a mapping .*; got 5"),
        ([5], "topics: expected topic names as strings; got 5"),
        ({"orders": "3"}, r"topics\['orders'\]: expected a partition count, .*; got '3'"),
        ({"orders": True}, r"topics\['orders'\]: expected a partition count, .*; got True"),
        ({"orders": None}, r"topics\['orders'\]: expected a partition count, .*; got None"),
        (
            {"orders": {"partitions": 1.5}},
            r"topics\['orders'\]\['partitions'\]: expected a partition count; got 1.5",
        ),
        (
            {"orders": {"cleanup.policy": ["compact"]}},
            r"topics\['orders'\]\['cleanup.policy'\]: expected a string, .*; got \['compact'\]",
        ),
    ],
)
def test_a_wrong_type_is_refused_with_the_argument_named(topics, message):
    with pytest.raises(TypeError, match=message):
        Broker(topics=topics)


@pytest.mark.parametrize("count", [0, -1])
def test_a_topic_has_at_least_one_partition(count):
    with pytest.raises(ValueError, match=rf"topics\['t'\]: expected at least 1 .*; got {count}"):
        Broker(topics={"t": count})


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
