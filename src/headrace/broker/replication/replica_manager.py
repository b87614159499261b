"""The replica manager: the partitions that this broker hosts, as leader or follower."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from headrace.broker.replication.effects import Effects
from headrace.broker.replication.replica import Replica
from headrace.broker.replication.waiting import Waiter, Waiting
from headrace.core.leadership import ReplicationSettings
from headrace.core.parked import Event
from headrace.core.partition import EPOCH_DURING_DELETE, Partition
from headrace.core.partition_effects import Effect, StaleLeaderEpoch
from headrace.core.replica_selection import preferred_replica
from headrace.model.cluster_metadata import PartitionState
from headrace.model.config import TopicConfig
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import (
    NO_TOPIC_ID,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
)
from headrace.storage.log_manager import LogManager
from headrace.wire.fetch import NodeEndpoint

if TYPE_CHECKING:
    from headrace.broker.metadata.cache import MetadataCache
    from headrace.broker.metadata.dynamic_config import DynamicConfig
    from headrace.broker.peers import Peers
    from headrace.broker.replication.append import Appender
    from headrace.broker.replication.replication import Replication

_log = logging.getLogger("headrace.replication")


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
        effects: Effects,
        validates_records: bool = False,
        lag_time_ms_max: int = ReplicationSettings().lag_time_ms_max,
    ) -> None:
        """``validates_records`` is headrace.validate.records.

        ``lag_time_ms_max`` is replica.lag.time.max.ms.
        """
        self._loop = loop
        self.broker_id = broker_id
        self._logs = logs
        self._metadata = metadata
        self._appender = appender
        self._waiting = waiting
        self._config_of = config_of
        self.effects = effects
        self._validates_records = validates_records
        self._lag_time_ms_max = lag_time_ms_max
        self._replication: Replication | None = None
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

    # --- replication with other brokers --------------------------------------

    def start(
        self,
        peers: "Peers",
        dynamic_config: "DynamicConfig",
        *,
        broker_epoch: Callable[[], int],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Replicate with the other brokers of a cluster, until ``stop``.

        ``broker_epoch`` is the epoch of this broker's registration; ``fail`` stops the broker.
        """
        # Imported here: a cluster of one does not replicate.
        from headrace.broker.replication.replication import Replication

        self._replication = Replication(
            self,
            self._waiting,
            peers,
            self._metadata,
            self._appender,
            dynamic_config,
            broker_epoch,
            fail,
        )
        self._replication.start()

    async def stop(self) -> None:
        """Stop fetching from other brokers. No effect on one node."""
        if self._replication is not None:
            await self._replication.stop()

    def live_brokers_changed(self, replicas: Iterable[Replica]) -> None:
        """Brokers have left, or an ISR may have a member that has left before."""
        if self._replication is not None:
            self._replication.check_live(replicas)

    def park(self, waiter: Waiter, replica: Replica, wait_ms: float, until: Event) -> None:
        """Let a request wait for an offset of ``replica`` (``Waiting.park``)."""
        self._waiting.park(waiter, (replica,), wait_ms, until)

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
        return preferred_replica(rack, replica.lead(), offset, self._metadata.current.brokers)

    # --- decisions of the controller -----------------------------------------

    async def apply(self, states: Iterable[PartitionState]) -> None:
        """Host the partitions of this broker in ``states``, as leader or follower."""
        for state in states:
            if self.broker_id in state.replicas:
                self._lead_or_follow(state, is_new=True)

    def lead_or_follow(self, state: PartitionState, *, is_new: bool) -> ErrorCode:
        """Host the partition, and take the role that ``state`` gives to this broker.

        Nothing changes if the leader epoch is not higher than the known one, or if another topic
        had that name. ``is_new``: the partition has no records yet, so this broker may create it.
        """
        try:
            effects = self._lead_or_follow(state, is_new=is_new)
        except Rejected as refusal:
            _log.error("Cannot host %s: %s", state.topic_partition, refusal)
            return refusal.code
        if effects and isinstance(effects[0], StaleLeaderEpoch):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        return ErrorCode.NONE

    def _lead_or_follow(self, state: PartitionState, *, is_new: bool) -> list[Effect]:
        config = self._config_of(state.topic)
        replica = self.get(state.topic, state.partition)
        if replica is None:
            replica = self._host(state, config, is_new=is_new)
        elif replica.log.offline is not None:
            raise Rejected(ErrorCode.KAFKA_STORAGE_ERROR, f"its disk failed: {replica.log.offline}")
        elif replica.topic_id != state.topic_id:
            raise _inconsistent_topic_id(replica.topic_id, state)
        effects = self._take_role(replica, state)
        self._changed()
        return effects

    def _host(self, state: PartitionState, config: TopicConfig, *, is_new: bool) -> Replica:
        topic_partition = TopicPartition(state.topic, state.partition)
        log = self._logs.get(topic_partition)
        if log is None:
            if not is_new:
                self._check_may_create(state)
            log = self._logs.create(topic_partition, state.topic_id, config)
        elif log.config is not config:
            log.update_config(config)
        if log.topic_id == NO_TOPIC_ID:
            # Its partition.metadata was lost, or the process died before writing it.
            log.adopt_topic_id(state.topic_id)
        elif log.topic_id != state.topic_id:
            raise _inconsistent_topic_id(log.topic_id, state)
        partition = Partition(
            self.broker_id,
            self._replication_settings(config),
            self._logs.high_watermark(topic_partition),
        )
        replica = Replica(
            topic_partition, log, partition, validates_records=self._validates_records
        )
        self._by_name.setdefault(state.topic, {})[state.partition] = replica
        self._by_id.setdefault(state.topic_id, {})[state.partition] = replica
        return replica

    def _check_may_create(self, state: PartitionState) -> None:
        """Raise Rejected if an empty log could take the place of one with records."""
        if state.leader == self.broker_id:
            # As leader, an empty log would make the followers drop all their records.
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR,
                "this broker should lead it, but has no log of it, and it is not new",
            )
        if any(directory.offline is not None for directory in self._logs.directories):
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR, "its log may be in a log directory that is offline"
            )

    def _take_role(self, replica: Replica, state: PartitionState) -> list[Effect]:
        log, partition = replica.log, replica.partition
        effects = partition.apply(state, log.log_start, log.log_end, self._now_ms())
        replica.leadership = partition.leadership
        self.effects.carry_out(replica, effects)
        return effects

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    def stop_replica(
        self, topic_partition: TopicPartition, leader_epoch: LeaderEpoch, *, delete: bool
    ) -> ErrorCode:
        """Stop leading or following a partition (StopReplica), and delete its log if told so.

        ``leader_epoch`` is EPOCH_DURING_DELETE if the topic is deleted.
        """
        replica = self.get(*topic_partition)
        if replica is None:
            if delete:
                self._logs.delete(topic_partition)  # one that was not hosted, or not opened
            return ErrorCode.NONE
        if replica.log.offline is not None and not delete:
            return ErrorCode.KAFKA_STORAGE_ERROR
        effects = replica.partition.stop(leader_epoch)
        if effects and isinstance(effects[0], StaleLeaderEpoch):
            return ErrorCode.FENCED_LEADER_EPOCH
        replica.leadership = None
        if delete:
            self._delete(replica)
        else:
            self.effects.carry_out(replica, effects)
        self._changed()
        return ErrorCode.NONE

    def _delete(self, replica: Replica) -> None:
        self._forget(replica)
        self._appender.staged.pop(replica, None)
        if self.effects.fetchers is not None:
            self.effects.fetchers.stop_following(replica)
        self._logs.delete(replica.topic_partition)
        self._waiting.happened(replica, Event.TOPIC_DELETED)

    async def delete(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Stop hosting partitions, and delete their files."""
        for topic_partition in topic_partitions:
            self.stop_replica(topic_partition, EPOCH_DURING_DELETE, delete=True)

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
            settings = self._replication_settings(config)
            effects = replica.partition.settings_changed(settings, self._now_ms())
            self.effects.carry_out(replica, effects)
        self._changed()

    def directory_failed(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Tell the waiters of these partitions that the disk has failed."""
        for topic_partition in topic_partitions:
            replica = self.get(*topic_partition)
            if replica is not None:
                self._waiting.happened(replica, Event.DISK_OFFLINE)
                if self.effects.fetchers is not None:
                    self.effects.fetchers.stop_following(replica)
        self._waiting.serve()

    def _replication_settings(self, config: TopicConfig) -> ReplicationSettings:
        return ReplicationSettings(
            config.min_insync_replicas, config.flush_messages, self._lag_time_ms_max
        )


def _inconsistent_topic_id(known: TopicId, state: PartitionState) -> Rejected:
    return Rejected(
        ErrorCode.INCONSISTENT_TOPIC_ID,
        f"its log here has topic id {known.hex()}, the controller says {state.topic_id.hex()}",
    )
