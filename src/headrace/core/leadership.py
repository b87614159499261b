"""One broker's term as leader of a partition: the high watermark, the ISR, acks=all.

The high watermark is exclusive: every in-sync replica holds all records below it, and consumers
see no others. It never moves back while this broker leads.

    1. The high watermark counts the maximal ISR: the confirmed and the proposed one.
    2. A new leader's high watermark may be stale. A follower joins the ISR once it reached both
       the high watermark and the first offset of the leader's epoch.
    7. acks=all needs the effective minimum of in-sync replicas, before and after the append.
    8. Below that minimum the high watermark does not advance (KIP-966). The ISR falls below it
       only once the leader's log is flushed: then the leader loses nothing with its power.
"""

from collections.abc import Collection, Container, Mapping
from typing import NamedTuple

from headrace.core.isr import NO_BROKER_EPOCH, FollowerProgress, IsrRefusal
from headrace.core.partition_effects import (
    Effect,
    FlushToShrinkIsr,
    FollowerLogStartAdvanced,
    HighWatermarkAdvanced,
    IsrChanged,
    IsrMember,
    LeaderEpochBumped,
    ProposeIsr,
)
from headrace.model.cluster_metadata import PartitionState
from headrace.model.errors import ErrorCode
from headrace.model.ids import BrokerId, Offset


class ReplicationSettings(NamedTuple):
    """The settings of the topic and the broker that apply to one partition."""

    min_insync_replicas: int = 1
    flush_messages: int = (1 << 63) - 1
    lag_time_ms_max: int = 30_000  # replica.lag.time.max.ms


