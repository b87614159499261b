"""JoinGroup: new members, members that join again, and static members that return."""

from collections.abc import Sequence

from headrace.core.groups.classic.members import SESSION, ClassicMember
from headrace.core.groups.classic.rebalance import (
    complete_join_if_ready,
    joined,
    prepare,
    rebalance_after_removal,
    rebalance_or_complete,
)
from headrace.core.groups.classic.records import group_record
from headrace.core.groups.classic.responses import join_refused, refused
from headrace.core.groups.classic.state import ClassicState, GroupState
from headrace.core.groups.group import TEXT_SIZE_MAX, JoinOptions, Timer
from headrace.core.outcome import NOTHING, Outcome, Reply, RequestContext, Ticket
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis
from headrace.wire import messages as m

# A new member cannot heartbeat while its first join is parked, and the group does not see whether
# its connection is still open. Without a limit, clients that retry would fill the group.
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000

_UUID = "." * 36

Protocols = Sequence[tuple[str, bytes]]  # name and metadata, in order of preference


def join(
    group: ClassicState,
    ticket: Ticket,
    context: RequestContext,
    request: m.JoinGroupRequest,
    options: JoinOptions,
    drawn_id: str,
    now: Millis,
) -> Outcome:
    try:
        return _join(group, ticket, context, request, options, drawn_id, now)
    except Rejected as refusal:
        return join_refused(ticket, refusal.code, request.member_id)


def _join(
    group: ClassicState,
    ticket: Ticket,
    context: RequestContext,
    request: m.JoinGroupRequest,
    options: JoinOptions,
    drawn_id: str,
    now: Millis,
) -> Outcome:
    check_texts(context, request)
    member_id = request.member_id
    if not _has_room_for(group, member_id):
        return _refuse_over_max_size(group, ticket, member_id, now)
    protocols = [(protocol.name, protocol.metadata) for protocol in request.protocols]
    if not group.supports(request.protocol_type, protocols):
        raise Rejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    instance_id = request.group_instance_id
    if not member_id:
        new_id = f"{instance_id or context.client_id}-{drawn_id}"
        if instance_id is not None:
            if instance_id in group.static:
                return _replace_static(
                    group, ticket, context, request, options, new_id, protocols, now
                )
        elif options.requires_known_member:
            # KIP-394: the client joins again with this id. If it dies before that, the group
            # needs no rebalance; the id is forgotten after the session timeout.
            group.pending.add(new_id)
            group.timers.set(
                Timer(group.group_id, SESSION, new_id), now + request.session_timeout_ms
            )
            return join_refused(ticket, ErrorCode.MEMBER_ID_REQUIRED, new_id)
        return _add(group, ticket, context, request, new_id, protocols, now)
    if member_id in group.pending:
        if instance_id is not None:
            raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)  # only dynamic members are pending
        return _add(group, ticket, context, request, member_id, protocols, now)
    member = group.known(member_id, instance_id)
    return _join_again(group, ticket, request, member, protocols, now)


def _has_room_for(group: ClassicState, member_id: str) -> bool:
    size_max = group.shard.cluster.config.int("group.max.size")
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING:
        # All members have to join again, first come first served: a lowered limit takes effect
        # here.
        return member_id in group.joining or len(group.joining) < size_max
    return member_id in group.members or len(group.members) < size_max


