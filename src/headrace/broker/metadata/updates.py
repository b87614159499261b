"""UpdateMetadata: how a message of the controller changes the cluster metadata of a broker.

A message names all live brokers and the controller, and the partitions that changed. Pure.
"""

from collections.abc import Iterable

from headrace.core.topics import is_internal
from headrace.model.cluster_metadata import (
    NO_LEADER,
    BrokerEntry,
    ClusterMetadata,
    Endpoint,
    PartitionState,
    TopicState,
)
from headrace.model.ids import NO_LEADER_EPOCH, BrokerId, LeaderEpoch, TopicId
from headrace.wire import messages as m

# The leader of a partition whose topic is being deleted.
LEADER_DURING_DELETE = -2
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")  # by their number
_UNKNOWN_BROKER_EPOCH = -1

_Topic = m.UpdateMetadataRequest.UpdateMetadataTopicState
_Partition = m.UpdateMetadataRequest.UpdateMetadataPartitionState


def apply(metadata: ClusterMetadata, request: m.UpdateMetadataRequest) -> ClusterMetadata:
    """The metadata after ``request``. Partitions of known topics change in place."""
    updated = metadata.with_brokers(
        [_broker(each) for each in request.live_brokers], BrokerId(request.controller_id)
    )
    removed: list[str] = []
    new: list[TopicState] = []
    states: list[PartitionState] = []
    for topic in request.topic_states:
        known = updated.topics.get(topic.topic_name)
        if any(each.leader == LEADER_DURING_DELETE for each in topic.partition_states):
            removed.append(topic.topic_name)
        elif known is None or known.topic_id != topic.topic_id or _grows(known, topic):
            new.append(_topic(known, topic))
        else:
            states += [_state(topic, each) for each in topic.partition_states]
    if states:
        updated.change_partitions(states)
    return updated.with_topics(new, removed) if new or removed else updated


def removed_topics(request: m.UpdateMetadataRequest) -> list[str]:
    """The topics that ``request`` removes."""
    return [
        topic.topic_name
        for topic in request.topic_states
        if any(each.leader == LEADER_DURING_DELETE for each in topic.partition_states)
    ]


def _broker(entry: m.UpdateMetadataRequest.UpdateMetadataBroker) -> BrokerEntry:
    return BrokerEntry(
        BrokerId(entry.id),
        {
            each.listener: Endpoint(
                each.host, each.port, SECURITY_PROTOCOLS[each.security_protocol]
            )
            for each in entry.endpoints
        },
        entry.rack,
        _UNKNOWN_BROKER_EPOCH,
    )


def _grows(known: TopicState, topic: _Topic) -> bool:
    return any(each.partition_index >= len(known.partitions) for each in topic.partition_states)


def _topic(known: TopicState | None, topic: _Topic) -> TopicState:
    """A new topic, or a known one with more partitions."""
    topic_id = TopicId(topic.topic_id)
    before: Iterable[PartitionState] = ()
    if known is not None and known.topic_id == topic_id:
        before = known.partitions
    states = {state.partition: state for state in before}
    for each in topic.partition_states:
        states[each.partition_index] = _state(topic, each)
    partitions = tuple(
        states.get(number) or _unknown_partition(topic, number) for number in range(max(states) + 1)
    )
    return TopicState(topic.topic_name, topic_id, partitions, is_internal(topic.topic_name))


def _state(topic: _Topic, partition: _Partition) -> PartitionState:
    return PartitionState(
        topic=topic.topic_name,
        partition=partition.partition_index,
        topic_id=TopicId(topic.topic_id),
        leader=BrokerId(partition.leader),
        leader_epoch=LeaderEpoch(partition.leader_epoch),
        isr=tuple(map(BrokerId, partition.isr)),
        replicas=tuple(map(BrokerId, partition.replicas)),
        partition_epoch=partition.zk_version,
        offline=tuple(map(BrokerId, partition.offline_replicas)),
    )


def _unknown_partition(topic: _Topic, number: int) -> PartitionState:
    """A partition below others that were named first; the controller names it later."""
    return PartitionState(
        topic=topic.topic_name,
        partition=number,
        topic_id=TopicId(topic.topic_id),
        leader=NO_LEADER,
        leader_epoch=NO_LEADER_EPOCH,
        isr=(),
        replicas=(),
        partition_epoch=-1,
    )
