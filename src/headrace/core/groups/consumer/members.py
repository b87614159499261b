"""One member of a consumer group: its subscription, its partitions, and its records in the log.

    5  ConsumerGroupMemberMetadata           its identity and subscription
    7  ConsumerGroupTargetAssignmentMember   its target: the partitions it should own
    8  ConsumerGroupCurrentMemberAssignment  the partitions it owns, and its state

A member is a value: a decision creates another one and writes the records that lead to it.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from headrace.core.groups.consumer.assignors import Partitions
from headrace.core.outcome import NewRecord
from headrace.model.ids import TopicId
from headrace.wire import messages as m
from headrace.wire.framing import encode_record_key, encode_versioned

# Member epochs with a special meaning.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = (
    -2
)  # a static member left temporarily and keeps its partitions until its session ends

# Partitions with the epoch in which the member got each of them (KIP-1251). A commit with an older
# member epoch is accepted if the member has owned the partition since.
Owned = Mapping[TopicId, Mapping[int, int]]


class MemberState(IntEnum):
    """How far a member is on its way to its target. Stored in the log."""

    #: The member owns all of the target of its epoch.
    STABLE = 0
    #: The member must give partitions back and has not confirmed it. Its epoch waits.
    UNREVOKED = 1
    #: The member has the epoch of the target, but other members still own some partitions of it.
    UNRELEASED = 2
    #: A newer broker stored a value that is unknown here. The member has to join again.
    UNKNOWN = 127


class ClassicMemberMetadata(NamedTuple):
    """What a member of the classic protocol sent in its JoinGroup."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # name and metadata, in order of preference


class ConsumerMember(NamedTuple):
    member_id: str
    member_epoch: int = JOIN_EPOCH
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    assignor: str | None = None
    classic: ClassicMemberMetadata | None = None  # None: it speaks the consumer protocol
    assigned: Owned = {}
    revoking: Owned = {}  # to be given back; no other member may own them yet

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    def at_epoch(self, member_epoch: int) -> "ConsumerMember":
        return self._replace(member_epoch=member_epoch, previous_member_epoch=self.member_epoch)

    def assigned_epoch(self, topic_id: TopicId, partition: int) -> int | None:
        """The epoch since which it owns the partition; None if it does not."""
        for owned in (self.assigned, self.revoking):
            since = owned.get(topic_id, {}).get(partition)
            if since is not None:
                return since
        return None

    # -- records --------------------------------------------------------------------------

    def metadata_record(self, group_id: str) -> NewRecord:
        value = m.ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.topics),
            subscribed_topic_regex=self.pattern,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.assignor,
            classic_member_metadata=None,
        )
        if self.classic is not None:
            value.classic_member_metadata = value.ClassicMemberMetadata(
                session_timeout_ms=self.classic.session_timeout_ms,
                supported_protocols=[
                    value.ClassicProtocol(name=name, metadata=metadata)
                    for name, metadata in self.classic.protocols
                ],
            )
        return NewRecord(metadata_key(group_id, self.member_id), encode_versioned(value, 0))

    def with_metadata(self, value: m.ConsumerGroupMemberMetadataValue) -> "ConsumerMember":
        terms = value.classic_member_metadata
        return self._replace(
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=frozenset(value.subscribed_topic_names),
            pattern=value.subscribed_topic_regex or "",
            assignor=value.server_assignor,
            classic=None
            if terms is None
            else ClassicMemberMetadata(
                terms.session_timeout_ms,
                tuple((known.name, known.metadata) for known in terms.supported_protocols),
            ),
        )

    def assignment_record(self, group_id: str) -> NewRecord:
        value = m.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=self.state,
            assigned_partitions=_with_epochs(self.assigned),
            partitions_pending_revocation=_with_epochs(self.revoking),
        )
        return NewRecord(assignment_key(group_id, self.member_id), encode_versioned(value, 0))

    def with_assignment(
        self, value: m.ConsumerGroupCurrentMemberAssignmentValue
    ) -> "ConsumerMember":
        try:
            state = MemberState(value.state)
        except ValueError:
            state = MemberState.UNKNOWN
        return self._replace(
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=state,
            assigned=_owned(value.assigned_partitions, value.member_epoch),
            revoking=_owned(value.partitions_pending_revocation, value.member_epoch),
        )

    def tombstones(self, group_id: str) -> tuple[NewRecord, NewRecord, NewRecord]:
        """In the order in which Kafka writes them."""
        return (
            NewRecord(assignment_key(group_id, self.member_id), None),
            NewRecord(target_key(group_id, self.member_id), None),
            NewRecord(metadata_key(group_id, self.member_id), None),
        )


def metadata_key(group_id: str, member_id: str) -> bytes:
    return encode_record_key(
        m.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
    )


def target_key(group_id: str, member_id: str) -> bytes:
    return encode_record_key(
        m.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    )


def assignment_key(group_id: str, member_id: str) -> bytes:
    return encode_record_key(
        m.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
    )


def target_record(group_id: str, member_id: str, target: Partitions) -> NewRecord:
    value = m.ConsumerGroupTargetAssignmentMemberValue
    return NewRecord(
        target_key(group_id, member_id),
        encode_versioned(
            value(
                topic_partitions=[
                    value.TopicPartition(topic_id=topic_id, partitions=sorted(partitions))
                    for topic_id, partitions in target.items()
                ]
            ),
            0,
        ),
    )


def target_of(value: m.ConsumerGroupTargetAssignmentMemberValue) -> Partitions:
    return {
        TopicId(topic.topic_id): frozenset(topic.partitions) for topic in value.topic_partitions
    }


def without_epochs(owned: Owned) -> Partitions:
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}


def everything_of(member: ConsumerMember) -> Partitions:
    """What the member owns, including what it must give back."""
    everything = dict(without_epochs(member.assigned))
    for topic_id, partitions in without_epochs(member.revoking).items():
        everything[topic_id] = everything.get(topic_id, frozenset()) | partitions
    return everything


def of_epoch(partitions: Partitions, member_epoch: int) -> Owned:
    return {
        topic_id: dict.fromkeys(sorted(members), member_epoch)
        for topic_id, members in partitions.items()
    }


def _with_epochs(
    owned: Owned,
) -> list[m.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
    kept = m.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
    return [
        kept(
            topic_id=topic_id,
            partitions=list(partitions),
            assignment_epochs=list(partitions.values()),
        )
        for topic_id, partitions in owned.items()
    ]


def _owned(
    kept: Iterable[m.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions], member_epoch: int
) -> Owned:
    return {
        TopicId(topic.topic_id): dict(
            zip(topic.partitions, topic.assignment_epochs, strict=True)
            if topic.assignment_epochs
            # Stored by a broker without these epochs: the member's own epoch is safe.
            else ((partition, member_epoch) for partition in topic.partitions)
        )
        for topic in kept
    }
