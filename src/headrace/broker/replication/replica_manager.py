"""The replica manager: the partitions that this broker hosts, as leader or follower."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.broker.replication.effects import Effects
from headrace.broker.replication.hosted_replicas import HostedReplicas
from headrace.broker.replication.replica import Replica
from headrace.broker.replication.throttles import Throttle, throttle
from headrace.broker.replication.waiting import Waiter, Waiting
from headrace.core.leadership import ReplicationSettings
from headrace.core.parked import Event
from headrace.core.partition import EPOCH_DURING_DELETE, Partition
from headrace.core.partition_effects import Effect, StaleLeaderEpoch, StopFollowing
from headrace.model.cluster_metadata import PartitionState
from headrace.model.config import TopicConfig
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import (
    NO_TOPIC_ID,
    BrokerId,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from headrace.storage.log_manager import LogManager

if TYPE_CHECKING:
    from headrace.broker.metadata.cache import MetadataCache
    from headrace.broker.metadata.dynamic_config import DynamicConfig
    from headrace.broker.peers import Peers
    from headrace.broker.replication.append import Appender
    from headrace.broker.replication.replication import Replication

_log = logging.getLogger("headrace.replication")


class ReplicaManager(HostedReplicas):
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
        super().__init__(broker_id, logs, metadata)
        self._loop = loop
        self._appender = appender
        self._waiting = waiting
        self._config_of = config_of
        self.effects = effects
        self._validates_records = validates_records
        self._lag_time_ms_max = lag_time_ms_max
        self._replication: Replication | None = None
        self.leader_throttle: Throttle | None = None  # on one node there are no followers
        # Incremented when a partition is added, removed or changed; caches of replicas compare it.
        self.generation = 0
        self._listeners: list[Callable[[], None]] = []

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

        self.leader_throttle = throttle(lambda: dynamic_config.config, "leader")
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
        """Check these replicas: a follower may have left the cluster."""
        if self._replication is not None:
            self._replication.check_live(replicas)

    def park(self, waiter: Waiter, replica: Replica, wait_ms: float, until: Event) -> None:
        """Let a request wait for an offset of ``replica`` (``Waiting.park``)."""
        self._waiting.park(waiter, (replica,), wait_ms, until)

    # --- decisions of the controller -----------------------------------------

    async def apply(self, states: Iterable[PartitionState]) -> None:
        """Host the partitions of this broker in ``states``, as leader or follower."""
        for state in states:
            if self.broker_id in state.replicas:
                self._lead_or_follow(state, is_new=True)

    def lead_or_follow(self, state: PartitionState, *, is_new: bool) -> ErrorCode:
        """Host the partition, and take the role that ``state`` gives to this broker.

        Nothing changes unless the leader epoch is higher than the known one, or if the log here
        belongs to another topic. ``is_new``: the partition has no records yet, so that this broker
        may create its log.
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
        self._add(replica)
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
        effects = replica.apply(state, self._now_ms())
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
                self._logs.delete(topic_partition)  # its log is not open
            return ErrorCode.NONE
        if replica.log.offline is not None and not delete:
            return ErrorCode.KAFKA_STORAGE_ERROR
        effects = replica.stop(leader_epoch)
        if effects and isinstance(effects[0], StaleLeaderEpoch):
            return ErrorCode.FENCED_LEADER_EPOCH
        if delete:
            self._delete(replica)
        else:
            self.effects.carry_out(replica, effects)
        self._changed()
        return ErrorCode.NONE

    def _delete(self, replica: Replica) -> None:
        self._forget(replica)
        self._appender.forget(replica)
        self.effects.carry_out(replica, (StopFollowing(),))
        self._logs.delete(replica.topic_partition)
        self._waiting.happened(replica, Event.TOPIC_DELETED)

    async def delete(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Stop hosting partitions, and delete their files."""
        for topic_partition in topic_partitions:
            self.stop_replica(topic_partition, EPOCH_DURING_DELETE, delete=True)

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
                self.effects.carry_out(replica, (StopFollowing(),))
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
