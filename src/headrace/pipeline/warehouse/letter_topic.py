"""Sends the dead letters of a load to the topic of dead letters, as pipelines do.

A letter has the key, the value and the headers of its record, and headers that say what failed. A
load that runs a batch again sends its letters again: topic ID, partition, offset and stage identify
a letter. What is too large for the topic is only in the table: one large record must not stop the
load at each start.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headrace.arrow.encoding import EncodedBatch
from headrace.model.dead_letters import (
    DEAD_LETTER_CONFIGS,
    DEAD_LETTER_TOPIC,
    HEADER_OVERHEAD,
    HEADER_PREFIX,
    LETTER_OVERHEAD,
    LETTER_VALUE_SIZE_MAX,
    MESSAGE_SIZE_DEFAULT,
    MESSAGE_SIZE_SETTING,
)
from headrace.model.ids import TopicPartition
from headrace.pipeline.warehouse.batch import NewFile
from headrace.pipeline.warehouse.storage import Location
from headrace.records.record import Record, build_batch
from headrace.spark.cluster import Cluster
from headrace.spark.producing import BatchSender, Identity

log = logging.getLogger("headrace.pipeline")

_BATCH_SIZE = 500_000
_ROWS = 1_000


def send_letters(
    cluster: Cluster, table: str, directory: Location, files: Iterable[NewFile]
) -> None:
    """Send the letters in these files of a directory, and wait until the brokers have them."""
    cluster.create_topic(DEAD_LETTER_TOPIC, -1, DEAD_LETTER_CONFIGS)
    count = len(cluster.topics([DEAD_LETTER_TOPIC])[DEAD_LETTER_TOPIC].leaders)
    known = cluster.topic_setting([DEAD_LETTER_TOPIC], MESSAGE_SIZE_SETTING)
    size_max = int(known.get(DEAD_LETTER_TOPIC, MESSAGE_SIZE_DEFAULT))
    with BatchSender(cluster, Identity()) as sender:
        for number, records in _batches(_letters(table, directory, files, size_max)):
            place = TopicPartition(DEAD_LETTER_TOPIC, number % count)
            sender.send([EncodedBatch(place, len(records), build_batch(records))])
        sender.flush()


def _letters(
    table: str, directory: Location, files: Iterable[NewFile], size_max: int
) -> Iterator[Record]:
    for file in files:
        with directory.reading(file.path) as opened:
            for rows in opened.iter_batches(_ROWS):
                for row in rows.to_pylist():
                    yield letter_record(table, row, size_max)


def letter_record(table: str, row: Mapping[str, Any], size_max: int) -> Record:
    """A row of the table of dead letters as a record of the topic, of at most ``size_max`` bytes.

    If it is larger, it has no value, and if need be no key and no headers of its record.
    """
    value: bytes | None = row["value"]
    given = tuple((one["key"], one["value"]) for one in row["_headers"] or ())
    whole = Record(
        0, time.time_ns() // 1_000_000, row["_key"], value, (*given, *_our_headers(table, row))
    )
    if len(value or b"") <= LETTER_VALUE_SIZE_MAX and _size(whole) <= size_max:
        return whole
    without = whole._replace(value=None)
    if _size(without) > size_max:
        without = without._replace(key=None, headers=_our_headers(table, row))
    omitted = _size(whole) - _size(without)
    log.warning(
        "The dead letter of offset %d of %s is in %s, and in topic %s without %d bytes: it accepts "
        "records of %d bytes (max.message.bytes)",
        row["_offset"],
        TopicPartition(row["_topic"], row["_partition"]),
        f"{table}/_dead_letters",
        DEAD_LETTER_TOPIC,
        omitted,
        size_max,
    )
    mark = (HEADER_PREFIX + "omitted", str(omitted).encode())
    return without._replace(headers=(*without.headers, mark))


def _size(record: Record) -> int:
    """At most this many bytes, as the topic counts them."""
    headers = sum(
        len(name.encode()) + len(value or b"") + HEADER_OVERHEAD for name, value in record.headers
    )
    return len(record.key or b"") + len(record.value or b"") + headers + LETTER_OVERHEAD


def _our_headers(table: str, row: Mapping[str, Any]) -> tuple[tuple[str, bytes | None], ...]:
    is_range = row["_offset_end"] > row["_offset"] + 1
    ours = {
        "stage": row["stage"],
        "table": table,
        "reason": row["reason"],
        "topic": row["_topic"],
        "topicid": row["_topic_id"],
        "partition": row["_partition"],
        "offset": row["_offset"],
        "offsetend": row["_offset_end"] if is_range else None,
        "timestamp": row["_timestamp_ms"],
        "attempt": 0,
    }
    return tuple(
        (HEADER_PREFIX + name, str(one).encode()) for name, one in ours.items() if one is not None
    )


def _batches(letters: Iterable[Record]) -> Iterator[tuple[int, list[Record]]]:
    """Numbered groups of letters; a large letter has a group of its own."""
    number, size = 0, 0
    group: list[Record] = []
    for one in letters:
        own = len(one.key or b"") + len(one.value or b"") + 500
        if group and size + own > _BATCH_SIZE:
            yield number, group
            number, size, group = number + 1, 0, []
        group.append(one._replace(offset=len(group)))
        size += own
    if group:
        yield number, group
