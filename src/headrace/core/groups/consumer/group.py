"""A group whose coordinator assigns: the consumer protocol of KIP-848.

One request does everything. With each ConsumerGroupHeartbeat a member may say what changed (what
it reads, what it still has) and is told what it is to have now:

    member epoch 0     joins, or joins again after it was fenced
    above 0            goes on; what it leaves out has not changed
    -1                 leaves
    -2                 leaves for a while: a static member that will be back

There is no moment at which all members stand still. Each heartbeat brings its own member one step
further (``reconciliation.py``), and a member that gives back in time delays nobody else.

    requests        ``heartbeat`` and ``describe`` here; classic ones in ``classic_members.py``
    state           ``consumer_state.py``, made of records alone; ``ConsumerGroup`` adds what the
                    shard asks of any group
    time-outs       a member that is not heard from, or does not give back what it was told to,
                    is fenced (``departure.py``)

Topics may come, go and grow between two heartbeats. A group looks at the metadata of the cluster
whenever it finds another one than last time, so nobody has to tell it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from headrace.core.groups.classic.group import ClassicGroup
from headrace.core.groups.classic.responses import join_refused
from headrace.core.groups.classic.state import CONSUMER
from headrace.core.groups.consumer import classic_members
from headrace.core.groups.consumer.assignors import Partitions
from headrace.core.groups.consumer.changes import (
    REBALANCE,
    SESSION,
    Change,
    configured_assignors,
    preferred_assignor,
    reported_of,
    set_session,
    setting,
)
from headrace.core.groups.consumer.classic_members import check_room
from headrace.core.groups.consumer.departure import fence
from headrace.core.groups.consumer.members import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    MemberState,
    everything_of,
)
from headrace.core.groups.consumer.reconciliation import Reported
from headrace.core.groups.consumer.state import ConsumerState
from headrace.core.groups.conversion import upgrade
from headrace.core.groups.group import TEXT_SIZE_MAX, Expiry, GroupKind, Member, Timer
from headrace.core.outcome import NOTHING, NewRecord, Outcome, Reply, RequestContext, Ticket
from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis, TopicId
from headrace.wire import messages as m
from headrace.wire.framing import decode_record_key, decode_versioned
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.core.groups.shard import GroupShard

_FIRST_HEARTBEAT_WITH_OWN_ID = 1  # from here on the client draws its member id (KIP-1082)
_FIRST_COMMIT_WITH_MEMBER_EPOCH = 9
LARGE_TOPIC_COUNT = 500
_TEXT_LENGTH_SAFE = TEXT_SIZE_MAX // 4  # no character has more than four bytes
_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1  # as ConsumerGroupDescribe numbers them


class ConsumerGroup(ConsumerState):
    """Satisfies ``group.Group``."""

    kind = GroupKind.CONSUMER
    protocol_type = CONSUMER

    def __init__(self, shard: "GroupShard", group_id: str) -> None:
        super().__init__(group_id)
        self._shard = shard
        # Soft: whose topics the group epoch is known to speak of.
        self.seen_metadata: ClusterMetadata | None = None

    # -- classic requests -----------------------------------------------------------------

    def join(
        self,
        ticket: Ticket,
        context: RequestContext,
        request: m.JoinGroupRequest,
        drawn_id: str,
        now: Millis,
    ) -> Outcome:
        if self.members:
            return classic_members.join(self._shard, self, ticket, context, request, drawn_id, now)
        if request.member_id:
            return join_refused(ticket, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
        classic = ClassicGroup(self._shard, self.group_id)
        self._shard.groups[self.group_id] = classic
        return Outcome(self.tombstones()) + classic.join(ticket, context, request, drawn_id, now)

    def sync(
        self, ticket: Ticket, context: RequestContext, request: m.SyncGroupRequest, now: Millis
    ) -> Outcome:
        return classic_members.sync(self._shard, self, ticket, request, now)

    def heartbeat(
        self, ticket: Ticket, context: RequestContext, request: m.HeartbeatRequest, now: Millis
    ) -> Outcome:
        return classic_members.heartbeat(self._shard, self, ticket, request, now)

    def leave(
        self, ticket: Ticket, context: RequestContext, request: m.LeaveGroupRequest, now: Millis
    ) -> Outcome:
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
            return NOTHING  # it is gone, or the timer is of the classic group that was here
        if timer.kind == REBALANCE and member.state is not MemberState.UNREVOKED:
            return NOTHING
        return fence(self._shard, self, (member.member_id,), now)

    # -- offsets --------------------------------------------------------------------------

    def check_commit(
        self,
        member: Member,
        *,
        transactional: bool,
        api_version: int,
        partitions: Callable[[], Iterable[tuple[TopicId, int]]],
    ) -> None:
        member_id, instance_id, member_epoch = member
        if member_epoch < 0 and not self.members:
            return  # a consumer that assigns to itself, or an administrator
        if transactional and member_epoch == -1 and not member_id and instance_id is None:
            return  # TxnOffsetCommit could not say who commits before version 3
        known = self.members.get(member_id)
        if known is None:
            raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        if (
            not transactional
            and known.classic is None
            and api_version < _FIRST_COMMIT_WITH_MEMBER_EPOCH
        ):
            raise Rejected(ErrorCode.UNSUPPORTED_VERSION)
        if member_epoch == known.member_epoch:
            return
        if member_epoch < known.member_epoch and all(
            (since := known.assigned_epoch(topic_id, partition)) is not None
            and since <= member_epoch
            for topic_id, partition in partitions()
        ):
            return  # they were its own all the time; only the answer with its new epoch is late
        if known.classic is not None or transactional:
            raise Rejected(ErrorCode.ILLEGAL_GENERATION)
        raise Rejected(ErrorCode.STALE_MEMBER_EPOCH)

    def committed(self, member: Member, now: Millis) -> None:
        """A commit is no heartbeat here."""

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
        """What is read is known, so the rest may go."""

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


# -- the heartbeat ------------------------------------------------------------------------


def heartbeat(
    shard: "GroupShard",
    ticket: Ticket,
    context: RequestContext,
    request: m.ConsumerGroupHeartbeatRequest,
    drawn_id: str,
    now: Millis,
) -> Outcome:
    """``drawn_id`` becomes the id of a member that comes without one (version 0)."""
    try:
        check_request(shard, request, context.api_version)
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return _leave(shard, ticket, request, now)
        return _beat(shard, ticket, context, request, request.member_id or drawn_id, now)
    except Rejected as refusal:
        response = m.ConsumerGroupHeartbeatResponse(
            error_code=refusal.code, error_message=refusal.message
        )
        return Outcome(replies=(Reply(ticket, response),))


def check_request(
    shard: "GroupShard", request: m.ConsumerGroupHeartbeatRequest, api_version: int
) -> None:
    member_epoch = request.member_epoch
    if (
        api_version >= _FIRST_HEARTBEAT_WITH_OWN_ID
        or member_epoch > 0
        or member_epoch == LEAVE_EPOCH
    ):
        _check_text(request.member_id, "MemberId")
    _check_text(request.group_id, "GroupId")
    _check_text(request.instance_id, "InstanceId")
    _check_text(request.rack_id, "RackId")
    for text in (request.group_id, request.member_id, request.subscribed_topic_regex or ""):
        if len(text) > _TEXT_LENGTH_SAFE and len(text.encode()) > TEXT_SIZE_MAX:
            raise _invalid(f"A text of more than {TEXT_SIZE_MAX} bytes cannot be kept.")
    if member_epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null "
                "when (re-)joining."
            )
    elif member_epoch == STATIC_LEAVE_EPOCH:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif member_epoch < STATIC_LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None:
        known = configured_assignors(shard)
        if request.server_assignor not in known:
            raise Rejected(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {request.server_assignor} is not supported. "
                f"Supported assignors: {', '.join(known)}.",
            )


def _check_text(text: str | None, name: str) -> None:
    if text is not None and not text.strip():
        raise _invalid(f"{name} can't be empty.")


def _invalid(reason: str) -> Rejected:
    return Rejected(ErrorCode.INVALID_REQUEST, reason)


def _beat(
    shard: "GroupShard",
    ticket: Ticket,
    context: RequestContext,
    request: m.ConsumerGroupHeartbeatRequest,
    member_id: str,
    now: Millis,
) -> Outcome:
    is_joining = request.member_epoch == JOIN_EPOCH
    state, records, outcome = _group_for(shard, request.group_id, is_joining, now)
    check_room(shard, state, member_id)
    reported = reported_of(request.topic_partitions)
    member = _present(state, request, member_id, reported)
    metadata = shard.cluster.metadata
    if member is not None and _is_steady(shard, state, member, context, request):
        return _answer(shard, ticket, request, member, member, [], now)
    change = Change(shard, state, records, now)
    if member is None:
        member = ConsumerMember(member_id)
    elif member.member_id != member_id:
        member = change.replace_static(member, member_id)
    updated = _updated(member, context, request)
    if updated.pattern and updated.pattern != member.pattern:
        shard.patterns.check(updated.pattern)
    if updated != member or member_id not in change.members:
        change.put(updated)
    is_subscription_new = updated.topics != member.topics or updated.pattern != member.pattern
    are_patterns_new = change.resolve_patterns()
    change.raise_epoch(must=is_subscription_new or are_patterns_new or not state.members)
    change.retarget()
    updated = change.reconcile(updated, reported, is_subscription_new=is_subscription_new)
    if isinstance(state, ConsumerGroup) and not change.records:
        # Only now: records may fail to be written, and then the next heartbeat has to try again.
        state.seen_metadata = metadata
    return outcome + _answer(shard, ticket, request, member, updated, change.records, now)


def _is_steady(
    shard: "GroupShard",
    state: ConsumerState,
    member: ConsumerMember,
    context: RequestContext,
    request: m.ConsumerGroupHeartbeatRequest,
) -> bool:
    """Nearly every heartbeat: nothing is new on either side."""
    return (
        request.member_epoch != JOIN_EPOCH
        and isinstance(state, ConsumerGroup)
        and state.seen_metadata is shard.cluster.metadata
        and state.group_epoch == state.assignment_epoch
        and member.is_reconciled_to(state.assignment_epoch)
        and (
            _says_nothing(member, context, request) or _updated(member, context, request) == member
        )
    )


def _says_nothing(
    member: ConsumerMember, context: RequestContext, request: m.ConsumerGroupHeartbeatRequest
) -> bool:
    """Whether it is clear at a glance that the member is as it was."""
    return (
        request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.rebalance_timeout_ms == -1
        and request.instance_id is None
        and request.rack_id is None
        and request.server_assignor is None
        and member.classic is None
        and member.client_id == context.client_id
        and member.client_host == context.client_host
    )


def is_large(
    shard: "GroupShard", context: RequestContext, request: m.ConsumerGroupHeartbeatRequest
) -> bool:
    """Whether this heartbeat is about so many topics that others should not wait for it.

    Each topic costs some 20 µs: to match, to assign, to write, to replay.
    """
    topic_count = len(shard.cluster.metadata.topics)
    if topic_count < LARGE_TOPIC_COUNT:
        return False
    group = shard.groups.get(request.group_id)
    if isinstance(group, ConsumerGroup):
        member = group.members.get(request.member_id)
        if member is not None and _is_steady(shard, group, member, context, request):
            return False
        if len(group.subscribed_topics) >= LARGE_TOPIC_COUNT:
            return True
    if request.subscribed_topic_regex:
        return True
    return len(request.subscribed_topic_names or ()) >= LARGE_TOPIC_COUNT


def _group_for(
    shard: "GroupShard", group_id: str, is_joining: bool, now: Millis
) -> tuple[ConsumerState, list[NewRecord], Outcome]:
    """The group, with the records that make it if it is none yet, and answers that go before."""
    group = shard.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return group, [], NOTHING
    if group is None:
        if not is_joining:
            raise Rejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        return ConsumerState(group_id), [], NOTHING
    if not is_joining or not isinstance(group, ClassicGroup):
        raise _no_consumer_group(group_id)
    if not group.members:
        return ConsumerState(group_id), list(group.tombstones()), NOTHING
    return upgrade(shard, group, now)


def _no_consumer_group(group_id: str) -> Rejected:
    return Rejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")


def _present(
    state: ConsumerState,
    request: m.ConsumerGroupHeartbeatRequest,
    member_id: str,
    reported: Reported,
) -> ConsumerMember | None:
    """The member that speaks, or the one whose place it takes, or None if it is new."""
    instance_id = request.instance_id
    if instance_id is None:
        member = state.members.get(member_id)
        if request.member_epoch != JOIN_EPOCH:
            if member is None:
                raise Rejected(
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    f"Member {member_id} is not a member of group {state.group_id}.",
                )
            _check_epoch(member, request.member_epoch, reported)
        return member
    static = state.members.get(state.static.get(instance_id, ""))
    if request.member_epoch == JOIN_EPOCH:
        if static is None:
            return state.members.get(member_id)
        if static.classic is None and static.member_epoch != STATIC_LEAVE_EPOCH:
            raise Rejected(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group "
                f"because the instance id is owned by {static.member_id} member.",
            )
        return static
    _check_static(static, member_id, instance_id)
    assert static is not None
    _check_epoch(static, request.member_epoch, reported)
    return static


def _check_static(member: ConsumerMember | None, member_id: str, instance_id: str) -> None:
    if member is None:
        raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise Rejected(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{member.member_id}.",
        )


def _check_epoch(
    member: ConsumerMember,
    member_epoch: int,
    reported: Reported,
) -> None:
    known = member.member_epoch
    if member_epoch == known:
        return
    if member_epoch > known:
        word = "greater"
    elif (
        member_epoch == member.previous_member_epoch
        and reported is not None
        and all(
            topic_id in member.assigned
            and all(partition in member.assigned[topic_id] for partition in partitions)
            for topic_id, partitions in reported.items()
        )
    ):
        return  # the answer that raised its epoch was lost
    else:
        word = "smaller"
    raise Rejected(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {word} member epoch ({member_epoch}) than the one "
        f"known by the group coordinator ({known}). The member must abandon all its partitions "
        "and rejoin.",
    )


def _updated(
    member: ConsumerMember, context: RequestContext, request: m.ConsumerGroupHeartbeatRequest
) -> ConsumerMember:
    """The member with what the request says. What it leaves out stays as it was."""
    names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    return member._replace(
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms
            if request.rebalance_timeout_ms == -1
            else request.rebalance_timeout_ms
        ),
        client_id=context.client_id,
        client_host=context.client_host,
        topics=member.topics if names is None else frozenset(names),
        pattern=member.pattern if pattern is None else pattern,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        classic=None,
    )


def _answer(
    shard: "GroupShard",
    ticket: Ticket,
    request: m.ConsumerGroupHeartbeatRequest,
    before: ConsumerMember,
    after: ConsumerMember,
    records: list[NewRecord],
    now: Millis,
) -> Outcome:
    group_id = request.group_id
    set_session(shard, group_id, after, now)
    response = m.ConsumerGroupHeartbeatResponse(
        member_id=after.member_id,
        member_epoch=after.member_epoch,
        heartbeat_interval_ms=setting(shard, group_id, "heartbeat.interval.ms"),
    )
    is_full = (
        request.rebalance_timeout_ms != -1
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
        and request.topic_partitions is not None
    )
    if is_full or request.member_epoch == JOIN_EPOCH or before.assigned != after.assigned:
        response.assignment = response.Assignment(
            topic_partitions=[
                response.TopicPartitions(topic_id=topic_id, partitions=list(partitions))
                for topic_id, partitions in after.assigned.items()
            ]
        )
    return Outcome(tuple(records), (Reply(ticket, response),))


def _leave(
    shard: "GroupShard", ticket: Ticket, request: m.ConsumerGroupHeartbeatRequest, now: Millis
) -> Outcome:
    group_id, member_id = request.group_id, request.member_id
    group = shard.groups.get(group_id)
    if group is None:
        raise Rejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    if not isinstance(group, ConsumerGroup):
        raise _no_consumer_group(group_id)
    instance_id = request.instance_id
    if instance_id is None:
        member = group.members.get(member_id)
        if member is None:
            raise Rejected(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {group_id}.",
            )
    else:
        member = group.members.get(group.static.get(instance_id, ""))
        _check_static(member, member_id, instance_id)
        assert member is not None
    response = m.ConsumerGroupHeartbeatResponse(
        member_id=member_id, member_epoch=request.member_epoch
    )
    reply = Outcome(replies=(Reply(ticket, response),))
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        # It keeps what it has until its session ends. Whoever comes back under the instance's name
        # begins a new life: commits of the old one are over.
        away = member._replace(
            member_epoch=STATIC_LEAVE_EPOCH,
            assigned={
                topic_id: dict.fromkeys(partitions, 0)
                for topic_id, partitions in member.assigned.items()
            },
            revoking={},
        )
        return Outcome((away.assignment_record(group_id),)) + reply
    return fence(shard, group, (member.member_id,), now) + reply


# -- looking at a group -------------------------------------------------------------------


def describe(shard: "GroupShard", ticket: Ticket, group_id: str, now: Millis) -> Outcome:
    """One group's share of a ConsumerGroupDescribe."""
    described = m.ConsumerGroupDescribeResponse.DescribedGroup(group_id=group_id)
    group = shard.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        described.error_message = (
            f"Group {group_id} not found."
            if group is None
            else f"Group {group_id} is not a consumer group."
        )
        return Outcome(replies=(Reply(ticket, described),))
    described.group_state = group.state_name
    described.group_epoch = group.group_epoch
    described.assignment_epoch = group.assignment_epoch
    described.assignor_name = preferred_assignor(shard, group.members)
    metadata = shard.cluster.metadata
    described.members = [
        _described(member, group.targets.get(member.member_id, {}), metadata)
        for member in group.members.values()
    ]
    return Outcome(replies=(Reply(ticket, described),))