def _refuse_over_max_size(
    group: ClassicState, ticket: Ticket, member_id: str, now: Millis
) -> Outcome:
    outcome = join_refused(ticket, ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    count_before = len(group.members)
    if member_id in group.members:
        outcome += group.remove(member_id)
    group.pending.discard(member_id)
    return outcome + rebalance_after_removal(group, count_before, now)


def _add(
    group: ClassicState,
    ticket: Ticket,
    context: RequestContext,
    request: m.JoinGroupRequest,
    member_id: str,
    protocols: Protocols,
    now: Millis,
) -> Outcome:
    member = ClassicMember(
        group.group_id,
        member_id,
        request.group_instance_id,
        context.client_id,
        context.client_host,
        rebalance_timeout_ms(request),
        request.session_timeout_ms,
        protocols,
    )
    member.is_new = True
    if group.state is GroupState.PREPARING and group.is_initial:
        group.is_growing = True
    if not group.members:
        group.protocol_type_known = request.protocol_type
    if group.leader_id is None:
        group.leader_id = member_id
    group.insert(member)
    group.pending.discard(member_id)
    group.joining[member_id] = ticket
    group.timers.set(member.session, now + NEW_MEMBER_JOIN_TIMEOUT_MS)
    return rebalance_or_complete(group, now)


def _join_again(
    group: ClassicState,
    ticket: Ticket,
    request: m.JoinGroupRequest,
    member: ClassicMember,
    protocols: Protocols,
    now: Millis,
) -> Outcome:
    is_unchanged = member.protocols == tuple(protocols)
    if group.state is GroupState.EMPTY:
        raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
    if group.state is GroupState.COMPLETING and is_unchanged:
        # The member missed the answer to its last join: repeat it, without a rebalance.
        return Outcome(replies=(Reply(ticket, joined(group, member)),))
    if (
        group.state is GroupState.STABLE
        and is_unchanged
        and member.member_id != group.leader_id  # a leader that joins again wants a rebalance
    ):
        answer = joined(group, member)
        answer.members = []
        return Outcome(replies=(Reply(ticket, answer),))
    parked = _park(group, ticket, request, member, protocols)
    return parked + rebalance_or_complete(group, now)


def _park(
    group: ClassicState,
    ticket: Ticket,
    request: m.JoinGroupRequest,
    member: ClassicMember,
    protocols: Protocols,
) -> Outcome:
    group.set_protocols(member, protocols)
    member.rebalance_timeout_ms = rebalance_timeout_ms(request)
    member.session_timeout_ms = request.session_timeout_ms
    before = group.joining.get(member.member_id)
    group.joining[member.member_id] = ticket
    if before is None:
        return NOTHING
    # The member sent another join, perhaps on another connection; only the newer one waits.
    return join_refused(before, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)


def _replace_static(
    group: ClassicState,
    ticket: Ticket,
    context: RequestContext,
    request: m.JoinGroupRequest,
    options: JoinOptions,
    new_id: str,
    protocols: Protocols,
    now: Millis,
) -> Outcome:
    """A static member returned without its id: it takes its old place under a new one."""
    assert request.group_instance_id is not None
    old_leader_id = group.leader_id
    old = group.members[group.static[request.group_instance_id]]
    fenced = _fence(group, old)
    member = ClassicMember(
        group.group_id,
        new_id,
        old.instance_id,
        context.client_id,
        context.client_host,
        old.rebalance_timeout_ms,
        old.session_timeout_ms,
        old.protocols,
        old.assignment,
    )
    group.swap(old, member)
    _park(group, ticket, request, member, protocols)
    group.restart_session(member, now)
    if group.state is GroupState.STABLE and group.choose_protocol() == group.protocol_name:
        del group.joining[new_id]
        answer = joined(group, member)
        if options.supports_skip_assignment:
            # KIP-814: the leader gets the members, to watch their topics, and is told that the
            # assignment stays.
            answer.skip_assignment = new_id == group.leader_id
        else:
            # The client must not take itself for the leader, or it would assign again.
            answer.leader = old_leader_id or ""
            answer.members = []
        return fenced + Outcome((group_record(group, now),), (Reply(ticket, answer),))
    if group.state is GroupState.PREPARING:
        return fenced + complete_join_if_ready(group, now)
    # Completing: the leader may be assigning to the old id at this moment.
    return fenced + prepare(group, now)


def _fence(group: ClassicState, old: ClassicMember) -> Outcome:
    """Reject what the replaced member has parked, and forget its deadlines."""
    outcome = NOTHING
    if (parked := group.joining.pop(old.member_id, None)) is not None:
        outcome += join_refused(parked, ErrorCode.FENCED_INSTANCE_ID, old.member_id)
    if (parked := group.syncing.pop(old.member_id, None)) is not None:
        outcome += refused(parked, m.SyncGroupResponse, ErrorCode.FENCED_INSTANCE_ID)
    group.timers.cancel(old.session)
    group.unsynced.discard(old.member_id)
    return outcome


def check_texts(context: RequestContext, request: m.JoinGroupRequest) -> None:
    """Reject texts that are too long for the group's record; newer requests can carry them."""
    texts = [request.group_id, request.protocol_type, *(p.name for p in request.protocols)]
    texts.append(f"{request.group_instance_id or context.client_id}-{_UUID}")
    if any(len(text.encode()) > TEXT_SIZE_MAX for text in texts):
        raise Rejected(ErrorCode.INVALID_REQUEST)


def rebalance_timeout_ms(request: m.JoinGroupRequest) -> int:
    """Version 0 had one timeout for both."""
    given = request.rebalance_timeout_ms
    return given if given >= 0 else request.session_timeout_ms
