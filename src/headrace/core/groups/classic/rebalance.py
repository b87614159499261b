"""The course of a rebalance: from its start to the generation that all members have joined."""

from headrace.core.groups.classic.members import ClassicMember
from headrace.core.groups.classic.records import empty_record
from headrace.core.groups.classic.responses import refused
from headrace.core.groups.classic.state import ClassicState, GroupState
from headrace.core.outcome import NOTHING, Outcome, Reply
from headrace.model.errors import ErrorCode
from headrace.model.ids import Millis
from headrace.wire import messages as m

_RETRY_EMPTY_MS = 5_000
_INITIAL_DELAY = "group.initial.rebalance.delay.ms"


def rebalance_or_complete(group: ClassicState, now: Millis) -> Outcome:
    """After a member has joined."""
    if group.state is GroupState.PREPARING:
        return complete_join_if_ready(group, now)
    return prepare(group, now)


def rebalance_after_removal(group: ClassicState, count_before: int, now: Millis) -> Outcome:
    """The remaining members share what the removed ones owned."""
    if group.state is GroupState.PREPARING:
        return complete_join_if_ready(group, now)
    return prepare(group, now) if len(group.members) < count_before else NOTHING


def prepare(group: ClassicState, now: Millis) -> Outcome:
    """Start a rebalance."""
    outcome = NOTHING
    if group.state is GroupState.COMPLETING:
        outcome = _refuse_syncs(group, now)
    group.timers.cancel(group.sync_timer)
    group.is_initial = group.state is GroupState.EMPTY
    group.state = GroupState.PREPARING
    group.state_since = now
    if not group.is_initial:
        return outcome + complete_join_or_wait(group, now)
    # The members of a starting group arrive one after the other. A short delay saves one
    # rebalance for each of them.
    delay_ms = group.shard.cluster.config.int(_INITIAL_DELAY)
    group.initial_ms_left = max(group.rebalance_timeout_ms() - delay_ms, 0)
    group.is_growing = False
    group.timers.set(group.join_timer, now + delay_ms)
    return outcome


def complete_join_or_wait(group: ClassicState, now: Millis) -> Outcome:
    if group.have_all_joined():
        return complete_join(group, now)
    group.timers.set(group.join_timer, now + group.rebalance_timeout_ms())
    return NOTHING


def complete_join_if_ready(group: ClassicState, now: Millis) -> Outcome:
    # The initial delay runs to its end even when all known members have joined.
    if group.is_initial or not group.have_all_joined():
        return NOTHING
    return complete_join(group, now)


def initial_delay_over(group: ClassicState, now: Millis) -> Outcome:
    """Wait once more if new members keep coming; else complete the join."""
    if not group.is_growing or group.initial_ms_left == 0:
        return complete_join(group, now)
    group.is_growing = False
    delay_ms = min(group.shard.cluster.config.int(_INITIAL_DELAY), group.initial_ms_left)
    group.initial_ms_left -= delay_ms
    group.timers.set(group.join_timer, now + delay_ms)
    return NOTHING


def complete_join(group: ClassicState, now: Millis) -> Outcome:
    """Begin a generation: all members have joined, or the join timed out."""
    group.timers.cancel(group.join_timer)
    for member in list(group.members.values()):
        # A static member may be restarting; its session decides.
        if member.member_id not in group.joining and member.instance_id is None:
            group.remove(member.member_id)
    if not group.members:
        # If this record cannot be written, the timer tries again.
        group.timers.set(group.join_timer, now + _RETRY_EMPTY_MS)
        return Outcome((empty_record(group, now),))
    if not group.joining:
        # Only static members are left and none has returned. Their sessions end the wait.
        group.timers.set(group.join_timer, now + group.rebalance_timeout_ms())
        return NOTHING
    if group.leader_id not in group.joining:
        group.leader_id = next(reversed(group.joining))
    group.generation += 1
    group.protocol_name = group.choose_protocol()
    group.subscribed_topics = group.subscriptions()
    group.state = GroupState.COMPLETING
    group.state_since = now
    group.is_initial = False
    group.unsynced = set(group.members)
    replies = []
    for member in group.members.values():
        ticket = group.joining.pop(member.member_id, None)
        if ticket is not None:
            replies.append(Reply(ticket, joined(group, member)))
        member.is_new = False
        group.restart_session(member, now)
    group.timers.set(group.sync_timer, now + group.rebalance_timeout_ms())
    return Outcome(replies=tuple(replies))


def joined(group: ClassicState, member: ClassicMember) -> m.JoinGroupResponse:
    """The answer to a member that has joined the current generation."""
    answer = m.JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type_known,
        protocol_name=group.protocol_name or "",
        leader=group.leader_id or "",
        member_id=member.member_id,
    )
    if member.member_id == group.leader_id:
        answer.members = [
            m.JoinGroupResponse.JoinGroupResponseMember(
                member_id=other.member_id,
                group_instance_id=other.instance_id,
                metadata=other.metadata(group.protocol_name),
            )
            for other in group.members.values()
        ]
    return answer


def _refuse_syncs(group: ClassicState, now: Millis) -> Outcome:
    outcome = NOTHING
    for member_id, ticket in group.syncing.items():
        outcome += refused(ticket, m.SyncGroupResponse, ErrorCode.REBALANCE_IN_PROGRESS)
        # A parked sync suspended the member's session.
        group.restart_session(group.members[member_id], now)
    group.syncing.clear()
    return outcome
