"""Encodes the rows of one task: topic and partition of each row, then record batches."""

import random
import time
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from headrace.arrow.columns import HEADERS_TYPE
from headrace.arrow.encoding import EncodedBatch, Outgoing, encode
from headrace.arrow.errors import BadRow
from headrace.arrow.partitioning import partitions_by_key
from headrace.arrow.varints import Ints
from headrace.model.errors import ErrorCode
from headrace.spark.cluster import Cluster
from headrace.spark.failures import PipelineError, refuse, refused
from headrace.spark.options import SinkOptions

# Rows are encoded together up to these limits, so that batches are large although the rows go to
# many partitions.
_ENCODE_SIZE = 16 << 20
_ENCODE_ROWS = 100_000

WRITTEN_COLUMNS = ("key", "value", "topic", "partition", "headers")


class RowEncoder:
    """Encodes the Arrow batches of one task as record batches."""

    def __init__(self, options: SinkOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster
        self._turn = random.randrange(1 << 30)  # so that not all tasks start at partition 0
        self._counts: dict[str, int] = {}
        self.row_count = 0

    def encoded(self, rows: Iterable[pa.RecordBatch]) -> Iterator[list[EncodedBatch]]:
        gathered: list[pa.RecordBatch] = []
        size = count = 0
        for batch in rows:
            gathered.append(batch)
            size += batch.nbytes
            count += batch.num_rows
            if size >= _ENCODE_SIZE or count >= _ENCODE_ROWS:
                yield self._encode(gathered)
                gathered, size, count = [], 0, 0
        if count:
            yield self._encode(gathered)

    def _encode(self, gathered: list[pa.RecordBatch]) -> list[EncodedBatch]:
        table = pa.Table.from_batches(gathered).combine_chunks()
        rows = {
            name: _one(table.column(name)) for name in table.column_names if name in WRITTEN_COLUMNS
        }
        options = self._options
        count = table.num_rows
        topics, topic_of = self._topics(rows.get("topic"), count)
        key = rows.get("key")
        key = pa.nulls(count, pa.binary()) if key is None else key.cast(pa.binary())
        headers = rows.get("headers")
        outgoing = Outgoing(
            topics,
            topic_of,
            self._partitions(topics, topic_of, key, rows.get("partition")),
            key,
            rows["value"].cast(pa.binary()),
            None if headers is None else headers.cast(HEADERS_TYPE),
        )
        batches = encode(
            outgoing,
            codec=options.codec,
            batch_size=options.batch_size,
            row_size_max=options.row_size_max,
            now_ms=int(time.time() * 1000),
            first_row=self.row_count,
        )
        self.row_count += count
        return batches

    def _topics(self, column: pa.Array | None, count: int) -> tuple[list[str], Ints]:
        if self._options.topic:
            return [self._options.topic], np.zeros(count, dtype=np.int64)
        assert column is not None
        if column.null_count:
            at = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise BadRow(
                f"row {self.row_count + at} of this task has a null topic; set the option topic, "
                "or fill the column"
            )
        coded = column.dictionary_encode()
        indices = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return coded.dictionary.to_pylist(), indices

    def _partitions(
        self, topics: list[str], topic_of: Ints, key: pa.Array, column: pa.Array | None
    ) -> Ints:
        count = len(topic_of)
        found = np.full(count, -1, dtype=np.int64)
        if column is not None:
            given = column.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            found[:] = given
            negative = np.flatnonzero(
                (given < 0) & column.is_valid().to_numpy(zero_copy_only=False)
            )
            if negative.size:
                raise self._bad_partition(int(negative[0]), topics, topic_of, given)
        has_key = key.is_valid().to_numpy(zero_copy_only=False)
        for index, topic in enumerate(topics):
            here = topic_of == index
            partition_count = self._partition_count(topic, self.row_count + int(here.argmax()))
            by_key = np.flatnonzero(here & (found < 0) & has_key)
            if by_key.size:
                taken = key if by_key.size == count else key.take(pa.array(by_key))
                found[by_key] = partitions_by_key(taken, partition_count)
            self._turn += 1
            found[here & (found < 0)] = self._turn % partition_count
            beyond = np.flatnonzero(here & (found >= partition_count))
            if beyond.size:
                raise self._bad_partition(int(beyond[0]), topics, topic_of, found)
        return found

    def _bad_partition(self, at: int, topics: list[str], topic_of: Ints, found: Ints) -> BadRow:
        topic, row = topics[topic_of[at]], self.row_count + at
        return BadRow(
            f"row {row} of this task is for partition {found[at]} of topic {topic!r}, which has "
            f"{self._partition_count(topic, row)}; correct the column partition"
        )

    def _partition_count(self, topic: str, row: int) -> int:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._cluster.persistently(
                lambda: _count_partitions(self._cluster, topic, row),
                f"finding topic {topic!r} for row {row} of this task",
            )
        return count


def _count_partitions(cluster: Cluster, topic: str, row: int) -> int:
    metadata = cluster.topics([topic], create=True)[topic]
    if metadata.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        raise PipelineError(
            f"row {row} of this task is for topic {topic!r}, which the query's user may not "
            "describe (TOPIC_AUTHORIZATION_FAILED); grant DESCRIBE and WRITE, or change the option "
            "topic or kafka.sasl.jaas.config"
        )
    if metadata.error == ErrorCode.INVALID_TOPIC_EXCEPTION:
        raise BadRow(
            f"row {row} of this task: {topic!r} is not a valid topic name; change the option topic "
            "or the column topic"
        )
    if metadata.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise refused(
            metadata.error,
            f"topic {topic!r} does not exist, and the brokers do not create topics automatically; "
            "create it, or change the option topic or the column topic (kafka.max.block.ms limits "
            "this wait)",
        )
    refuse(metadata.error, f"topic {topic!r}")
    return len(metadata.leaders)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
