"""Writing rows to topics: what a task does with them, and what the driver does at the end.

At least once: tasks send, and the driver has nothing to do. Exactly once: tasks only encode,
and the driver sends everything in one transaction (exactly_once.py).
"""

import functools
import hashlib
import logging
import random
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
)

from headrace.arrow.columns import HEADERS_TYPE
from headrace.arrow.encoding import EncodedBatch, Outgoing, encode
from headrace.arrow.errors import BadRow
from headrace.arrow.partitioning import partitions_by_key
from headrace.arrow.varints import Ints
from headrace.model.errors import ErrorCode
from headrace.spark.cluster import Cluster, shared_cluster
from headrace.spark.exactly_once import (
    StagedBatch,
    commit_batch,
    message_size_max,
    stage,
    unstaged,
)
from headrace.spark.failures import BadOption, PipelineError, Refused, refuse
from headrace.spark.options import SinkOptions, parse_sink
from headrace.spark.producing import BatchSender, Identity, new_identity
from headrace.spark.workers import hasten, settle

log = logging.getLogger(__name__)

# Rows are encoded together up to these bounds, so that batches are large although they are
# spread over many partitions.
_ENCODE_SIZE = 16 << 20
_ENCODE_ROWS = 100_000

_HEADER_FIELDS = {"key": StringType(), "value": BinaryType()}
_COLUMNS: dict[str, tuple[DataType, ...]] = {
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
}

_WRITTEN = (*_COLUMNS, "headers")


@functools.cache
def _warn_once(text: str) -> None:
    """A stream's columns are looked at for every batch."""
    log.warning("%s", text)


class TaskMessage(WriterCommitMessage):
    """What a task tells the driver."""

    def __init__(
        self,
        row_count: int,
        query_id: str = "",
        batches: Sequence[EncodedBatch] = (),
        staged: Sequence[StagedBatch] = (),
    ) -> None:
        self.row_count = row_count
        self.query_id = query_id
        self.batches = batches
        self.staged = staged


def check_columns(schema: StructType, topic: str) -> None:
    """Columns of other names are left out, as Spark's own sink does; topics can be copied so."""
    types = {field.name: field.dataType for field in schema.fields}
    others = [name for name in types if name not in _WRITTEN]
    for name in others:
        if name.lower() in _WRITTEN:
            raise BadOption(f"column {name!r} must be spelled {name.lower()!r} to be written")
    if others:
        _warn_once(f"not written: {', '.join(others)}; rows have {', '.join(_WRITTEN)}")
    for name, found in types.items():
        if name == "headers":
            _check_headers(found)
        elif name in _COLUMNS and found not in _COLUMNS[name]:
            allowed = " or ".join(kind.simpleString() for kind in _COLUMNS[name])
            raise BadOption(f"column {name!r} must be {allowed}, not {found.simpleString()}")
    if "value" not in types:
        raise BadOption("the column value is missing")
    if not topic and "topic" not in types:
        raise BadOption("give the option topic or a column topic")


def _check_headers(found: DataType) -> None:
    fits = isinstance(found, ArrayType) and isinstance(found.elementType, StructType)
    if fits:
        assert isinstance(found, ArrayType) and isinstance(found.elementType, StructType)
        fields = {field.name: field.dataType for field in found.elementType.fields}
        fits = fields == _HEADER_FIELDS
    if not fits:
        raise BadOption(
            "column 'headers' must be array<struct<key:string,value:binary>>, "
            f"not {found.simpleString()}"
        )


class RowEncoder:
    """Turns a task's Arrow batches into record batches."""

    def __init__(self, options: SinkOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster
        self._turn = random.randrange(1 << 30)  # so that tasks do not all begin at partition 0
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
        rows = {name: _one(table.column(name)) for name in table.column_names if name in _WRITTEN}
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
            f"row {row} of this task is for topic {topic!r}, which the query's user may not even "
            "see (TOPIC_AUTHORIZATION_FAILED); grant DESCRIBE and WRITE, or change the option "
            "topic or kafka.sasl.jaas.config"
        )
    if metadata.error == ErrorCode.INVALID_TOPIC_EXCEPTION:
        raise BadRow(
            f"row {row} of this task: no topic can be named {topic!r}; change the option topic or "
            "the column topic"
        )
    if metadata.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise Refused(
            metadata.error,
            f"topic {topic!r} does not exist and the brokers do not make it by themselves; make "
            "it, or change the option topic or the column topic (kafka.max.block.ms bounds this "
            "wait)",
        )
    refuse(metadata.error, f"topic {topic!r}")
    return len(metadata.leaders)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _sending(options: SinkOptions) -> Cluster:
    # Apart from the readers' client: a task may read and write in turns.
    return shared_cluster(options.client._replace(client_id=f"{options.client.client_id}-sink"))


