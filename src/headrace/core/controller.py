"""The controller's state: the cluster metadata, and the changes that lead to the next one.

Pure. Decisions are functions over a ``Controller`` and change nothing: ``elections`` decides who
leads a partition and who is in sync, ``topic_changes`` decides which topics exist. The controller
service writes their changes to the coordination tree, guarded by the controller epoch, and
``replay`` then applies them to the metadata. A change that the tree refused is never replayed.

Changes name partitions, leaders and epochs. Only ``coordination`` knows how they are stored.

Epochs, all of which only grow:

    controller_epoch   one term of a controller; a write with an older epoch is refused
    leader_epoch       one term of a partition leader; grows with every election, even if the
                       same broker returns, because its log may have lost its tail
    partition_epoch    one state of a partition; also grows when only the ISR changes
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import NamedTuple, assert_never

from headrace.core.topics import collision_key
from headrace.model.cluster_metadata import (
    BrokerEntry,
    ClusterMetadata,
    PartitionState,
    TopicState,
)
from headrace.model.errors import Fenced
from headrace.model.ids import BrokerId, ControllerEpoch, TopicPartition

# The partition epoch of a partition that is assigned and never had a leader.
NEW_PARTITION = -1


class CreateTopic(NamedTuple):
    topic: TopicState
    overrides: Mapping[str, str]


class AddPartitions(NamedTuple):
    topic: TopicState  # after the change, with the added partitions
    added: tuple[PartitionState, ...]


class ChangePartition(NamedTuple):
    state: PartitionState  # after the change
    expected: int  # the partition epoch of the replaced state; NEW_PARTITION if there is none


class MarkForDeletion(NamedTuple):
    """From here on clients no longer see the topic; its files may still exist."""

    name: str


class DeleteTopic(NamedTuple):
    """Remove the last trace of a topic pending deletion; its name is free again."""

    topic: TopicState


Change = CreateTopic | AddPartitions | ChangePartition | MarkForDeletion | DeleteTopic


class Controller:
    """One broker's term as controller. ``metadata`` holds what the tree has accepted."""

    def __init__(self, controller_epoch: ControllerEpoch, metadata: ClusterMetadata) -> None:
        self.controller_epoch = controller_epoch
        self.metadata = metadata
        self.pending_deletion: dict[str, TopicState] = {}
        self.names_by_collision_key = {collision_key(name): name for name in metadata.topics}
        self._unservable: set[tuple[TopicPartition, BrokerId]] = set()
        self._shutting_down: set[BrokerId] = set()

    def states(self) -> Iterator[PartitionState]:
        """The states of all partitions that are not pending deletion."""
        return (state for topic in self.metadata.topics.values() for state in topic.partitions)

    # --- facts

    def brokers_changed(
        self, brokers: Iterable[BrokerEntry], controller_id: BrokerId
    ) -> set[BrokerId]:
        """Registrations are facts, not decisions: the tree already has them.

        Returns the brokers that left, including brokers that have registered again since.
        """
        entries = {entry.broker_id: entry for entry in brokers}
        gone = {
            broker_id
            for broker_id, entry in self.metadata.brokers.items()
            if broker_id not in entries or entries[broker_id].broker_epoch != entry.broker_epoch
        }
        self._shutting_down -= gone
        self._unservable = {each for each in self._unservable if each[1] not in gone}
        self.metadata = self.metadata.with_brokers(entries.values(), controller_id)
        self._mark_offline(self.states())
        return gone

    def shuts_down(self, broker: BrokerId) -> None:
        """Also a fact: ``broker`` is alive, but about to leave. It leads nothing new."""
        self._shutting_down.add(broker)
        self._mark_offline(self.states())

    def found(self, topics: Iterable[TopicState]) -> None:
        """Also a fact: the tree has these topics, or these partitions and states of them."""
        found = list(topics)
        for topic in found:
            self.names_by_collision_key[collision_key(topic.name)] = topic.name
        self.metadata = self.metadata.with_topics(found)
        self._mark_offline(state for topic in found for state in topic.partitions)

    def replicas_failed(
        self, topic_partitions: Iterable[TopicPartition], broker: BrokerId, *, failed: bool = True
    ) -> None:
        """Also a fact: the disk of these replicas is offline, so ``broker`` cannot lead them.

        With ``failed=False`` it can again.
        """
        replicas = {(topic_partition, broker) for topic_partition in topic_partitions}
        self._unservable = self._unservable | replicas if failed else self._unservable - replicas
        self._mark_offline(
            state for each, _ in replicas if (state := self.metadata.partition(*each)) is not None
        )

    def _mark_offline(self, states: Iterable[PartitionState]) -> None:
        live = self.metadata.brokers
        stale = [
            state._replace(offline=offline)
            for state in states
            if (offline := tuple(b for b in state.replicas if not self.can_serve(state, b, live)))
            != state.offline
        ]
        if stale:
            self.metadata.change_partitions(stale)

    def can_serve(self, state: PartitionState, broker: BrokerId, live: Container[BrokerId]) -> bool:
        """Whether ``broker`` is among the live brokers and its replica's disk is online."""
        return (
            broker in live
            and broker not in self._shutting_down
            and (not self._unservable or (state.topic_partition, broker) not in self._unservable)
        )

    # --- accepted changes

    def replay(self, changes: Iterable[Change]) -> None:
        """Apply ``changes`` that the tree has accepted."""
        topics: dict[str, TopicState] = {}
        removed: list[str] = []
        states: list[PartitionState] = []
        for change in changes:
            match change:
                case CreateTopic(topic, _):
                    topics[topic.name] = topic
                    self.names_by_collision_key[collision_key(topic.name)] = topic.name
                case AddPartitions(topic, _):
                    topics[topic.name] = topic
                case ChangePartition(state, expected):
                    before = self.metadata.partition(state.topic, state.partition)
                    if before is None or before.partition_epoch != expected:
                        raise Fenced(f"{state.topic_partition} was changed by another controller")
                    states.append(state)
                case MarkForDeletion(name):
                    self.pending_deletion[name] = self.metadata.topics[name]
                    removed.append(name)
                case DeleteTopic(topic):
                    del self.pending_deletion[topic.name]
                    self.names_by_collision_key.pop(collision_key(topic.name), None)
                case _:
                    assert_never(change)
        if states:
            self.metadata.change_partitions(states)
        if topics or removed:
            self.metadata = self.metadata.with_topics(topics.values(), removed)
