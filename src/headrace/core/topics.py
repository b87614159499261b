"""Rules for topics: names, partition counts, and replicas assigned by the client.

Also how a key finds its partition of an internal topic (``java_hash``).

Pure. A check raises ``Rejected`` with Kafka's code. ``model.config`` checks settings.
"""

import re
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId

NAME_LENGTH_MAX = 249  # a directory "name-partition" must fit into 255 bytes
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC})

# The cluster's own metadata log; clients cannot create it.
FORBIDDEN_TOPICS = frozenset({"__cluster_metadata"})

# As in Kafka; a larger request is a mistake or an attack.
PARTITIONS_PER_REQUEST_MAX = 10_000

DEFAULT = -1  # a count of partitions or replicas: use the broker's setting


def is_legal_name(name: str) -> bool:
    return (
        len(name) <= NAME_LENGTH_MAX
        and _LEGAL_NAME.fullmatch(name) is not None
        and name not in (".", "..")
    )


def check_name(name: str) -> None:
    """Raise Rejected(INVALID_TOPIC_EXCEPTION) with the reason, unless the name is legal."""
    if is_legal_name(name):
        return
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        # Do not quote the name: a hostile client may send megabytes.
        reason = f"{len(name)} characters are more than the {NAME_LENGTH_MAX} allowed"
    else:
        reason = f"'{name}' has characters other than ASCII letters, digits, '.', '_' and '-'"
    raise Rejected(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def collision_key(name: str) -> str:
    """Topics with the same key cannot coexist: metric names replace ``.`` with ``_``."""
    return name.replace(".", "_")


def is_internal(name: str) -> bool:
    return name in INTERNAL_TOPICS


@lru_cache(maxsize=1 << 16)
def java_hash(text: str) -> int:
    """Java's ``String.hashCode`` over UTF-16 code units, made positive as Kafka does."""
    raw = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(raw), 2):
        value = (31 * value + (raw[index] << 8 | raw[index + 1])) & 0xFFFFFFFF
    if value & 0x80000000:
        value = 0x100000000 - value
    return 0 if value == 0x80000000 else value


class NewTopic(NamedTuple):
    """A request for a topic, from a client or from auto-creation."""

    name: str
    partition_count: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Sequence[
        tuple[int, Sequence[BrokerId]]
    ] = ()  # partition and its replicas, if the client assigns them
    overrides: Mapping[str, str | None] = {}


def partition_count_of(wanted: NewTopic, default: int) -> int:
    """The partition count of an unchecked request; never negative."""
    if wanted.assignments:
        return len(wanted.assignments)
    return max(0, default if wanted.partition_count == DEFAULT else wanted.partition_count)


def check_counts(wanted: NewTopic) -> None:
    """Raise Rejected unless the counts are valid."""
    if wanted.assignments:
        if wanted.replication_factor != DEFAULT:
            raise Rejected(
                ErrorCode.INVALID_REQUEST,
                "The replication factor must be -1 if the request assigns replicas.",
            )
        if wanted.partition_count != DEFAULT:
            raise Rejected(
                ErrorCode.INVALID_REQUEST,
                "The number of partitions must be -1 if the request assigns replicas.",
            )
        return
    if wanted.replication_factor != DEFAULT and wanted.replication_factor <= 0:
        raise Rejected(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 for the default.",
        )
    if wanted.partition_count != DEFAULT and wanted.partition_count <= 0:
        raise Rejected(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions must be larger than 0, or -1 for the default.",
        )


def check_assignments(
    assignments: Sequence[tuple[int, Sequence[BrokerId]]], brokers: Container[BrokerId]
) -> list[tuple[BrokerId, ...]]:
    """The replicas of partitions 0, 1, 2 and so on, from the client's assignments."""
    by_partition: dict[int, tuple[BrokerId, ...]] = {}
    for partition, replicas in assignments:
        if partition in by_partition:
            raise Rejected(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Partition {partition} is assigned more than once.",
            )
        check_replicas(replicas, brokers)
        by_partition[partition] = tuple(replicas)
    if by_partition.keys() != set(range(len(by_partition))):
        raise Rejected(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Assigned partitions must be numbered from 0 without a gap.",
        )
    return [by_partition[partition] for partition in range(len(by_partition))]


def check_replicas(replicas: Sequence[BrokerId], brokers: Container[BrokerId]) -> None:
    """Raise Rejected(INVALID_REPLICA_ASSIGNMENT) unless these brokers can hold a partition."""
    if not replicas:
        raise Rejected(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "A partition needs at least one replica."
        )
    if len(set(replicas)) != len(replicas):
        raise Rejected(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The assignment {list(replicas)} names a broker more than once.",
        )
    for broker in replicas:
        if broker not in brokers:
            raise Rejected(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Broker {broker} cannot get a replica: it is not registered.",
            )
