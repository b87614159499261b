"""What the log holds of a consumer group, and the records that change it.

    3  ConsumerGroupMetadata                  the group epoch, and a hash of the subscribed topics
    4  ConsumerGroupPartitionMetadata         written by brokers before 4.1; removed when found
    6  ConsumerGroupTargetAssignmentMetadata  the group epoch of the target, and its time
    16 ConsumerGroupRegularExpression         the topics that a pattern of a member matches
    5, 7, 8                                   of each member (``members.py``)

Three epochs follow each other. A change that affects the assignment raises the *group epoch*. A new
target takes it over as the *assignment epoch*. Each member reaches it as its *member epoch* once it
has given back what it had to.

After compaction the records of a group may come in any order, so each of them can be the first.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from headrace.core.groups.consumer.assignors import Partitions
from headrace.core.groups.consumer.members import (
    LEAVE_EPOCH,
    ConsumerMember,
    MemberState,
    target_of,
    target_record,
)
from headrace.core.outcome import NewRecord
from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.ids import Millis, TopicId
from headrace.wire import messages as m
from headrace.wire.framing import encode_record_key, encode_versioned

# As in Kafka: the first change makes it 2.
_INITIAL_GROUP_EPOCH = 1


class ConsumerState:
    """Changed only by its ``replay_...`` methods."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = _INITIAL_GROUP_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assigned_at = Millis(0)  # when the target was computed; 0: unknown
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, Partitions] = {}
        self.resolved: dict[str, frozenset[str]] = {}  # topics by pattern
        self.has_partition_metadata = False
        # Derived from the members.
        self.static: dict[str, str] = {}  # member id by instance id
        self.owners: dict[
            tuple[TopicId, int], str
        ] = {}  # the member that owns it or must still give it back
        self._subscribed: frozenset[str] | None = None

    # -- replay ---------------------------------------------------------------------------

    def replay_metadata(self, value: m.ConsumerGroupMetadataValue) -> None:
        self.group_epoch = value.epoch
        self.metadata_hash = value.metadata_hash

    def replay_partition_metadata(self, value: object | None) -> None:
        self.has_partition_metadata = value is not None

    def replay_member(
        self, member_id: str, value: m.ConsumerGroupMemberMetadataValue | None
    ) -> None:
        member = self.members.get(member_id)
        if value is not None:
            self.put((member or ConsumerMember(member_id)).with_metadata(value))
        elif member is not None:
            self._take_out(member)

    def replay_assignment_metadata(
        self, value: m.ConsumerGroupTargetAssignmentMetadataValue | None
    ) -> None:
        self.assignment_epoch = value.assignment_epoch if value is not None else 0
        self.assigned_at = Millis(value.assignment_timestamp if value is not None else 0)

    def replay_target(
        self, member_id: str, value: m.ConsumerGroupTargetAssignmentMemberValue | None
    ) -> None:
        if value is not None:
            self.targets[member_id] = target_of(value)
        else:
            self.targets.pop(member_id, None)

    def replay_assignment(
        self, member_id: str, value: m.ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> None:
        member = self.members.get(member_id)
        if value is not None:
            self.put((member or ConsumerMember(member_id)).with_assignment(value))
        elif member is not None:
            # Its other records are deleted too, or it joins again.
            self.put(
                member._replace(
                    member_epoch=LEAVE_EPOCH,
                    previous_member_epoch=LEAVE_EPOCH,
                    state=MemberState.STABLE,
                    assigned={},
                    revoking={},
                )
            )

    def replay_pattern(
        self, pattern: str, value: m.ConsumerGroupRegularExpressionValue | None
    ) -> None:
        if value is not None:
            self.resolved[pattern] = frozenset(value.topics)
        else:
            self.resolved.pop(pattern, None)
        self._subscribed = None

    def put(self, member: ConsumerMember) -> None:
        before = self.members.get(member.member_id)
        if before is not None:
            self._forget(before)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        for owned in (member.assigned, member.revoking):
            for topic_id, partitions in owned.items():
                for partition in partitions:
                    self.owners[topic_id, partition] = member.member_id
        self._subscribed = None

    def _take_out(self, member: ConsumerMember) -> None:
        self._forget(member)
        del self.members[member.member_id]
        self._subscribed = None

    def _forget(self, member: ConsumerMember) -> None:
        """Remove a member from the indexes, unless they name another one.

        In a compacted log another member may come first.
        """
        if member.instance_id is not None and (
            self.static.get(member.instance_id) == member.member_id
        ):
            del self.static[member.instance_id]
        for owned in (member.assigned, member.revoking):
            for topic_id, partitions in owned.items():
                for partition in partitions:
                    if self.owners.get((topic_id, partition)) == member.member_id:
                        del self.owners[topic_id, partition]

    # -- reading --------------------------------------------------------------------------

    @property
    def subscribed_topics(self) -> frozenset[str]:
        """All topics that members name or match by a pattern, existing or not."""
        if self._subscribed is None:
            self._subscribed = subscribed_topics(self.members.values(), self.resolved)
        return self._subscribed

    @property
    def state_name(self) -> str:
        """As in ListGroups and ConsumerGroupDescribe."""
        if not self.members:
            return "Empty"
        if self.group_epoch > self.assignment_epoch:
            return "Assigning"
        if all(m.is_reconciled_to(self.assignment_epoch) for m in self.members.values()):
            return "Stable"
        return "Reconciling"

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether other members still own partitions of the member's target."""
        return member.state is MemberState.UNRELEASED and any(
            partition not in member.assigned.get(topic_id, {})
            and (topic_id, partition) in self.owners
            for topic_id, partitions in self.targets.get(member.member_id, {}).items()
            for partition in partitions
        )

    # -- records --------------------------------------------------------------------------

    def all_records(self) -> list[NewRecord]:
        """The records that create this group."""
        group_id = self.group_id
        records = [member.metadata_record(group_id) for member in self.members.values()]
        records.append(epoch_record(group_id, self.group_epoch, self.metadata_hash))
        records += [target_record(group_id, *target) for target in self.targets.items()]
        records.append(assignment_epoch_record(group_id, self.assignment_epoch, self.assigned_at))
        records += [member.assignment_record(group_id) for member in self.members.values()]
        return records

    def tombstones(self) -> tuple[NewRecord, ...]:
        group_id = self.group_id
        members = [member.tombstones(group_id) for member in self.members.values()]
        return (
            *(assignment for assignment, _, _ in members),
            *(target for _, target, _ in members),
            NewRecord(assignment_epoch_key(group_id), None),
            *(metadata for _, _, metadata in members),
            *(NewRecord(pattern_key(group_id, pattern), None) for pattern in self.resolved),
            NewRecord(partition_metadata_key(group_id), None),
            NewRecord(epoch_key(group_id), None),
        )


def subscribed_topics(
    members: Iterable[ConsumerMember], resolved: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    topics: set[str] = set()
    for member in members:
        topics |= member.topics
        if member.pattern:
            topics |= resolved.get(member.pattern, frozenset())
    return frozenset(topics)


def topics_hash(names: Iterable[str], metadata: ClusterMetadata) -> int:
    """A number that changes when subscribed topics are created, deleted or grow.

    The number is specific to this broker. A broker that finds another one's number in the log
    takes it for a change and computes another target, with the same result.
    """
    digest = blake2b(digest_size=8)
    is_empty = True
    for name in sorted(names):
        state = metadata.topics.get(name)
        if state is not None:
            digest.update(b"%s %s %d\n" % (name.encode(), state.topic_id, len(state.partitions)))
            is_empty = False
    return 0 if is_empty else int.from_bytes(digest.digest(), "big", signed=True)


def epoch_key(group_id: str) -> bytes:
    return encode_record_key(m.ConsumerGroupMetadataKey(group_id=group_id))


def assignment_epoch_key(group_id: str) -> bytes:
    return encode_record_key(m.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id))


def partition_metadata_key(group_id: str) -> bytes:
    return encode_record_key(m.ConsumerGroupPartitionMetadataKey(group_id=group_id))


def pattern_key(group_id: str, pattern: str) -> bytes:
    return encode_record_key(
        m.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
    )


def epoch_record(group_id: str, group_epoch: int, metadata_hash: int) -> NewRecord:
    value = m.ConsumerGroupMetadataValue(epoch=group_epoch, metadata_hash=metadata_hash)
    return NewRecord(epoch_key(group_id), encode_versioned(value, 0))


def assignment_epoch_record(group_id: str, assignment_epoch: int, assigned_at: Millis) -> NewRecord:
    value = m.ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=assignment_epoch, assignment_timestamp=assigned_at
    )
    return NewRecord(assignment_epoch_key(group_id), encode_versioned(value, 0))


def pattern_record(
    group_id: str, pattern: str, topics: frozenset[str], metadata: ClusterMetadata, now: Millis
) -> NewRecord:
    value = m.ConsumerGroupRegularExpressionValue(
        topics=sorted(topics), version=metadata.generation, timestamp=now
    )
    return NewRecord(pattern_key(group_id, pattern), encode_versioned(value, 0))