def write_task(options: SinkOptions, rows: Iterable[pa.RecordBatch]) -> TaskMessage:
    """What a task does with its rows, on an executor."""
    cluster = _sending(options)
    encoder = RowEncoder(options, cluster)
    write = _encode_task if options.exactly_once else _send_task
    message = write(options, cluster, encoder, rows)
    settle()
    return message


def _send_task(
    options: SinkOptions, cluster: Cluster, encoder: RowEncoder, rows: Iterable[pa.RecordBatch]
) -> TaskMessage:
    identity = new_identity(cluster) if options.idempotent else Identity()
    with BatchSender(
        cluster, identity, acks=options.acks, timeout_ms=options.delivery_timeout_ms
    ) as sender:
        for batches in encoder.encoded(rows):
            sender.send(batches)
        sender.flush()
    return TaskMessage(encoder.row_count)


def _encode_task(
    options: SinkOptions, cluster: Cluster, encoder: RowEncoder, rows: Iterable[pa.RecordBatch]
) -> TaskMessage:
    kept: list[EncodedBatch] = []
    staged: list[StagedBatch] = []
    size = 0
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    size_max = message_size_max(options, task)
    for batches in encoder.encoded(rows):
        kept += batches
        size += sum(len(batch.data) for batch in batches)
        if size > size_max:
            staged += stage(cluster, options, kept, task)
            kept, size = [], 0
    if staged and kept:
        staged += stage(cluster, options, kept, task)
        kept = []
    return TaskMessage(encoder.row_count, _query_id(context), kept, staged)


def _query_id(context: Any) -> str:
    found = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    return found or ""


def commit_tasks(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    query_id: str,
    batch_id: int | None,
) -> None:
    """The driver's part of exactly once."""
    told = [message for message in messages if isinstance(message, TaskMessage)]
    if not any(message.row_count for message in told):
        return  # nothing to make visible, and nothing that could be doubled
    if not query_id:
        raise PipelineError(
            "the query has no id to name its transactions by; give the option checkpointLocation"
        )
    # A client of its own, for staged batches are fetched while others are sent.
    reading = shared_cluster(options.client)

    def batches() -> Iterator[EncodedBatch]:
        for message in told:
            yield from message.batches
            yield from unstaged(reading, message.staged)

    commit_batch(_sending(options), options, batches, query_id, batch_id)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        # Drawn once on the driver; the writer travels to the tasks and back for the commit.
        self._write_id = options.delivery_id or f"write-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        return write_task(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.exactly_once:
            commit_tasks(self._options, messages, self._write_id, self._options.delivery_batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing became visible, or at least once was all that was promised."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Opens nothing: Spark makes one per batch on the driver and another one for the commit."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        hasten()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        return write_task(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if not self._options.exactly_once:
            return
        # The same over restarts. Only tasks are told it; where none was, the checkpoint names
        # the query as well.
        told = (m.query_id for m in messages if isinstance(m, TaskMessage) and m.query_id)
        place = self._options.checkpoint
        fallback = hashlib.sha256(place.encode()).hexdigest()[:32] if place else ""
        commit_tasks(self._options, messages, next(told, fallback), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: Spark calls this after a failed commit too, whose outcome may be unknown."""


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    if overwrite:
        raise BadOption("a topic cannot be overwritten; write with mode append")
    checked = parse_sink(options)
    check_columns(schema, checked.topic)
    return BatchWriter(checked)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    # Output mode complete arrives as overwrite; its rows are appended, as Spark's own sink does.
    checked = parse_sink(options)
    check_columns(schema, checked.topic)
    return StreamWriter(checked)
