"""Members that still speak the classic protocol, in a consumer group.

The coordinator assigns to them as to all other members. Only the messages differ. The member epoch
is sent as a generation. A new target shows as REBALANCE_IN_PROGRESS, and the member then joins
again and reports what it owns. JoinGroup is one step of its reconciliation, and SyncGroup fetches
the result. There is no leader, and nothing is parked: every request is answered at once.
"""

from typing import TYPE_CHECKING

from headrace.core.groups.classic.join import (
    check_texts,
    rebalance_timeout_ms,
)
from headrace.core.groups.classic.responses import join_refused, left, refused
from headrace.core.groups.classic.state import CONSUMER
from headrace.core.groups.consumer.changes import (
    REJOIN,
    RESYNC,
    Change,
    may_retarget,
    set_session,
)
from headrace.core.groups.consumer.departure import fence
from headrace.core.groups.consumer.members import (
    ClassicMemberMetadata,
    ConsumerMember,
    MemberState,
    without_epochs,
)
from headrace.core.groups.consumer.reconciliation import Reported
from headrace.core.groups.consumer.state import ConsumerState
from headrace.core.groups.conversion import (
    assignment_bytes,
    can_downgrade,
    downgrade,
    subscription_of,
)
from headrace.core.groups.group import TEXT_SIZE_MAX, JoinOptions, Timer
from headrace.core.outcome import NOTHING, NewRecord, Outcome, Reply, RequestContext, Ticket
from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.errors import ErrorCode, PeerBroken, Rejected
from headrace.model.ids import Millis
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.core.groups.shard import GroupShard


def join(
    shard: "GroupShard",
    state: ConsumerState,
    ticket: Ticket,
    context: RequestContext,
    request: m.JoinGroupRequest,
    options: JoinOptions,
    drawn_id: str,
    now: Millis,
) -> Outcome:
    try:
        return _join(shard, state, ticket, context, request, options, drawn_id, now)
    except Rejected as refusal:
        return join_refused(ticket, refusal.code, request.member_id)


def _join(
    shard: "GroupShard",
    state: ConsumerState,
    ticket: Ticket,
    context: RequestContext,
    request: m.JoinGroupRequest,
    options: JoinOptions,
    drawn_id: str,
    now: Millis,
) -> Outcome:
    # The group may become a classic group, whose record has less room for texts.
    check_texts(context, request)
    is_new = not request.member_id
    member_id = request.member_id or drawn_id
    if len(member_id.encode()) > TEXT_SIZE_MAX:
        raise Rejected(ErrorCode.INVALID_REQUEST)
    check_room(shard, state, member_id)
    _check_protocols(state, request)
    if is_new and request.group_instance_id is None and options.requires_known_member:
        return join_refused(ticket, ErrorCode.MEMBER_ID_REQUIRED, member_id)
    try:
        subscription = subscription_of(request.protocols[0].metadata)
    except PeerBroken:
        raise Rejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None
    change = Change(shard, state, [], now)
    instance_id = request.group_instance_id
    replaced = state.static.get(instance_id) if instance_id is not None else None
    turns_classic = replaced is not None and can_downgrade(
        shard, state, (replaced,), is_replaced=True
    )
    member = _subscribe(change, state, request, member_id, is_new=is_new)
    updated = _updated(member, context, request, subscription)
    change.members[member_id] = updated
    if updated != member:
        change.put(updated)
    is_subscription_new = updated.topics != member.topics or updated.pattern != member.pattern
    change.resolve_patterns()
    change.raise_epoch(must=is_subscription_new)
    reported = _reported(subscription, shard.cluster.metadata)
    if not turns_classic:
        change.retarget()
    if not turns_classic or not is_subscription_new:
        updated = change.reconcile(
            updated, reported, is_subscription_new=is_subscription_new and not turns_classic
        )
    answer = m.JoinGroupResponse(
        generation_id=updated.member_epoch,
        protocol_type=CONSUMER,
        protocol_name=request.protocols[0].name,
        member_id=member_id,
    )
    shard.timers.cancel(Timer(state.group_id, REJOIN, member_id))
    if turns_classic:
        change.records += _turned_classic(shard, state, change, now)
    else:
        set_session(shard, state.group_id, updated, now)
        shard.timers.set(
            Timer(state.group_id, RESYNC, member_id), now + updated.rebalance_timeout_ms
        )
    return Outcome(tuple(change.records), (Reply(ticket, answer),))


