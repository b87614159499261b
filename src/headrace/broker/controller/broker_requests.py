"""The requests of a controller to brokers, with the versions and fields of Kafka 3.9. Pure."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.model.cluster_metadata import BrokerEntry, PartitionState
from headrace.model.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from headrace.wire import messages as m

LEADER_AND_ISR_VERSION = 7
UPDATE_METADATA_VERSION = 8
STOP_REPLICA_VERSION = 4

# In UpdateMetadata, the leader of a partition whose topic is pending deletion.
BEING_DELETED = BrokerId(-2)
# In StopReplica, the epoch of such a partition: it is above every other.
DELETION_EPOCH = LeaderEpoch(-2)

_SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


class Sender(NamedTuple):
    """The controller in its term."""

    controller_id: BrokerId
    controller_epoch: ControllerEpoch
    inter_broker_listener: str


class Role(NamedTuple):
    """A partition that a broker must lead or follow."""

    state: PartitionState
    is_new: bool  # the broker may create the log: the partition has no records there yet


class Stop(NamedTuple):
    leader_epoch: LeaderEpoch
    delete: bool


def leader_and_isr(
    sender: Sender,
    broker_epoch: int,
    roles: Iterable[Role],
    brokers: Mapping[BrokerId, BrokerEntry],
) -> m.LeaderAndIsrRequest:
    kind = m.LeaderAndIsrRequest
    topics: dict[str, m.LeaderAndIsrRequest.LeaderAndIsrTopicState] = {}
    leaders: dict[BrokerId, None] = {}
    for state, is_new in roles:
        topic = topics.get(state.topic)
        if topic is None:
            topic = topics[state.topic] = kind.LeaderAndIsrTopicState(
                topic_name=state.topic, topic_id=state.topic_id, partition_states=[]
            )
        leaders[state.leader] = None
        topic.partition_states.append(
            kind.LeaderAndIsrPartitionState(
                partition_index=state.partition,
                controller_epoch=sender.controller_epoch,
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                isr=list(state.isr),
                partition_epoch=state.partition_epoch,
                replicas=list(state.replicas),
                adding_replicas=list(state.adding),
                removing_replicas=list(state.removing),
                is_new=is_new,
            )
        )
    return kind(
        controller_id=sender.controller_id,
        controller_epoch=sender.controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=list(topics.values()),
        live_leaders=[
            kind.LeaderAndIsrLiveLeader(
                broker_id=broker_id, host_name=endpoint.host, port=endpoint.port
            )
            for broker_id in leaders
            if (entry := brokers.get(broker_id)) is not None
            and (endpoint := entry.endpoints.get(sender.inter_broker_listener)) is not None
        ],
    )


def update_metadata(
    sender: Sender,
    broker_epoch: int,
    states: Iterable[PartitionState],
    brokers: Mapping[BrokerId, BrokerEntry],
) -> m.UpdateMetadataRequest:
    """The partitions that changed, and always all live brokers."""
    kind = m.UpdateMetadataRequest
    topics: dict[str, m.UpdateMetadataRequest.UpdateMetadataTopicState] = {}
    for state in states:
        topic = topics.get(state.topic)
        if topic is None:
            topic = topics[state.topic] = kind.UpdateMetadataTopicState(
                topic_name=state.topic, topic_id=state.topic_id, partition_states=[]
            )
        topic.partition_states.append(
            kind.UpdateMetadataPartitionState(
                partition_index=state.partition,
                controller_epoch=sender.controller_epoch,
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                isr=list(state.isr),
                zk_version=state.partition_epoch,
                replicas=list(state.replicas),
                offline_replicas=list(state.offline),
            )
        )
    return kind(
        controller_id=sender.controller_id,
        controller_epoch=sender.controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=list(topics.values()),
        live_brokers=[
            kind.UpdateMetadataBroker(
                id=entry.broker_id,
                endpoints=[
                    kind.UpdateMetadataEndpoint(
                        port=endpoint.port,
                        host=endpoint.host,
                        listener=listener,
                        security_protocol=_SECURITY_PROTOCOLS[endpoint.security_protocol],
                    )
                    for listener, endpoint in entry.endpoints.items()
                ],
                rack=entry.rack,
            )
            for entry in brokers.values()
        ],
    )


def stop_replica(
    sender: Sender, broker_epoch: int, stops: Mapping[TopicPartition, Stop]
) -> m.StopReplicaRequest:
    kind = m.StopReplicaRequest
    topics: dict[str, m.StopReplicaRequest.StopReplicaTopicState] = {}
    for (name, partition), stop in stops.items():
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = kind.StopReplicaTopicState(topic_name=name, partition_states=[])
        topic.partition_states.append(
            kind.StopReplicaPartitionState(
                partition_index=partition,
                leader_epoch=stop.leader_epoch,
                delete_partition=stop.delete,
            )
        )
    return kind(
        controller_id=sender.controller_id,
        controller_epoch=sender.controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=list(topics.values()),
    )


def being_deleted(state: PartitionState) -> PartitionState:
    """The state that tells brokers to forget a partition."""
    return state._replace(leader=BEING_DELETED, leader_epoch=LeaderEpoch(0))