class Leadership:
    """One term, across bumps of the leader epoch. Compare two terms by identity.

    It keeps its last high watermark after the term: records below it were committed.
    """

    __slots__ = (
        "broker_id",
        "enough_replicas",
        "epoch_start_offset",
        "followers",
        "high_watermark",
        "isr",
        "leader_epoch",
        "log_end",
        "partition_epoch",
        "proposal",
        "replicas",
        "_awaited",
        "_flush_messages",
        "_flushed_end",
        "_lag_time_ms_max",
        "_may_propose_on_fetch",
        "_min_insync_replicas",
        "_origin_count",
    )

    def __init__(
        self,
        broker_id: BrokerId,
        state: PartitionState,
        settings: ReplicationSettings,
        log_end: Offset,
        high_watermark: Offset,
        now: float,
    ) -> None:
        self.broker_id = broker_id
        self.log_end = log_end  # of the records that count; see ``appended``
        self.high_watermark = high_watermark
        # The first offset of the leader epoch in which the term began. A bump does not move it:
        # the high watermark of a leader that stays is not stale.
        self.epoch_start_offset = log_end
        self._flushed_end = Offset(0)  # as far as this leadership has heard
        self._take_settings(settings)
        self._take_state(state, {}, now)

    def _take_state(
        self,
        state: PartitionState,
        known: Mapping[BrokerId, FollowerProgress],
        now: float,
    ) -> None:
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self._origin_count = len(state.origin_replicas)
        self.isr = frozenset(state.isr)
        # The new leader epoch fences a proposal of the old one: it was applied before and is part
        # of this state, or it never will be.
        self.proposal: ProposeIsr | None = None
        self._may_propose_on_fetch = True
        self.followers: dict[BrokerId, FollowerProgress] = {}
        for broker_id in sorted({*state.replicas, *state.isr} - {self.broker_id}):
            # A member of the ISR gets the whole lag time to show itself to this leader.
            caught_up_at = now if broker_id in self.isr else None
            progress = known.get(broker_id) or FollowerProgress(caught_up_at)
            progress.leader_epoch_began(caught_up_at)
            self.followers[broker_id] = progress
        self._count_replicas(now)

    def _take_settings(self, settings: ReplicationSettings) -> None:
        self._min_insync_replicas = settings.min_insync_replicas
        self._flush_messages = settings.flush_messages
        self._lag_time_ms_max = settings.lag_time_ms_max

    # --- what the leader answers from ----------------------------------------

    @property
    def insync_required(self) -> int:
        """The effective minimum: a setting above the replica count could never be met.

        Replicas that a reassignment adds do not count before it ends. Otherwise a partition with
        few replicas would refuse records while it gets more.
        """
        return min(self._min_insync_replicas, self._origin_count)

    @property
    def insync_count(self) -> int:
        """Replicas that are in sync, whether or not the controller confirms the proposed ISR."""
        proposed = self.proposed_isr
        return len(self.isr) if proposed is None else min(len(self.isr), len(proposed))

    @property
    def proposed_isr(self) -> frozenset[BrokerId] | None:
        return None if self.proposal is None else self.proposal.isr

    @property
    def maximal_isr(self) -> frozenset[BrokerId]:
        # Until the controller answers, either ISR may be the true one, so a record needs both.
        # Counting only the confirmed one could commit a record without a replica that the
        # controller may already choose as the next leader.
        proposed = self.proposed_isr
        return self.isr if proposed is None else self.isr | proposed

    @property
    def is_high_watermark_current(self) -> bool:
        """Whether the high watermark covers all records that earlier leaders committed.

        Until then ListOffsets "latest" gets OFFSET_NOT_AVAILABLE: the offset would go back.
        """
        return self.high_watermark >= self.epoch_start_offset

    def acknowledgement(self, offset_end: Offset) -> ErrorCode | None:
        """The answer to an acks=all write of records below ``offset_end``; None while it waits."""
        if self.high_watermark < offset_end:
            return None
        if not self.enough_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def low_watermark(self, log_start: Offset, live: Container[BrokerId]) -> Offset:
        """Below this, no live replica holds records; -1 while one of them has not fetched yet."""
        starts = [
            progress.log_start
            for broker_id, progress in self.followers.items()
            if broker_id in live
        ]
        return min([log_start, *starts])

    # --- events --------------------------------------------------------------

    def started(self) -> list[Effect]:
        """The term begins. A partition with one replica commits its whole log now."""
        return self._advance_high_watermark()

    def appended(self, log_end: Offset, flushed_end: Offset) -> list[Effect]:
        """The log ends at ``log_end``; an fsync covers the records below ``flushed_end``.

        Called after a write and after an fsync. Where ``flush.messages`` is reached, records
        count once an fsync covers them: until then ``log_end`` of the leadership stays behind the
        log's own, and the broker flushes the log.
        """
        self._flushed_end = flushed_end
        if log_end - flushed_end >= self._flush_messages:
            log_end = flushed_end
        if log_end <= self.log_end:
            return []
        self.log_end = log_end
        return self._advance_high_watermark()

    def follower_fetched(
        self,
        follower: BrokerId,
        fetch_offset: Offset,
        log_start: Offset,
        broker_epoch: int,
        now: float,
    ) -> list[Effect]:
        """A fetch that ``Partition.check_follower_fetch`` found valid and not diverging."""
        progress = self.followers[follower]
        log_start_before = progress.log_start
        if not progress.fetched(fetch_offset, log_start, broker_epoch, self.log_end, now):
            return []
        in_sync = follower in self.isr
        if not in_sync:
            self._count_replicas(now)
        effects = self._advance_high_watermark()
        if log_start > log_start_before:
            effects.append(FollowerLogStartAdvanced(follower, log_start))
        if not self._may_propose_on_fetch:
            return effects
        if not in_sync:
            if self.may_join(progress):
                effects += self._propose(self.isr | {follower}, now)
        elif fetch_offset < self.high_watermark:
            # It lost committed records, as after a power failure; it must not lead next.
            effects += self._propose(self.isr - {follower}, now)
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Let followers that lag leave the ISR. Call it every half lag time."""
        self._may_propose_on_fetch = True
        for progress in self.followers.values():
            progress.ticked(self.log_end, now)
        self._count_replicas(now)
        effects = self._advance_high_watermark()
        lagging = [
            broker_id
            for broker_id in sorted(self.isr - {self.broker_id})
            if not self.followers[broker_id].is_caught_up(self.log_end, now, self._lag_time_ms_max)
        ]
        if not lagging or self.proposal is not None:
            return effects
        isr = self.isr.difference(lagging)
        # Nothing is committed from the proposal on, so this is all that ever was.
        committed = max(self.high_watermark, self.epoch_start_offset)
        if len(isr) < self.insync_required and self._flushed_end < committed:
            return [*effects, FlushToShrinkIsr()]
        return effects + self._propose(isr, now)

    def brokers_left(self, brokers: Collection[BrokerId], now: float) -> list[Effect]:
        """Stop waiting for followers that are no longer registered, even before they lag.

        The controller removes members of the ISR, unless too few would be left.
        """
        keeps_members = len(self.isr.difference(brokers)) < self.insync_required
        left = [
            progress
            for broker_id in brokers
            if (keeps_members or broker_id not in self.isr)
            and (progress := self.followers.get(broker_id)) is not None
            and not progress.has_left
        ]
        for progress in left:
            progress.left()
        return self.tick(now) if left else []

    def isr_confirmed(
        self, proposal: ProposeIsr, isr: frozenset[BrokerId], partition_epoch: int, now: float
    ) -> list[Effect]:
        """The state of the partition after ``proposal``, as answered or read back.

        The ISR may differ from the proposed one, if the answer reports a newer state of the same
        leader epoch. An answer to an earlier proposal is ignored.
        """
        if proposal != self.proposal or partition_epoch < self.partition_epoch:
            return []
        self.proposal = None
        self.isr = isr
        self.partition_epoch = partition_epoch
        self._count_replicas(now)
        return [IsrChanged(isr, partition_epoch), *self._advance_high_watermark()]

    def isr_refused(self, proposal: ProposeIsr, refusal: IsrRefusal, now: float) -> list[Effect]:
        """``proposal`` was not confirmed, or its answer did not come in time."""
        if proposal != self.proposal or refusal is IsrRefusal.AWAIT_CONTROLLER:
            return []
        if refusal is IsrRefusal.OUTCOME_UNKNOWN:
            return [proposal]
        self.proposal = None
        # A follower fetches many times a second; without this, each fetch would ask again.
        self._may_propose_on_fetch = False
        for broker_id in proposal.isr - self.isr:
            self.followers[broker_id].refused_at = now
        self._count_replicas(now)
        return self._advance_high_watermark()

    def epoch_bumped(self, state: PartitionState, log_end: Offset, now: float) -> list[Effect]:
        """The controller raised the leader epoch, and this broker remains the leader."""
        known: dict[BrokerId, FollowerProgress] = {}
        if state.leader_epoch == self.leader_epoch + 1:
            known = {b: self.followers[b] for b in state.isr if b in self.followers}
        else:
            # Each leader epoch has one leader. Another broker may have led in the skipped ones,
            # and a follower may have truncated to its log: old fetches prove nothing any more.
            self.epoch_start_offset = log_end
        self._take_state(state, known, now)
        bumped = LeaderEpochBumped(state.leader_epoch, log_end)
        return [bumped, *self._advance_high_watermark()]

    def settings_changed(self, settings: ReplicationSettings, now: float) -> list[Effect]:
        self._take_settings(settings)
        self._count_replicas(now)
        return self._advance_high_watermark()

    # --- rules ---------------------------------------------------------------

    def may_join(self, progress: FollowerProgress) -> bool:
        """Whether a follower holds all that may be committed.

        The high watermark is not enough: a new leader's may be stale. The leader's log at the
        start of its epoch holds all records that earlier leaders committed.
        """
        return progress.log_end >= self.high_watermark and progress.log_end >= (
            self.epoch_start_offset
        )

    def _count_replicas(self, now: float) -> None:
        """Recompute which replicas limit the high watermark, and whether acks=all is accepted."""
        self.enough_replicas = self.insync_count >= self.insync_required
        required = self.maximal_isr
        self._awaited = [
            progress
            for broker_id, progress in self.followers.items()
            if broker_id in required
            or progress.may_be_waited_for(self.log_end, now, self._lag_time_ms_max)
        ]

    def _advance_high_watermark(self) -> list[Effect]:
        if not self.enough_replicas:
            # KIP-966: consumers do not see what too few replicas hold, so that an unclean restart
            # of the last one loses nothing that was seen.
            return []
        candidate = self.log_end
        for progress in self._awaited:
            if progress.log_end < candidate:
                candidate = progress.log_end
        if candidate <= self.high_watermark:
            return []
        self.high_watermark = candidate
        return [HighWatermarkAdvanced(candidate)]

    def _propose(self, isr: frozenset[BrokerId], now: float) -> list[Effect]:
        if self.proposal is not None or isr == self.isr:
            return []
        members = tuple(
            IsrMember(broker_id, self._broker_epoch(broker_id))
            for broker_id in self.replicas
            if broker_id in isr
        )
        self.proposal = ProposeIsr(members, self.leader_epoch, self.partition_epoch)
        self._count_replicas(now)
        return [self.proposal]

    def _broker_epoch(self, broker_id: BrokerId) -> int:
        progress = self.followers.get(broker_id)
        # The leader's own epoch is in the request that carries the proposal.
        return NO_BROKER_EPOCH if progress is None else progress.broker_epoch
