"""The ``topics`` argument of the test kit: what it takes, and what it refuses."""

import pytest

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
        parse_topics("orders")


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
        parse_topics(topics)


@pytest.mark.parametrize("count", [0, -1])
def test_a_topic_has_at_least_one_partition(count):
    with pytest.raises(ValueError, match=rf"topics\['t'\]: expected at least 1 .*; got {count}"):
        parse_topics({"t": count})
