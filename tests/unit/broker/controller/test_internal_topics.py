"""Internal topics are created as the settings of the broker say, and are compacted."""

import pytest

from headrace.broker.controller.internal_topics import new_topic, settings_of
from headrace.core.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, NewTopic
from headrace.model.config import BrokerConfig

CONFIG = BrokerConfig.parse(
    {
        "offsets.topic.num.partitions": "7",
        "offsets.topic.segment.bytes": "2000000",
        "transaction.state.log.min.isr": "3",
    }
)


def test_the_offsets_topic_has_the_shape_of_its_settings():
    topic = new_topic(OFFSETS_TOPIC, CONFIG)
    assert (topic.partition_count, topic.overrides["segment.bytes"]) == (7, "2000000")
    assert "min.insync.replicas" not in topic.overrides


def test_the_transactions_topic_has_its_own_minimum_of_replicas():
    assert new_topic(TRANSACTIONS_TOPIC, CONFIG).overrides["min.insync.replicas"] == "3"


@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
def test_the_topic_of_a_coordinator_is_compacted(topic):
    assert settings_of(topic)["cleanup.policy"] == "compact"
    assert new_topic(topic, CONFIG).overrides.items() >= settings_of(topic).items()


def test_any_other_topic_has_the_defaults():
    assert new_topic("orders", CONFIG) == NewTopic("orders")
    assert settings_of("orders") == {}
