"""The leader epochs of one partition: the offset at which each began.

A replica that returns after a failure asks its leader where its last known leader epoch ended,
and truncates its log there (KIP-101, KIP-279). A consumer detects the same way that records it
has read were lost (KIP-320). The answer needs only a short list: leader epoch -> offset of the
first record of that epoch, both strictly rising. ``storage`` keeps the list in
``leader-epoch-checkpoint``.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from headrace.model.ids import LeaderEpoch, Offset

UNDEFINED_LEADER_EPOCH = LeaderEpoch(-1)
UNDEFINED_OFFSET = Offset(-1)


class EpochEntry(NamedTuple):
    leader_epoch: LeaderEpoch
    start_offset: Offset


class EpochEnd(NamedTuple):
    leader_epoch: LeaderEpoch
    end_offset: Offset  # exclusive


UNDEFINED = EpochEnd(UNDEFINED_LEADER_EPOCH, UNDEFINED_OFFSET)


class LeaderEpochs:
    """Invariant: leader epochs and start offsets both rise strictly along ``entries``."""

    __slots__ = ("latest", "entries")

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self.entries: list[EpochEntry] = []
        self.latest = UNDEFINED_LEADER_EPOCH
        for entry in entries:
            self.assign(entry.leader_epoch, entry.start_offset)

    def assign(self, leader_epoch: LeaderEpoch, start_offset: Offset) -> bool:
        """Note that ``start_offset`` is in ``leader_epoch``; return whether that is new.

        The newest call wins. Entries at the end of the list that contradict it belong to records
        that have been replaced, or to a leader epoch in which no record was written.
        """
        entries = self.entries
        last = entries[-1] if entries else None
        if last and last.leader_epoch == leader_epoch and start_offset >= last.start_offset:
            return False
        while entries and (
            entries[-1].leader_epoch > leader_epoch or entries[-1].start_offset >= start_offset
        ):
            entries.pop()
        # An epoch that began further back keeps its start, or the epoch before it would seem to
        # end too late, and a follower would keep records that it must truncate.
        if not entries or entries[-1].leader_epoch < leader_epoch:
            entries.append(EpochEntry(leader_epoch, start_offset))
        self.latest = leader_epoch
        return True

    def end_of(self, leader_epoch: LeaderEpoch, log_end: Offset) -> EpochEnd:
        """The largest known epoch that is not above ``leader_epoch``, and its end offset.

        Undefined (-1, -1) for an epoch above all known ones: the caller is ahead of this log. For
        an epoch below all known ones, the start of the first known entry.
        """
        if leader_epoch == UNDEFINED_LEADER_EPOCH or leader_epoch > self.latest:
            return UNDEFINED
        if leader_epoch == self.latest:
            return EpochEnd(leader_epoch, log_end)
        above = bisect_right(self.entries, leader_epoch, key=lambda entry: entry.leader_epoch)
        floor = self.entries[above - 1].leader_epoch if above else leader_epoch
        return EpochEnd(floor, self.entries[above].start_offset)

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The epoch in which ``offset`` was (or would be) written; -1 below the first epoch."""
        above = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        return self.entries[above - 1].leader_epoch if above else UNDEFINED_LEADER_EPOCH

    def truncate_end(self, end_offset: Offset) -> bool:
        """Remove entries that begin at or after ``end_offset``, the log's new end."""
        before = len(self.entries)
        while self.entries and self.entries[-1].start_offset >= end_offset:
            self.entries.pop()
        self.latest = self.entries[-1].leader_epoch if self.entries else UNDEFINED_LEADER_EPOCH
        return len(self.entries) != before

    def truncate_start(self, start_offset: Offset) -> bool:
        """Remove entries that end at or before ``start_offset``, the log's new start.

        The epoch that contains the new start stays, and now begins there.
        """
        at_or_below = bisect_right(self.entries, start_offset, key=lambda entry: entry.start_offset)
        if at_or_below == 0 or (at_or_below == 1 and self.entries[0].start_offset == start_offset):
            return False
        first = EpochEntry(self.entries[at_or_below - 1].leader_epoch, start_offset)
        self.entries[:at_or_below] = [first]
        return True

    def clear(self) -> None:
        self.entries.clear()
        self.latest = UNDEFINED_LEADER_EPOCH
