"""The GroupMetadata record: a classic group as of its last completed rebalance."""

from headrace.core.groups.classic.members import ClassicMember
from headrace.core.groups.classic.state import ClassicState, GroupState
from headrace.core.outcome import NewRecord
from headrace.model.ids import Millis
from headrace.wire import messages as m
from headrace.wire.framing import encode_record_key, encode_versioned

# The oldest version with all the fields that a group needs: brokers from 2.3 on can read it
# (KIP-915 has version 4).
_GROUP_METADATA_VERSION = 3


def record_key(group: ClassicState) -> bytes:
    return encode_record_key(m.GroupMetadataKey(group=group.group_id))


def group_record(
    group: ClassicState, now: Millis, assignments: dict[str, bytes] | None = None
) -> NewRecord:
    """The group as it is, with ``assignments`` by member id instead of the current ones."""
    return _encode(
        group,
        m.GroupMetadataValue(
            protocol_type=group.protocol_type_known or "",
            generation=group.generation,
            protocol=group.protocol_name,
            leader=group.leader_id,
            current_state_timestamp=now,
            members=[
                m.GroupMetadataValue.MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(group.protocol_name),
                    assignment=(
                        member.assignment if assignments is None else assignments[member.member_id]
                    ),
                )
                for member in group.members.values()
            ],
        ),
    )


def empty_record(group: ClassicState, now: Millis) -> NewRecord:
    """The group after its last member has left."""
    return _encode(
        group,
        m.GroupMetadataValue(
            protocol_type=group.protocol_type_known or "",
            generation=group.generation + 1,
            protocol=None,
            leader=None,
            current_state_timestamp=now,
        ),
    )


def _encode(group: ClassicState, value: m.GroupMetadataValue) -> NewRecord:
    return NewRecord(record_key(group), encode_versioned(value, _GROUP_METADATA_VERSION))


def replay(group: ClassicState, value: m.GroupMetadataValue) -> None:
    """Take over the record. Members that are already present keep what it does not hold."""
    known = group.members
    group.members = {}
    group.static.clear()
    group.votes.clear()
    for kept in value.members:
        member = known.get(kept.member_id)
        if member is None:
            member = ClassicMember(
                group.group_id,
                kept.member_id,
                kept.group_instance_id,
                kept.client_id,
                kept.client_host,
                # Version 0 had one timeout for both.
                kept.rebalance_timeout if kept.rebalance_timeout >= 0 else kept.session_timeout,
                kept.session_timeout,
                [(value.protocol or "", bytes(kept.subscription))],
            )
        member.assignment = bytes(kept.assignment)
        group.insert(member)
    group.protocol_type_known = value.protocol_type or None
    group.generation = value.generation
    group.protocol_name = value.protocol
    group.leader_id = value.leader
    group.state = GroupState.STABLE if group.members else GroupState.EMPTY
    if group.members and group.leader_id is None:
        # The group was converted from a consumer group and still has to rebalance.
        group.state = GroupState.PREPARING
    group.state_since = Millis(value.current_state_timestamp)
    group.subscribed_topics = group.subscriptions()
    group.timers.cancel(group.join_timer)
