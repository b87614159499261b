"""Effects of the partition machines: changes of the log, messages to waiters, orders to peers.

``core.partition`` decides; ``carry_out`` does what it decided, in order, without decisions and
without awaiting.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, assert_never

from headrace.broker.replication.waiting import Waiting
from headrace.core.parked import Event
from headrace.core.partition_effects import (
    AdvanceLogStart,
    Effect,
    FlushToShrinkIsr,
    FollowerLogStartAdvanced,
    FollowLeader,
    HighWatermarkAdvanced,
    IsrChanged,
    LeaderEpochBumped,
    LeadershipGained,
    LeadershipLost,
    ProposeIsr,
    RestartLog,
    StaleLeaderEpoch,
    StopFollowing,
    Truncate,
)
from headrace.model.ids import Offset
from headrace.storage.log_retention import delete_records_before

if TYPE_CHECKING:
    from typing import Protocol

    from headrace.broker.replication.replica import Replica
    from headrace.model.ids import BrokerId

    class Following(Protocol):
        def follow(self, replica: Replica, leader: BrokerId) -> None: ...
        def stop_following(self, replica: Replica) -> None: ...

    class Flushing(Protocol):
        def flush_to_shrink(self, replica: Replica) -> None: ...

    class Proposing(Protocol):
        def propose(self, replica: Replica, proposal: ProposeIsr) -> None: ...


class Effects:
    """On one node no effect concerns other brokers, and ``connect`` is not called."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._replication: Flushing | None = None
        self._fetchers: Following | None = None
        self._isr_proposals: Proposing | None = None

    def connect(
        self,
        *,
        replication: "Flushing | None" = None,
        fetchers: "Following | None" = None,
        isr_proposals: "Proposing | None" = None,
    ) -> None:
        """Send effects that concern other brokers to these parts; None keeps the current part."""
        self._replication = replication or self._replication
        self._fetchers = fetchers or self._fetchers
        self._isr_proposals = isr_proposals or self._isr_proposals

    def disconnect(self) -> None:
        self._replication = self._fetchers = self._isr_proposals = None

    def carry_out(self, replica: "Replica", effects: Iterable[Effect]) -> None:
        """Raises OSError if the disk refuses a truncation."""
        for effect in effects:
            match effect:
                case HighWatermarkAdvanced(to):
                    producers = replica.log.producers
                    if producers.unreplicated:
                        producers.high_watermark_advanced(to)
                    if self._waiting.is_awaited(replica):
                        self._high_watermark_advanced(replica, to)
                case LeadershipGained(leader_epoch, start_offset):
                    replica.log.leader_epochs.assign(leader_epoch, start_offset)
                    self._waiting.happened(replica, Event.LEADERSHIP_GAINED)
                case LeaderEpochBumped(leader_epoch, start_offset):
                    replica.log.leader_epochs.assign(leader_epoch, start_offset)
                case LeadershipLost():
                    self._waiting.happened(replica, Event.LEADERSHIP_LOST)
                case FollowerLogStartAdvanced():
                    self._waiting.happened(replica, Event.FOLLOWER_LOG_START)
                case Truncate() | RestartLog() | AdvanceLogStart():
                    _change_log(replica, effect)
                case ProposeIsr() | FlushToShrinkIsr() | FollowLeader() | StopFollowing():
                    self._tell_peers(replica, effect)
                case IsrChanged() | StaleLeaderEpoch():
                    pass  # the caller of the machine reports it
                case _:
                    assert_never(effect)

    def _high_watermark_advanced(self, replica: "Replica", to: Offset) -> None:
        self._waiting.happened(replica, Event.HIGH_WATERMARK)
        stable = replica.log.last_stable_offset(to)
        if stable != replica.last_stable_offset:
            replica.last_stable_offset = stable
            self._waiting.happened(replica, Event.LAST_STABLE_OFFSET)

    def _tell_peers(
        self,
        replica: "Replica",
        effect: ProposeIsr | FlushToShrinkIsr | FollowLeader | StopFollowing,
    ) -> None:
        match effect:
            case ProposeIsr():
                if self._isr_proposals is not None:
                    self._isr_proposals.propose(replica, effect)
            case FlushToShrinkIsr():
                if self._replication is not None:
                    self._replication.flush_to_shrink(replica)
            case FollowLeader(leader):
                if self._fetchers is not None:
                    self._fetchers.follow(replica, leader)
            case StopFollowing():
                if self._fetchers is not None:
                    self._fetchers.stop_following(replica)


def _change_log(replica: "Replica", effect: Truncate | RestartLog | AdvanceLogStart) -> None:
    # Imported here: a cluster of one never truncates.
    from headrace.storage.log_truncation import truncate_fully, truncate_to

    match effect:
        case Truncate(to):
            truncate_to(replica.log, to)
        case RestartLog(at):
            truncate_fully(replica.log, at)
        case AdvanceLogStart(to):
            delete_records_before(replica.log, to)
