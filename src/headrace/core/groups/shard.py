"""The groups behind one partition of ``__consumer_offsets``: found by id, dispatched by kind."""

from collections.abc import Callable, Iterable, Mapping
from struct import Struct

from headrace.core.groups import offset_deletion
from headrace.core.groups.classic.group import ClassicGroup, replay_group_metadata
from headrace.core.groups.classic.responses import join_refused, left, refused
from headrace.core.groups.consumer.patterns import TopicPatterns
from headrace.core.groups.consumer.replay import REPLAYERS as CONSUMER_REPLAYERS
from headrace.core.groups.group import Cluster, Group, JoinOptions, Timer
from headrace.core.groups.offsets import OFFSET_COMMIT_TYPES, Offsets
from headrace.core.outcome import NOTHING, Outcome, Reply, RequestContext, Ticket
from headrace.core.timers import Timers
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis
from headrace.wire import messages as m

Replayer = Callable[["GroupShard", bytes, bytes | None], None]

# By record type. ``GroupShard.replay`` handles the types of offsets before it looks here.
_REPLAYERS: Mapping[int, Replayer] = {2: replay_group_metadata, **CONSUMER_REPLAYERS}

_RECORD_TYPE = Struct(">h")
_DEAD = "Dead"  # the state that DescribeGroups gives to a group that does not exist