def _described(
    member: ConsumerMember, target: Partitions, metadata: ClusterMetadata
) -> m.ConsumerGroupDescribeResponse.Member:
    return m.ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern,
        assignment=_described_assignment(everything_of(member), metadata),
        target_assignment=_described_assignment(target, metadata),
        member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    )


def _described_assignment(
    partitions: Partitions, metadata: ClusterMetadata
) -> m.ConsumerGroupDescribeResponse.Assignment:
    described = m.ConsumerGroupDescribeResponse
    topics = []
    for topic_id, members in partitions.items():
        state = metadata.topic_by_id(topic_id)
        if state is not None:
            topics.append(
                described.TopicPartitions(
                    topic_id=topic_id, topic_name=state.name, partitions=sorted(members)
                )
            )
    return described.Assignment(topic_partitions=topics)


# -- replay -------------------------------------------------------------------------------

KeyT = TypeVar("KeyT", bound=Message)
ValueT = TypeVar("ValueT", bound=Message)
Replayer = Callable[["GroupShard", bytes, bytes | None], None]


def _group_to_replay(
    shard: "GroupShard", group_id: str, value: bytes | None
) -> ConsumerGroup | None:
    """None for a tombstone of what is not there any more."""
    group = shard.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return group
    if value is None:
        return None
    # A classic group that was here had its tombstone, or stands for offsets alone.
    made = shard.groups[group_id] = ConsumerGroup(shard, group_id)
    return made


