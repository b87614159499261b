"""Groups that change their protocol while they have members, in either direction.

Upgrade: the first member of the consumer protocol joins a classic group of consumers. All classic
members stay, with what they own; their next heartbeat tells them to join again.

Downgrade: the last member of the consumer protocol leaves, times out, or is replaced by a classic
instance. The others continue as a classic group, with what they own, and rebalance what was given
up.

``group.consumer.migration.policy`` tells which direction is allowed. Either way is one batch of
records: the tombstones of one group and the records of the other.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, TypeVar

from headrace.core.groups.classic.group import BEGIN, ClassicGroup
from headrace.core.groups.classic.members import ClassicMember
from headrace.core.groups.classic.records import group_record
from headrace.core.groups.classic.state import CONSUMER
from headrace.core.groups.consumer.assignors import Partitions
from headrace.core.groups.consumer.changes import SESSION, cancel_timers, set_session
from headrace.core.groups.consumer.members import (
    ClassicMemberMetadata,
    ConsumerMember,
    everything_of,
    of_epoch,
)
from headrace.core.groups.consumer.state import ConsumerState, topics_hash
from headrace.core.groups.group import Timer
from headrace.core.outcome import NewRecord, Outcome
from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.errors import ErrorCode, PeerBroken, Rejected
from headrace.model.ids import Millis, TopicId
from headrace.wire import messages as m
from headrace.wire import schema
from headrace.wire.framing import encode_versioned
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.core.groups.shard import GroupShard

MessageT = TypeVar("MessageT", bound=Message)

_POLICY = "group.consumer.migration.policy"
_NEWEST_EMBEDDED_VERSION = 3  # of a subscription or assignment inside a classic message
_EMBEDDED_VERSION_SIZE = 2


# -- upgrade: classic to consumer ---------------------------------------------------------


def upgrade(
    shard: "GroupShard", classic: ClassicGroup, now: Millis
) -> tuple[ConsumerState, list[NewRecord], Outcome]:
    """The upgraded group, the records that create it, and replies to parked requests.

    Raises Rejected, with GROUP_ID_NOT_FOUND as in Kafka, if the group cannot be upgraded.
    """
    group_id = classic.group_id
    _check_upgrade(shard, classic)
    try:
        members = [
            _upgraded(member, classic, shard.cluster.metadata)
            for member in classic.members.values()
        ]
    except PeerBroken:
        raise _cannot_upgrade(
            group_id, "because the embedded consumer protocol is malformed"
        ) from None
    state = ConsumerState(group_id)
    state.group_epoch = state.assignment_epoch = classic.generation
    for member, target in members:
        state.put(member)
        state.targets[member.member_id] = target
        set_session(shard, group_id, member, now)
    state.metadata_hash = topics_hash(state.subscribed_topics, shard.cluster.metadata)
    return state, [*classic.tombstones(), *state.all_records()], classic.refuse_parked()


def _check_upgrade(shard: "GroupShard", classic: ClassicGroup) -> None:
    config = shard.cluster.config
    if config.str(_POLICY).lower() not in ("upgrade", "bidirectional"):
        raise _cannot_upgrade(classic.group_id, "because online upgrade is disabled")
    if classic.protocol_type != CONSUMER:
        raise _cannot_upgrade(
            classic.group_id, "because the group does not use the consumer embedded protocol"
        )
    if len(classic.members) > config.int("group.consumer.max.size"):
        raise _cannot_upgrade(
            classic.group_id, "because the group size exceeds the consumer group maximum size"
        )


def _cannot_upgrade(group_id: str, reason: str) -> Rejected:
    return Rejected(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {group_id} to consumer group {reason}.",
    )


def _upgraded(
    member: ClassicMember, classic: ClassicGroup, cluster: ClusterMetadata
) -> tuple[ConsumerMember, Partitions]:
    """The upgraded member and its assignment. Raises PeerBroken if its bytes cannot be read."""
    had: dict[TopicId, frozenset[int]] = {}
    if member.assignment:
        assignment = _embedded(m.ConsumerProtocolAssignment, member.assignment)
        if assignment.user_data:
            raise _cannot_upgrade(
                classic.group_id, "because an unsupported custom assignor is in use"
            )
        for topic in assignment.assigned_partitions:
            known = cluster.topics.get(topic.topic)
            if known is not None and topic.partitions:
                had[known.topic_id] = frozenset(topic.partitions)
    # Before the first generation no protocol is chosen; all of them have the same subscription.
    metadata = member.metadata(classic.protocol_name) or member.protocols[0][1]
    subscription = _embedded(m.ConsumerProtocolSubscription, metadata)
    upgraded = ConsumerMember(
        member.member_id,
        member_epoch=classic.generation,
        previous_member_epoch=classic.generation,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=frozenset(subscription.topics),
        classic=ClassicMemberMetadata(member.session_timeout_ms, member.protocols),
        assigned=of_epoch(had, classic.generation),
    )
    return upgraded, had


def subscription_of(metadata: bytes) -> m.ConsumerProtocolSubscription:
    """The subscription in a classic JoinGroup. Raises PeerBroken if it cannot be read."""
    return _embedded(m.ConsumerProtocolSubscription, metadata)


def _embedded(message: type[MessageT], data: bytes) -> MessageT:
    """Decode; unknown newer versions are read as the newest known one, as Kafka's clients do."""
    if len(data) < _EMBEDDED_VERSION_SIZE:
        raise PeerBroken(f"{message.__name__}: {len(data)} bytes are too short for a version")
    decode = schema.decoder(message, _embedded_version(data))
    decoded, _ = decode(data, _EMBEDDED_VERSION_SIZE, len(data))
    assert isinstance(decoded, message)
    return decoded


