"""The changes that one event makes to a consumer group: records, and the group after them.

A decision works on copies, because only replay may change the group. ``Change`` holds the copies
and has the steps of every event:

    a member is new or has changed    -> ``put``, ``replace_static``
    patterns match other topics       -> ``resolve_patterns``
    the group epoch rises             -> ``raise_epoch``
    a new target is computed          -> ``retarget``
    the member takes its next step    -> ``reconcile``
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.core.groups.consumer.assignors import ASSIGNORS, Subscriber
from headrace.core.groups.consumer.members import ConsumerMember, MemberState, target_record
from headrace.core.groups.consumer.reconciliation import Reported, Target, reconcile
from headrace.core.groups.consumer.state import (
    ConsumerState,
    assignment_epoch_record,
    epoch_record,
    partition_metadata_key,
    pattern_key,
    pattern_record,
    subscribed_topics,
    topics_hash,
)
from headrace.core.groups.group import Timer
from headrace.core.outcome import NewRecord
from headrace.model.ids import Millis, TopicId
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.core.groups.shard import GroupShard

# Timers of a member: it must
SESSION = "session"  # send a heartbeat
REBALANCE = "rebalance"  # give back partitions
REJOIN = "rejoin"  # join again (classic)
RESYNC = "resync"  # fetch its assignment (classic)
_MEMBER_TIMERS = (SESSION, REBALANCE, REJOIN, RESYNC)

_KAFKA_ASSIGNORS = "org.apache.kafka.coordinator.group.assignor."


class Change:
    """One event's changes to a group, in the order in which they are made."""

    def __init__(
        self, shard: "GroupShard", state: ConsumerState, records: list[NewRecord], now: Millis
    ) -> None:
        """``records`` come first: those that convert a group from another kind."""
        self._shard = shard
        self._metadata = shard.cluster.metadata
        self._state = state
        self._now = now
        self.group_id = state.group_id
        self.records = records
        self.members = dict(state.members)
        self.targets = dict(state.targets)
        self.resolved = dict(state.resolved)
        self.group_epoch = state.group_epoch
        self.assignment_epoch = state.assignment_epoch

    # -- members --------------------------------------------------------------------------

    def put(self, member: ConsumerMember) -> None:
        self.members[member.member_id] = member
        self.records.append(member.metadata_record(self.group_id))

    def replace_static(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """The instance returned under another id and keeps all that it owned."""
        new = old._replace(member_id=member_id, member_epoch=0, previous_member_epoch=0)
        target = self.targets.pop(old.member_id, {})
        del self.members[old.member_id]
        self.members[member_id] = new
        self.targets[member_id] = target
        self.records += old.tombstones(self.group_id)
        self.records += (
            new.metadata_record(self.group_id),
            target_record(self.group_id, member_id, target),
            new.assignment_record(self.group_id),
        )
        return new

    def take_out(self, member: ConsumerMember) -> None:
        del self.members[member.member_id]
        self.targets.pop(member.member_id, None)
        self.records += member.tombstones(self.group_id)

    # -- the group epoch ------------------------------------------------------------------

    def resolve_patterns(self) -> bool:
        """Match all patterns again; returns whether one matches other topics than before."""
        metadata = self._metadata
        in_use = dict.fromkeys(member.pattern for member in self.members.values() if member.pattern)
        for pattern in [pattern for pattern in self.resolved if pattern not in in_use]:
            del self.resolved[pattern]
            self.records.append(NewRecord(pattern_key(self.group_id, pattern), None))
        has_changed = False
        for pattern in in_use:
            topics = self._shard.patterns.matching(pattern, metadata)
            if self.resolved.get(pattern) != topics:
                has_changed = True
                self.resolved[pattern] = topics
                self.records.append(
                    pattern_record(self.group_id, pattern, topics, metadata, self._now)
                )
        return has_changed

    def raise_epoch(self, *, must: bool) -> bool:
        """Raise the group epoch if it ``must`` rise or if the subscribed topics have changed."""
        names = subscribed_topics(self.members.values(), self.resolved)
        metadata_hash = topics_hash(names, self._metadata)
        if not must and metadata_hash == self._state.metadata_hash:
            return False
        self.group_epoch += 1
        self.records.append(epoch_record(self.group_id, self.group_epoch, metadata_hash))
        if self._state.has_partition_metadata:
            self.records.append(NewRecord(partition_metadata_key(self.group_id), None))
        return True

    # -- the target -----------------------------------------------------------------------

    def retarget(self) -> None:
        """Compute a new target, unless it is current or the assignment interval is not over."""
        if self.assignment_epoch >= self.group_epoch or not is_interval_over(
            self._shard, self._state, self._now
        ):
            return
        partition_counts: dict[TopicId, int] = {}
        # Most members share a subscription, and a pattern may match thousands of topics: look up
        # each subscription once.
        topic_ids: dict[tuple[frozenset[str], str], frozenset[TopicId]] = {}
        subscribers = []
        for member in self.members.values():
            subscription = (member.topics, member.pattern)
            if subscription not in topic_ids:
                found = self._existing(self._topics_of(member))
                partition_counts |= found
                topic_ids[subscription] = frozenset(found)
            subscribers.append(
                Subscriber(
                    member.member_id,
                    member.instance_id,
                    topic_ids[subscription],
                    self.targets.get(member.member_id, {}),
                )
            )
        assign = ASSIGNORS[preferred_assignor(self._shard, self.members)]
        for member_id, target in assign(subscribers, partition_counts).items():
            before = self.targets.get(member_id)
            if before is None or before != target:
                self.targets[member_id] = target
                self.records.append(target_record(self.group_id, member_id, target))
        self.assignment_epoch = self.group_epoch
        self.records.append(
            assignment_epoch_record(self.group_id, self.assignment_epoch, self._now)
        )

    def _existing(self, names: frozenset[str]) -> dict[TopicId, int]:
        """The existing topics among ``names``, with their partition counts."""
        topics = self._metadata.topics
        states = (topics[name] for name in names if name in topics)
        return {state.topic_id: len(state.partitions) for state in states}

    def _topics_of(self, member: ConsumerMember) -> frozenset[str]:
        if not member.pattern:
            return member.topics
        return member.topics | self.resolved.get(member.pattern, frozenset())

    # -- one member's step ----------------------------------------------------------------

    def reconcile(
        self, member: ConsumerMember, reported: Reported, *, is_subscription_new: bool
    ) -> ConsumerMember:
        if not is_subscription_new and member.is_reconciled_to(self.assignment_epoch):
            return member
        owners = self._state.owners
        updated = reconcile(
            member,
            Target(
                self.assignment_epoch,
                self.targets.get(member.member_id, {}),
                self._existing(self._topics_of(member)),
                is_subscription_new,
                lambda topic_id, partition: (topic_id, partition) not in owners,
                reported,
            ),
        )
        if updated != member:
            self.members[member.member_id] = updated
            self.records.append(updated.assignment_record(self.group_id))
            if updated.classic is None:
                timer = Timer(self.group_id, REBALANCE, member.member_id)
                if updated.state is MemberState.UNREVOKED:
                    self._shard.timers.set(timer, self._now + updated.rebalance_timeout_ms)
                else:
                    self._shard.timers.cancel(timer)
        return updated


def is_interval_over(shard: "GroupShard", state: ConsumerState, now: Millis) -> bool:
    """Whether the next target may be computed; many changes share one target (KIP-1263).

    Members send heartbeats, so a later one computes it.
    """
    interval_ms = setting(shard, state.group_id, "assignment.interval.ms")
    return not state.assigned_at or not interval_ms or now >= state.assigned_at + interval_ms


def may_retarget(shard: "GroupShard", state: ConsumerState, now: Millis) -> bool:
    return state.group_epoch > state.assignment_epoch and is_interval_over(shard, state, now)


def preferred_assignor(shard: "GroupShard", members: Mapping[str, ConsumerMember]) -> str:
    """The assignor with the most votes of members, else the default; a tie goes by name."""
    known = configured_assignors(shard)
    votes: dict[str, int] = {}
    for member in members.values():
        if member.assignor is not None and member.assignor in known:
            votes[member.assignor] = votes.get(member.assignor, 0) + 1
    return min(votes, key=lambda name: (-votes[name], name), default=known[0])


def configured_assignors(shard: "GroupShard") -> list[str]:
    """The existing ones of ``group.consumer.assignors``, the default first."""
    by_class = {
        f"{_KAFKA_ASSIGNORS}UniformAssignor": "uniform",
        f"{_KAFKA_ASSIGNORS}RangeAssignor": "range",
    }
    named = (by_class.get(n, n) for n in shard.cluster.config.list("group.consumer.assignors"))
    return [name for name in named if name in ASSIGNORS] or list(ASSIGNORS)


def setting(shard: "GroupShard", group_id: str, name: str) -> int:
    """A setting of this group, else of the broker."""
    own = shard.cluster.group_settings(group_id).get(f"consumer.{name}")
    return int(own) if own is not None else shard.cluster.config.int(f"group.consumer.{name}")


def set_session(shard: "GroupShard", group_id: str, member: ConsumerMember, now: Millis) -> None:
    """Restart the session of a member that has sent a request."""
    timeout_ms = (
        member.classic.session_timeout_ms
        if member.classic is not None
        else setting(shard, group_id, "session.timeout.ms")
    )
    shard.timers.set(Timer(group_id, SESSION, member.member_id), now + timeout_ms)


def cancel_timers(shard: "GroupShard", group_id: str, member_id: str) -> None:
    for kind in _MEMBER_TIMERS:
        shard.timers.cancel(Timer(group_id, kind, member_id))


def reported_of(
    topics: list[m.ConsumerGroupHeartbeatRequest.TopicPartitions] | None,
) -> Reported:
    """What a member reports to own in its heartbeat."""
    if topics is None:
        return None
    return {TopicId(topic.topic_id): frozenset(topic.partitions) for topic in topics}
