"""The replicas that this broker hosts: how to find one, and what clients are told about others."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from headrace.broker.replication.replica import Replica
from headrace.core.replica_selection import preferred_replica
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, LeaderEpoch, Offset, TopicId
from headrace.storage.log_manager import LogManager
from headrace.wire.fetch import NodeEndpoint

if TYPE_CHECKING:
    from headrace.broker.metadata.cache import MetadataCache


class HostedReplicas:
    """``ReplicaManager`` adds and removes them."""

    def __init__(self, broker_id: BrokerId, logs: LogManager, metadata: "MetadataCache") -> None:
        self.broker_id = broker_id
        self._logs = logs
        self._metadata = metadata
        self._by_name: dict[str, dict[int, Replica]] = {}
        self._by_id: dict[TopicId, dict[int, Replica]] = {}

    def _add(self, replica: Replica) -> None:
        topic, partition = replica.topic_partition
        self._by_name.setdefault(topic, {})[partition] = replica
        self._by_id.setdefault(replica.topic_id, {})[partition] = replica

    def _forget(self, replica: Replica) -> None:
        topic, partition = replica.topic_partition
        del self._by_name[topic][partition]
        if not self._by_name[topic]:
            del self._by_name[topic]
        by_id = self._by_id[replica.topic_id]
        del by_id[partition]
        if not by_id:
            del self._by_id[replica.topic_id]

    # --- finding -------------------------------------------------------------

    def get(self, topic: str, partition: int) -> Replica | None:
        partitions = self._by_name.get(topic)
        return partitions.get(partition) if partitions is not None else None

    def get_by_id(self, topic_id: TopicId, partition: int) -> Replica | None:
        partitions = self._by_id.get(topic_id)
        return partitions.get(partition) if partitions is not None else None

    def of_topic(self, topic: str) -> list[Replica]:
        return list(self._by_name.get(topic, {}).values())

    def __iter__(self) -> Iterator[Replica]:
        for partitions in self._by_name.values():
            yield from partitions.values()

    def online(self) -> list[Replica]:
        """Every hosted partition whose disk works, led or not."""
        return [replica for replica in self if not replica.is_gone]

    def leading(self) -> list[Replica]:
        return [replica for replica in self.online() if replica.leadership is not None]

    def require(self, topic: str, partition: int) -> Replica:
        """The hosted partition. Raises the client's error if it is not hosted here."""
        found = self.get(topic, partition)
        if found is None:
            raise self.unhosted(topic, partition)
        return found

    def unhosted(self, topic: str | bytes, partition: int) -> Rejected:
        """The error for a partition that this broker does not host."""
        metadata = self._metadata.current
        if isinstance(topic, str):
            state = metadata.topics.get(topic)
            name = topic
        else:
            state = metadata.topic_by_id(TopicId(bytes(topic)))
            name = state.name if state is not None else bytes(topic).hex()
            if state is None:
                return Rejected(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {name}")
        if state is None or not 0 <= partition < len(state.partitions):
            return Rejected(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{partition}"
            )
        failure = self._logs.offline_reason(state.partitions[partition].topic_partition)
        if failure is not None:
            return Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{name}-{partition} is offline: {failure}"
            )
        return Rejected(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {name}-{partition}"
        )

    # --- what clients are told about leaders ---------------------------------

    def leader_of(self, topic: str | bytes, partition: int) -> tuple[BrokerId, LeaderEpoch] | None:
        """The leader and its epoch, as known here, for a client that asked the wrong broker."""
        if isinstance(topic, str):
            replica = self.get(topic, partition)
            known = self._metadata.current.topics.get(topic)
        else:
            replica = self.get_by_id(TopicId(topic), partition)
            known = self._metadata.current.topic_by_id(TopicId(bytes(topic)))
        if replica is not None:
            following = replica.partition.following
            leader = self.broker_id if following is None else following.leader
            return leader, replica.partition.leader_epoch
        if known is None or not 0 <= partition < len(known.partitions):
            return None
        state = known.partitions[partition]
        return state.leader, state.leader_epoch

    def endpoints_of(self, leaders: Iterable[int], listener_name: str) -> list[NodeEndpoint]:
        """The addresses of ``leaders`` on the listener that the client uses."""
        brokers = self._metadata.current.brokers
        endpoints = []
        for leader in dict.fromkeys(leaders):
            broker = brokers.get(BrokerId(leader))
            endpoint = None if broker is None else broker.endpoints.get(listener_name)
            if broker is not None and endpoint is not None:
                endpoints.append(NodeEndpoint(leader, endpoint.host, endpoint.port, broker.rack))
        return endpoints

    def preferred_replica(self, replica: Replica, rack: str, offset: Offset) -> BrokerId | None:
        """The follower that a consumer in ``rack`` should read from; None: the leader."""
        return preferred_replica(
            rack, replica.require_leadership(), offset, self._metadata.current.brokers
        )
