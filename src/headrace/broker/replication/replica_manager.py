"""The replica manager: the partitions that this broker hosts, as leader or follower."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from headrace.broker.replication.replica import Replica
from headrace.broker.replication.waiting import Waiting
from headrace.core.leadership import ReplicationSettings
from headrace.core.parked import Event
from headrace.core.partition import EPOCH_DURING_DELETE, Partition
from headrace.model.cluster_metadata import PartitionState
from headrace.model.config import TopicConfig
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import NO_TOPIC_ID, BrokerId, TopicId, TopicPartition
from headrace.storage.log_manager import LogManager

if TYPE_CHECKING:
    from headrace.broker.metadata.cache import MetadataCache
    from headrace.broker.replication.append import Appender


class ReplicaManager:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker_id: BrokerId,
        logs: LogManager,
        metadata: "MetadataCache",
        appender: "Appender",
        waiting: Waiting,
        config_of: Callable[[str], TopicConfig],
        *,
        validates_records: bool = False,
    ) -> None:
        """``validates_records`` is headrace.validate.records."""
        self._loop = loop
        self.broker_id = broker_id
        self._logs = logs
        self._metadata = metadata
        self._appender = appender
        self._waiting = waiting
        self._config_of = config_of
        self._validates_records = validates_records
        # Incremented when a partition is added, removed or changed; caches of replicas compare it.
        self.generation = 0
        self._listeners: list[Callable[[], None]] = []
        self._by_name: dict[str, dict[int, Replica]] = {}
        self._by_id: dict[TopicId, dict[int, Replica]] = {}

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever a partition is added, removed or changed."""
        self._listeners.append(listener)

    def _changed(self) -> None:
        self.generation += 1
        for listener in self._listeners:
            listener()

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

    # --- decisions of the controller -----------------------------------------

    async def apply(self, states: Iterable[PartitionState]) -> None:
        """Host the partitions of this broker in ``states``, as leader or follower."""
        for state in states:
            if self.broker_id in state.replicas:
                self.lead_or_follow(state)

    def lead_or_follow(self, state: PartitionState) -> None:
        """Host the partition, and take the role that ``state`` gives to this broker."""
        config = self._config_of(state.topic)
        replica = self.get(state.topic, state.partition) or self._host(state, config)
        self._take_role(replica, state)
        self._changed()

    def _host(self, state: PartitionState, config: TopicConfig) -> Replica:
        topic_partition = TopicPartition(state.topic, state.partition)
        log = self._logs.get(topic_partition)
        if log is None:
            log = self._logs.create(topic_partition, state.topic_id, config)
        elif log.config is not config:
            log.update_config(config)
        if log.topic_id == NO_TOPIC_ID:
            # Its partition.metadata was lost, or the process died before writing it.
            log.adopt_topic_id(state.topic_id)
        partition = Partition(
            self.broker_id,
            _replication_settings(config),
            self._logs.high_watermark(topic_partition),
        )
        replica = Replica(
            topic_partition, log, partition, validates_records=self._validates_records
        )
        self._by_name.setdefault(state.topic, {})[state.partition] = replica
        self._by_id.setdefault(state.topic_id, {})[state.partition] = replica
        return replica

    def _take_role(self, replica: Replica, state: PartitionState) -> None:
        log, partition = replica.log, replica.partition
        effects = partition.apply(state, log.log_start, log.log_end, self._now_ms())
        replica.leadership = partition.leadership
        self._appender.carry_out(replica, effects)

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    async def delete(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Stop hosting partitions, and delete their files."""
        for topic_partition in topic_partitions:
            replica = self.get(*topic_partition)
            if replica is None:
                self._logs.delete(topic_partition)  # one that could not be opened
                continue
            self._forget(replica)
            replica.partition.stop(EPOCH_DURING_DELETE)
            replica.leadership = None
            self._appender.staged.pop(replica, None)
            self._logs.delete(topic_partition)
            self._waiting.happened(replica, Event.TOPIC_DELETED)
        self._changed()

    def _forget(self, replica: Replica) -> None:
        topic, partition = replica.topic_partition
        del self._by_name[topic][partition]
        if not self._by_name[topic]:
            del self._by_name[topic]
        by_id = self._by_id[replica.topic_id]
        del by_id[partition]
        if not by_id:
            del self._by_id[replica.topic_id]

    # --- changes to hosted partitions ----------------------------------------

    def update_topic_config(self, topic: str, config: TopicConfig) -> None:
        for replica in self.of_topic(topic):
            replica.log.update_config(config)
            replica.config_changed(validates_records=self._validates_records)
            settings = _replication_settings(config)
            effects = replica.partition.settings_changed(settings, self._now_ms())
            self._appender.carry_out(replica, effects)
        self._changed()

    def directory_failed(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Tell the waiters of these partitions that the disk has failed."""
        for topic_partition in topic_partitions:
            replica = self.get(*topic_partition)
            if replica is not None:
                self._waiting.happened(replica, Event.DISK_OFFLINE)
        self._waiting.serve()


def _replication_settings(config: TopicConfig) -> ReplicationSettings:
    return ReplicationSettings(config.min_insync_replicas, config.flush_messages)