def _embedded_version(data: bytes) -> int:
    embedded_version = int.from_bytes(data[:_EMBEDDED_VERSION_SIZE], "big", signed=True)
    if embedded_version < 0:
        raise PeerBroken(f"an embedded message has the invalid version {embedded_version}")
    return min(embedded_version, _NEWEST_EMBEDDED_VERSION)


# -- downgrade: consumer to classic -------------------------------------------------------


def can_downgrade(
    shard: "GroupShard", state: ConsumerState, going: Collection[str], *, is_replaced: bool
) -> bool:
    """Whether all remaining members are classic and may become a classic group.

    ``going`` are the members that leave. With ``is_replaced`` a classic member takes the place of
    one of them and counts as remaining.
    """
    staying = [member for name, member in state.members.items() if name not in going]
    count = len(staying) + is_replaced
    config = shard.cluster.config
    return (
        count > 0
        and any(state.members[name].classic is None for name in going)
        and all(member.classic is not None for member in staying)
        and config.str(_POLICY).lower() in ("downgrade", "bidirectional")
        and count <= config.int("group.max.size")
    )


def downgrade(
    shard: "GroupShard",
    state: ConsumerState,
    members: Collection[ConsumerMember],
    *,
    must_rebalance: bool,
    now: Millis,
) -> NewRecord:
    """The record of the classic group that ``members`` become; all of them are classic.

    It holds what each member owns, not its target: if the group is upgraded again before it has
    rebalanced, only partitions that are really free may be assigned. The caller adds the
    tombstones of the consumer group.
    """
    classic = ClassicGroup(shard, state.group_id)
    classic.adopt(
        (
            ClassicMember(
                state.group_id,
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.classic.session_timeout_ms,
                member.classic.protocols,
            )
            for member in members
            if member.classic is not None
        ),
        state.group_epoch,
        must_rebalance=must_rebalance,
    )
    metadata = shard.cluster.metadata
    for member in members:
        adopted = classic.members[member.member_id]
        adopted.assignment = assignment_bytes(
            everything_of(member), metadata, adopted.metadata(classic.protocol_name)
        )
    for member_id in state.members:
        cancel_timers(shard, state.group_id, member_id)
    for adopted in classic.members.values():
        shard.timers.set(
            Timer(state.group_id, SESSION, adopted.member_id), now + adopted.session_timeout_ms
        )
    if must_rebalance:
        # Starts after the record is replayed, which creates the group.
        shard.timers.set(Timer(state.group_id, BEGIN), now)
    return group_record(classic, now)


def assignment_bytes(
    partitions: Partitions, cluster: ClusterMetadata, subscription: bytes
) -> bytes:
    """An assignment, encoded in the version of the member's own subscription."""
    named = []
    for topic_id, members in partitions.items():
        state = cluster.topic_by_id(topic_id)
        if state is not None:
            named.append(
                m.ConsumerProtocolAssignment.TopicPartition(
                    topic=state.name, partitions=sorted(members)
                )
            )
    return encode_versioned(
        m.ConsumerProtocolAssignment(assigned_partitions=named), _embedded_version(subscription)
    )
