"""One replica of a partition on one broker: its role, and how it changes.

The machine takes events and returns effects (``core.partition_effects``). A replica is a leader
(``core.leadership``) or a follower (``core.following``), and has a high watermark in both roles.
Each controller decision has a leader epoch; only a higher one changes anything.
"""

from headrace.core.fetch_rules import check_follower, check_leader_epoch, find_divergence
from headrace.core.following import Following
from headrace.core.leader_epochs import EpochEnd, LeaderEpochs
from headrace.core.leadership import Leadership, ReplicationSettings
from headrace.core.partition_effects import (
    Effect,
    FollowLeader,
    LeadershipGained,
    LeadershipLost,
    StaleLeaderEpoch,
    StopFollowing,
)
from headrace.model.cluster_metadata import NO_LEADER, PartitionState
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import NO_LEADER_EPOCH, BrokerId, LeaderEpoch, Offset

# In a StopReplica request for a deleted topic; deletion does not raise the leader epoch.
EPOCH_DURING_DELETE = LeaderEpoch(-2)


class Partition:
    """The machine of one replica. Before the first controller decision it follows no leader."""

    __slots__ = ("broker_id", "role", "settings")

    def __init__(
        self, broker_id: BrokerId, settings: ReplicationSettings, high_watermark: Offset
    ) -> None:
        """``high_watermark`` is the checkpointed one, which may be behind."""
        self.broker_id = broker_id
        self.settings = settings
        self.role: Leadership | Following = Following(
            NO_LEADER, NO_LEADER_EPOCH, settings, high_watermark
        )

    @property
    def leadership(self) -> Leadership | None:
        return self.role if isinstance(self.role, Leadership) else None

    @property
    def following(self) -> Following | None:
        return self.role if isinstance(self.role, Following) else None

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self.role.leader_epoch

    @property
    def high_watermark(self) -> Offset:
        return self.role.high_watermark

    # --- what the controller decides -----------------------------------------

    def apply(
        self, state: PartitionState, log_start: Offset, log_end: Offset, now: float
    ) -> list[Effect]:
        """Lead or follow, as ``state`` says (LeaderAndIsr). The offsets are those of the log.

        ISR changes within a leader epoch reach the leader only as answers to its proposals.
        """
        role = self.role
        if state.leader_epoch <= role.leader_epoch:
            return [StaleLeaderEpoch(role.leader_epoch)]
        if state.leader != self.broker_id:
            return self._follow(state.leader, state.leader_epoch)
        if isinstance(role, Leadership):
            return role.epoch_bumped(state, log_end, now)
        high_watermark = max(log_start, min(role.high_watermark, log_end))
        self.role = leadership = Leadership(
            self.broker_id, state, self.settings, log_end, high_watermark, now
        )
        stop = [StopFollowing()] if role.leader != NO_LEADER else []
        gained = LeadershipGained(state.leader_epoch, log_end)
        return [*stop, gained, *leadership.started()]

    def stop(self, leader_epoch: LeaderEpoch) -> list[Effect]:
        """This broker is to stop its replica (StopReplica): it was reassigned, deleted, or stops.

        The request carries the epoch that the broker knows already; only a lower one is stale.
        """
        known = self.role.leader_epoch
        if leader_epoch not in (EPOCH_DURING_DELETE, NO_LEADER_EPOCH) and leader_epoch < known:
            return [StaleLeaderEpoch(known)]
        return self._follow(NO_LEADER, max(known, leader_epoch))

    def _follow(self, leader: BrokerId, leader_epoch: LeaderEpoch) -> list[Effect]:
        role = self.role
        self.role = Following(leader, leader_epoch, self.settings, role.high_watermark)
        effects: list[Effect] = []
        if isinstance(role, Leadership):
            effects.append(LeadershipLost(leader, leader_epoch))
        elif role.leader != NO_LEADER and leader == NO_LEADER:
            effects.append(StopFollowing())
        if leader != NO_LEADER:
            effects.append(FollowLeader(leader, leader_epoch))
        return effects

    def settings_changed(self, settings: ReplicationSettings, now: float) -> list[Effect]:
        self.settings = settings
        return self.role.settings_changed(settings, now)

    # --- what followers ask --------------------------------------------------

    def check_follower_fetch(
        self,
        follower: BrokerId,
        current_leader_epoch: LeaderEpoch,
        fetch_offset: Offset,
        last_fetched_epoch: LeaderEpoch,
        epochs: LeaderEpochs,
        log_start: Offset,
        log_end: Offset,
    ) -> EpochEnd | None:
        """Validate a follower's fetch as ``core.fetch_rules`` says; return the divergence, if any.

        A fetch without error and without divergence goes to ``Leadership.follower_fetched``.
        """
        role = self.role
        check_leader_epoch(current_leader_epoch, role.leader_epoch)
        if not isinstance(role, Leadership):
            raise Rejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not lead")
        check_follower(follower, role.followers)
        return find_divergence(fetch_offset, last_fetched_epoch, epochs, log_start, log_end)
