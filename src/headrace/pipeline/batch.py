"""The batch source: where each partition begins and ends is fixed once, on the driver."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.pipeline.cluster import shared_cluster
from headrace.pipeline.failures import BadOption
from headrace.pipeline.offsets import Range, resolve, split
from headrace.pipeline.options import SourceOptions
from headrace.pipeline.reading import RangePartition, read_partition
from headrace.pipeline.subscription import places_of

if TYPE_CHECKING:
    import pyarrow as pa


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
