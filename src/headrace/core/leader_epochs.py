"""The leader epochs of one partition: where each reign began.

A replica that returns after a failure asks its leader where the reign it last
knew ended, and cuts its log there (KIP-101, KIP-279); a consumer finds out the
same way that records it has read are gone (KIP-320). The answer needs only a
short list: leader epoch -> offset of the first record of that reign, both
strictly rising. ``storage`` keeps it in ``leader-epoch-checkpoint``.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from headrace.model.ids import LeaderEpoch, Offset

UNDEFINED_LEADER_EPOCH = LeaderEpoch(-1)
UNDEFINED_OFFSET = Offset(-1)


class Reign(NamedTuple):
    leader_epoch: LeaderEpoch
    start_offset: Offset


class EpochEnd(NamedTuple):
    leader_epoch: LeaderEpoch
    end_offset: Offset  # exclusive


UNDEFINED = EpochEnd(UNDEFINED_LEADER_EPOCH, UNDEFINED_OFFSET)


class EpochHistory:
    """Invariant: leader epochs and start offsets both rise strictly along ``reigns``."""

    __slots__ = ("latest", "reigns")

    def __init__(self, reigns: Iterable[Reign] = ()) -> None:
        self.reigns: list[Reign] = []
        self.latest = UNDEFINED_LEADER_EPOCH
        for reign in reigns:
            self.assign(reign.leader_epoch, reign.start_offset)

    def assign(self, leader_epoch: LeaderEpoch, start_offset: Offset) -> bool:
        """Note that ``leader_epoch`` began at ``start_offset``; tells whether anything changed.

        A later note wins: what contradicts it at the end of the list came from
        a reign whose records have been replaced.
        """
        reigns = self.reigns
        if reigns:
            last = reigns[-1]
            if last.leader_epoch == leader_epoch and start_offset >= last.start_offset:
                return False
            while reigns and (
                reigns[-1].leader_epoch >= leader_epoch or reigns[-1].start_offset >= start_offset
            ):
                reigns.pop()
        reigns.append(Reign(leader_epoch, start_offset))
        self.latest = leader_epoch
        return True

    def end_of(self, leader_epoch: LeaderEpoch, log_end: Offset) -> EpochEnd:
        """The largest epoch at or below the one asked for, and where it ended.

        Undefined (-1, -1) for an epoch above all we know: the asker is ahead
        of us. For one below all we know, the start of the first known reign.
        """
        if leader_epoch == UNDEFINED_LEADER_EPOCH or leader_epoch > self.latest:
            return UNDEFINED
        if leader_epoch == self.latest:
            return EpochEnd(leader_epoch, log_end)
        above = bisect_right(self.reigns, leader_epoch, key=lambda reign: reign.leader_epoch)
        floor = self.reigns[above - 1].leader_epoch if above else leader_epoch
        return EpochEnd(floor, self.reigns[above].start_offset)

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The reign in which ``offset`` was (or would be) written; -1 below the first."""
        above = bisect_right(self.reigns, offset, key=lambda reign: reign.start_offset)
        return self.reigns[above - 1].leader_epoch if above else UNDEFINED_LEADER_EPOCH

    def previous(self, leader_epoch: LeaderEpoch) -> LeaderEpoch:
        """The largest known epoch below ``leader_epoch``; -1 if there is none."""
        known = [reign.leader_epoch for reign in self.reigns if reign.leader_epoch < leader_epoch]
        return known[-1] if known else UNDEFINED_LEADER_EPOCH

    def truncate_end(self, end_offset: Offset) -> bool:
        """Forget reigns that began at or after ``end_offset``, the log's new end."""
        before = len(self.reigns)
        while self.reigns and self.reigns[-1].start_offset >= end_offset:
            self.reigns.pop()
        self.latest = self.reigns[-1].leader_epoch if self.reigns else UNDEFINED_LEADER_EPOCH
        return len(self.reigns) != before

    def truncate_start(self, start_offset: Offset) -> bool:
        """Forget reigns that ended at or before ``start_offset``, the log's new start.

        The reign in which the new start lies stays and now begins there.
        """
        at_or_below = bisect_right(self.reigns, start_offset, key=lambda reign: reign.start_offset)
        if at_or_below == 0 or (at_or_below == 1 and self.reigns[0].start_offset == start_offset):
            return False
        first = Reign(self.reigns[at_or_below - 1].leader_epoch, start_offset)
        self.reigns[:at_or_below] = [first]
        return True

    def clear(self) -> None:
        self.reigns.clear()
        self.latest = UNDEFINED_LEADER_EPOCH
