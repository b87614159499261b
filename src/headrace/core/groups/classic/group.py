"""A classic group as its shard sees it."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.core.groups.classic import departure, join, records, sync
from headrace.core.groups.classic.members import SESSION, ClassicMember
from headrace.core.groups.classic.rebalance import (
    complete_join,
    complete_join_or_wait,
    initial_delay_over,
    prepare,
)
from headrace.core.groups.classic.responses import join_refused, refused
from headrace.core.groups.classic.state import CONSUMER, SYNC, ClassicState, GroupState
from headrace.core.groups.group import Expiry, GroupKind, JoinOptions, Member, Timer
from headrace.core.outcome import NOTHING, NewRecord, Outcome, Reply, RequestContext, Ticket
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, TopicId
from headrace.wire import messages as m
from headrace.wire.framing import decode_record_key, decode_versioned

if TYPE_CHECKING:
    from headrace.core.groups.shard import GroupShard

BEGIN = "begin"  # the timer that starts the rebalance of a converted group

_HEARTBEAT_OK = m.HeartbeatResponse()


class ClassicGroup(ClassicState):
    """Satisfies ``group.Group``."""

    kind = GroupKind.CLASSIC

    # -- requests -------------------------------------------------------------------------

    def join(
        self,
        ticket: Ticket,
        context: RequestContext,
        request: m.JoinGroupRequest,
        options: JoinOptions,
        drawn_id: str,
        now: Millis,
    ) -> Outcome:
        return join.join(self, ticket, context, request, options, drawn_id, now)

    def sync(self, ticket: Ticket, request: m.SyncGroupRequest, now: Millis) -> Outcome:
        return sync.sync(self, ticket, request, now)

    def heartbeat(self, ticket: Ticket, request: m.HeartbeatRequest, now: Millis) -> Outcome:
        try:
            member = self.known(request.member_id, request.group_instance_id)
            if request.generation_id != self.generation:
                raise Rejected(ErrorCode.ILLEGAL_GENERATION)
        except Rejected as refusal:
            return refused(ticket, m.HeartbeatResponse, refusal.code)
        self.restart_session(member, now)
        if self.state is GroupState.PREPARING:
            return refused(ticket, m.HeartbeatResponse, ErrorCode.REBALANCE_IN_PROGRESS)
        return Outcome(replies=(Reply(ticket, _HEARTBEAT_OK),))

    def leave(self, ticket: Ticket, request: m.LeaveGroupRequest, now: Millis) -> Outcome:
        return departure.leave(self, ticket, request, now)

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
                    # In the other states these are about to change and would mislead.
                    member_metadata=member.metadata(self.protocol_name) if is_stable else b"",
                    member_assignment=member.assignment if is_stable else b"",
                )
                for member in self.members.values()
            ],
        )

    # -- time -----------------------------------------------------------------------------

    def loaded(self, now: Millis) -> Outcome:
        for member in self.members.values():
            self.restart_session(member, now)
        if self.state is GroupState.PREPARING:
            return complete_join_or_wait(self, now)
        if len(self.members) > self.shard.cluster.config.int("group.max.size"):
            return prepare(self, now)  # the limit was lowered; a rebalance applies it
        return NOTHING

    def expired(self, timer: Timer, now: Millis) -> Outcome:
        if timer.kind == SESSION:
            return departure.session_timed_out(self, timer.subject, now)
        if timer.kind == SYNC:
            return departure.sync_timed_out(self, now)
        if self.state is not GroupState.PREPARING:
            return NOTHING
        if timer.kind == BEGIN:
            return complete_join_or_wait(self, now)
        return initial_delay_over(self, now) if self.is_initial else complete_join(self, now)

    # -- offsets --------------------------------------------------------------------------

    def check_commit(
        self,
        member: Member,
        *,
        transactional: bool,
        supports_member_epoch: bool,
        partitions: Callable[[], Iterable[tuple[TopicId, int]]],
    ) -> None:
        member_id, instance_id, generation = member
        if generation < 0 and self.state is GroupState.EMPTY:
            return  # a consumer that assigns its own partitions, or an administrator
        if generation >= 0 or member_id or instance_id is not None:
            self.known(member_id, instance_id)
            if generation != self.generation:
                raise Rejected(ErrorCode.ILLEGAL_GENERATION)
        elif not transactional and self.state is not GroupState.EMPTY:
            # Before version 3, TxnOffsetCommit could not name the member.
            raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        if not transactional and self.state is GroupState.COMPLETING:
            raise Rejected(ErrorCode.REBALANCE_IN_PROGRESS)

    def committed(self, member: Member, now: Millis) -> None:
        """A commit extends the session, except while the member has to sync."""
        known = self.members.get(member.member_id)
        if known is not None and self.state in (GroupState.STABLE, GroupState.PREPARING):
            self.restart_session(known, now)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Always allowed: members of classic groups have no member epoch."""

    def check_offset_delete(self) -> None:
        if self.state is not GroupState.EMPTY and self.protocol_type_known != CONSUMER:
            # Only consumers tell which topics they read.
            raise Rejected(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed(self, topic: str) -> bool:
        if self.subscribed_topics is None:
            return self.protocol_type_known == CONSUMER and bool(self.members)
        return topic in self.subscribed_topics

    def offset_expiry(self) -> Expiry | None:
        if self.protocol_type_known is None:
            return Expiry()
        if self.state is GroupState.EMPTY:
            # While the group had members, an offset did not have to be committed again to stay.
            return Expiry(self.state_since)
        if self.state is GroupState.STABLE and self.subscribed_topics is not None:
            return Expiry(kept_topics=self.subscribed_topics)
        return None

    # -- the rest of what the shard asks --------------------------------------------------

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def protocol_type(self) -> str:
        return self.protocol_type_known or ""

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY and not self.pending

    def check_delete(self) -> None:
        if self.state is not GroupState.EMPTY:
            raise Rejected(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")

    def tombstones(self) -> tuple[NewRecord, ...]:
        # Also for a group that has no record: it costs little, and Kafka does the same.
        return (NewRecord(records.record_key(self), None),)

    # -- conversion -----------------------------------------------------------------------

    def refuse_parked(self) -> Outcome:
        """The group becomes a consumer group: members with parked requests join again."""
        outcome = NOTHING
        for member_id, ticket in self.joining.items():
            outcome += join_refused(ticket, ErrorCode.REBALANCE_IN_PROGRESS, member_id)
        for ticket in self.syncing.values():
            outcome += refused(ticket, m.SyncGroupResponse, ErrorCode.REBALANCE_IN_PROGRESS)
        self.joining.clear()
        self.syncing.clear()
        return outcome

    def adopt(
        self, members: Iterable[ClassicMember], generation: int, *, must_rebalance: bool
    ) -> None:
        """Become the group of these consumers, which come from a consumer group.

        A record without a leader makes its group rebalance first: see ``records.replay``.
        """
        for member in members:
            self.insert(member)
        if not must_rebalance:
            self.leader_id = next(iter(self.members))
        self.generation = generation
        self.protocol_type_known = CONSUMER
        self.protocol_name = self.choose_protocol()


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
    records.replay(group, decode_versioned(m.GroupMetadataValue, value))
