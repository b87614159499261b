"""How one member gets from its assignment to its target, one step per heartbeat.

Members move independently; none waits for the whole group. A partition is assigned only when it is
free. Its owner must first have been told to give it back, and must have confirmed that by no
longer reporting it.

    STABLE ──── new target ───► must give back? ── yes ──► UNREVOKED ── confirmed ──┐
       ▲                            │ no                                            │
       │                            ▼                                               │
       └── all free ──── takes the target's epoch and the free partitions ◄─────────┘
                                    │ not all free
                                    └──► UNRELEASED, checks again at every heartbeat
"""

from collections.abc import Callable, Collection, Container, Mapping
from typing import NamedTuple

from headrace.core.groups.consumer.assignors import Partitions
from headrace.core.groups.consumer.members import ConsumerMember, MemberState, Owned
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import TopicId

# What a member reports to own; None: it did not report.
Reported = Mapping[TopicId, Collection[int]] | None


class Target(NamedTuple):
    """The target of a member, and what is needed for the next step to it."""

    assignment_epoch: int
    partitions: Partitions
    # Topics of the current subscription. The target may be older.
    subscribed: Container[TopicId]
    is_subscription_new: bool
    is_free: Callable[[TopicId, int], bool]  # no member owns it or must still give it back
    reported: Reported


def reconcile(member: ConsumerMember, target: Target) -> ConsumerMember:
    """The member's next state; the member itself if there is no step to take."""
    if member.state is MemberState.STABLE:
        if member.member_epoch != target.assignment_epoch:
            return _next(member, target)
        return _without_unsubscribed(member, target) if target.is_subscription_new else member
    if member.state is MemberState.UNREVOKED:
        if _still_has(member.revoking, target.reported):
            return _without_unsubscribed(member, target) if target.is_subscription_new else member
        return _next(member, target)
    if member.state is MemberState.UNKNOWN and (target.reported is None or target.reported):
        raise Rejected(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The consumer group member is in a unknown state. "
            "The member must abandon all its partitions and rejoin.",
        )
    return _next(member, target)


def _still_has(revoking: Owned, reported: Reported) -> bool:
    if reported is None:
        return True
    return any(
        partition in reported.get(topic_id, ())
        for topic_id, partitions in revoking.items()
        for partition in partitions
    )


def _next(member: ConsumerMember, target: Target) -> ConsumerMember:
    kept: dict[TopicId, dict[int, int]] = {}
    revoking: dict[TopicId, dict[int, int]] = {}
    coming: list[tuple[TopicId, int]] = []
    is_waiting = False
    for topic_id in dict.fromkeys((*member.assigned, *target.partitions)):
        wanted = target.partitions.get(topic_id, frozenset())
        if topic_id not in target.subscribed:
            wanted = frozenset()
        have = member.assigned.get(topic_id, {})
        for partition, since in have.items():
            into = kept if partition in wanted else revoking
            into.setdefault(topic_id, {})[partition] = since
        # What it must give back is its own until then; it may simply keep it.
        own = member.revoking.get(topic_id, {})
        for partition in sorted(wanted):
            if partition in have:
                continue
            if partition in own or target.is_free(topic_id, partition):
                coming.append((topic_id, partition))
            else:
                is_waiting = True
    if revoking and _still_has(revoking, target.reported):
        return member.at_epoch(member.member_epoch)._replace(
            state=MemberState.UNREVOKED, assigned=kept, revoking=revoking
        )
    for topic_id, partition in coming:
        kept.setdefault(topic_id, {})[partition] = target.assignment_epoch
    return member.at_epoch(target.assignment_epoch)._replace(
        state=MemberState.UNRELEASED if is_waiting else MemberState.STABLE,
        assigned=kept,
        revoking={},
    )


def _without_unsubscribed(member: ConsumerMember, target: Target) -> ConsumerMember:
    """Revoke topics that it no longer subscribes to, before the next target is computed."""
    kept = {
        topic_id: partitions
        for topic_id, partitions in member.assigned.items()
        if topic_id in target.subscribed
    }
    if len(kept) == len(member.assigned):
        return member
    revoking: dict[TopicId, Mapping[int, int]] = dict(member.revoking)
    for topic_id, partitions in member.assigned.items():
        if topic_id not in kept:
            revoking[topic_id] = {**revoking.get(topic_id, {}), **partitions}
    if not _still_has(revoking, target.reported):
        return member.at_epoch(member.member_epoch)._replace(assigned=kept)
    return member.at_epoch(member.member_epoch)._replace(
        state=MemberState.UNREVOKED, assigned=kept, revoking=revoking
    )
