"""When the active segment of a log must be closed: limits computed once per segment."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.core.retention import RELATIVE_OFFSET_MAX, RollReason, roll_reason
from headrace.model.config import TopicConfig
from headrace.model.ids import Millis, Offset
from headrace.storage.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE

if TYPE_CHECKING:
    from headrace.storage.segment import Segment
    from headrace.storage.segment_indexes import StagedBatch

_TIGHT_COUNT = 4096  # more batches than are staged between two writes
_NEVER = 2**63 - 1


class RollLimits:
    """An append compares its batch with these limits and asks ``reason`` beyond them."""

    __slots__ = (
        "_draw_below",
        "_index_count_max",
        "_jitter_ms",
        "_segment_ms",
        "_time_index_count_max",
        "is_tight",
        "last_offset_max",
        "segment_size_max",
        "tight_from",
        "time_max",
        "timestamp_max",
    )

    def __init__(self, draw_below: Callable[[int], int]) -> None:
        self._draw_below = draw_below
        self.timestamp_max = self.time_max = _NEVER
        self.is_tight = False

    def update_config(self, config: TopicConfig) -> None:
        """Call ``segment_changed`` next."""
        self.segment_size_max = config.segment_bytes
        self._segment_ms = config.segment_ms
        self._index_count_max = config.segment_index_bytes // OFFSET_ENTRY_SIZE
        # One entry is reserved for the largest timestamp, which closes the index.
        self._time_index_count_max = config.segment_index_bytes // TIME_ENTRY_SIZE - 1
        # Each index grows by at most one entry per batch. Only close to the limit must every
        # append ask whether they are full.
        self.tight_from = min(self._index_count_max, self._time_index_count_max) - _TIGHT_COUNT
        jitter_ms_max = min(config.segment_jitter_ms, config.segment_ms)
        self._jitter_ms = self._draw_below(jitter_ms_max) if jitter_ms_max > 0 else 0

    def segment_changed(self, active: "Segment", staged: "list[StagedBatch]") -> None:
        self.last_offset_max = active.base_offset + RELATIVE_OFFSET_MAX
        self.timestamp_max = self.time_max = _NEVER
        self.is_tight = len(active.indexes.offsets) > self.tight_from
        first = _first_timestamp(active, staged)
        if active.size > 0 or staged:
            self.age_from(first, active)

    def age_from(self, first_timestamp: int, active: "Segment") -> None:
        """The first batch of the segment has this timestamp: its age counts from there."""
        age_ms_max = self._segment_ms - self._jitter_ms
        if first_timestamp >= 0:
            self.timestamp_max = first_timestamp + age_ms_max
        else:
            self.time_max = active.created_at + age_ms_max

    def reason(
        self,
        active: "Segment",
        staged: "list[StagedBatch]",
        staged_position: int,
        *,
        size: int,
        last_offset: Offset,
        timestamp: Millis,
        now: Millis,
    ) -> RollReason | None:
        """Why a batch may not go into the active segment, or None."""
        first = _first_timestamp(active, staged)
        indexes = active.indexes
        return roll_reason(
            size=staged_position,
            batch_size=size,
            segment_bytes=self.segment_size_max,
            waited_ms=timestamp - first if first >= 0 else now - active.created_at,
            segment_ms=self._segment_ms,
            jitter_ms=self._jitter_ms,
            index_is_full=(
                len(indexes.offsets) + len(staged) >= self._index_count_max
                or len(indexes.times) + len(staged) >= self._time_index_count_max
            ),
            relative_last_offset=last_offset - active.base_offset,
        )


def _first_timestamp(active: "Segment", staged: "list[StagedBatch]") -> int:
    if active.size == 0 and staged:
        _, _, _, timestamp = staged[0]
        return timestamp
    return active.first_timestamp
