"""ConsumerGroupHeartbeat: the one request of the consumer protocol.

With each heartbeat a member may report what changed, and learns its current assignment:

    member epoch 0     joins, or joins again after it was fenced
    above 0            continues; omitted fields have not changed
    -1                 leaves
    -2                 leaves temporarily: a static member that will return

Members never all stop at once. Each heartbeat takes its own member one step further
(``reconciliation.py``), and a member that gives partitions back in time delays no other.

Topics may be created, deleted and grow between two heartbeats. A group compares the cluster
metadata with the version that it saw last, so nothing has to notify it.
"""

from typing import TYPE_CHECKING

from headrace.core.groups.classic.group import ClassicGroup
from headrace.core.groups.consumer.changes import (
    Change,
    configured_assignors,
    reported_of,
    set_session,
    setting,
)
from headrace.core.groups.consumer.classic_members import check_room
from headrace.core.groups.consumer.departure import fence
from headrace.core.groups.consumer.group import ConsumerGroup
from headrace.core.groups.consumer.members import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
)
from headrace.core.groups.consumer.reconciliation import Reported
from headrace.core.groups.consumer.state import ConsumerState
from headrace.core.groups.conversion import upgrade
from headrace.core.groups.group import TEXT_SIZE_MAX
from headrace.core.outcome import NOTHING, NewRecord, Outcome, Reply, RequestContext, Ticket
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.core.groups.shard import GroupShard

LARGE_TOPIC_COUNT = 500
_TEXT_LENGTH_SAFE = TEXT_SIZE_MAX // 4  # no character has more than four bytes


def heartbeat(
    shard: "GroupShard",
    ticket: Ticket,
    context: RequestContext,
    request: m.ConsumerGroupHeartbeatRequest,
    drawn_id: str | None,
    now: Millis,
) -> Outcome:
    """``drawn_id`` becomes the id of a new member; None if clients draw their own (KIP-1082)."""
    try:
        check_request(shard, request, requires_member_id=drawn_id is None)
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return _leave(shard, ticket, request, now)
        return _beat(shard, ticket, context, request, request.member_id or drawn_id or "", now)
    except Rejected as refusal:
        response = m.ConsumerGroupHeartbeatResponse(
            error_code=refusal.code, error_message=refusal.message
        )
        return Outcome(replies=(Reply(ticket, response),))


def check_request(
    shard: "GroupShard", request: m.ConsumerGroupHeartbeatRequest, *, requires_member_id: bool
) -> None:
    member_epoch = request.member_epoch
    if requires_member_id or member_epoch > 0 or member_epoch == LEAVE_EPOCH:
        _check_text(request.member_id, "MemberId")
    _check_text(request.group_id, "GroupId")
    _check_text(request.instance_id, "InstanceId")
    _check_text(request.rack_id, "RackId")
    for text in (request.group_id, request.member_id, request.subscribed_topic_regex or ""):
        if len(text) > _TEXT_LENGTH_SAFE and len(text.encode()) > TEXT_SIZE_MAX:
            raise _invalid(f"A text must not be longer than {TEXT_SIZE_MAX} bytes.")
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
        # Not before: if the records cannot be written, the next heartbeat has to try again.
        state.seen_metadata = metadata
    return outcome + _answer(shard, ticket, request, member, updated, change.records, now)


def _is_steady(
    shard: "GroupShard",
    state: ConsumerState,
    member: ConsumerMember,
    context: RequestContext,
    request: m.ConsumerGroupHeartbeatRequest,
) -> bool:
    """Whether neither side has anything new, as with nearly every heartbeat."""
    return (
        request.member_epoch != JOIN_EPOCH
        and isinstance(state, ConsumerGroup)
        and state.seen_metadata is shard.cluster.metadata
        and state.group_epoch == state.assignment_epoch
        and member.is_reconciled_to(state.assignment_epoch)
        and (
            _reports_nothing(member, context, request)
            or _updated(member, context, request) == member
        )
    )


def _reports_nothing(
    member: ConsumerMember, context: RequestContext, request: m.ConsumerGroupHeartbeatRequest
) -> bool:
    """A cheap test that the member has not changed."""
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
    """Whether this heartbeat covers so many topics that other requests should not wait for it.

    Each topic costs about 20 µs: to match, assign, write and replay.
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
    """The group, the records that create it if needed, and replies that come before."""
    group = shard.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return group, [], NOTHING
    if group is None:
        if not is_joining:
            raise Rejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        return ConsumerState(group_id), [], NOTHING
    if not is_joining or not isinstance(group, ClassicGroup):
        raise _not_a_consumer_group(group_id)
    if not group.members:
        return ConsumerState(group_id), list(group.tombstones()), NOTHING
    return upgrade(shard, group, now)


def _not_a_consumer_group(group_id: str) -> Rejected:
    return Rejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")


def _present(
    state: ConsumerState,
    request: m.ConsumerGroupHeartbeatRequest,
    member_id: str,
    reported: Reported,
) -> ConsumerMember | None:
    """The member that sent the request, or the one that it replaces; None if it is new."""
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
        comparison = "greater"
    elif (
        member_epoch == member.previous_member_epoch
        and reported is not None
        and all(
            topic_id in member.assigned
            and all(partition in member.assigned[topic_id] for partition in partitions)
            for topic_id, partitions in reported.items()
        )
    ):
        return  # the response that raised its epoch was lost
    else:
        comparison = "smaller"
    raise Rejected(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {comparison} member epoch ({member_epoch}) than the one "
        f"known by the group coordinator ({known}). The member must abandon all its partitions "
        "and rejoin.",
    )


def _updated(
    member: ConsumerMember, context: RequestContext, request: m.ConsumerGroupHeartbeatRequest
) -> ConsumerMember:
    """The member with the fields of the request; omitted fields stay as they were."""
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
        raise _not_a_consumer_group(group_id)
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
        # The instance keeps its partitions until its session ends. A member that returns for it
        # gets a new epoch; commits with an old one are rejected.
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
