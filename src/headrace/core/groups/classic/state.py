"""The state of a classic group: its members, their votes, and their parked requests."""

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from headrace.core.groups.classic.members import ClassicMember, subscribed_topics
from headrace.core.groups.classic.responses import join_refused, refused
from headrace.core.groups.group import Timer
from headrace.core.outcome import NOTHING, Outcome, Ticket
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.core.groups.shard import GroupShard

CONSUMER = "consumer"  # the protocol type of consumers
JOIN, SYNC = "join", "sync"  # timers of a group, one for each phase of a rebalance


class GroupState(Enum):
    """The states of a group, the answer to each request, and the transitions.

    Checked first, in every state: an unknown member gets UNKNOWN_MEMBER_ID, a replaced static
    member FENCED_INSTANCE_ID, a wrong generation ILLEGAL_GENERATION (a join has none).
    """

    #: The group has no members; it may have offsets.
    #:   join         the first member starts a rebalance, which waits for more -> PREPARING
    #:   sync, heartbeat, leave    UNKNOWN_MEMBER_ID
    #:   commit       accepted without a membership claim (generation -1)
    #:   all offsets expired, or the group deleted                          -> removed
    EMPTY = "Empty"

    #: Members are asked to join again; those that have are parked.
    #:   join         parked; the last missing member completes the phase   -> COMPLETING
    #:   sync         REBALANCE_IN_PROGRESS
    #:   heartbeat    REBALANCE_IN_PROGRESS, which makes the member join; extends its session
    #:   leave        accepted; may complete the phase                      -> COMPLETING, EMPTY
    #:   commit       accepted from members of the old generation: their last chance
    #:   join timeout: removes dynamic members that have not joined         -> COMPLETING, EMPTY
    PREPARING = "PreparingRebalance"

    #: All members know the generation; the leader computes the assignment.
    #:   join         unchanged: answered again as before;
    #:                changed: starts another rebalance                     -> PREPARING
    #:   sync         parked; the leader's is written and answers them all  -> STABLE
    #:   heartbeat    accepted
    #:   leave, session timeout                                             -> PREPARING
    #:   commit       REBALANCE_IN_PROGRESS: the member may no longer own the partitions
    #:   sync timeout: removes members that did not sync                    -> PREPARING
    COMPLETING = "CompletingRebalance"

    #: Every member has an assignment.
    #:   join         unchanged, of a follower: answered at once; a returning static member
    #:                takes its old place without a rebalance; any other    -> PREPARING
    #:   sync         answered with the assignment
    #:   heartbeat    accepted
    #:   leave, session timeout                                             -> PREPARING
    #:   commit       accepted
    STABLE = "Stable"


