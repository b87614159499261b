"""What one commit adds to a table: finished files, and the offsets of all their rows. Pure."""

from typing import Any, NamedTuple

import pyarrow as pa

from headrace.pipeline.warehouse.offsets import Span

PartitionValues = tuple[tuple[str, str | None], ...]  # by column, as text in Delta's notation


class NewFile(NamedTuple):
    """A finished Parquet file; the path is relative to the table."""

    path: str
    size: int
    partition_values: PartitionValues
    row_count: int
    stats: str  # as JSON, in Delta's form


class TableFile(NamedTuple):
    """A file of a table."""

    path: str
    size: int
    partition_values: PartitionValues
    row_count: int
    low: tuple[Any, ...] = (None, None, None)  # of _topic_id, _partition and _offset
    high: tuple[Any, ...] = (None, None, None)
    loaded_ms: int = 0  # when its newest rows were committed
    null_counts: tuple[int | None, ...] = (None, None, None)  # of the same columns as low

    def may_hold(self, topic_id: str, partition: int, first_offset: int) -> bool:
        """Whether rows of this partition at or after this offset may be in the file."""
        if None in self.low or None in self.high:
            return True
        return bool(
            self.low[0] <= topic_id <= self.high[0]
            and self.low[1] <= partition <= self.high[1]
            and self.high[2] >= first_offset
        )


class Numbered(NamedTuple):
    """The number of a query's batch. A committed number, or a lower one, is dropped."""

    txn_id: str
    number: int


class Batch(NamedTuple):
    """Files and the offsets of all their rows. Without files, only the offsets move."""

    spans: tuple[Span, ...]
    files: tuple[NewFile, ...]
    schema: pa.Schema  # of the rows, with the partition columns; unused without files
    written_at_ms: int  # before the first file
    note: str = ""  # for people, in the history of the table
    numbered: Numbered | None = None  # in place of spans
    claim: Numbered | None = None  # of the run that writes; a commit of an older one is refused

    @property
    def txns(self) -> dict[str, int]:
        """What the commit records: the next offsets, or the number of a query's batch."""
        if self.numbered is not None:
            return dict(one for one in (self.numbered, self.claim) if one is not None)
        return {span.txn_id: span.offset_end for span in self.spans}
