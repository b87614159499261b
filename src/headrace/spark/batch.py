"""The batch source: the driver fixes the start and end of each partition once."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from headrace.spark.cluster import shared_cluster
from headrace.spark.failures import BadOption
from headrace.spark.fetching import report_loss
from headrace.spark.offsets import Offsets, Range, join, resolve, split
from headrace.spark.options import SourceOptions
from headrace.spark.pushdown import Bounds, bounds_of, narrow
from headrace.spark.reading import RangePartition, read_partition
from headrace.spark.subscription import places_of

if TYPE_CHECKING:
    import pyarrow as pa


class _PushFilters:
    """``pushFilters`` of one reader, which Spark takes for the default implementation.

    While spark.sql.python.filterPushdown.enabled is off, which is the default, Spark refuses
    readers that override this method. It compares ``__func__``.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: "BatchReader") -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self._reader.bounds = bounds_of(filters)
        return filters  # Spark applies all filters again


class BatchReader(DataSourceReader):
    """Plans the ranges on the driver, and reads them on executors."""

    def __init__(
        self, options: SourceOptions, schema: StructType, *, push_filters: bool = True
    ) -> None:
        self._options = options
        self._schema = schema
        self.bounds = Bounds()
        # Only on request: Spark up to 4.3.0 keeps the plan with pushed filters and uses it for
        # every later scan of the same frame, also for scans without a filter.
        if push_filters:
            setattr(self, "pushFilters", _PushFilters(self))  # noqa: B010 - a method for mypy

    def partitions(self) -> list[InputPartition]:
        options = self._options
        cluster = shared_cluster(options.client)
        topics_metadata = options.subscription.existing(cluster)
        places = places_of(topics_metadata)
        read_committed = options.fetch.read_committed
        starts = resolve(options.starting, places, cluster, read_committed=read_committed)
        ends = resolve(options.ending, places, cluster, read_committed=read_committed)
        self._check_order(starts, ends)
        if self.bounds != Bounds():
            starts, ends = narrow(
                self.bounds,
                starts,
                ends,
                cluster,
                read_committed=read_committed,
                disorder_ms=options.disorder_ms,
            )
        ranges = []
        for place, first in starts.items():
            if first < ends[place]:
                ranges.append(Range(place, first, ends[place]))
        pieces = split(
            ranges, partitions_min=options.partitions_min, rows_max=options.task_rows_max
        )
        ids = {name: metadata.topic_id for name, metadata in topics_metadata.items()}
        return [RangePartition(joined, ids) for joined in join(pieces, options.task_rows_min)]

    def _check_order(self, starts: Offsets, ends: Offsets) -> None:
        """A start after its end is a wrong option, or the log has lost the records between."""
        starting, ending = self._options.starting, self._options.ending
        for place, first in starts.items():
            if first <= ends[place]:
                continue
            what = (
                f"{starting.option} of {place} is {first}, which is after its {ending.option}, "
                f"{ends[place]}"
            )
            if starting.all_at is None and ending.all_at is None:
                raise BadOption(what)
            report_loss(self._options.fetch.fail_on_data_loss, what)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self._options, self._schema, partition)
