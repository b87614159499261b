"""The effective settings of a topic: its own over those of the broker."""

import pytest

from headrace.model.config import (
    BrokerConfig,
    TopicConfig,
    check_topic_overrides,
    contradictions,
    topic_config,
    without_effect,
)
from headrace.model.errors import ConfigError
from headrace.model.settings import kafka


def test_there_is_an_attribute_for_every_topic_setting():
    names = {name.replace(".", "_") for name in kafka.TOPIC} - {"internal_segment_bytes"}
    assert set(TopicConfig._fields) == names


def test_topics_without_overrides_share_one_config():
    broker = BrokerConfig.parse({"log.retention.hours": "1", "log.cleanup.policy": "compact"})
    config = topic_config(broker, {})

    assert config.retention_ms == 3_600_000
    assert config.cleanup_policy == frozenset({"compact"})
    assert topic_config(broker, {}) is config


def test_the_defaults_are_those_of_kafka():
    config = topic_config(BrokerConfig.parse({}), {})
    for name, row in kafka.TOPIC.items():
        if name == "internal.segment.bytes":
            continue
        value = getattr(config, name.replace(".", "_"))
        text = ",".join(value) if isinstance(value, (frozenset, tuple)) else str(value)
        assert text.lower() == (row.default or "").lower(), name


def test_a_topic_value_overrides_that_of_the_broker():
    broker = BrokerConfig.parse({"message.max.bytes": "2000000"})

    assert topic_config(broker, {"max.message.bytes": "64000"}).max_message_bytes == 64_000
    assert topic_config(broker, {}).max_message_bytes == 2_000_000


def test_topics_without_their_own_value_inherit_a_dynamic_broker_setting():
    broker = BrokerConfig.parse({}).with_dynamic({"log.cleaner.delete.retention.ms": "7"})

    assert topic_config(broker, {}).delete_retention_ms == 7
    assert topic_config(broker, {"delete.retention.ms": "8"}).delete_retention_ms == 8


def test_every_kind_of_value_reaches_its_attribute():
    config = topic_config(
        BrokerConfig.parse({}),
        {
            "cleanup.policy": "delete,compact",
            "preallocate": "true",
            "min.cleanable.dirty.ratio": "0.1",
            "compression.type": "zstd",
            "leader.replication.throttled.replicas": "0:1,1:2",
            "internal.segment.bytes": "1000",
            "segment.bytes": "1048576",
        },
    )
    assert config.cleanup_policy == frozenset({"delete", "compact"})
    assert config.preallocate is True
    assert config.min_cleanable_dirty_ratio == 0.1
    assert config.compression_type == "zstd"
    assert config.leader_replication_throttled_replicas == ("0:1", "1:2")
    assert config.segment_bytes == 1000


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"retention.ms": "-2"}, "retention.ms=-2: expected an integer from -1"),
        ({"segment.bytes": "14"}, "segment.bytes=14: expected an integer from 1048576"),
        ({"cleanup.policy": "x"}, "cleanup.policy=x: expected a list of compact, delete"),
        ({"follower.replication.throttled.replicas": "1"}, "* or a list of partition:broker"),
        (
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
            "min.compaction.lag.ms=10: expected at most max.compaction.lag.ms=5",
        ),
        ({"retention.mss": "1"}, "retention.mss is not a topic setting (did you mean"),
        ({"message.format.version": "2.8"}, "message.format.version is not a topic setting"),
        ({"remote.storage.enable": "true"}, "tiered storage is not supported"),
    ],
)
def test_an_invalid_topic_setting_of_a_client_is_refused_by_name(overrides, reason):
    with pytest.raises(ConfigError) as refused:
        check_topic_overrides(BrokerConfig.parse({}), overrides)
    assert reason in str(refused.value)


def test_removed_settings_that_an_older_cluster_has_stored_are_accepted():
    config = topic_config(
        BrokerConfig.parse({}),
        {"message.format.version": "2.8-IV1", "message.timestamp.difference.max.ms": "9"},
    )
    assert config.message_timestamp_before_max_ms == 9
    assert config.message_timestamp_after_max_ms == 9


def test_conflicting_limits_are_named_with_the_topic():
    config = topic_config(BrokerConfig.parse({}), {"segment.bytes": "1048576"})
    (line,) = contradictions(config, "orders")
    assert line.startswith("topic orders: segment.bytes=1048576 is below max.message.bytes=1048588")


def test_a_topic_setting_without_effect_has_a_message():
    lines = without_effect({"retention.ms": "1", "local.retention.ms": "1"}, kafka.TOPIC)
    (line,) = lines
    assert line.startswith("local.retention.ms has no effect: there is no tiered storage")
