"""A follower of one leader epoch: where it fetches, what it truncates, its high watermark.

    A follower truncates to the divergence found by leader epoch, never to its high watermark:
    records above it may be committed, because it is behind the leader's (KIP-101).

The fetcher keeps its ``Following``. If the partition has another one when the response arrives,
the fetcher drops the response.
"""

from typing import NamedTuple

from headrace.core.leader_epochs import UNDEFINED, EpochEnd, LeaderEpochs
from headrace.core.leadership import ReplicationSettings
from headrace.core.partition_effects import (
    AdvanceLogStart,
    Effect,
    HighWatermarkAdvanced,
    RestartLog,
    Truncate,
)
from headrace.model.ids import BrokerId, LeaderEpoch, Offset


class FetchPosition(NamedTuple):
    """What a follower asks its leader for."""

    fetch_offset: Offset
    last_fetched_epoch: LeaderEpoch  # of the last record held; -1 if there is none
    current_leader_epoch: LeaderEpoch


class Following:
    """One replica while it follows in one leader epoch. ``leader`` may be NO_LEADER."""

    __slots__ = ("high_watermark", "leader", "leader_epoch", "_flush_messages")

    def __init__(
        self,
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
        settings: ReplicationSettings,
        high_watermark: Offset,
    ) -> None:
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.high_watermark = high_watermark
        self._flush_messages = settings.flush_messages

    def fetch_position(
        self, log_end: Offset, flushed_end: Offset, epochs: LeaderEpochs
    ) -> FetchPosition | None:
        """Where to fetch next; None if the log must be flushed first.

        A fetch tells the leader that all records before it are held here and count. Where
        ``flush.messages`` is reached, they count once an fsync covers them.
        """
        if log_end - flushed_end >= self._flush_messages:
            return None
        # The epoch of the last record, not the last known epoch: this replica may have led in
        # that epoch and written nothing.
        last_fetched_epoch = epochs.epoch_at(Offset(log_end - 1))
        return FetchPosition(log_end, last_fetched_epoch, self.leader_epoch)

    def settings_changed(self, settings: ReplicationSettings, now: float) -> list[Effect]:
        self._flush_messages = settings.flush_messages
        return []

    def fetched(
        self,
        leader_high_watermark: Offset,
        leader_log_start: Offset,
        log_start: Offset,
        log_end: Offset,
    ) -> list[Effect]:
        """The records of an answer are in the log, which now ends at ``log_end``.

        A new leader may answer with an older high watermark than the last one did. What was
        committed stays committed, so the follower's high watermark does not move back.
        """
        effects: list[Effect] = []
        new_log_start = max(log_start, min(leader_log_start, log_end))
        # The leader deletes committed records only.
        committed_end = max(min(leader_high_watermark, log_end), new_log_start)
        if committed_end > self.high_watermark:
            self.high_watermark = committed_end
            effects.append(HighWatermarkAdvanced(committed_end))
        if new_log_start > log_start:
            effects.append(AdvanceLogStart(new_log_start))
        return effects

    def diverged(
        self, leader_end: EpochEnd, epochs: LeaderEpochs, log_start: Offset, log_end: Offset
    ) -> list[Effect]:
        """The leader answered that its log and this one differ.

        ``leader_end`` is the leader's largest epoch that is not above the last fetched one, and
        where it ends there. If this log does not have that epoch, it drops the epochs above it;
        the next fetch then gets an answer about an earlier epoch (KIP-279).
        """
        own_end = epochs.end_of(leader_end.leader_epoch, log_end)
        if own_end == UNDEFINED:
            to = leader_end.end_offset
        elif own_end.leader_epoch < leader_end.leader_epoch:
            to = own_end.end_offset
        else:
            to = min(own_end.end_offset, leader_end.end_offset)
        return self._truncate(min(to, log_end), log_start)

    def out_of_range(
        self, leader_log_start: Offset, leader_log_end: Offset, log_start: Offset, log_end: Offset
    ) -> list[Effect]:
        """The leader holds no record at this log's end; its log spans the given offsets."""
        if leader_log_end < log_end:
            # The next fetch compares leader epochs and finds an earlier divergence, if any.
            return self._truncate(leader_log_end, log_start)
        if leader_log_start > log_end:
            self.high_watermark = leader_log_start
            return [RestartLog(leader_log_start)]
        return []  # the leader's log grew meanwhile: fetch again

    def _truncate(self, to: Offset, log_start: Offset) -> list[Effect]:
        self.high_watermark = min(self.high_watermark, to)
        return [RestartLog(to)] if to < log_start else [Truncate(to)]