def _replayer(
    key_class: type[KeyT],
    value_class: type[ValueT],
    apply: Callable[[ConsumerGroup, KeyT, ValueT | None], None],
) -> Replayer:
    def replay(shard: "GroupShard", record_key: bytes, value: bytes | None) -> None:
        key = decode_record_key((key_class,), record_key)
        assert key is not None
        group_id: str = key.group_id  # type: ignore[attr-defined]  # all these keys have one
        group = _group_to_replay(shard, group_id, value)
        if group is not None:
            opened = decode_versioned(value_class, value) if value is not None else None
            apply(group, key, opened)

    return replay


def _replay_metadata(shard: "GroupShard", record_key: bytes, value: bytes | None) -> None:
    key = decode_record_key((m.ConsumerGroupMetadataKey,), record_key)
    assert key is not None
    group = _group_to_replay(shard, key.group_id, value)
    if group is None:
        return
    if value is None:
        shard.remove(key.group_id)
    else:
        group.replay_metadata(decode_versioned(m.ConsumerGroupMetadataValue, value))


REPLAYERS: Mapping[int, Replayer] = {
    3: _replay_metadata,
    4: _replayer(
        m.ConsumerGroupPartitionMetadataKey,
        m.ConsumerGroupPartitionMetadataValue,
        lambda group, key, value: group.replay_partition_metadata(value),
    ),
    5: _replayer(
        m.ConsumerGroupMemberMetadataKey,
        m.ConsumerGroupMemberMetadataValue,
        lambda group, key, value: group.replay_member(key.member_id, value),
    ),
    6: _replayer(
        m.ConsumerGroupTargetAssignmentMetadataKey,
        m.ConsumerGroupTargetAssignmentMetadataValue,
        lambda group, key, value: group.replay_assignment_metadata(value),
    ),
    7: _replayer(
        m.ConsumerGroupTargetAssignmentMemberKey,
        m.ConsumerGroupTargetAssignmentMemberValue,
        lambda group, key, value: group.replay_target(key.member_id, value),
    ),
    8: _replayer(
        m.ConsumerGroupCurrentMemberAssignmentKey,
        m.ConsumerGroupCurrentMemberAssignmentValue,
        lambda group, key, value: group.replay_assignment(key.member_id, value),
    ),
    16: _replayer(
        m.ConsumerGroupRegularExpressionKey,
        m.ConsumerGroupRegularExpressionValue,
        lambda group, key, value: group.replay_pattern(key.regular_expression, value),
    ),
}