class GroupShard:
    """Satisfies ``outcome.Shard``.

    Requests that concern offsets, and those of the consumer protocol, are functions of their
    modules that take the shard.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.groups: dict[str, Group] = {}
        self.timers: Timers[Timer] = Timers()
        self.offsets = Offsets()
        self.patterns = TopicPatterns()
        self.unchecked_groups: list[str] = []  # left over in this round of expiration

    # -- outcome.Shard --------------------------------------------------------------------

    def replay(
        self,
        record_key: bytes,
        record_value: bytes | None,
        offset: int,
        producer_id: int,
        producer_epoch: int,
    ) -> None:
        if (
            producer_id < 0
            and record_value is not None
            and self.offsets.replay_known(record_key, record_value)
        ):
            return
        (record_type,) = _RECORD_TYPE.unpack_from(record_key)
        if record_type in OFFSET_COMMIT_TYPES:
            begun = self.offsets.replay(record_key, record_value, producer_id)
            if begun is not None:
                self._ensure(begun)
        else:
            replayer = _REPLAYERS.get(record_type)
            if replayer is not None:
                replayer(self, record_key, record_value)

    def replay_marker(
        self, producer_id: int, producer_epoch: int, committed: bool, offset: int
    ) -> None:
        for begun in self.offsets.replay_marker(producer_id, committed):
            self._ensure(begun)

    def _ensure(self, group_id: str) -> None:
        """Create a group for its first offset: offsets need no members."""
        if group_id not in self.groups:
            self.groups[group_id] = ClassicGroup(self, group_id)

    def remove(self, group_id: str) -> None:
        """Remove a group after its last record; while it has offsets, an empty one stays."""
        del self.groups[group_id]
        if self.offsets.of_group(group_id):
            self._ensure(group_id)

    def loaded(self, now: Millis) -> Outcome:
        offset_deletion.schedule_expiration(self, now)
        outcome = NOTHING
        for group in list(self.groups.values()):
            outcome += group.loaded(now)
        return outcome

    def tick(self, now: Millis) -> Outcome:
        timer = self.timers.pop_due(now)
        if timer is None:
            return NOTHING
        if timer == offset_deletion.EXPIRATION:
            return offset_deletion.expire(self, now)
        group = self.groups.get(timer.group_id)
        return group.expired(timer, now) if group is not None else NOTHING

    def next_deadline(self) -> float | None:
        return self.timers.next_deadline()

    # -- the classic protocol -------------------------------------------------------------

    def join(
        self,
        ticket: Ticket,
        context: RequestContext,
        request: m.JoinGroupRequest,
        options: JoinOptions,
        drawn_id: str,
        now: Millis,
    ) -> Outcome:
        """``drawn_id`` is a random text that becomes part of a new member's id."""
        config = self.cluster.config
        if not (
            config.int("group.min.session.timeout.ms")
            <= request.session_timeout_ms
            <= config.int("group.max.session.timeout.ms")
        ):
            return join_refused(ticket, ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                return join_refused(ticket, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            group = self.groups[request.group_id] = ClassicGroup(self, request.group_id)
            outcome = group.join(ticket, context, request, options, drawn_id, now)
            if group.is_empty:
                del self.groups[request.group_id]  # the join was rejected
            return outcome
        return group.join(ticket, context, request, options, drawn_id, now)

    def sync(self, ticket: Ticket, request: m.SyncGroupRequest, now: Millis) -> Outcome:
        group = self.groups.get(request.group_id)
        if group is None:
            return refused(ticket, m.SyncGroupResponse, ErrorCode.UNKNOWN_MEMBER_ID)
        return group.sync(ticket, request, now)

    def heartbeat(self, ticket: Ticket, request: m.HeartbeatRequest, now: Millis) -> Outcome:
        group = self.groups.get(request.group_id)
        if group is None:
            return refused(ticket, m.HeartbeatResponse, ErrorCode.UNKNOWN_MEMBER_ID)
        return group.heartbeat(ticket, request, now)

    def leave(self, ticket: Ticket, request: m.LeaveGroupRequest, now: Millis) -> Outcome:
        """``request.members`` names the members that leave."""
        group = self.groups.get(request.group_id)
        if group is None:
            unknown = [
                m.LeaveGroupResponse.MemberResponse(
                    member_id=leaving.member_id,
                    group_instance_id=leaving.group_instance_id,
                    error_code=ErrorCode.UNKNOWN_MEMBER_ID,
                )
                for leaving in request.members
            ]
            return left(ticket, unknown)
        return group.leave(ticket, request, now)

    # -- all groups of the shard ----------------------------------------------------------

    def topics_deleted(self, topics: Iterable[str], now: Millis) -> Outcome:
        """Delete the offsets of deleted topics, which would read as lag forever."""
        return Outcome(tuple(self.offsets.tombstones_of_topics(topics)), splittable=True)

    def describe(self, ticket: Ticket, group_id: str, now: Millis) -> Outcome:
        group = self.groups.get(group_id)
        try:
            if group is None:
                raise Rejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
            answer = group.describe()
        except Rejected as refusal:
            answer = m.DescribeGroupsResponse.DescribedGroup(
                group_id=group_id,
                group_state=_DEAD,
                error_code=refusal.code,
                error_message=refusal.message,
            )
        return Outcome(replies=(Reply(ticket, answer),))

    def list_groups(
        self, ticket: Ticket, states: frozenset[str], kinds: frozenset[str], now: Millis
    ) -> Outcome:
        """``states`` and ``kinds`` are in lower case; an empty set matches all."""
        response = m.ListGroupsResponse()
        response.groups = [
            response.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state_name,
                group_type=group.kind.value,
            )
            for group in self.groups.values()
            if (not states or group.state_name.lower() in states)
            and (not kinds or group.kind.value in kinds)
        ]
        return Outcome(replies=(Reply(ticket, response),))

    def delete_group(self, ticket: Ticket, group_id: str, now: Millis) -> Outcome:
        result = m.DeleteGroupsResponse.DeletableGroupResult(group_id=group_id)
        group = self.groups.get(group_id)
        try:
            if group is None:
                raise Rejected(ErrorCode.GROUP_ID_NOT_FOUND)
            group.check_delete()
        except Rejected as refusal:
            result.error_code = refusal.code
            return Outcome(replies=(Reply(ticket, result),))
        records = (*self.offsets.tombstones_of_group(group_id), *group.tombstones())
        return Outcome(records, (Reply(ticket, result),), splittable=True)
