"""The sink: tasks write rows to topics, and the driver commits them.

At least once: tasks send their rows, and the driver does nothing. Exactly once: tasks only encode
their rows, and the driver sends all of them in one transaction (exactly_once.py).
"""

import functools
import hashlib
import logging
import pickle
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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

from headrace.arrow.encoding import EncodedBatch
from headrace.spark.cluster import Cluster, shared_cluster
from headrace.spark.exactly_once import commit_batch
from headrace.spark.failures import BadOption, PipelineError
from headrace.spark.options import SinkOptions, parse_sink
from headrace.spark.producing import BatchSender, Identity, new_identity
from headrace.spark.row_encoder import WRITTEN_COLUMNS, RowEncoder
from headrace.spark.staging import StagedBatch, message_size_max, stage, unstaged
from headrace.spark.workers import hasten, settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("headrace.spark")

_HEADER_FIELDS = {"key": StringType(), "value": BinaryType()}
_COLUMNS: dict[str, tuple[DataType, ...]] = {
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
}


@functools.cache
def _warn_once(text: str) -> None:
    """The columns of a stream are checked for every batch."""
    log.warning("%s", text)


class TaskMessage(WriterCommitMessage):
    """The result of one task, for the driver."""

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
    """Check the columns. Other columns are not written, as in Spark's Kafka sink."""
    types = {field.name: field.dataType for field in schema.fields}
    others = [name for name in types if name not in WRITTEN_COLUMNS]
    for name in others:
        if name.lower() in WRITTEN_COLUMNS:
            raise BadOption(f"column {name!r} must be spelled {name.lower()!r} to be written")
    if others:
        _warn_once(
            f"columns not written: {', '.join(others)}; the sink writes only "
            f"{', '.join(WRITTEN_COLUMNS)}"
        )
    for name, found in types.items():
        if name == "headers":
            _check_headers(found)
        elif name in _COLUMNS and found not in _COLUMNS[name]:
            allowed = " or ".join(kind.simpleString() for kind in _COLUMNS[name])
            raise BadOption(f"column {name!r} must be {allowed}, not {found.simpleString()}")
    if "value" not in types:
        raise BadOption("the column value is missing")
    if not topic and "topic" not in types:
        raise BadOption("no topic to write to: set the option topic, or add a column topic")


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


def _sending(options: SinkOptions) -> Cluster:
    # Not the client of the readers: a task may read and write in turns.
    return shared_cluster(options.client._replace(client_id=f"{options.client.client_id}-sink"))


def write_task(options: SinkOptions, rows: Iterable[pa.RecordBatch]) -> TaskMessage:
    """Write the rows of one task, on an executor."""
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
    """Commit the results of all tasks, on the driver; only for exactly once."""
    told = [message for message in messages if isinstance(message, TaskMessage)]
    if not any(message.row_count for message in told):
        return  # no rows to make visible
    if not query_id:
        raise PipelineError(
            "the query has no ID that could name its transactions; set the option "
            "checkpointLocation"
        )
    # Another client, since staged batches are fetched while others are sent.
    reading = shared_cluster(options.client)

    def batches() -> Iterator[EncodedBatch]:
        for message in told:
            yield from message.batches
            yield from unstaged(reading, message.staged)

    commit_batch(_sending(options), options, batches, query_id, batch_id)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        # Drawn once on the driver; Spark pickles the writer for the tasks and for the commit.
        self._write_id = options.delivery_id or f"write-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        return write_task(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.exactly_once:
            commit_tasks(self._options, messages, self._write_id, self._options.delivery_batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: no row is visible, or delivery is at least once."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Opens nothing: Spark creates one writer per batch on the driver and one for the commit."""

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
        # The same after a restart. Spark tells the query's ID only to tasks; without tasks, the
        # checkpoint identifies the query.
        told = (m.query_id for m in messages if isinstance(m, TaskMessage) and m.query_id)
        place = self._options.checkpoint
        fallback = hashlib.sha256(place.encode()).hexdigest()[:32] if place else ""
        commit_tasks(self._options, messages, next(told, fallback), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: Spark calls this also after a failed commit whose outcome is unknown."""


class _WriteTask(NamedTuple):
    """Writes the rows of one task, and gives the driver its message. Spark pickles it."""

    writer: BatchWriter

    def run(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        message = pickle.dumps(self.writer.write(batches))
        yield pa.RecordBatch.from_arrays([pa.array([message], pa.binary())], names=["message"])


def write_frame(rows: "DataFrame", options: Mapping[str, str]) -> int:
    """Write a frame as ``rows.write.format("headrace")`` does, and return the number of its rows.

    For many small writes: Spark would ask four Python workers of the driver in turn, to find the
    source, to plan, and to commit. This commits in the calling process. ``kafka.client.id`` must
    name the calling thread, whose client is kept for the next call.
    """
    writer = batch_writer(options, rows.schema, overwrite=False)
    told = rows.mapInArrow(_WriteTask(writer).run, "message binary").collect()
    messages: list[WriterCommitMessage | None] = [pickle.loads(one.message) for one in told]
    writer.commit(messages)
    return sum(one.row_count for one in messages if isinstance(one, TaskMessage))


def write_rows(rows: pa.Table, options: Mapping[str, str]) -> int:
    """The same for rows that the calling process has."""
    writer = batch_writer(options, _spark_schema(rows.schema), overwrite=False)
    message = writer.write(iter(rows.to_batches()))
    writer.commit([message])
    return message.row_count


def _spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    found = from_arrow_schema(schema)
    assert isinstance(found, StructType)
    return found


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    if overwrite:
        raise BadOption("a topic cannot be overwritten; use mode append")
    checked = parse_sink(options)
    check_columns(schema, checked.topic)
    return BatchWriter(checked)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    # Output mode complete arrives as overwrite; its rows are appended, as in Spark's Kafka sink.
    checked = parse_sink(options)
    check_columns(schema, checked.topic)
    return StreamWriter(checked)
