"""Retention of a log: which segments expire, and moving the log start."""

import asyncio
import logging

from headrace.core.retention import Expiry, SegmentFacts, expired
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, Offset
from headrace.storage import time_lookup
from headrace.storage.index_repair import repair_indexes
from headrace.storage.log import Log
from headrace.storage.segment_indexes import IndexDamaged

_log = logging.getLogger("headrace.storage")

# Segments that one round of retention deletes: each costs some renames, on the loop.
DELETED_AT_ONCE_MAX = 50


async def learn_times(log: Log, segments_per_step: int = 500) -> None:
    """Have a thread read the timestamps that ``segment_facts`` would read on the loop.

    The loop takes the results of ``segments_per_step`` segments at a time.
    """
    unknown = log.segments.without_times()
    for start in range(0, len(unknown), segments_per_step):
        piece = unknown[start : start + segments_per_step]
        times = await asyncio.to_thread(time_lookup.last_times, piece)
        for segment, found in zip(piece, times, strict=True):
            if found is not None and not segment.indexes.knows_time:
                segment.indexes.learn_time(found)


def segment_facts(log: Log) -> list[SegmentFacts]:
    """Input of the retention decision; call ``learn_times`` first to avoid reads on the loop.

    Raises Rejected while a child process rebuilds an index that is needed.
    """
    try:
        return log.segments.facts(log.log_end)
    except IndexDamaged as damaged:
        repair_indexes(log, log.segments.at(damaged.base_offset), damaged)
        return log.segments.facts(log.log_end)


def apply_retention(log: Log, high_watermark: Offset, now: Millis) -> Expiry:
    """Delete the oldest of the segments that have expired.

    At most ``DELETED_AT_ONCE_MAX``: if more have expired, call it again.
    """
    config = log.config
    expiry = expired(
        segment_facts(log),
        deletes="delete" in config.cleanup_policy,
        retention_bytes=config.retention_bytes,
        retention_ms=config.retention_ms,
        log_start=log.log_start,
        high_watermark=high_watermark,
        now=now,
    )
    count = min(expiry.segment_count, DELETED_AT_ONCE_MAX)
    if count:
        segments = log.segments
        if count == len(segments):
            log.roll(now)  # a log always has an active segment
        _log.info(
            "%s: deleting %d of %d expired segments (%d below the log start, %d by size, "
            "%d by time)",
            log.topic_partition,
            count,
            *expiry,
        )
        deleted = segments.take_first(count)
        _raise_log_start(log, max(log.log_start, segments.first_base_offset))
        log.directory.delete_segments(deleted, config.file_delete_delay_ms)
        log.snapshots.drop_below(segments.first_base_offset)
    return expiry


def delete_records_before(log: Log, offset: Offset) -> None:
    """Hide all records below ``offset`` from readers now (DeleteRecords).

    The next round of retention deletes their segments. The caller has checked that ``offset`` is
    not beyond the high watermark.
    """
    if offset > log.log_end:
        raise Rejected(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{log.topic_partition} ends at {log.log_end}; it cannot start at {offset}",
        )
    if offset > log.log_start:
        _raise_log_start(log, offset)


def _raise_log_start(log: Log, offset: Offset) -> None:
    log.log_start = offset
    log.leader_epochs.truncate_start(offset)
    log.producers.log_start_advanced(offset)
