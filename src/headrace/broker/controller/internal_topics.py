"""The internal topics, and the broker settings that they are created from."""

from collections.abc import Mapping

from headrace.core.topics import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
    NewTopic,
)
from headrace.model.config import BrokerConfig

# The prefix of the broker settings for each topic, and the topic's own settings. The
# coordinators' topics are compacted: retention would delete the newest state of a key.
_INTERNAL: Mapping[str, tuple[str, dict[str, str]]] = {
    OFFSETS_TOPIC: ("offsets.topic", {"cleanup.policy": "compact"}),
    TRANSACTIONS_TOPIC: (
        "transaction.state.log",
        {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"},
    ),
    SHARE_STATE_TOPIC: (
        "share.coordinator.state.topic",
        {"cleanup.policy": "delete", "retention.ms": "-1"},
    ),
}


def settings_of(topic: str) -> dict[str, str]:
    """The settings that an internal topic must have; none for other topics."""
    return _INTERNAL[topic][1] if topic in _INTERNAL else {}


def new_topic(topic: str, config: BrokerConfig) -> NewTopic:
    """The topic to create when a client or a coordinator needs it."""
    if topic not in _INTERNAL:
        return NewTopic(topic)
    prefix, overrides = _INTERNAL[topic]
    overrides = {**overrides, "segment.bytes": str(config.int(f"{prefix}.segment.bytes"))}
    if topic != OFFSETS_TOPIC:
        overrides["min.insync.replicas"] = str(config.int(f"{prefix}.min.isr"))
    return NewTopic(
        topic,
        config.int(f"{prefix}.num.partitions"),
        config.int(f"{prefix}.replication.factor"),
        overrides=overrides,
    )
