"""Loads a range of offsets again: one commit replaces its rows.

Files with rows of the range are replaced by their other rows. A file without other rows is not
opened: it may be damaged or missing, and the reload is the cure. The next offsets of the partitions
stay as they are, and the commit carries them, so a load at the same time is refused or refuses.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.ids import TopicPartition, id_to_text
from headrace.pipeline.errors import LoadStopped
from headrace.pipeline.warehouse.batch import NewFile, TableFile
from headrace.pipeline.warehouse.compaction import TARGET_BYTES, rows_of
from headrace.pipeline.warehouse.files import PartitionedFiles
from headrace.pipeline.warehouse.offsets import Bounds, Span
from headrace.pipeline.warehouse.storage import Location
from headrace.pipeline.warehouse.tasks import attempt_name, run_tasks


def span_to_reload(
    place: TopicPartition, topic_id: bytes, first: int, recorded: int | None, bounds: Bounds
) -> Span | None:
    """What to load again: from this offset to the end of what the table holds."""
    if recorded is None or first >= recorded:
        return None
    if first < bounds.earliest:
        raise LoadStopped(
            f"cannot reload {place} from offset {first}: its log starts at {bounds.earliest}, and "
            f"the rows before that would be lost. Reload from offset {bounds.earliest} or later"
        )
    return Span(place, topic_id, first, recorded)


def files_with_rows(files: Sequence[TableFile], spans: Sequence[Span]) -> list[TableFile]:
    return [
        file
        for file in files
        if any(
            file.may_hold(id_to_text(span.topic_id), span.place.partition, span.first_offset)
            for span in spans
        )
    ]


def files_with_other_rows(files: Sequence[TableFile], spans: Sequence[Span]) -> list[TableFile]:
    """Files that may hold rows outside of all spans."""
    return [file for file in files if not _is_inside(file, spans)]


def _is_inside(file: TableFile, spans: Sequence[Span]) -> bool:
    """Whether the statistics of a file prove that all of its rows are in the spans."""
    if None in file.low or None in file.high or file.null_counts != (0, 0, 0):
        return False
    (topic_id, partition, first_offset), (last_topic_id, last_partition, _) = file.low, file.high
    covered = {
        span.place.partition
        for span in spans
        if id_to_text(span.topic_id) == topic_id and span.first_offset <= first_offset
    }
    # Of a file with two topic IDs, the IDs between them are not known.
    return topic_id == last_topic_id and covered.issuperset(range(partition, last_partition + 1))


class OtherRows(NamedTuple):
    """Tasks that write the rows of some files that do not belong to the spans, in new files."""

    table: Location
    schema: pa.Schema  # of the files
    tasks: tuple[tuple[TableFile, ...], ...]
    spans: tuple[Span, ...]
    batch_id: str

    def run(self, spark: Any) -> tuple[NewFile, ...]:
        written = run_tasks(spark, len(self.tasks), self.run_task)
        return tuple(file for files in written for file in files)

    def run_task(self, number: int) -> tuple[NewFile, ...]:
        written = PartitionedFiles(self.table, self.schema, attempt_name(self.batch_id, number))
        try:
            for file in self.tasks[number]:
                for rows in rows_of(self.table, self.schema, file):
                    written.add(file.partition_values, rows.filter(_others(rows, self.spans)))
            return written.finish()
        except BaseException:
            written.abandon()
            raise


def in_tasks(files: Sequence[TableFile]) -> tuple[tuple[TableFile, ...], ...]:
    """The files that each task rewrites: about as many bytes as a file should have."""
    tasks: list[list[TableFile]] = []
    size = TARGET_BYTES
    for file in files:
        if size + file.size > TARGET_BYTES:
            tasks.append([])
            size = 0
        tasks[-1].append(file)
        size += file.size
    return tuple(map(tuple, tasks))


def _others(rows: pa.RecordBatch, spans: Sequence[Span]) -> pa.Array:
    """True for rows outside of all spans."""
    kept = pa.repeat(pa.scalar(True), rows.num_rows)
    for span in spans:
        inside = pc.and_(
            pc.and_(
                pc.equal(rows.column("_topic_id"), id_to_text(span.topic_id)),
                pc.equal(rows.column("_partition"), span.place.partition),
            ),
            pc.greater_equal(rows.column("_offset"), span.first_offset),
        )
        # A row without a place in a topic belongs to no span.
        kept = pc.and_(kept, pc.invert(pc.fill_null(inside, False)))
    return kept
