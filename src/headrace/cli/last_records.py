"""The offset at which the last N records of a partition start.

Not every offset has a record: a transaction ends with a marker, and compaction leaves gaps. So the
search reads to the end from earlier and earlier offsets, until it has found N records.
"""

from collections import deque
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, TopicPartition

from headrace.cli.client import Connection
from headrace.cli.partitions import Partition

_POLL_S = 0.1
_STEP = 4  # how much further back each attempt starts


def start_of(
    connection: Connection,
    consumer: Consumer,
    partition: Partition,
    count: int,
    first: int,
    end: int,
    is_over: Callable[[], bool],
) -> int:
    """The offset of the first of the last ``count`` records before ``end``."""
    if end - first <= count:
        return first
    start = end - count
    while not is_over():
        consumer.assign([TopicPartition(*partition, start)])
        found = _last_offsets(connection, consumer, end, count, is_over)
        if len(found) == count:
            return found[0] if found else end
        if start == first:
            break
        start = max(first, end - _STEP * (end - start))
    return first


def _last_offsets(
    connection: Connection,
    consumer: Consumer,
    end: int,
    count: int,
    is_over: Callable[[], bool],
) -> "deque[int]":
    """The offsets of the last ``count`` records before ``end``."""
    found: deque[int] = deque(maxlen=count)
    while not is_over():
        message = consumer.poll(_POLL_S)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                break
            if not error.retriable():
                raise connection.failed(error, f"reading {message.topic()}:{message.partition()}")
            continue
        offset = message.offset() or 0
        if offset < end:
            found.append(offset)
        if offset + 1 >= end:
            break
    return found
