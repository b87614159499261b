"""Names of partition directories in a log directory.

topic-0                          a partition
topic-0.<32 hex digits>-delete   marked for deletion; its files are removed later
topic-0.<32 hex digits>-future   a copy that is being moved in from another log directory
topic-0.<32 hex digits>-stray    set aside: unknown to the cluster, or not assigned to this broker
"""

from pathlib import Path

from headrace.model.ids import TopicPartition

DELETE, FUTURE, STRAY = "-delete", "-future", "-stray"
NAME_SIZE_MAX = 255
MARK_SIZE = 32
_HEX_DIGITS = frozenset("0123456789abcdef")


def parse(name: str) -> TopicPartition | None:
    """The partition of ``topic-0``; None for other names."""
    topic, dash, partition = name.rpartition("-")
    if not topic or not dash or not partition.isdecimal():
        return None
    return TopicPartition(topic, int(partition))


def parse_marked(name: str, kind: str) -> TopicPartition | None:
    """The partition of ``topic-0.<32 hex digits><kind>``; None for other names."""
    plain, _, mark = name.removesuffix(kind).rpartition(".")
    if not name.endswith(kind) or len(mark) != MARK_SIZE or not set(mark) <= _HEX_DIGITS:
        return None
    return parse(plain)


def future_name(topic_partition: TopicPartition, mark: str) -> str:
    return f"{topic_partition}.{mark}{FUTURE}"


def pending_deletion_path(path: Path, topic_partition: TopicPartition, mark: str) -> Path:
    """The path for a partition directory marked for deletion."""
    return _marked_path(path, topic_partition, f"{mark}{DELETE}")


def stray_path(path: Path, topic_partition: TopicPartition, mark: str) -> Path:
    """The path for a partition directory that is set aside."""
    return _marked_path(path, topic_partition, f"{mark}{STRAY}")


def _marked_path(path: Path, topic_partition: TopicPartition, ending: str) -> Path:
    """The topic is shortened if the name would be too long for the file system."""
    suffix = f"-{topic_partition.partition}.{ending}"
    return path.with_name(topic_partition.topic[: NAME_SIZE_MAX - len(suffix)] + suffix)
