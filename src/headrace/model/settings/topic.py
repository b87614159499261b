"""What one topic lives by, and which of its limits defeat each other."""

from typing import NamedTuple

from headrace.model.settings.kafka import TOPIC_TWINS


class TopicConfig(NamedTuple):
    """What one topic lives by: an attribute per topic setting, dots as underscores.

    ``internal.segment.bytes`` is folded into ``segment_bytes``, as Kafka does: it
    is the way to segments below a megabyte.
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


def contradictions(config: TopicConfig, topic: str | None = None) -> list[str]:
    """Limits that are fine alone and defeat each other together, by their names."""

    def shown(name: str) -> str:
        value = getattr(config, name.replace(".", "_"))
        return f"{name if topic is not None else TOPIC_TWINS[name][0][0]}={value}"

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
            "only whole segments are deleted, so up to one more stays"
        )
    entry_count_max = config.segment_index_bytes // 8
    if entry_count_max * max(config.index_interval_bytes, 1) < config.segment_bytes:
        found.append(
            f"{whose}{shown('segment.index.bytes')} holds {entry_count_max} entries, one per "
            f"{shown('index.interval.bytes')}, fewer than {shown('segment.bytes')} may need: "
            "segments are rolled when the index is full"
        )
    return found
