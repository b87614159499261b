"""A group whose members assign partitions among themselves: the classic protocol.

One rebalance, as it goes when nothing goes wrong:

    members     JoinGroup ───►  parked until all have joined      (Preparing)
    group       generation + 1, the protocol with most votes, a leader
                ◄───  all joins answered, the leader's with everybody's subscriptions
    members     SyncGroup ───►  parked until the leader's comes   (Completing)
    leader      SyncGroup with the assignments ───►  one GroupMetadata record
                ◄───  all syncs answered, each with its assignment (Stable)

The log holds the group as of the last completed rebalance, in one GroupMetadata record. What
runs here starts from that and runs ahead of it while a rebalance is under way; that part is soft.
A coordinator that loads the group knows the last completed generation: members of an unfinished
one are told so (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID) and join again.

What the group says of versions and clients is documented with each state below.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, TypeVar

from headrace.core.groups.group import TEXT_SIZE_MAX, Expiry, GroupKind, Member, Timer
from headrace.core.outcome import NOTHING, NewRecord, Outcome, Reply, RequestContext, Ticket
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, TopicId
from headrace.wire import messages as m
from headrace.wire.framing import decode_record_key, decode_versioned, encode_versioned
from headrace.wire.framing import encode_record_key as encode_key

if TYPE_CHECKING:
    from headrace.core.groups.shard import GroupShard

# A member that has no id yet cannot heartbeat while its first JoinGroup waits, and whether its
# connection still stands is not seen. Without an end, clients that retry would fill the group.
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
# The oldest version with all that is kept, which brokers back to 2.3 read (KIP-915 has 4).
_GROUP_METADATA_VERSION = 3
_CONSUMER = "consumer"
_RETRY_EMPTY_MS = 5_000
BEGIN = "begin"  # the timer by which a group that was made of another kind begins to rebalance

_FIRST_JOIN_WITH_REQUIRED_ID = 4
_FIRST_JOIN_WITH_SKIP_ASSIGNMENT = 9

_UUID = "." * 36
_SUBSCRIPTION_HEAD = Struct(">hi")  # version, number of topics
_LENGTH = Struct(">h")

_HEARTBEAT_OK = m.HeartbeatResponse()
ResponseT = TypeVar("ResponseT", m.HeartbeatResponse, m.SyncGroupResponse)


class GroupState(Enum):
    """Where a group stands, with what each request gets there and what leads out.

    Before any of it, in every state: an unknown member gets UNKNOWN_MEMBER_ID, a static member
    that was replaced FENCED_INSTANCE_ID, a wrong generation ILLEGAL_GENERATION (a join has none).
    """

    #: Nobody is in it; offsets may be.
    #:   join         the first member opens a rebalance, which waits for more -> PREPARING
    #:   sync, heartbeat, leave    UNKNOWN_MEMBER_ID
    #:   commit       taken from those who claim no membership (generation -1)
    #:   offsets all expired, or the group deleted                          -> gone
    EMPTY = "Empty"

    #: Members are asked to join again; those who have are parked.
    #:   join         parked; the last one missing completes the phase      -> COMPLETING
    #:   sync         REBALANCE_IN_PROGRESS
    #:   heartbeat    REBALANCE_IN_PROGRESS, which tells the member to join; counts for its session
    #:   leave        taken; may complete the phase                         -> COMPLETING, EMPTY
    #:   commit       taken from members of the old generation: their last chance
    #:   time is over: dynamic members that have not joined are out         -> COMPLETING, EMPTY
    PREPARING = "PreparingRebalance"

    #: All know the generation; the leader is working out the assignment.
    #:   join         of a member that says nothing new: answered again as before;
    #:                any other opens another rebalance                     -> PREPARING
    #:   sync         parked; the leader's is written and answers them all  -> STABLE
    #:   heartbeat    fine
    #:   leave, session over                                                -> PREPARING
    #:   commit       REBALANCE_IN_PROGRESS: it may be about partitions that are no longer one's own
    #:   sync time is over: members that did not sync are out               -> PREPARING
    COMPLETING = "CompletingRebalance"

    #: Everybody has an assignment.
    #:   join         of a follower that says nothing new: answered at once; a static member that
    #:                comes back takes its old place without a rebalance; any other -> PREPARING
    #:   sync         answered with the assignment
    #:   heartbeat    fine
    #:   leave, session over                                                -> PREPARING
    #:   commit       taken
    STABLE = "Stable"


class ClassicMember:
    """One member, with what it said when it last joined."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
    )

    def __init__(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Sequence[tuple[str, bytes]],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = tuple(protocols)  # name and metadata, the best liked first
        self.assignment = assignment
        self.is_new = False  # its first join is not answered yet
        self.session = Timer(group_id, "session", member_id)

    def metadata(self, protocol_name: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def vote(self, candidates: Iterable[str]) -> str | None:
        return next((name for name, _ in self.protocols if name in candidates), None)


class ClassicGroup:
    """Satisfies ``group.Group``."""

    kind = GroupKind.CLASSIC

    def __init__(self, shard: "GroupShard", group_id: str) -> None:
        self._shard = shard
        self._timers = shard.timers
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type_known: str | None = None  # None: only ever had offsets committed
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.state_since = Millis(-1)
        self.is_logged = False  # whether a GroupMetadata record stands in the log
        # Topics of the present generation; None: the subscriptions cannot be read.
        self.subscribed_topics: frozenset[str] | None = None
        # From here on soft.
        self._static: dict[str, str] = {}  # member id by instance id
        self._votes: dict[str, int] = {}  # how many members support each protocol
        self._pending: set[str] = set()  # ids given out (MEMBER_ID_REQUIRED), not yet joined with
        self._joining: dict[str, Ticket] = {}  # all and only members whose join is parked
        self._syncing: dict[str, Ticket] = {}  # all and only members whose sync is parked
        self._unsynced: set[str] = set()  # told of this generation, no sync yet
        self._is_initial = False  # this rebalance began with an empty group
        self._is_growing = False  # somebody new came since the initial delay was last set
        self._initial_ms_left = 0
        self._join_timer = Timer(group_id, "join")
        self._sync_timer = Timer(group_id, "sync")

    # -- joining --------------------------------------------------------------------------

    def join(
        self,
        ticket: Ticket,
        context: RequestContext,
        request: m.JoinGroupRequest,
        drawn_id: str,
        now: Millis,
    ) -> Outcome:
        try:
            return self._join(ticket, context, request, drawn_id, now)
        except Rejected as refusal:
            return join_refused(ticket, refusal.code, request.member_id)

    def _join(
        self,
        ticket: Ticket,
        context: RequestContext,
        request: m.JoinGroupRequest,
        drawn_id: str,
        now: Millis,
    ) -> Outcome:
        check_texts(context, request)
        member_id = request.member_id
        if not self._has_room_for(member_id):
            return self._turn_away(ticket, member_id, now)
        protocols = [(protocol.name, protocol.metadata) for protocol in request.protocols]
        if not self._supports(request.protocol_type, protocols):
            raise Rejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        instance_id = request.group_instance_id
        if not member_id:
            new_id = f"{instance_id or context.client_id}-{drawn_id}"
            if instance_id is not None:
                if instance_id in self._static:
                    return self._replace_static(ticket, context, request, new_id, protocols, now)
            elif requires_known_id(context, request):
                # KIP-394: it joins again under this id. One that dies before costs the group no
                # rebalance, only a name that is forgotten after a session's time.
                self._pending.add(new_id)
                self._timers.set(
                    Timer(self.group_id, "session", new_id), now + request.session_timeout_ms
                )
                return join_refused(ticket, ErrorCode.MEMBER_ID_REQUIRED, new_id)
            return self._add(ticket, context, request, new_id, protocols, now)
        if member_id in self._pending:
            if instance_id is not None:
                raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)  # only dynamic members are pending
            return self._add(ticket, context, request, member_id, protocols, now)
        member = self._known(member_id, instance_id)
        return self._join_again(ticket, request, member, protocols, now)

    def _has_room_for(self, member_id: str) -> bool:
        size_max = self._shard.cluster.config.int("group.max.size")
        if self.state is GroupState.EMPTY:
            return True
        if self.state is GroupState.PREPARING:
            # Everybody has to join anew, so the first come are served: a limit that was lowered
            # takes effect here.
            return member_id in self._joining or len(self._joining) < size_max
        return member_id in self.members or len(self.members) < size_max

    def _turn_away(self, ticket: Ticket, member_id: str, now: Millis) -> Outcome:
        outcome = join_refused(ticket, ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        count = len(self.members)
        if member_id in self.members:
            outcome += self._remove(member_id)
        self._pending.discard(member_id)
        return outcome + self._close_gap(count, now)

    def _supports(self, protocol_type: str, protocols: Sequence[tuple[str, bytes]]) -> bool:
        """Would there be a protocol that all members know, with this one among them?"""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        everybody = len(self.members)
        return protocol_type == self.protocol_type_known and any(
            self._votes.get(name, 0) == everybody for name, _ in protocols
        )

    def _add(
        self,
        ticket: Ticket,
        context: RequestContext,
        request: m.JoinGroupRequest,
        member_id: str,
        protocols: Sequence[tuple[str, bytes]],
        now: Millis,
    ) -> Outcome:
        member = ClassicMember(
            self.group_id,
            member_id,
            request.group_instance_id,
            context.client_id,
            context.client_host,
            rebalance_timeout_ms(request),
            request.session_timeout_ms,
            protocols,
        )
        member.is_new = True
        if self.state is GroupState.PREPARING and self._is_initial:
            self._is_growing = True
        if not self.members:
            self.protocol_type_known = request.protocol_type
        if self.leader_id is None:
            self.leader_id = member_id
        self._insert(member)
        self._pending.discard(member_id)
        self._joining[member_id] = ticket
        self._timers.set(member.session, now + NEW_MEMBER_JOIN_TIMEOUT_MS)
        return self._rebalance_or_complete(now)

    def _join_again(
        self,
        ticket: Ticket,
        request: m.JoinGroupRequest,
        member: ClassicMember,
        protocols: Sequence[tuple[str, bytes]],
        now: Millis,
    ) -> Outcome:
        says_the_same = member.protocols == tuple(protocols)
        if self.state is GroupState.EMPTY:
            raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        if self.state is GroupState.COMPLETING and says_the_same:
            # It has not seen the answer to its last join: tell it once more, with no rebalance.
            return Outcome(replies=(Reply(ticket, self._joined(member)),))
        if (
            self.state is GroupState.STABLE
            and says_the_same
            and member.member_id != self.leader_id  # a leader that joins again wants a rebalance
        ):
            answer = self._joined(member)
            answer.members = []
            return Outcome(replies=(Reply(ticket, answer),))
        return self._park_join(ticket, request, member, protocols) + self._rebalance_or_complete(
            now
        )

    def _park_join(
        self,
        ticket: Ticket,
        request: m.JoinGroupRequest,
        member: ClassicMember,
        protocols: Sequence[tuple[str, bytes]],
    ) -> Outcome:
        self._count_votes(member, -1)
        member.protocols = tuple(protocols)
        self._count_votes(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms(request)
        member.session_timeout_ms = request.session_timeout_ms
        before = self._joining.get(member.member_id)
        self._joining[member.member_id] = ticket
        if before is None:
            return NOTHING
        # The same member asked on another connection; nobody should wait on the older one.
        return join_refused(before, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)

    def _replace_static(
        self,
        ticket: Ticket,
        context: RequestContext,
        request: m.JoinGroupRequest,
        new_id: str,
        protocols: Sequence[tuple[str, bytes]],
        now: Millis,
    ) -> Outcome:
        """A static member came back without its id: it takes its old place under a new one."""
        assert request.group_instance_id is not None
        old_id = self._static[request.group_instance_id]
        old_leader_id = self.leader_id
        old = self.members[old_id]
        fenced: Outcome = NOTHING
        if (parked := self._joining.pop(old_id, None)) is not None:
            fenced += join_refused(parked, ErrorCode.FENCED_INSTANCE_ID, old_id)
        if (parked := self._syncing.pop(old_id, None)) is not None:
            fenced += refused(parked, m.SyncGroupResponse, ErrorCode.FENCED_INSTANCE_ID)
        self._timers.cancel(old.session)
        self._unsynced.discard(old_id)
        member = ClassicMember(
            self.group_id,
            new_id,
            old.instance_id,
            context.client_id,
            context.client_host,
            old.rebalance_timeout_ms,
            old.session_timeout_ms,
            old.protocols,
            old.assignment,
        )
        self._swap(old, member)
        self._park_join(ticket, request, member, protocols)
        self._timers.set(member.session, now + member.session_timeout_ms)
        if self.state is GroupState.STABLE and self._choose_protocol() == self.protocol_name:
            del self._joining[new_id]
            answer = self._joined(member)
            if context.api_version >= _FIRST_JOIN_WITH_SKIP_ASSIGNMENT:
                # KIP-814: the leader gets the list, to watch the topics, and is told that the
                # assignment stands.
                answer.skip_assignment = new_id == self.leader_id
            else:
                # It must not take itself for the leader, or it would assign anew.
                answer.leader = old_leader_id or ""
                answer.members = []
            return fenced + Outcome((self._record(now),), (Reply(ticket, answer),))
        if self.state is GroupState.PREPARING:
            return fenced + self._maybe_complete_join(now)
        # Completing: the leader may be assigning to the old id at this moment.
        return fenced + self._prepare(now)

    def _swap(self, old: ClassicMember, new: ClassicMember) -> None:
        """In the same place: the order of members says who leads after the leader."""
        self._count_votes(old, -1)
        self.members = {
            (new if member is old else member).member_id: (new if member is old else member)
            for member in self.members.values()
        }
        self._count_votes(new, 1)
        assert new.instance_id is not None
        self._static[new.instance_id] = new.member_id
        if self.leader_id == old.member_id:
            self.leader_id = new.member_id

    def _joined(self, member: ClassicMember) -> m.JoinGroupResponse:
        answer = m.JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type_known,
            protocol_name=self.protocol_name or "",
            leader=self.leader_id or "",
            member_id=member.member_id,
        )
        if member.member_id == self.leader_id:
            answer.members = [
                m.JoinGroupResponse.JoinGroupResponseMember(
                    member_id=other.member_id,
                    group_instance_id=other.instance_id,
                    metadata=other.metadata(self.protocol_name),
                )
                for other in self.members.values()
            ]
        return answer

    # -- the course of a rebalance --------------------------------------------------------

    def _rebalance_or_complete(self, now: Millis) -> Outcome:
        if self.state is GroupState.PREPARING:
            return self._maybe_complete_join(now)
        return self._prepare(now)

    def _prepare(self, now: Millis) -> Outcome:
        """Begin a rebalance."""
        outcome = NOTHING
        if self.state is GroupState.COMPLETING:
            outcome = self._answer_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now)
        self._timers.cancel(self._sync_timer)
        self._is_initial = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING
        self.state_since = now
        if not self._is_initial:
            return outcome + self._complete_join_or_wait(now)
        # A group that starts up gets its members one after the other. Waiting a little saves a
        # rebalance for each of them.
        delay_ms = self._shard.cluster.config.int("group.initial.rebalance.delay.ms")
        self._initial_ms_left = max(self._rebalance_timeout_ms() - delay_ms, 0)
        self._is_growing = False
        self._timers.set(self._join_timer, now + delay_ms)
        return outcome

    def _complete_join_or_wait(self, now: Millis) -> Outcome:
        if self._all_have_joined():
            return self._complete_join(now)
        self._timers.set(self._join_timer, now + self._rebalance_timeout_ms())
        return NOTHING

    def _maybe_complete_join(self, now: Millis) -> Outcome:
        # The initial delay runs to its end even when everybody known is there.
        if self._is_initial or not self._all_have_joined():
            return NOTHING
        return self._complete_join(now)

    def _all_have_joined(self) -> bool:
        return len(self._joining) == len(self.members) and not self._pending

    def _initial_delay_over(self, now: Millis) -> Outcome:
        if not self._is_growing or self._initial_ms_left == 0:
            return self._complete_join(now)
        self._is_growing = False
        delay_ms = min(
            self._shard.cluster.config.int("group.initial.rebalance.delay.ms"),
            self._initial_ms_left,
        )
        self._initial_ms_left -= delay_ms
        self._timers.set(self._join_timer, now + delay_ms)
        return NOTHING

    def _complete_join(self, now: Millis) -> Outcome:
        """All have joined, or the time to do so is over: a new generation begins."""
        self._timers.cancel(self._join_timer)
        for member in list(self.members.values()):
            # A static member is only away; its session decides.
            if member.member_id not in self._joining and member.instance_id is None:
                self._remove(member.member_id)
        if not self.members:
            # If the record cannot be written now, the group is left to a later try.
            self._timers.set(self._join_timer, now + _RETRY_EMPTY_MS)
            return Outcome((self._empty_record(now),))
        if not self._joining:
            # Static members alone, and none is back yet. Their sessions will end this.
            self._timers.set(self._join_timer, now + self._rebalance_timeout_ms())
            return NOTHING
        if self.leader_id not in self._joining:
            self.leader_id = next(reversed(self._joining))
        self.generation += 1
        self.protocol_name = self._choose_protocol()
        self.subscribed_topics = self._subscriptions()
        self.state = GroupState.COMPLETING
        self.state_since = now
        self._is_initial = False
        self._unsynced = set(self.members)
        replies = []
        for member in self.members.values():
            ticket = self._joining.pop(member.member_id, None)
            if ticket is not None:
                replies.append(Reply(ticket, self._joined(member)))
            member.is_new = False
            self._timers.set(member.session, now + member.session_timeout_ms)
        self._timers.set(self._sync_timer, now + self._rebalance_timeout_ms())
        return Outcome(replies=tuple(replies))

    def _choose_protocol(self) -> str | None:
        """Of those that all members know, the one that most like best; a tie goes by name."""
        everybody = len(self.members)
        candidates = {name for name, count in self._votes.items() if count == everybody}
        tally: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            if choice is not None:
                tally[choice] = tally.get(choice, 0) + 1
        return min(tally, key=lambda name: (-tally[name], name), default=None)

    def _rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # -- syncing --------------------------------------------------------------------------

    def sync(
        self, ticket: Ticket, context: RequestContext, request: m.SyncGroupRequest, now: Millis
    ) -> Outcome:
        try:
            member = self._known(request.member_id, request.group_instance_id)
            if request.generation_id != self.generation:
                raise Rejected(ErrorCode.ILLEGAL_GENERATION)
            if request.protocol_type not in (None, self.protocol_type_known) or (
                request.protocol_name not in (None, self.protocol_name)
            ):
                raise Rejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            return self._sync(ticket, request, member, now)
        except Rejected as refusal:
            return refused(ticket, m.SyncGroupResponse, refusal.code)

    def _sync(
        self, ticket: Ticket, request: m.SyncGroupRequest, member: ClassicMember, now: Millis
    ) -> Outcome:
        member_id = member.member_id
        if self.state is GroupState.PREPARING:
            raise Rejected(ErrorCode.REBALANCE_IN_PROGRESS)
        if self.state is GroupState.EMPTY:
            raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        self._synced(member_id)
        if self.state is GroupState.STABLE:
            return Outcome(replies=(Reply(ticket, self._assignment(member.assignment)),))
        outcome = NOTHING
        if (before := self._syncing.get(member_id)) is not None:
            outcome = refused(before, m.SyncGroupResponse, ErrorCode.REBALANCE_IN_PROGRESS)
        self._syncing[member_id] = ticket
        if member_id != self.leader_id:
            return outcome
        # Whoever the leader left out gets nothing, and knows it; strangers are left out.
        assignments = dict.fromkeys(self.members, b"")
        for given in request.assignments:
            if given.member_id in assignments:
                assignments[given.member_id] = given.assignment
        record = self._record(now, assignments)
        replies = []
        for member_id, parked in self._syncing.items():
            replies.append(Reply(parked, self._assignment(assignments[member_id])))
            known = self.members[member_id]
            self._timers.set(known.session, now + known.session_timeout_ms)
        self._syncing.clear()
        return outcome + Outcome((record,), tuple(replies))

    def _assignment(self, assignment: bytes) -> m.SyncGroupResponse:
        return m.SyncGroupResponse(
            protocol_type=self.protocol_type_known,
            protocol_name=self.protocol_name,
            assignment=assignment,
        )

    def _synced(self, member_id: str) -> None:
        self._unsynced.discard(member_id)
        if not self._unsynced:
            self._timers.cancel(self._sync_timer)

    def _answer_syncs(self, code: ErrorCode, now: Millis) -> Outcome:
        outcome = NOTHING
        for member_id, ticket in self._syncing.items():
            outcome += refused(ticket, m.SyncGroupResponse, code)
            # While the sync was parked its session was not watched.
            member = self.members[member_id]
            self._timers.set(member.session, now + member.session_timeout_ms)
        self._syncing.clear()
        return outcome

    # -- staying and going ----------------------------------------------------------------

    def heartbeat(
        self, ticket: Ticket, context: RequestContext, request: m.HeartbeatRequest, now: Millis
    ) -> Outcome:
        try:
            member = self._known(request.member_id, request.group_instance_id)
            if request.generation_id != self.generation:
                raise Rejected(ErrorCode.ILLEGAL_GENERATION)
        except Rejected as refusal:
            return refused(ticket, m.HeartbeatResponse, refusal.code)
        self._timers.set(member.session, now + member.session_timeout_ms)
        if self.state is GroupState.PREPARING:
            return refused(ticket, m.HeartbeatResponse, ErrorCode.REBALANCE_IN_PROGRESS)
        return Outcome(replies=(Reply(ticket, _HEARTBEAT_OK),))

    def leave(
        self, ticket: Ticket, context: RequestContext, request: m.LeaveGroupRequest, now: Millis
    ) -> Outcome:
        answers = []
        outcome = NOTHING
        count = len(self.members)
        for leaving in request.members:
            answer = m.LeaveGroupResponse.MemberResponse(
                member_id=leaving.member_id, group_instance_id=leaving.group_instance_id
            )
            answers.append(answer)
            try:
                outcome += self._leave(leaving.member_id, leaving.group_instance_id)
            except Rejected as refusal:
                answer.error_code = refusal.code
        outcome += Outcome(replies=(Reply(ticket, m.LeaveGroupResponse(members=answers)),))
        return outcome + self._close_gap(count, now)

    def _leave(self, member_id: str, instance_id: str | None) -> Outcome:
        if not member_id and instance_id is not None:
            # An administrator removes a static member, whose id is not known to him (KIP-345).
            if instance_id not in self._static:
                raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
            return self._remove(self._static[instance_id])
        if member_id in self._pending:
            self._pending.discard(member_id)
            self._timers.cancel(Timer(self.group_id, "session", member_id))
            return NOTHING
        return self._remove(self._known(member_id, instance_id).member_id)

    def _close_gap(self, count: int, now: Millis) -> Outcome:
        """There were ``count`` members before; those who stay share what the others had."""
        if self.state is GroupState.PREPARING:
            return self._maybe_complete_join(now)
        return self._prepare(now) if len(self.members) < count else NOTHING

    def _remove(self, member_id: str) -> Outcome:
        member = self.members.pop(member_id)
        self._count_votes(member, -1)
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)
        self._timers.cancel(member.session)
        self._synced(member_id)
        outcome = NOTHING
        if (parked := self._joining.pop(member_id, None)) is not None:
            outcome += join_refused(parked, ErrorCode.UNKNOWN_MEMBER_ID, "")
        if self.leader_id == member_id:
            # Of those that wait, the one that came last: some clients end without leaving (Kafka
            # Streams), so that an older one may be gone, and all would wait for its assignment.
            self.leader_id = next(reversed(self._joining or self.members), None)
        if (parked := self._syncing.pop(member_id, None)) is not None:
            outcome += refused(parked, m.SyncGroupResponse, ErrorCode.UNKNOWN_MEMBER_ID)
        return outcome

    def expired(self, timer: Timer, now: Millis) -> Outcome:
        if timer.kind == "session":
            return self._session_over(timer.subject, now)
        if timer.kind == "sync":
            return self._sync_time_over(now)
        if self.state is not GroupState.PREPARING:
            return NOTHING
        if timer.kind == BEGIN:
            return self._complete_join_or_wait(now)
        return self._initial_delay_over(now) if self._is_initial else self._complete_join(now)

    def _session_over(self, member_id: str, now: Millis) -> Outcome:
        count = len(self.members)
        if member_id in self._pending:
            self._pending.discard(member_id)
            return self._close_gap(count, now)
        member = self.members.get(member_id)
        if member is None:
            return NOTHING
        if not member.is_new and (member_id in self._joining or member_id in self._syncing):
            # It waits for us; its session begins anew with the answer.
            return NOTHING
        return self._remove(member_id) + self._close_gap(count, now)

    def _sync_time_over(self, now: Millis) -> Outcome:
        count = len(self.members)
        outcome = NOTHING
        for member_id in sorted(self._unsynced):
            outcome += self._remove(member_id)
        return outcome + self._close_gap(count, now)

    # -- to and from groups of another kind -----------------------------------------------

    def give_up_waiting(self) -> Outcome:
        """The group is about to become one of another kind; whoever waits has to join that."""
        outcome = NOTHING
        for member_id, ticket in self._joining.items():
            outcome += join_refused(ticket, ErrorCode.REBALANCE_IN_PROGRESS, member_id)
        for ticket in self._syncing.values():
            outcome += refused(ticket, m.SyncGroupResponse, ErrorCode.REBALANCE_IN_PROGRESS)
        self._joining.clear()
        self._syncing.clear()
        return outcome

    def adopt(
        self, members: Iterable[ClassicMember], generation: int, *, must_rebalance: bool
    ) -> None:
        """Be the group of these consumers, who come from one of another kind.

        Without a leader its record says that it has to rebalance first: see ``replay``.
        """
        for member in members:
            self._insert(member)
        if not must_rebalance:
            self.leader_id = next(iter(self.members))
        self.generation = generation
        self.protocol_type_known = _CONSUMER
        self.protocol_name = self._choose_protocol()

    def snapshot(self, now: Millis) -> NewRecord:
        """The record that makes the group as it is."""
        return self._record(now)

    # -- who is in ------------------------------------------------------------------------

    def _known(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The member that a request speaks for."""
        if instance_id is not None:
            present_id = self._static.get(instance_id)
            if present_id is not None and present_id != member_id:
                raise Rejected(ErrorCode.FENCED_INSTANCE_ID)
            if present_id is None:
                raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.members.get(member_id)
        if member is None:
            raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def _insert(self, member: ClassicMember) -> None:
        self.members[member.member_id] = member
        self._count_votes(member, 1)
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id

    def _count_votes(self, member: ClassicMember, by: int) -> None:
        votes = self._votes
        for name in {name for name, _ in member.protocols}:
            votes[name] = votes.get(name, 0) + by
            if not votes[name]:
                del votes[name]

    def _subscriptions(self) -> frozenset[str] | None:
        """The topics that the members of this generation read, if they are consumers that say."""
        if self.protocol_type_known != _CONSUMER:
            return None
        try:
            return frozenset(
                topic
                for member in self.members.values()
                for topic in subscribed_topics(member.metadata(self.protocol_name))
            )
        except ValueError:
            return None

    # -- what the shard asks --------------------------------------------------------------

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def protocol_type(self) -> str:
        return self.protocol_type_known or ""

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY and not self._pending

    def loaded(self, now: Millis) -> Outcome:
        for member in self.members.values():
            self._timers.set(member.session, now + member.session_timeout_ms)
        if self.state is GroupState.PREPARING:
            return self._complete_join_or_wait(now)
        if len(self.members) > self._shard.cluster.config.int("group.max.size"):
            return self._prepare(now)  # the limit was lowered; a rebalance applies it
        return NOTHING

    def check_commit(
        self,
        member: Member,
        *,
        transactional: bool,
        api_version: int,
        partitions: Callable[[], Iterable[tuple[TopicId, int]]],
    ) -> None:
        member_id, instance_id, generation = member
        if generation < 0 and self.state is GroupState.EMPTY:
            return  # a consumer that assigns to itself, or an administrator
        if generation >= 0 or member_id or instance_id is not None:
            self._known(member_id, instance_id)
            if generation != self.generation:
                raise Rejected(ErrorCode.ILLEGAL_GENERATION)
        elif not transactional and self.state is not GroupState.EMPTY:
            # TxnOffsetCommit could not say who commits before version 3.
            raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        if not transactional and self.state is GroupState.COMPLETING:
            raise Rejected(ErrorCode.REBALANCE_IN_PROGRESS)

    def committed(self, member: Member, now: Millis) -> None:
        """A commit says that the member is alive, as long as it need not do something else."""
        known = self.members.get(member.member_id)
        if known is not None and self.state in (GroupState.STABLE, GroupState.PREPARING):
            self._timers.set(known.session, now + known.session_timeout_ms)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Anybody may: members of classic groups have no epoch to fall behind with."""

    def check_offset_delete(self) -> None:
        if self.state is not GroupState.EMPTY and self.protocol_type_known != _CONSUMER:
            # Which topics are read is only known of consumers.
            raise Rejected(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed(self, topic: str) -> bool:
        if self.subscribed_topics is None:
            return self.protocol_type_known == _CONSUMER and bool(self.members)
        return topic in self.subscribed_topics

    def check_delete(self) -> None:
        if self.state is not GroupState.EMPTY:
            raise Rejected(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")

    def offset_expiry(self) -> Expiry | None:
        if self.protocol_type_known is None:
            return Expiry()
        if self.state is GroupState.EMPTY:
            # While there were members, nobody had to commit again what stood still.
            return Expiry(self.state_since)
        if self.state is GroupState.STABLE and self.subscribed_topics is not None:
            return Expiry(kept_topics=self.subscribed_topics)
        return None

    def tombstones(self) -> tuple[NewRecord, ...]:
        # Written even for a group that has no record: it costs little and is what Kafka does.
        return (NewRecord(self._key(), None),)

    def describe(self) -> m.DescribeGroupsResponse.DescribedGroup:
        described = m.DescribeGroupsResponse
        is_stable = self.state is GroupState.STABLE
        return described.DescribedGroup(
            group_id=self.group_id,
            group_state=self.state_name,
            protocol_type=self.protocol_type,
            protocol_data=(self.protocol_name or "") if is_stable else "",
            members=[
                described.DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    # In other states these are about to change and would only mislead.
                    member_metadata=member.metadata(self.protocol_name) if is_stable else b"",
                    member_assignment=member.assignment if is_stable else b"",
                )
                for member in self.members.values()
            ],
        )

    # -- the record -----------------------------------------------------------------------

    def _key(self) -> bytes:
        return encode_key(m.GroupMetadataKey(group=self.group_id))

    def _record(self, now: Millis, assignments: dict[str, bytes] | None = None) -> NewRecord:
        """The group as it is, with these assignments or those it has."""
        return self._encode(
            m.GroupMetadataValue(
                protocol_type=self.protocol_type,
                generation=self.generation,
                protocol=self.protocol_name,
                leader=self.leader_id,
                current_state_timestamp=now,
                members=[
                    m.GroupMetadataValue.MemberMetadata(
                        member_id=member.member_id,
                        group_instance_id=member.instance_id,
                        client_id=member.client_id,
                        client_host=member.client_host,
                        rebalance_timeout=member.rebalance_timeout_ms,
                        session_timeout=member.session_timeout_ms,
                        subscription=member.metadata(self.protocol_name),
                        assignment=(
                            member.assignment
                            if assignments is None
                            else assignments[member.member_id]
                        ),
                    )
                    for member in self.members.values()
                ],
            )
        )

    def _empty_record(self, now: Millis) -> NewRecord:
        return self._encode(
            m.GroupMetadataValue(
                protocol_type=self.protocol_type,
                generation=self.generation + 1,
                protocol=None,
                leader=None,
                current_state_timestamp=now,
            )
        )

    def _encode(self, value: m.GroupMetadataValue) -> NewRecord:
        return NewRecord(self._key(), encode_versioned(value, _GROUP_METADATA_VERSION))

    def replay(self, value: m.GroupMetadataValue) -> None:
        """Be as the record says. Members that are here already keep what it does not tell."""
        known = self.members
        self.members = {}
        self._static.clear()
        self._votes.clear()
        for kept in value.members:
            member = known.get(kept.member_id)
            if member is None:
                member = ClassicMember(
                    self.group_id,
                    kept.member_id,
                    kept.group_instance_id,
                    kept.client_id,
                    kept.client_host,
                    # Version 0 had one time-out for both.
                    kept.rebalance_timeout if kept.rebalance_timeout >= 0 else kept.session_timeout,
                    kept.session_timeout,
                    [(value.protocol or "", bytes(kept.subscription))],
                )
            member.assignment = bytes(kept.assignment)
            self._insert(member)
        self.protocol_type_known = value.protocol_type or None
        self.generation = value.generation
        self.protocol_name = value.protocol
        self.leader_id = value.leader
        self.state = GroupState.STABLE if self.members else GroupState.EMPTY
        if self.members and self.leader_id is None:
            # It was made of a group of another kind and has yet to share what was given up.
            self.state = GroupState.PREPARING
        self.state_since = Millis(value.current_state_timestamp)
        self.subscribed_topics = self._subscriptions()
        self.is_logged = True
        self._timers.cancel(self._join_timer)


def replay_group_metadata(shard: "GroupShard", record_key: bytes, value: bytes | None) -> None:
    key = decode_record_key((m.GroupMetadataKey,), record_key)
    assert key is not None
    group = shard.groups.get(key.group)
    if value is None:
        if isinstance(group, ClassicGroup):
            shard.remove(key.group)
        return
    if not isinstance(group, ClassicGroup):
        group = shard.groups[key.group] = ClassicGroup(shard, key.group)
    group.replay(decode_versioned(m.GroupMetadataValue, value))


def check_texts(context: RequestContext, request: m.JoinGroupRequest) -> None:
    """Newer requests can carry longer texts than the record of the group."""
    texts = [request.group_id, request.protocol_type, *(p.name for p in request.protocols)]
    texts.append(f"{request.group_instance_id or context.client_id}-{_UUID}")
    if any(len(text.encode()) > TEXT_SIZE_MAX for text in texts):
        raise Rejected(ErrorCode.INVALID_REQUEST)


def rebalance_timeout_ms(request: m.JoinGroupRequest) -> int:
    """Version 0 had one time-out for both."""
    given = request.rebalance_timeout_ms
    return given if given >= 0 else request.session_timeout_ms


def requires_known_id(context: RequestContext, request: m.JoinGroupRequest) -> bool:
    """Is this a dynamic member that has to be told its id before it is let in (KIP-394)?"""
    return (
        context.api_version >= _FIRST_JOIN_WITH_REQUIRED_ID
        and not request.member_id
        and request.group_instance_id is None
    )


def join_refused(ticket: Ticket, code: ErrorCode, member_id: str) -> Outcome:
    return Outcome(
        replies=(Reply(ticket, m.JoinGroupResponse(error_code=code, member_id=member_id)),)
    )


def refused(ticket: Ticket, response: type[ResponseT], code: ErrorCode) -> Outcome:
    return Outcome(replies=(Reply(ticket, response(error_code=code)),))


def subscribed_topics(metadata: bytes) -> list[str]:
    """The topics of a consumer's subscription, which begin it in all versions.

    Raises ValueError for bytes that are none; later fields are the clients' own business.
    """
    topics = []
    try:
        _, count = _SUBSCRIPTION_HEAD.unpack_from(metadata)
        position = _SUBSCRIPTION_HEAD.size
        if not 0 <= count <= len(metadata):
            raise ValueError(f"a subscription to {count} topics in {len(metadata)} bytes")
        for _ in range(count):
            (size,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if size < 0 or position + size > len(metadata):
                raise ValueError("a subscription is cut short")
            topics.append(metadata[position : position + size].decode())
            position += size
    except StructError as error:
        raise ValueError("a subscription is cut short") from error
    return topics
