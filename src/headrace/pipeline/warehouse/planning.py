"""How much the next batch loads, when it is due, and how tasks share it. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.pipeline.warehouse.offsets import Span

# Before the first batch shows the size of a record.
BYTES_PER_RECORD_GUESS = 500.0


class Limits(NamedTuple):
    """When a batch is committed, and how large its tasks are. Sizes are those of the log."""

    batch_bytes: int = 1 << 30
    batch_age_s: float = 60.0
    task_bytes_min: int = 4 << 20  # a smaller task costs more than it saves
    task_bytes_max: int = 256 << 20


def is_due(
    pending: Sequence[Span], waited_s: float, bytes_per_record: float, limits: Limits
) -> bool:
    """Whether to load now: enough for a whole batch is pending, or something waited long enough.

    ``waited_s`` is the time since the last commit, or since the load started.
    """
    if not pending:
        return False
    size = sum(span.size for span in pending) * bytes_per_record
    return waited_s >= limits.batch_age_s or size >= limits.batch_bytes


def next_batch(pending: Sequence[Span], bytes_per_record: float, limits: Limits) -> list[Span]:
    """The beginning of what is pending, in proportion to the backlog of each partition.

    Every partition gets at least one offset, so that none starves.
    """
    total = sum(span.size for span in pending)
    offsets_max = max(1, int(limits.batch_bytes / bytes_per_record))
    if total <= offsets_max:
        return list(pending)
    return [
        span._replace(
            offset_end=span.first_offset + min(span.size, max(1, offsets_max * span.size // total))
        )
        for span in pending
    ]


def plan_tasks(
    batch: Sequence[Span], task_count: int, bytes_per_record: float, limits: Limits
) -> list[tuple[Span, ...]]:
    """The spans that each task loads: large ones split by offset, small ones joined.

    About ``task_count`` tasks, but none is smaller than it is worth or larger than its limit.
    """
    total = sum(span.size for span in batch)
    size_min = max(1, int(limits.task_bytes_min / bytes_per_record))
    size_max = max(size_min, int(limits.task_bytes_max / bytes_per_record))
    size = min(size_max, max(size_min, -(-total // max(1, task_count))))
    tasks: list[tuple[Span, ...]] = []
    joined: list[Span] = []
    joined_size = 0
    for span in batch:
        for piece in _split(span, size):
            if joined and joined_size + piece.size > size:
                tasks.append(tuple(joined))
                joined, joined_size = [], 0
            joined.append(piece)
            joined_size += piece.size
    if joined:
        tasks.append(tuple(joined))
    return tasks


def _split(span: Span, size_max: int) -> list[Span]:
    """Even pieces of at most ``size_max`` offsets."""
    count = -(-span.size // size_max)
    borders = [span.first_offset + span.size * n // count for n in range(count + 1)]
    return [
        span._replace(first_offset=first, offset_end=end)
        for first, end in zip(borders, borders[1:], strict=False)
    ]
