"""How members leave a classic group: on request, or because a timeout expired."""

from headrace.core.groups.classic.members import SESSION
from headrace.core.groups.classic.rebalance import rebalance_after_removal
from headrace.core.groups.classic.responses import left
from headrace.core.groups.classic.state import ClassicState
from headrace.core.groups.group import Timer
from headrace.core.outcome import NOTHING, Outcome, Ticket
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis
from headrace.wire import messages as m


def leave(
    group: ClassicState, ticket: Ticket, request: m.LeaveGroupRequest, now: Millis
) -> Outcome:
    answers = []
    outcome = NOTHING
    count_before = len(group.members)
    for leaving in request.members:
        answer = m.LeaveGroupResponse.MemberResponse(
            member_id=leaving.member_id, group_instance_id=leaving.group_instance_id
        )
        answers.append(answer)
        try:
            outcome += _leave(group, leaving.member_id, leaving.group_instance_id)
        except Rejected as refusal:
            answer.error_code = refusal.code
    return outcome + left(ticket, answers) + rebalance_after_removal(group, count_before, now)


def _leave(group: ClassicState, member_id: str, instance_id: str | None) -> Outcome:
    if not member_id and instance_id is not None:
        # An administrator removes a static member by its instance id (KIP-345).
        if instance_id not in group.static:
            raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        return group.remove(group.static[instance_id])
    if member_id in group.pending:
        group.pending.discard(member_id)
        group.timers.cancel(Timer(group.group_id, SESSION, member_id))
        return NOTHING
    return group.remove(group.known(member_id, instance_id).member_id)


def session_timed_out(group: ClassicState, member_id: str, now: Millis) -> Outcome:
    count_before = len(group.members)
    if member_id in group.pending:
        group.pending.discard(member_id)
        return rebalance_after_removal(group, count_before, now)
    member = group.members.get(member_id)
    if member is None:
        return NOTHING
    if not member.is_new and (member_id in group.joining or member_id in group.syncing):
        # The member waits for the coordinator; its session restarts with the answer.
        return NOTHING
    return group.remove(member_id) + rebalance_after_removal(group, count_before, now)


def sync_timed_out(group: ClassicState, now: Millis) -> Outcome:
    count_before = len(group.members)
    outcome = NOTHING
    for member_id in sorted(group.unsynced):
        outcome += group.remove(member_id)
    return outcome + rebalance_after_removal(group, count_before, now)
