"""The door that Spark knocks at: ``format("headrace")``, for reading and writing."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.pipeline.cluster import shared_cluster
from headrace.pipeline.failures import BadOption
from headrace.pipeline.fetching import RangeReader
from headrace.pipeline.offsets import Range, resolve, split
from headrace.pipeline.options import BATCH_ONLY, SourceOptions, parse_source
from headrace.pipeline.rows import RowBuilder, check_schema, default_schema
from headrace.pipeline.subscription import places_of

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
    rows = RowBuilder(schema, partition.range.place)
    for records in reader:
        yield from rows.batches(records)


class BatchReader(DataSourceReader):
    """Plans on the driver where each partition begins and ends, then reads on executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        options = self._options
        cluster = shared_cluster(options.client)
        pictures = options.subscription.existing(cluster)
        places = places_of(pictures)
        read_committed = options.fetch.read_committed
        starts = resolve(options.starting, places, cluster, read_committed=read_committed)
        ends = resolve(options.ending, places, cluster, read_committed=read_committed)
        ranges = []
        for place in places:
            if starts[place] > ends[place]:
                if options.starting.all_at is None and options.ending.all_at is None:
                    raise BadOption(
                        f"{options.starting.option} of {place} comes out as {starts[place]}, "
                        f"which lies behind its {options.ending.option}, {ends[place]}"
                    )
                continue
            ranges.append(Range(place, starts[place], ends[place]))
        return [
            RangePartition(range_, pictures[range_.place.topic].topic_id)
            for range_ in split(
                ranges, partitions_min=options.partitions_min, rows_max=options.task_rows_max
            )
        ]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self._options, self._schema, partition)


def schema_of(options: Mapping[str, str]) -> StructType:
    # Whether the query streams is not known yet. Only a batch has an end, so without one the
    # more lenient rules of a stream are applied; the reader applies the right ones.
    streaming = not any(name.lower() in options for name in BATCH_ONLY)
    return default_schema(parse_source(options, streaming=streaming))


def batch_reader(options: Mapping[str, str], schema: StructType) -> BatchReader:
    check_schema(schema)
    return BatchReader(parse_source(options, streaming=False), schema)
