"""Sends the dead letters of a load to the topic of dead letters, as pipelines do.

A letter has the key, the value and the headers of its record, and headers that say what failed. A
load that runs a batch again sends its letters again: topic ID, partition, offset and stage identify
a letter.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headrace.arrow.encoding import EncodedBatch
from headrace.model.dead_letters import (
    DEAD_LETTER_CONFIGS,
    DEAD_LETTER_TOPIC,
    HEADER_PREFIX,
    LETTER_VALUE_SIZE_MAX,
)
from headrace.model.ids import TopicPartition
from headrace.pipeline.warehouse.batch import NewFile
from headrace.pipeline.warehouse.storage import Location
from headrace.records.record import Record, build_batch
from headrace.spark.cluster import Cluster
from headrace.spark.producing import BatchSender, Identity

_BATCH_SIZE = 500_000
_ROWS = 1_000


def send_letters(
    cluster: Cluster, table: str, directory: Location, files: Iterable[NewFile]
) -> None:
    """Send the letters in these files of a directory, and wait until the brokers have them."""
    cluster.create_topic(DEAD_LETTER_TOPIC, -1, DEAD_LETTER_CONFIGS)
    count = len(cluster.topics([DEAD_LETTER_TOPIC])[DEAD_LETTER_TOPIC].leaders)
    with BatchSender(cluster, Identity()) as sender:
        for number, records in _batches(_letters(table, directory, files)):
            place = TopicPartition(DEAD_LETTER_TOPIC, number % count)
            sender.send([EncodedBatch(place, len(records), build_batch(records))])
        sender.flush()


def _letters(table: str, directory: Location, files: Iterable[NewFile]) -> Iterator[Record]:
    for file in files:
        with directory.reading(file.path) as opened:
            for rows in opened.iter_batches(_ROWS):
                yield from (letter_record(table, row) for row in rows.to_pylist())


def letter_record(table: str, row: Mapping[str, Any]) -> Record:
    """A row of the table of dead letters as a record of the topic."""
    value: bytes | None = row["value"]
    is_whole = value is None or len(value) <= LETTER_VALUE_SIZE_MAX
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
        "omitted": None if value is None or is_whole else len(value),
    }
    given = ((one["key"], one["value"]) for one in row["_headers"] or ())
    headers = (
        *given,
        *(
            (HEADER_PREFIX + name, str(one).encode())
            for name, one in ours.items()
            if one is not None
        ),
    )
    now_ms = time.time_ns() // 1_000_000
    return Record(0, now_ms, row["_key"], value if is_whole else None, headers)


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
