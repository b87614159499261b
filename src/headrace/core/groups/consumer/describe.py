"""ConsumerGroupDescribe: a group with its members, their assignments and targets."""

from typing import TYPE_CHECKING

from headrace.core.groups.consumer.assignors import Partitions
from headrace.core.groups.consumer.changes import preferred_assignor
from headrace.core.groups.consumer.group import ConsumerGroup
from headrace.core.groups.consumer.members import ConsumerMember, everything_of
from headrace.core.outcome import Outcome, Reply, Ticket
from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.errors import ErrorCode
from headrace.model.ids import Millis
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.core.groups.shard import GroupShard

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1  # as ConsumerGroupDescribe numbers them


def describe(shard: "GroupShard", ticket: Ticket, group_id: str, now: Millis) -> Outcome:
    """Describe one group of a ConsumerGroupDescribe request."""
    described = m.ConsumerGroupDescribeResponse.DescribedGroup(group_id=group_id)
    group = shard.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        described.error_message = (
            f"Group {group_id} not found."
            if group is None
            else f"Group {group_id} is not a consumer group."
        )
        return Outcome(replies=(Reply(ticket, described),))
    described.group_state = group.state_name
    described.group_epoch = group.group_epoch
    described.assignment_epoch = group.assignment_epoch
    described.assignor_name = preferred_assignor(shard, group.members)
    metadata = shard.cluster.metadata
    described.members = [
        _described(member, group.targets.get(member.member_id, {}), metadata)
        for member in group.members.values()
    ]
    return Outcome(replies=(Reply(ticket, described),))


def _described(
    member: ConsumerMember, target: Partitions, metadata: ClusterMetadata
) -> m.ConsumerGroupDescribeResponse.Member:
    return m.ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern,
        assignment=_described_assignment(everything_of(member), metadata),
        target_assignment=_described_assignment(target, metadata),
        member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    )


def _described_assignment(
    partitions: Partitions, metadata: ClusterMetadata
) -> m.ConsumerGroupDescribeResponse.Assignment:
    described = m.ConsumerGroupDescribeResponse
    topics = []
    for topic_id, members in partitions.items():
        state = metadata.topic_by_id(topic_id)
        if state is not None:
            topics.append(
                described.TopicPartitions(
                    topic_id=topic_id, topic_name=state.name, partitions=sorted(members)
                )
            )
    return described.Assignment(topic_partitions=topics)
