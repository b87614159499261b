"""The task's part of a read, on an executor: one range of one partition to Arrow batches."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from headrace.spark.cluster import shared_cluster
from headrace.spark.dead_letters import DeadLetters
from headrace.spark.fetching import RangeReader
from headrace.spark.offsets import Range
from headrace.spark.options import SourceOptions
from headrace.spark.rows import RowBuilder
from headrace.spark.workers import settle

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """What one task reads, and which topic by that name it means."""

    def __init__(self, range_: Range, topic_id: bytes) -> None:
        super().__init__(range_)
        self.range = range_
        self.topic_id = topic_id


def read_partition(
    options: SourceOptions, schema: StructType, partition: InputPartition
) -> "Iterator[pa.RecordBatch]":
    """The task's part, on an executor; the same for batch and stream."""
    if not isinstance(partition, RangePartition):
        return  # Spark makes an empty partition of its own where there is nothing to read
    cluster = shared_cluster(options.client)
    reader = RangeReader(cluster, partition.range, partition.topic_id, options.fetch)
    letters = None
    if options.value.on_bad == "topic":
        # A client of its own: the reader's has the next fetch under way while letters are sent.
        client = options.client._replace(client_id=f"{options.client.client_id}-letters")
        letters = DeadLetters(shared_cluster(client), options.value.bad_topic)
    rows = RowBuilder(schema, partition.range.place, options.value, letters)
    for records in reader:
        yield from rows.batches(records)
        if letters is not None:
            # Before the task can succeed: a bad record must not vanish with a killed worker.
            letters.send()
    settle()
