"""Offsets of many partitions, in one request per broker."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exports are undeclared
    AdminClient,
    OffsetSpec,
)

from headrace.cli.client import ANSWER_TIMEOUT_S, Connection
from headrace.cli.partitions import Partition

# The client's methods have no types.
Spec = Any
EARLIEST: Spec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Spec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
MAX_TIMESTAMP: Spec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]


def at_time(timestamp: int) -> Spec:
    """The offset of the first record at or after ``timestamp``."""
    return OffsetSpec.for_timestamp(timestamp)


class Found(NamedTuple):
    """None if there is no such record: an empty log, or a time after the last record."""

    offset: int | None
    timestamp: int | None


def listed(
    connection: Connection, admin: AdminClient, partitions: Sequence[Partition], spec: Spec
) -> dict[Partition, Found]:
    if not partitions:
        return {}
    futures = admin.list_offsets(
        {TopicPartition(topic, partition): spec for topic, partition in partitions},
        request_timeout=ANSWER_TIMEOUT_S,
    )
    found = {}
    for partition, future in futures.items():
        doing = f"offsets of {partition.topic}:{partition.partition}"
        try:
            result = connection.answer(future, doing)
        except KafkaException as failure:
            raise connection.failed(failure, doing) from None
        found[partition.topic, partition.partition] = Found(
            None if result.offset < 0 else result.offset,
            None if result.timestamp < 0 else result.timestamp,
        )
    return found
