"""Truncation of a log: followers drop batches that the new leader does not have."""

from headrace.model.ids import Offset
from headrace.storage.log import Log, preallocated_size
from headrace.storage.recovery import readable_aborted
from headrace.storage.segment import Segment


def truncate_to(log: Log, offset: Offset) -> None:
    """Drop every batch that holds ``offset`` or more; ``log_end`` is then at most ``offset``."""
    assert not log.has_staged, "write or undo the staged batches first"
    if offset >= log.log_end:
        return
    segments = log.segments
    if offset < segments.first_base_offset:
        truncate_fully(log, offset)
        return
    log.directory.delete_segments(segments.take_after(segments.slot_of(offset)), 0)
    active = segments.active
    position = active.position_of(offset)
    end_offset = offset
    if position < active.size:
        end_offset = min(offset, Offset(active.files.header_at(position).base_offset))
    aborted = readable_aborted(
        segments.items, len(segments) - 1, log.snapshots, log.flusher.clean_at
    )
    batches_end = active.cut(position, end_offset)
    log.flusher.trimmed(active)
    active.set_aborted([known for known in aborted if known.last_offset < end_offset])
    _ended_at(log, end_offset, batches_end)


def truncate_fully(log: Log, new_start: Offset) -> None:
    """Drop everything and start over at ``new_start``."""
    assert not log.has_staged, "write or undo the staged batches first"
    segments = log.segments
    now = segments.active.created_at
    log.directory.delete_segments(segments.take_all(), 0)
    segments.append(
        Segment.create(
            str(log.path), new_start, log.directory.resources, now, preallocated_size(log.config)
        )
    )
    log.log_start = new_start
    log.leader_epochs.clear()
    log.producers.clear()
    log.snapshots.drop_from(Offset(0))
    _ended_at(log, new_start, new_start)


def _ended_at(log: Log, end_offset: Offset, batches_end: Offset) -> None:
    log.flusher.cut_to(end_offset)
    offsets = log.directory.offsets
    offsets.lower_recovery_point(log.topic_partition, end_offset)
    cleaned_end = offsets.cleaned_end(log.topic_partition)
    if cleaned_end is not None and cleaned_end > end_offset:
        # New records there were never compacted.
        offsets.set_cleaned_end(log.topic_partition, end_offset)
    log.leader_epochs.truncate_end(end_offset)
    log.move_end_back(end_offset, batches_end)
    log.snapshots.drop_from(Offset(end_offset + 1))
    log.producers.clear()
    log.snapshots.load(
        log.producers, log.segments.items, end_offset, log.flusher.clean_at, clean=False
    )
