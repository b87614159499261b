"""Damaged indexes of a log: rebuild those of small segments now, others in a child process."""

import logging
from typing import TYPE_CHECKING

from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.storage.segment import Segment

if TYPE_CHECKING:
    from headrace.storage.log import Log

_log = logging.getLogger("headrace.storage")


def repair_indexes(log: "Log", segment: Segment, problem: Corrupt) -> None:
    """Rebuild the indexes of a segment.

    Raises Rejected while a child process rebuilds them, and ``problem`` if new indexes do not help.
    """
    if segment.indexes.rebuilds_at_once:
        _log.warning("%s; rebuilding the indexes of that segment", problem)
        segment.indexes.rebuild()
        return
    if segment is log.segments.active:
        # Close it, because the child must read a segment that does not grow.
        if log.has_staged:
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the indexes of {segment.path('log')} cannot be rebuilt now; retry",
            )
        log.roll(log.directory.world.now())
    if log.rebuilds is None:
        from headrace.storage.index_rebuild import IndexRebuilds  # rarely needed

        log.rebuilds = IndexRebuilds(log.directory.world)
    log.rebuilds.rebuild(segment, problem)


def give_up_rebuilds(log: "Log") -> None:
    """End the child processes: the log is closed, or its files are in another directory now."""
    if log.rebuilds is not None:
        log.rebuilds.give_up()