def _updated(
    member: ConsumerMember,
    context: RequestContext,
    request: m.JoinGroupRequest,
    subscription: m.ConsumerProtocolSubscription,
) -> ConsumerMember:
    instance_id = request.group_instance_id
    return member._replace(
        instance_id=instance_id if instance_id is not None else member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=rebalance_timeout_ms(request),
        client_id=context.client_id,
        client_host=context.client_host,
        topics=frozenset(subscription.topics),
        pattern="",  # the classic protocol has no patterns; its clients resolve them
        classic=ClassicMemberMetadata(
            request.session_timeout_ms,
            tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        ),
    )


def _turned_classic(
    shard: "GroupShard", state: ConsumerState, change: Change, now: Millis
) -> list[NewRecord]:
    """The last member of the consumer protocol was replaced: the group becomes classic."""
    # Members that are not reconciled can give partitions back and get them in a rebalance only.
    is_at_rest = change.group_epoch == change.assignment_epoch and all(
        member.is_reconciled_to(change.assignment_epoch) for member in change.members.values()
    )
    after = ConsumerState(state.group_id)
    after.group_epoch = state.group_epoch
    after.resolved = change.resolved
    for member in change.members.values():
        after.put(member)
    record = downgrade(
        shard,
        after,
        list(change.members.values()),
        must_rebalance=not is_at_rest,
        now=now,
    )
    return [*after.tombstones(), record]


def check_room(shard: "GroupShard", state: ConsumerState, member_id: str) -> None:
    size_max = shard.cluster.config.int("group.consumer.max.size")
    if len(state.members) >= size_max and member_id not in state.members:
        raise Rejected(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {size_max} members.",
        )


def _check_protocols(state: ConsumerState, request: m.JoinGroupRequest) -> None:
    """All other classic members must know one of its protocols, as in a classic group."""
    others = [member.classic for member in state.members.values() if member.classic is not None]
    known_to_all = any(
        all(any(name == protocol.name for name, _ in terms.protocols) for terms in others)
        for protocol in request.protocols
    )
    if request.protocol_type != CONSUMER or not known_to_all:
        raise Rejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _subscribe(
    change: Change,
    state: ConsumerState,
    request: m.JoinGroupRequest,
    member_id: str,
    *,
    is_new: bool,
) -> ConsumerMember:
    instance_id = request.group_instance_id
    if instance_id is None:
        return change.members.get(member_id) or ConsumerMember(member_id)
    present_id = state.static.get(instance_id)
    if is_new:
        if present_id is None:
            return ConsumerMember(member_id)
        return change.replace_static(state.members[present_id], member_id)
    return _known(state, member_id, instance_id)


def _known(state: ConsumerState, member_id: str, instance_id: str | None) -> ConsumerMember:
    """The member that a request comes from; raises Rejected if there is none."""
    if instance_id is not None:
        present_id = state.static.get(instance_id)
        if present_id is None:
            raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        if present_id != member_id:
            raise Rejected(ErrorCode.FENCED_INSTANCE_ID)
    member = state.members.get(member_id)
    if member is None:
        raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def _classic(
    state: ConsumerState, member_id: str, instance_id: str | None, generation: int
) -> tuple[ConsumerMember, ClassicMemberMetadata]:
    member = _known(state, member_id, instance_id)
    if member.classic is None:
        raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
    if member.member_epoch != generation:
        raise Rejected(ErrorCode.ILLEGAL_GENERATION)
    return member, member.classic


