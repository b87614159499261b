"""Reads ranges of partitions into Arrow batches: the work of one task, on an executor."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.arrow.rows import RejectedRecord, RowBuilder
from headrace.spark.cluster import NO_TOPIC_ID, shared_cluster
from headrace.spark.dead_letters import DeadLetters
from headrace.spark.failures import PipelineError
from headrace.spark.fetching import RangeReader
from headrace.spark.offsets import Range
from headrace.spark.options import SourceOptions
from headrace.spark.planned_batch import PlannedBatch
from headrace.spark.read_counts import ReadCounts
from headrace.spark.source_schema import PLANNED_AT, WATERMARK
from headrace.spark.value_format import value_parser
from headrace.spark.workers import settle

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """The ranges that one task reads, and the IDs of their topics by name."""

    def __init__(
        self,
        ranges: Sequence[Range],
        topic_ids: Mapping[str, bytes],
        batch: PlannedBatch | None = None,
    ) -> None:
        """``batch`` is given for a query whose checkpoint is known."""
        super().__init__(ranges)
        self.ranges = ranges
        self.batch = batch
        self.topic_ids = {
            range_.place.topic: topic_ids.get(range_.place.topic, NO_TOPIC_ID) for range_ in ranges
        }


def read_partition(
    options: SourceOptions, schema: StructType, partition: InputPartition
) -> "Iterator[pa.RecordBatch]":
    """The rows of one task; batch and stream use the same."""
    if not isinstance(partition, RangePartition):
        return  # Spark makes an empty partition if there is nothing to read
    cluster = shared_cluster(options.client)
    letters = None
    if options.value.on_bad == "topic":
        # A client of its own: the reader's has a fetch in flight while letters are sent.
        client = options.client._replace(client_id=f"{options.client.client_id}-letters")
        letters = DeadLetters(shared_cluster(client), options.value.bad_topic)
    counts = None
    if options.audit_name and partition.batch is not None:
        client = options.client._replace(client_id=f"{options.client.client_id}-audit")
        counts = ReadCounts(shared_cluster(client), options.audit_name, partition.batch.number)
    for range_ in partition.ranges:
        topic_id = partition.topic_ids[range_.place.topic]
        rows = _row_builder(options, schema, range_, letters, partition.batch)
        if counts is not None:
            counts.begin(range_, topic_id)
        for records in RangeReader(cluster, range_, topic_id, options.fetch):
            yield from rows.batches(records)
            if counts is not None:
                counts.add(records)
            if letters is not None:
                # Before the task can succeed: a killed worker must not lose a bad record.
                letters.send()
    if counts is not None:
        counts.publish()
    settle()


def _row_builder(
    options: SourceOptions,
    schema: StructType,
    range_: Range,
    letters: DeadLetters | None,
    batch: PlannedBatch | None,
) -> RowBuilder:
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    value = options.value
    parse = None
    if "value" in arrow_schema.names:
        parse = value_parser(value, arrow_schema.field("value").type)
    constants = {}
    if batch is not None:
        constants = {WATERMARK: batch.watermark_ms * 1000, PLANNED_AT: batch.planned_at_ms * 1000}
    reject: Callable[[RejectedRecord], None] | None = None
    if letters is not None:
        reject = letters.add
    elif value.name and value.on_bad == "fail":
        reject = fail_on_bad
    return RowBuilder(
        arrow_schema,
        range_.place,
        parse,
        bad_column=value.bad_column if value.name else "",
        reject=reject,
        constants=constants,
    )


def fail_on_bad(record: RejectedRecord) -> None:
    """For value.bad=fail."""
    raise PipelineError(
        f"the value at offset {record.offset} of {record.place} does not fit value.format and "
        f"value.schema: {record.reason}. Correct these options, or set value.bad to column or "
        "topic"
    )
