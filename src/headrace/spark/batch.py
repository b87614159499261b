"""The batch source: where each partition begins and ends is fixed once, on the driver."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from headrace.spark.cluster import shared_cluster
from headrace.spark.failures import BadOption
from headrace.spark.fetching import report_loss
from headrace.spark.offsets import Offsets, Range, resolve, split
from headrace.spark.options import SourceOptions
from headrace.spark.pushdown import Bounds, bounds_of, narrow
from headrace.spark.reading import RangePartition, read_partition
from headrace.spark.subscription import places_of

if TYPE_CHECKING:
    import pyarrow as pa


class _PushFilters:
    """``pushFilters`` of one reader, in a form that Spark takes for the one it came with.

    While spark.sql.python.filterPushdown.enabled is off, as it is by default, Spark refuses
    every read of a reader that has one of its own, which it tells by ``__func__``.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: "BatchReader") -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self._reader.bounds = bounds_of(filters)
        return filters  # Spark applies them all again


class BatchReader(DataSourceReader):
    """Plans on the driver where each partition begins and ends, then reads on executors."""

    def __init__(
        self, options: SourceOptions, schema: StructType, *, push_filters: bool = True
    ) -> None:
        self._options = options
        self._schema = schema
        self.bounds = Bounds()
        # Not unless asked for: Spark up to 4.3.0 keeps what was planned with pushed filters and
        # uses it for every later scan of the same frame, one without a filter included.
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
        return [
            RangePartition(range_, topics_metadata[range_.place.topic].topic_id)
            for range_ in split(
                ranges, partitions_min=options.partitions_min, rows_max=options.task_rows_max
            )
        ]

    def _check_order(self, starts: Offsets, ends: Offsets) -> None:
        """A start behind its end is a mistake, or the log has lost what lay between."""
        starting, ending = self._options.starting, self._options.ending
        for place, first in starts.items():
            if first <= ends[place]:
                continue
            what = (
                f"{starting.option} of {place} comes out as {first}, "
                f"which lies behind its {ending.option}, {ends[place]}"
            )
            if starting.all_at is None and ending.all_at is None:
                raise BadOption(what)
            report_loss(self._options.fetch.fail_on_data_loss, what)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self._options, self._schema, partition)
