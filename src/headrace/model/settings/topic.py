"""Effective settings of one topic, and checks for conflicting limits."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.model.errors import ConfigError
from headrace.model.settings.kafka import TOPIC, TOPIC_SYNONYMS, Row
from headrace.model.settings.values import Value, parse_value
from headrace.model.spelling import did_you_mean

if TYPE_CHECKING:
    from headrace.model.config import BrokerConfig

_OFFSET_INDEX_ENTRY_SIZE = 8


class TopicConfig(NamedTuple):
    """The effective settings of one topic: an attribute per setting, dots as underscores.

    ``segment_bytes`` is ``internal.segment.bytes`` where that is set, as in Kafka: tests use it
    for segments below a megabyte.
    """

    cleanup_policy: frozenset[str]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    follower_replication_throttled_replicas: tuple[str, ...]
    index_interval_bytes: int
    leader_replication_throttled_replicas: tuple[str, ...]
    local_retention_bytes: int
    local_retention_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    remote_log_copy_disable: bool
    remote_log_delete_on_disable: bool
    remote_storage_enable: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool


def topic_config(broker: "BrokerConfig", overrides: Mapping[str, str]) -> TopicConfig:
    """The topic's own values over those of the broker.

    Accepts names that only older releases knew (``legacy_names.TOPIC``), because an older cluster
    may have stored them. ``check_topic_overrides`` is for settings that a client sends.
    """
    defaults = broker.topic_defaults()
    if not overrides:
        return defaults
    changes: dict[str, Any] = {}
    for name, text in overrides.items():
        row = TOPIC.get(name)
        if row is None:
            changes |= _legacy_changes(name, text)
            continue
        changes[name.replace(".", "_")] = _attribute(name, parse_value(name, text, row))
    small = changes.pop("internal_segment_bytes", None)
    if small is not None:
        changes["segment_bytes"] = small
    config = defaults._replace(**changes)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ConfigError(
            f"min.compaction.lag.ms={config.min_compaction_lag_ms}: expected at most "
            f"max.compaction.lag.ms={config.max_compaction_lag_ms}"
        )
    return config


def check_topic_overrides(broker: "BrokerConfig", overrides: Mapping[str, str]) -> TopicConfig:
    """As ``topic_config``, but refuse names that Kafka 4.3.1 does not know."""
    for name in overrides:
        if name not in TOPIC:
            raise ConfigError(f"{name} is not a topic setting{did_you_mean(name, TOPIC)}")
    config = topic_config(broker, overrides)
    if config.remote_storage_enable:
        raise ConfigError("remote.storage.enable=true: tiered storage is not supported")
    return config


def inherited_topic_config(broker_value: Callable[[str], Value]) -> TopicConfig:
    """The settings of a topic without its own, from the values of the broker."""
    values: dict[str, Any] = {}
    for name, row in TOPIC.items():
        if name == "internal.segment.bytes":
            continue
        synonyms = TOPIC_SYNONYMS.get(name)
        value: Value
        if synonyms is not None:
            value = broker_value(synonyms[0])
        else:
            assert row.default is not None, f"{name} has no default"
            value = parse_value(name, row.default, row)
        values[name.replace(".", "_")] = _attribute(name, value)
    return TopicConfig(**values)


def contradictions(config: TopicConfig, topic: str | None = None) -> list[str]:
    """A line for each pair of valid limits that conflict; of the broker if there is no topic."""

    def shown(name: str) -> str:
        value = getattr(config, name.replace(".", "_"))
        return f"{name if topic is not None else TOPIC_SYNONYMS[name][0]}={value}"

    whose = "" if topic is None else f"topic {topic}: "
    found = []
    if config.segment_bytes < config.max_message_bytes:
        found.append(
            f"{whose}{shown('segment.bytes')} is below {shown('max.message.bytes')}: "
            "a record batch larger than a segment is refused"
        )
    if 0 <= config.retention_bytes < config.segment_bytes:
        found.append(
            f"{whose}{shown('retention.bytes')} is below {shown('segment.bytes')}: "
            "retention deletes whole segments only, so up to one more segment stays"
        )
    entry_count_max = config.segment_index_bytes // _OFFSET_INDEX_ENTRY_SIZE
    if entry_count_max * max(config.index_interval_bytes, 1) < config.segment_bytes:
        found.append(
            f"{whose}{shown('segment.index.bytes')} holds {entry_count_max} entries, one per "
            f"{shown('index.interval.bytes')}, fewer than {shown('segment.bytes')} may need: "
            "a segment is closed when its index is full"
        )
    return found


def _attribute(name: str, value: Value) -> Any:
    if isinstance(value, list):
        return frozenset(value) if name == "cleanup.policy" else tuple(value)
    return value


def _legacy_changes(name: str, text: str) -> dict[str, Any]:
    from headrace.model.settings import legacy_names

    row = legacy_names.TOPIC.get(name)
    if row is None:
        raise ConfigError(f"{name} is not a topic setting")
    kind, default, successors, _ = row
    value = parse_value(name, text, Row(kind, default, None, "", ""))
    return {successor.replace(".", "_"): value for successor, _ in successors}
