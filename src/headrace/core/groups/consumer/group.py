"""A consumer group as its shard sees it."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.core.groups.classic.group import ClassicGroup
from headrace.core.groups.classic.responses import join_refused
from headrace.core.groups.classic.state import CONSUMER
from headrace.core.groups.consumer import classic_members
from headrace.core.groups.consumer.changes import REBALANCE, SESSION, setting
from headrace.core.groups.consumer.departure import fence
from headrace.core.groups.consumer.members import MemberState
from headrace.core.groups.consumer.state import ConsumerState
from headrace.core.groups.group import Expiry, GroupKind, JoinOptions, Member, Timer
from headrace.core.outcome import NOTHING, Outcome, RequestContext, Ticket
from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, TopicId
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.core.groups.shard import GroupShard


class ConsumerGroup(ConsumerState):
    """Satisfies ``group.Group``."""

    kind = GroupKind.CONSUMER
    protocol_type = CONSUMER

    def __init__(self, shard: "GroupShard", group_id: str) -> None:
        super().__init__(group_id)
        self._shard = shard
        # Soft: the metadata whose topics the group epoch is known to cover.
        self.seen_metadata: ClusterMetadata | None = None

    # -- classic requests -----------------------------------------------------------------

    def join(
        self,
        ticket: Ticket,
        context: RequestContext,
        request: m.JoinGroupRequest,
        options: JoinOptions,
        drawn_id: str,
        now: Millis,
    ) -> Outcome:
        if self.members:
            return classic_members.join(
                self._shard, self, ticket, context, request, options, drawn_id, now
            )
        if request.member_id:
            return join_refused(ticket, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
        classic = ClassicGroup(self._shard, self.group_id)
        self._shard.groups[self.group_id] = classic
        return Outcome(self.tombstones()) + classic.join(
            ticket, context, request, options, drawn_id, now
        )

    def sync(self, ticket: Ticket, request: m.SyncGroupRequest, now: Millis) -> Outcome:
        return classic_members.sync(self._shard, self, ticket, request, now)

    def heartbeat(self, ticket: Ticket, request: m.HeartbeatRequest, now: Millis) -> Outcome:
        return classic_members.heartbeat(self._shard, self, ticket, request, now)

    def leave(self, ticket: Ticket, request: m.LeaveGroupRequest, now: Millis) -> Outcome:
        return classic_members.leave(self._shard, self, ticket, request, now)

    # -- time -----------------------------------------------------------------------------

    def loaded(self, now: Millis) -> Outcome:
        for member in self.members.values():
            self._shard.timers.set(
                Timer(self.group_id, SESSION, member.member_id),
                now + setting(self._shard, self.group_id, "session.timeout.ms"),
            )
            if member.state is MemberState.UNREVOKED and member.classic is None:
                self._shard.timers.set(
                    Timer(self.group_id, REBALANCE, member.member_id),
                    now + member.rebalance_timeout_ms,
                )
        return NOTHING

    def expired(self, timer: Timer, now: Millis) -> Outcome:
        member = self.members.get(timer.subject)
        if member is None:
            return NOTHING  # the member left, or the timer belonged to the classic group before
        if timer.kind == REBALANCE and member.state is not MemberState.UNREVOKED:
            return NOTHING
        return fence(self._shard, self, (member.member_id,), now)

    # -- offsets --------------------------------------------------------------------------

    def check_commit(
        self,
        member: Member,
        *,
        transactional: bool,
        supports_member_epoch: bool,
        partitions: Callable[[], Iterable[tuple[TopicId, int]]],
    ) -> None:
        member_id, instance_id, member_epoch = member
        if member_epoch < 0 and not self.members:
            return  # a consumer that assigns its own partitions, or an administrator
        if transactional and member_epoch == -1 and not member_id and instance_id is None:
            return  # before version 3, TxnOffsetCommit could not name the member
        known = self.members.get(member_id)
        if known is None:
            raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        if not transactional and known.classic is None and not supports_member_epoch:
            raise Rejected(ErrorCode.UNSUPPORTED_VERSION)
        if member_epoch == known.member_epoch:
            return
        if member_epoch < known.member_epoch and all(
            (since := known.assigned_epoch(topic_id, partition)) is not None
            and since <= member_epoch
            for topic_id, partition in partitions()
        ):
            return  # it owned them all the time; only the answer with its new epoch is late
        if known.classic is not None or transactional:
            raise Rejected(ErrorCode.ILLEGAL_GENERATION)
        raise Rejected(ErrorCode.STALE_MEMBER_EPOCH)

    def committed(self, member: Member, now: Millis) -> None:
        """A commit does not extend the session: only heartbeats do."""

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        known = self.members.get(member_id or "")
        if known is None:
            raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        if known.member_epoch != member_epoch:
            raise Rejected(
                ErrorCode.STALE_MEMBER_EPOCH
                if known.classic is None
                else ErrorCode.ILLEGAL_GENERATION
            )

    def check_offset_delete(self) -> None:
        """Always allowed: the subscribed topics are known, and all others may be deleted."""

    def is_subscribed(self, topic: str) -> bool:
        return topic in self.subscribed_topics

    def offset_expiry(self) -> Expiry | None:
        return Expiry(kept_topics=self.subscribed_topics)

    # -- the rest of what the shard asks --------------------------------------------------

    def check_delete(self) -> None:
        if self.members:
            raise Rejected(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")

    @property
    def is_empty(self) -> bool:
        return not self.members

    def describe(self) -> m.DescribeGroupsResponse.DescribedGroup:
        raise Rejected(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a classic group."
        )
