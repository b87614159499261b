"""Cluster metadata: brokers, topics and partitions, as every broker knows them.

States of brokers, topics and partitions are immutable. Adding or removing a broker or topic creates
a new ``ClusterMetadata``, so one object always has the same topics, also in another thread. A new
state of a partition replaces the old one in place, so that it costs the same with 10 and with
10,000 topics; readers get the old or the new state of the topic, never a mixture.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from headrace.model.ids import BrokerId, LeaderEpoch, TopicId, TopicPartition

NO_LEADER = BrokerId(-1)


class Endpoint(NamedTuple):
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


class LevelRange(NamedTuple):
    """The levels of a feature that a broker supports, both inclusive."""

    lowest: int
    highest: int


class BrokerEntry(NamedTuple):
    """One live broker. Its epoch distinguishes it from an earlier broker with the same id."""

    broker_id: BrokerId
    endpoints: Mapping[str, Endpoint]  # by listener name, in the configured order
    rack: str | None
    broker_epoch: int
    features: Mapping[str, LevelRange] = MappingProxyType({})  # by name; Kafka 3.9 registers none
    # Its machine or its logs were lost with records, which the ISRs do not show yet.
    may_have_lost_records: bool = False


class PartitionState(NamedTuple):
    """Leader, ISR and replicas of one partition, as last written by the controller."""

    topic: str
    partition: int
    topic_id: TopicId
    leader: BrokerId  # NO_LEADER if no replica can lead
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    replicas: tuple[BrokerId, ...]  # the first is the preferred leader
    partition_epoch: int  # a change has the epoch of the state that it replaces
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    offline: tuple[BrokerId, ...] = ()  # replicas whose disk or broker is not available

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def origin_replicas(self) -> tuple[BrokerId, ...]:
        """The replicas from before the reassignment, in the present order; without one, all."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def target_replicas(self) -> tuple[BrokerId, ...]:
        """The replicas that a reassignment leaves in the end; without one, all."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)


class TopicState(NamedTuple):
    name: str
    topic_id: TopicId
    partitions: tuple[PartitionState, ...]  # by partition number
    internal: bool


class TopicDirectories(NamedTuple):
    """The log directories of the partitions of a topic on one broker."""

    topic_id: TopicId
    directories: Mapping[int, str]  # directory ids by partition


class ClusterMetadata:
    """The cluster as it is known. ``generation`` grows with every change."""

    __slots__ = (
        "_by_id",
        "_topics",
        "brokers",
        "cluster_id",
        "controller_id",
        "generation",
        "topics",
    )

    def __init__(
        self,
        cluster_id: str,
        controller_id: BrokerId = NO_LEADER,
        brokers: Mapping[BrokerId, BrokerEntry] | None = None,
        topics: dict[str, TopicState] | None = None,
        generation: int = 0,
        by_id: dict[TopicId, TopicState] | None = None,
    ) -> None:
        self.cluster_id = cluster_id
        self.controller_id = controller_id
        self.brokers: Mapping[BrokerId, BrokerEntry] = brokers or {}
        self._topics = topics if topics is not None else {}
        self.generation = generation
        self._by_id = by_id if by_id is not None else {t.topic_id: t for t in self._topics.values()}
        self.topics: Mapping[str, TopicState] = self._topics

    def topic_by_id(self, topic_id: TopicId) -> TopicState | None:
        return self._by_id.get(topic_id)

    def partition(self, topic: str, partition: int) -> PartitionState | None:
        state = self.topics.get(topic)
        if state is None or not 0 <= partition < len(state.partitions):
            return None
        return state.partitions[partition]

    def with_brokers(
        self, brokers: Iterable[BrokerEntry], controller_id: BrokerId
    ) -> "ClusterMetadata":
        by_id = {entry.broker_id: entry for entry in brokers}
        return ClusterMetadata(
            self.cluster_id, controller_id, by_id, self._topics, self.generation + 1, self._by_id
        )

    def with_topics(
        self, changed: Iterable[TopicState], removed: Iterable[str] = ()
    ) -> "ClusterMetadata":
        """With new, changed and removed topics; a re-created topic also replaces its old id."""
        topics = dict(self.topics)
        by_id = dict(self._by_id)
        for name in removed:
            gone = topics.pop(name, None)
            if gone is not None:
                by_id.pop(gone.topic_id, None)
        for topic in changed:
            old = topics.get(topic.name)
            if old is not None and old.topic_id != topic.topic_id:
                by_id.pop(old.topic_id, None)
            topics[topic.name] = topic
            by_id[topic.topic_id] = topic
        return ClusterMetadata(
            self.cluster_id, self.controller_id, self.brokers, topics, self.generation + 1, by_id
        )

    def change_partitions(self, states: Iterable[PartitionState]) -> None:
        """Replace states of partitions of known topics, in place."""
        by_topic: dict[str, list[PartitionState]] = {}
        for state in states:
            by_topic.setdefault(state.topic, list(self.topics[state.topic].partitions))[
                state.partition
            ] = state
        for name, partitions in by_topic.items():
            topic = self._topics[name]._replace(partitions=tuple(partitions))
            # No key comes or goes, so iterations that are in progress stay valid.
            self._topics[name] = self._by_id[topic.topic_id] = topic
        self.generation += 1
