"""What the machine of one partition replica asks the broker to do, or tells it.

``core.partition`` and its two roles return lists of these; the broker carries them out in order.
"""

from dataclasses import dataclass
from typing import NamedTuple

from headrace.model.ids import BrokerId, LeaderEpoch, Offset


@dataclass(frozen=True, slots=True)
class HighWatermarkAdvanced:
    """Records below ``to`` are committed: acks=all may be answered, consumers may see them."""

    to: Offset


class IsrMember(NamedTuple):
    broker_id: BrokerId
    broker_epoch: int  # as the follower's fetches carry it (KIP-903); -1 if unknown


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Ask the controller for this ISR (AlterPartition), and report its answer to the leadership.

    The change is guarded: it applies only to the state with this leader and partition epoch. An
    equal proposal may be sent again; the controller answers the second one with the state that
    the first one made.
    """

    members: tuple[IsrMember, ...]  # in assignment order
    leader_epoch: LeaderEpoch
    partition_epoch: int

    @property
    def isr(self) -> frozenset[BrokerId]:
        return frozenset(member.broker_id for member in self.members)


@dataclass(frozen=True, slots=True)
class FlushToShrinkIsr:
    """Flush the log, report it (``appended``), and ``tick`` again: the ISR is about to shrink
    below min.insync.replicas. The replicas left must not lose committed records with their power.
    """


@dataclass(frozen=True, slots=True)
class IsrChanged:
    """The controller confirmed an ISR."""

    isr: frozenset[BrokerId]
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class FollowerLogStartAdvanced:
    """A follower deleted records below ``to``: look again at waiting DeleteRecords requests."""

    broker_id: BrokerId
    to: Offset


@dataclass(frozen=True, slots=True)
class LeadershipGained:
    """This broker leads now. Its leader epoch begins at ``start_offset``: note it in the log."""

    leader_epoch: LeaderEpoch
    start_offset: Offset


@dataclass(frozen=True, slots=True)
class LeaderEpochBumped:
    """This broker remains the leader, in a higher leader epoch that begins at ``start_offset``.

    Kafka's controller bumps the leader epoch whenever another replica dies. Parked requests and
    loaded coordinator shards stay as they are.
    """

    leader_epoch: LeaderEpoch
    start_offset: Offset


@dataclass(frozen=True, slots=True)
class LeadershipLost:
    """This broker no longer leads: answer all waiting requests at once.

    ``leader`` is the new one, or NO_LEADER; ``leader_epoch`` is the new epoch.
    """

    leader: BrokerId
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class FollowLeader:
    """Fetch from ``leader`` in ``leader_epoch``, and from no other broker."""

    leader: BrokerId
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class StopFollowing:
    """Stop fetching: the partition has no leader, or this broker no longer hosts it."""


@dataclass(frozen=True, slots=True)
class StaleLeaderEpoch:
    """Nothing changed: the request's leader epoch is not above ``leader_epoch``, the known one."""

    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class Truncate:
    """Drop the records at ``to`` and above: the leader does not have them. Then fetch again."""

    to: Offset


@dataclass(frozen=True, slots=True)
class RestartLog:
    """Drop all records and continue at ``at``. Then fetch again."""

    at: Offset


@dataclass(frozen=True, slots=True)
class AdvanceLogStart:
    """Delete the records below ``to``, as the leader did."""

    to: Offset


Effect = (
    HighWatermarkAdvanced
    | ProposeIsr
    | FlushToShrinkIsr
    | IsrChanged
    | FollowerLogStartAdvanced
    | LeadershipGained
    | LeaderEpochBumped
    | LeadershipLost
    | FollowLeader
    | StopFollowing
    | StaleLeaderEpoch
    | Truncate
    | RestartLog
    | AdvanceLogStart
)
