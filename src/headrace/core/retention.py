"""When a segment is full or old enough to be closed, and when closed segments expire."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from headrace.model.ids import Millis, Offset

RELATIVE_OFFSET_MAX = 2**31 - 1  # what an index entry can hold


class RollReason(Enum):
    SIZE = "segment.bytes reached"
    AGE = "segment.ms reached"
    INDEX = "an index is full"
    OFFSETS = "offsets too far from the base offset for an index entry"


class SegmentFacts(NamedTuple):
    base_offset: Offset
    end_offset: Offset  # exclusive: base of the next segment, or the log's end
    size: int
    largest_timestamp: Millis  # of its records; the file's own time if they have none


class Expiry(NamedTuple):
    """How many of the oldest segments expire, and a count for each reason, for the log."""

    segment_count: int
    before_log_start: int
    by_size: int
    by_time: int


def roll_reason(
    *,
    size: int,
    batch_size: int,
    segment_bytes: int,
    waited_ms: int,
    segment_ms: int,
    jitter_ms: int,
    index_is_full: bool,
    relative_last_offset: int,
) -> RollReason | None:
    """Why a batch may not go into the active segment, or None.

    ``waited_ms`` is the time between the segment's first batch and this one, by the records' own
    timestamps if they have one, so that a follower rolls where its leader rolled. It is not the
    age of the file.
    """
    if size > segment_bytes - batch_size:
        return RollReason.SIZE
    if size > 0 and waited_ms > segment_ms - jitter_ms:
        return RollReason.AGE
    if index_is_full:
        return RollReason.INDEX
    if relative_last_offset > RELATIVE_OFFSET_MAX:
        return RollReason.OFFSETS
    return None


def expired(
    segments: Sequence[SegmentFacts],
    *,
    deletes: bool,
    retention_bytes: int,
    retention_ms: int,
    log_start: Offset,
    high_watermark: Offset,
    now: Millis,
) -> Expiry:
    """How many segments, oldest first, may be deleted.

    A segment expires only if everything in it is replicated (below the high watermark); an empty
    active one never does. The rules apply in order, each from the old end, without leaving a hole.
    ``deletes`` is false for topics that are only compacted: they lose only segments below the log
    start. A negative limit means no limit.
    """
    candidates = 0
    for facts in segments:
        if facts.end_offset > high_watermark:
            break
        candidates += 1
    if candidates == len(segments) and segments and segments[-1].size == 0:
        candidates -= 1

    count = 0
    # The active segment has no successor, so it is never below the log start.
    while (
        count < min(candidates, len(segments) - 1) and segments[count + 1].base_offset <= log_start
    ):
        count += 1
    before_log_start = count

    by_size = 0
    if deletes and retention_bytes >= 0:
        excess = sum(facts.size for facts in segments[count:]) - retention_bytes
        while count < candidates and excess - segments[count].size >= 0:
            excess -= segments[count].size
            count += 1
            by_size += 1

    by_time = 0
    if deletes and retention_ms >= 0:
        while count < candidates and now - segments[count].largest_timestamp > retention_ms:
            count += 1
            by_time += 1
    return Expiry(count, before_log_start, by_size, by_time)