class ClassicState:
    """Keeps members, votes, instance ids and parked requests consistent with each other."""

    def __init__(self, shard: "GroupShard", group_id: str) -> None:
        self.shard = shard
        self.timers = shard.timers
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type_known: str | None = None  # None: the group only ever had offsets
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.state_since = Millis(-1)
        # Topics of the current generation; None: the subscriptions cannot be read.
        self.subscribed_topics: frozenset[str] | None = None
        # Everything below is soft.
        self.static: dict[str, str] = {}  # member id by instance id
        self.votes: dict[str, int] = {}  # how many members support each protocol
        self.pending: set[str] = (
            set()
        )  # ids sent with MEMBER_ID_REQUIRED, before the member joins with one
        self.joining: dict[str, Ticket] = {}  # all and only members with a parked join
        self.syncing: dict[str, Ticket] = {}  # all and only members with a parked sync
        self.unsynced: set[str] = set()  # know this generation, have not synced yet
        self.is_initial = False  # this rebalance began with an empty group
        self.is_growing = False  # a new member came since the initial delay was last set
        self.initial_ms_left = 0
        self.join_timer = Timer(group_id, JOIN)
        self.sync_timer = Timer(group_id, SYNC)

    # -- members --------------------------------------------------------------------------

    def known(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The member that a request comes from; raises Rejected if there is none."""
        if instance_id is not None:
            present_id = self.static.get(instance_id)
            if present_id is not None and present_id != member_id:
                raise Rejected(ErrorCode.FENCED_INSTANCE_ID)
            if present_id is None:
                raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.members.get(member_id)
        if member is None:
            raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def insert(self, member: ClassicMember) -> None:
        self.members[member.member_id] = member
        self._count_votes(member, 1)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def swap(self, old: ClassicMember, new: ClassicMember) -> None:
        """Put ``new`` in the place of ``old``: the order of members decides the next leader."""
        self._count_votes(old, -1)
        self.members = {
            (new if member is old else member).member_id: (new if member is old else member)
            for member in self.members.values()
        }
        self._count_votes(new, 1)
        assert new.instance_id is not None
        self.static[new.instance_id] = new.member_id
        if self.leader_id == old.member_id:
            self.leader_id = new.member_id

    def remove(self, member_id: str) -> Outcome:
        """Remove a member and reject the requests that it has parked."""
        member = self.members.pop(member_id)
        self._count_votes(member, -1)
        if member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        self.timers.cancel(member.session)
        self.mark_synced(member_id)
        outcome = NOTHING
        if (parked := self.joining.pop(member_id, None)) is not None:
            outcome += join_refused(parked, ErrorCode.UNKNOWN_MEMBER_ID, "")
        if self.leader_id == member_id:
            # The parked member that joined last becomes the leader. Some clients stop without
            # leaving (Kafka Streams), so an older one may be gone, and everyone would wait for
            # its assignment.
            self.leader_id = next(reversed(self.joining or self.members), None)
        if (parked := self.syncing.pop(member_id, None)) is not None:
            outcome += refused(parked, m.SyncGroupResponse, ErrorCode.UNKNOWN_MEMBER_ID)
        return outcome

    def restart_session(self, member: ClassicMember, now: Millis) -> None:
        self.timers.set(member.session, now + member.session_timeout_ms)

    def mark_synced(self, member_id: str) -> None:
        self.unsynced.discard(member_id)
        if not self.unsynced:
            self.timers.cancel(self.sync_timer)

    # -- protocols ------------------------------------------------------------------------

    def set_protocols(self, member: ClassicMember, protocols: Sequence[tuple[str, bytes]]) -> None:
        self._count_votes(member, -1)
        member.protocols = tuple(protocols)
        self._count_votes(member, 1)

    def _count_votes(self, member: ClassicMember, by: int) -> None:
        votes = self.votes
        for name in {name for name, _ in member.protocols}:
            votes[name] = votes.get(name, 0) + by
            if not votes[name]:
                del votes[name]

    def supports(self, protocol_type: str, protocols: Sequence[tuple[str, bytes]]) -> bool:
        """Whether all members, and a new one with these protocols, share a protocol."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        member_count = len(self.members)
        return protocol_type == self.protocol_type_known and any(
            self.votes.get(name, 0) == member_count for name, _ in protocols
        )

    def choose_protocol(self) -> str | None:
        """The protocol with the most votes among those that all members support.

        A tie goes to the first by name.
        """
        member_count = len(self.members)
        candidates = {name for name, count in self.votes.items() if count == member_count}
        tally: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            if choice is not None:
                tally[choice] = tally.get(choice, 0) + 1
        return min(tally, key=lambda name: (-tally[name], name), default=None)

    def subscriptions(self) -> frozenset[str] | None:
        """The topics that members of this generation read; None if that is not known.

        Only the subscriptions of consumers can be read.
        """
        if self.protocol_type_known != CONSUMER:
            return None
        try:
            return frozenset(
                topic
                for member in self.members.values()
                for topic in subscribed_topics(member.metadata(self.protocol_name))
            )
        except ValueError:
            return None

    # -- the rebalance --------------------------------------------------------------------

    def have_all_joined(self) -> bool:
        return len(self.joining) == len(self.members) and not self.pending

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)
