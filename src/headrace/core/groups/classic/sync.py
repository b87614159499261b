"""SyncGroup: the leader hands in the assignments, every member fetches its own."""

from headrace.core.groups.classic.members import ClassicMember
from headrace.core.groups.classic.records import group_record
from headrace.core.groups.classic.responses import refused
from headrace.core.groups.classic.state import ClassicState, GroupState
from headrace.core.outcome import NOTHING, Outcome, Reply, Ticket
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis
from headrace.wire import messages as m


def sync(group: ClassicState, ticket: Ticket, request: m.SyncGroupRequest, now: Millis) -> Outcome:
    try:
        member = group.known(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise Rejected(ErrorCode.ILLEGAL_GENERATION)
        if request.protocol_type not in (None, group.protocol_type_known) or (
            request.protocol_name not in (None, group.protocol_name)
        ):
            raise Rejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return _sync(group, ticket, request, member, now)
    except Rejected as refusal:
        return refused(ticket, m.SyncGroupResponse, refusal.code)


def _sync(
    group: ClassicState,
    ticket: Ticket,
    request: m.SyncGroupRequest,
    member: ClassicMember,
    now: Millis,
) -> Outcome:
    member_id = member.member_id
    if group.state is GroupState.PREPARING:
        raise Rejected(ErrorCode.REBALANCE_IN_PROGRESS)
    if group.state is GroupState.EMPTY:
        raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
    group.mark_synced(member_id)
    if group.state is GroupState.STABLE:
        return Outcome(replies=(Reply(ticket, _synced(group, member.assignment)),))
    outcome = NOTHING
    if (before := group.syncing.get(member_id)) is not None:
        outcome = refused(before, m.SyncGroupResponse, ErrorCode.REBALANCE_IN_PROGRESS)
    group.syncing[member_id] = ticket
    if member_id != group.leader_id:
        return outcome
    return outcome + _assign(group, request, now)


def _assign(group: ClassicState, request: m.SyncGroupRequest, now: Millis) -> Outcome:
    """Write the leader's assignments and answer all parked syncs."""
    # A member that the leader left out gets an empty assignment; unknown ids are ignored.
    assignments = dict.fromkeys(group.members, b"")
    for given in request.assignments:
        if given.member_id in assignments:
            assignments[given.member_id] = given.assignment
    replies = []
    for member_id, parked in group.syncing.items():
        replies.append(Reply(parked, _synced(group, assignments[member_id])))
        group.restart_session(group.members[member_id], now)
    group.syncing.clear()
    return Outcome((group_record(group, now, assignments),), tuple(replies))


def _synced(group: ClassicState, assignment: bytes) -> m.SyncGroupResponse:
    return m.SyncGroupResponse(
        protocol_type=group.protocol_type_known,
        protocol_name=group.protocol_name,
        assignment=assignment,
    )