def _reported(subscription: m.ConsumerProtocolSubscription, metadata: ClusterMetadata) -> Reported:
    """What the member owns by its own report; eager clients own nothing when they join."""
    return {
        metadata.topics[topic.topic].topic_id: frozenset(topic.partitions)
        for topic in subscription.owned_partitions
        if topic.topic in metadata.topics
    }


def sync(
    shard: "GroupShard",
    state: ConsumerState,
    ticket: Ticket,
    request: m.SyncGroupRequest,
    now: Millis,
) -> Outcome:
    group_id, member_id = state.group_id, request.member_id
    try:
        member, terms = _classic(state, member_id, request.group_instance_id, request.generation_id)
        protocol_name, metadata = terms.protocols[0]
        if request.protocol_type not in (None, CONSUMER) or (
            request.protocol_name not in (None, protocol_name)
        ):
            raise Rejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if (
            state.assignment_epoch > member.member_epoch
            # The member has joined again already and must give partitions back first.
            and member.state is not MemberState.UNREVOKED
        ):
            _expect_rejoin(shard, group_id, member, now)
            raise Rejected(ErrorCode.REBALANCE_IN_PROGRESS)
    except Rejected as refusal:
        return refused(ticket, m.SyncGroupResponse, refusal.code)
    shard.timers.cancel(Timer(group_id, RESYNC, member_id))
    set_session(shard, group_id, member, now)
    answer = m.SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=assignment_bytes(
            without_epochs(member.assigned), shard.cluster.metadata, metadata
        ),
    )
    return Outcome(replies=(Reply(ticket, answer),))


def _expect_rejoin(shard: "GroupShard", group_id: str, member: ConsumerMember, now: Millis) -> None:
    timer = Timer(group_id, REJOIN, member.member_id)
    if timer not in shard.timers:
        shard.timers.set(timer, now + member.rebalance_timeout_ms)


def heartbeat(
    shard: "GroupShard",
    state: ConsumerState,
    ticket: Ticket,
    request: m.HeartbeatRequest,
    now: Millis,
) -> Outcome:
    try:
        member, _ = _classic(
            state, request.member_id, request.group_instance_id, request.generation_id
        )
    except Rejected as refusal:
        return refused(ticket, m.HeartbeatResponse, refusal.code)
    set_session(shard, state.group_id, member, now)
    if (
        member.member_epoch < state.assignment_epoch
        # Perhaps only classic members can trigger the next target, when they join.
        or may_retarget(shard, state, now)
        or member.state is MemberState.UNREVOKED
        or (member.state is MemberState.UNRELEASED and not state.waits_for_others(member))
    ):
        _expect_rejoin(shard, state.group_id, member, now)
        return refused(ticket, m.HeartbeatResponse, ErrorCode.REBALANCE_IN_PROGRESS)
    return Outcome(replies=(Reply(ticket, m.HeartbeatResponse()),))


def leave(
    shard: "GroupShard",
    state: ConsumerState,
    ticket: Ticket,
    request: m.LeaveGroupRequest,
    now: Millis,
) -> Outcome:
    """Administrators also remove members of either protocol this way."""
    answers = []
    going: dict[str, None] = {}
    for leaving in request.members:
        answer = m.LeaveGroupResponse.MemberResponse(
            member_id=leaving.member_id, group_instance_id=leaving.group_instance_id
        )
        answers.append(answer)
        try:
            member_id = leaving.member_id
            if not member_id and leaving.group_instance_id is not None:
                member_id = state.static.get(leaving.group_instance_id, "")
            going[_known(state, member_id, leaving.group_instance_id).member_id] = None
        except Rejected as refusal:
            answer.error_code = refusal.code
    gone = fence(shard, state, going, now) if going else NOTHING
    return gone + left(ticket, answers)
