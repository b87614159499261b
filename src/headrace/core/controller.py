"""The controller: decides who leads, who is in sync, which topics there are.

Pure. A ``decide_…`` method says which changes an event asks for and changes nothing;
the shell writes them to the coordination tree, guarded by the controller epoch, and
``replay`` then makes them the metadata. A change that the tree refused is
simply never replayed. Changes speak of partitions, leaders and epochs;
what they look like as nodes (or, one day, as records of a quorum) is not known here.

Epochs, all of which only grow:

    controller_epoch   one reign of a controller; a write of an older reign is refused
    leader_epoch       one reign over a partition; grows with every election, also when the
                       same broker comes back, because its log may have lost its tail
    partition_epoch    one state of a partition; also grows when only the ISR changes
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple, assert_never

from headrace.core import placement
from headrace.core.topics import (
    DEFAULT,
    FORBIDDEN_TOPICS,
    PARTITIONS_PER_REQUEST_MAX,
    NewTopic,
    check_assignments,
    check_counts,
    check_name,
    check_replicas,
    collision_key,
    is_internal,
    partition_count_of,
)
from headrace.model.cluster_metadata import (
    NO_LEADER,
    BrokerEntry,
    ClusterMetadata,
    PartitionState,
    TopicState,
)
from headrace.model.errors import ErrorCode, Fenced, Rejected
from headrace.model.ids import (
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)

# The partition epoch of one that is assigned and has never had a leader.
UNBORN = -1


class CreateTopic(NamedTuple):
    topic: TopicState
    overrides: Mapping[str, str]


class AddPartitions(NamedTuple):
    topic: TopicState  # as it will be, the added ones included
    added: tuple[PartitionState, ...]


class ChangePartition(NamedTuple):
    state: PartitionState  # as it will be
    expected: int  # the partition epoch of the state that it replaces; UNBORN if there is none


class MarkForDeletion(NamedTuple):
    """The topic is to go. From here on nobody sees it; its files may still be there."""

    name: str


class DeleteTopic(NamedTuple):
    """The last trace of a pending topic goes; its name is free again."""

    topic: TopicState


Change = CreateTopic | AddPartitions | ChangePartition | MarkForDeletion | DeleteTopic


class Dice(NamedTuple):
    """Chance, thrown by the shell: where placement begins, and with which distance."""

    start: int
    shift: int


class Controller:
    """One broker's reign over the cluster. ``metadata`` is what has been agreed."""

    def __init__(self, controller_epoch: ControllerEpoch, metadata: ClusterMetadata) -> None:
        self.controller_epoch = controller_epoch
        self.metadata = metadata
        self.pending_deletion: dict[str, TopicState] = {}
        self._unservable: set[tuple[TopicPartition, BrokerId]] = set()
        self._names_by_collision_key = {collision_key(name): name for name in metadata.topics}

    # --- the reign begins, brokers come and go

    def decide_takeover(
        self,
        granted_zxids: Mapping[TopicPartition, int],
        unclean_allowed: Callable[[str], bool],
    ) -> list[Change]:
        """What a new controller must mend in what it found.

        ``granted_zxids`` says when each state was last written. A leader that registered
        after that is a new broker under an old id: a restart quick enough to go
        unseen still gets a new leader epoch.
        """
        brokers = self.metadata.brokers
        changes: list[Change] = []
        for topic in self.metadata.topics.values():
            for state in topic.partitions:
                leader = brokers.get(state.leader)
                granted = granted_zxids.get(state.topic_partition, 0)
                if leader is None or granted < leader.broker_epoch:
                    changes += self._elect(state, brokers, unclean_allowed(topic.name))
        return changes

    def decide_brokers(
        self, brokers: Mapping[BrokerId, BrokerEntry], unclean_allowed: Callable[[str], bool]
    ) -> list[Change]:
        """The live brokers are now these. Partitions without a leader get one if they can.

        A broker under a new broker epoch is one that went and another that came.
        """
        before = self.metadata.brokers
        gone = {
            broker_id
            for broker_id, entry in before.items()
            if broker_id not in brokers or brokers[broker_id].broker_epoch != entry.broker_epoch
        }
        came = any(broker_id not in before or broker_id in gone for broker_id in brokers)
        changes: list[Change] = []
        for topic in self.metadata.topics.values():
            for state in topic.partitions:
                if state.leader in gone or (state.leader == NO_LEADER and came):
                    changes += self._elect(state, brokers, unclean_allowed(topic.name))
                elif not gone.isdisjoint(state.isr):
                    # The leader lives; whoever went must not be waited for. The
                    # leader itself takes it back in once it has caught up.
                    isr = tuple(b for b in state.isr if b not in gone)
                    changes.append(_changed(state, isr=isr))
        return changes

    def brokers_changed(self, brokers: Iterable[BrokerEntry], controller_id: BrokerId) -> None:
        """Registrations are facts, not decisions: they are in the tree already."""
        entries = {entry.broker_id: entry for entry in brokers}
        self.metadata = self.metadata.with_brokers(entries.values(), controller_id)
        self._mark_offline(
            state for topic in self.metadata.topics.values() for state in topic.partitions
        )

    def replicas_failed(
        self, topic_partitions: Iterable[TopicPartition], broker: BrokerId, *, failed: bool = True
    ) -> None:
        """A fact as well: the disk under these replicas is away, so ``broker`` cannot lead them.

        With ``failed=False`` it can again.
        """
        replicas = {(topic_partition, broker) for topic_partition in topic_partitions}
        self._unservable = self._unservable | replicas if failed else self._unservable - replicas
        self._mark_offline(
            state for each, _ in replicas if (state := self.metadata.partition(*each)) is not None
        )

    def decide_failures(
        self, topic_partitions: Iterable[TopicPartition], broker: BrokerId
    ) -> list[Change]:
        """Who leads instead of ``broker`` where its replicas have failed; nobody, if need be."""
        changes: list[Change] = []
        for topic_partition in topic_partitions:
            state = self.metadata.partition(*topic_partition)
            if state is not None and state.leader == broker:
                changes += self._elect(state, self.metadata.brokers, unclean_allowed=False)
        return changes

    def _mark_offline(self, states: Iterable[PartitionState]) -> None:
        live = self.metadata.brokers
        stale = [
            state._replace(offline=offline)
            for state in states
            if (offline := tuple(b for b in state.replicas if not self._can_serve(state, b, live)))
            != state.offline
        ]
        if stale:
            self.metadata = self.metadata.with_partitions(stale)

    def _can_serve(
        self, state: PartitionState, broker: BrokerId, live: Container[BrokerId]
    ) -> bool:
        return broker in live and (
            not self._unservable or (state.topic_partition, broker) not in self._unservable
        )

    # --- topics

    def decide_creates(
        self,
        requests: Sequence[NewTopic],
        throw: Callable[[], tuple[TopicId, Dice]],
        *,
        default_partition_count: int,
        default_replication_factor: int,
        check_settings: Callable[[Mapping[str, str]], None],
    ) -> list[CreateTopic | Rejected]:
        """One answer per request, in order. Those accepted can be made together.

        ``check_settings`` raises Rejected; ``throw`` gives each topic its id and its dice.
        """
        total = sum(partition_count_of(wanted, default_partition_count) for wanted in requests)
        if total > PARTITIONS_PER_REQUEST_MAX:
            # Before any work is done: the work would be proportional to the request.
            return [_too_many(total) for _ in requests]
        counts: dict[str, int] = {}
        for wanted in requests:
            counts[wanted.name] = counts.get(wanted.name, 0) + 1
        accepted: dict[str, str] = {}  # collision keys of this request
        answers: list[CreateTopic | Rejected] = []
        for wanted in requests:
            try:
                if counts[wanted.name] > 1:
                    raise Rejected(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                topic_id, dice = throw()
                change = self.decide_create(
                    wanted,
                    topic_id,
                    default_partition_count=default_partition_count,
                    default_replication_factor=default_replication_factor,
                    check_settings=check_settings,
                    dice=dice,
                )
                other = accepted.setdefault(collision_key(wanted.name), wanted.name)
                if other != wanted.name:
                    raise _collision(wanted.name, other)
                answers.append(change)
            except Rejected as refusal:
                answers.append(refusal)
        return answers

    def decide_create(
        self,
        wanted: NewTopic,
        topic_id: TopicId,
        *,
        default_partition_count: int,
        default_replication_factor: int,
        check_settings: Callable[[Mapping[str, str]], None],
        dice: Dice,
    ) -> CreateTopic:
        """Raises Rejected with the reason that Kafka would give, of several the same."""
        check_name(wanted.name)
        if wanted.name in FORBIDDEN_TOPICS:
            raise Rejected(
                ErrorCode.INVALID_REQUEST, f"Topic {wanted.name} cannot be made by a client."
            )
        if wanted.name in self.metadata.topics or wanted.name in self.pending_deletion:
            # A pending name is taken until its files are gone, or they would mix.
            raise Rejected(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{wanted.name}' already exists.")
        other = self._names_by_collision_key.get(collision_key(wanted.name))
        if other is not None:
            raise _collision(wanted.name, other)
        overrides = {}
        for name, value in wanted.overrides.items():
            if value is None:
                raise Rejected(ErrorCode.INVALID_CONFIG, f"Topic setting {name} has a null value.")
            overrides[name] = value
        check_settings(overrides)
        check_counts(wanted)
        brokers = self.metadata.brokers
        if wanted.assignments:
            replicas = check_assignments(wanted.assignments, brokers)
        else:
            factor = wanted.replication_factor
            count = wanted.partition_count
            replicas = placement.place(
                brokers.values(),
                default_partition_count if count == DEFAULT else count,
                default_replication_factor if factor == DEFAULT else factor,
                start=dice.start,
                shift=dice.shift,
            )
        partitions = tuple(
            self._born(wanted.name, topic_id, partition, chosen)
            for partition, chosen in enumerate(replicas)
        )
        topic = TopicState(wanted.name, topic_id, partitions, is_internal(wanted.name))
        return CreateTopic(topic, overrides)

    def decide_add_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[BrokerId]] | None,
    ) -> AddPartitions:
        """Grow ``name`` to ``count`` partitions. ``assignments`` are for the new ones, in order."""
        topic = self.metadata.topics.get(name)
        if topic is None:
            raise Rejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        present = len(topic.partitions)
        if count == present:
            raise Rejected(
                ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s)."
            )
        if count < present:
            raise Rejected(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {name} currently has {present} partition(s); "
                f"{count} would not be an increase.",
            )
        more = count - present
        if more > PARTITIONS_PER_REQUEST_MAX:
            raise _too_many(more)
        brokers = self.metadata.brokers
        factor = len(topic.partitions[0].replicas)
        if assignments is not None:
            if len(assignments) != more:
                raise Rejected(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"{more} additional partition(s) were asked for and "
                    f"{len(assignments)} assigned.",
                )
            for replicas in assignments:
                check_replicas(replicas, brokers)
                if len(replicas) != factor:
                    raise Rejected(
                        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                        f"ReplicaManager {list(replicas)} are not {factor} in number, "
                        "as in the partitions that exist.",
                    )
            chosen = [tuple(replicas) for replicas in assignments]
        else:
            order = sorted(brokers)
            first = topic.partitions[0].replicas[0]
            # The same beginning as before keeps the leaders even over old and new ones.
            start = order.index(first) if first in order else 0
            chosen = placement.place(
                brokers.values(), more, factor, start=start, shift=start, first_partition=present
            )
        added = tuple(
            self._born(name, topic.topic_id, partition, replicas)
            for partition, replicas in enumerate(chosen, present)
        )
        return AddPartitions(topic._replace(partitions=topic.partitions + added), added)

    def decide_mark_for_deletion(self, name: str) -> MarkForDeletion:
        if name not in self.metadata.topics:
            raise Rejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return MarkForDeletion(name)

    def decide_adopt(
        self,
        name: str,
        topic_id: TopicId,
        leader_epochs: Mapping[int, LeaderEpoch],
        overrides: Mapping[str, str],
    ) -> CreateTopic | AddPartitions | None:
        """Take in a topic whose folders are here and whose place in the tree is lost.

        For a cluster of one: whoever finds a folder is its only replica.
        ``leader_epochs`` has, per partition found, the last epoch its log knows (-1 for
        none); the new reign is above it. Partitions without a folder
        are made as well, because a topic has no holes.
        """
        (broker,) = self.metadata.brokers
        known = self.metadata.topics.get(name)
        present = known.partitions if known is not None else ()
        added = tuple(
            self._born(name, topic_id, partition, (broker,))._replace(
                leader_epoch=LeaderEpoch(leader_epochs.get(partition, -1) + 1)
            )
            for partition in range(len(present), max(leader_epochs) + 1)
        )
        if known is None:
            return CreateTopic(TopicState(name, topic_id, added, is_internal(name)), overrides)
        if not added:
            return None
        return AddPartitions(known._replace(partitions=present + added), added)

    # --- partitions

    def decide_isr(
        self,
        wanted: PartitionState,
        by: BrokerId,
    ) -> ChangePartition:
        """A leader asks for another ISR. It must be the leader still, of this epoch and state."""
        state = self.metadata.partition(wanted.topic, wanted.partition)
        if state is None or state.topic_id != wanted.topic_id:
            raise Rejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if state.leader != by or wanted.leader_epoch != state.leader_epoch:
            raise Rejected(ErrorCode.FENCED_LEADER_EPOCH)
        if wanted.partition_epoch != state.partition_epoch:
            raise Rejected(ErrorCode.INVALID_UPDATE_VERSION)
        if by not in wanted.isr or not set(wanted.isr) <= set(state.replicas):
            raise Rejected(ErrorCode.INVALID_REQUEST, f"ISR {list(wanted.isr)} is impossible.")
        if not set(wanted.isr) <= self.metadata.brokers.keys():
            raise Rejected(ErrorCode.INELIGIBLE_REPLICA)
        return _changed(state, isr=wanted.isr)

    def decide_election(self, topic_partition: TopicPartition, *, unclean: bool) -> ChangePartition:
        """The preferred replica leads; or, unclean, anyone alive where nobody leads.

        ELECTION_NOT_NEEDED when it is so already.
        """
        state = self.metadata.partition(*topic_partition)
        if state is None:
            raise Rejected(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic_partition}."
            )
        brokers = self.metadata.brokers
        if unclean:
            if state.leader != NO_LEADER:
                raise Rejected(ErrorCode.ELECTION_NOT_NEEDED)
            changes = self._elect(state, brokers, unclean_allowed=True)
            if not changes or changes[0].state.leader == NO_LEADER:
                raise Rejected(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
            return changes[0]
        preferred = state.replicas[0]
        if state.leader == preferred:
            raise Rejected(ErrorCode.ELECTION_NOT_NEEDED)
        if preferred not in state.isr or preferred not in brokers:
            raise Rejected(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
        return _changed(state, leader=preferred, isr=state.isr)

    def check_reassignment(
        self, topic_partition: TopicPartition, replicas: Sequence[BrokerId] | None
    ) -> None:
        """Raise Rejected unless the partition lies on ``replicas`` already. None cancels.

        Moving data is a later machine; until then the only move allowed is none.
        """
        state = self.metadata.partition(*topic_partition)
        if state is None:
            raise Rejected(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic_partition}."
            )
        if replicas is None:
            raise Rejected(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        check_replicas(replicas, self.metadata.brokers)
        if tuple(replicas) != state.replicas:
            raise Rejected(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"ReplicaManager of {topic_partition} cannot be moved to {list(replicas)} yet.",
            )

    def _elect(
        self, state: PartitionState, live: Container[BrokerId], unclean_allowed: bool
    ) -> list[ChangePartition]:
        """The first live replica in sync; else, if allowed, the first alive; else nobody."""
        isr = tuple(broker for broker in state.isr if self._can_serve(state, broker, live))
        for broker in state.replicas:
            if broker in isr:
                return [_changed(state, leader=broker, isr=isr)]
        if unclean_allowed:
            for broker in state.replicas:
                if self._can_serve(state, broker, live):
                    # Whatever the others hold beyond this one's log is lost, as asked.
                    return [_changed(state, leader=broker, isr=(broker,))]
        if state.leader == NO_LEADER:
            return []
        # The ISR stays as it was: these are the ones that may lead when they return.
        return [_changed(state, leader=NO_LEADER, isr=state.isr)]

    def _born(
        self, topic: str, topic_id: TopicId, partition: int, replicas: tuple[BrokerId, ...]
    ) -> PartitionState:
        live = tuple(broker for broker in replicas if broker in self.metadata.brokers)
        return PartitionState(
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            leader=live[0] if live else NO_LEADER,
            leader_epoch=LeaderEpoch(0),
            isr=live or replicas,
            replicas=replicas,
            partition_epoch=0,
            offline=tuple(broker for broker in replicas if broker not in live),
        )

    # --- what was agreed

    def replay(self, changes: Iterable[Change]) -> None:
        """The tree took ``changes``: they are the metadata now."""
        topics: dict[str, TopicState] = {}
        removed: list[str] = []
        states: list[PartitionState] = []
        for change in changes:
            match change:
                case CreateTopic(topic, _):
                    topics[topic.name] = topic
                    self._names_by_collision_key[collision_key(topic.name)] = topic.name
                case AddPartitions(topic, _):
                    topics[topic.name] = topic
                case ChangePartition(state, expected):
                    before = self.metadata.partition(state.topic, state.partition)
                    if before is None or before.partition_epoch != expected:
                        raise Fenced(f"{state.topic_partition} changed behind this controller")
                    states.append(state)
                case MarkForDeletion(name):
                    self.pending_deletion[name] = self.metadata.topics[name]
                    removed.append(name)
                case DeleteTopic(topic):
                    del self.pending_deletion[topic.name]
                    self._names_by_collision_key.pop(collision_key(topic.name), None)
                case _:
                    assert_never(change)
        if states:
            self.metadata = self.metadata.with_partitions(states)
        if topics or removed:
            self.metadata = self.metadata.with_topics(topics.values(), removed)


def _too_many(partition_count: int) -> Rejected:
    return Rejected(
        ErrorCode.POLICY_VIOLATION,
        f"{partition_count} new partitions in one request, limit {PARTITIONS_PER_REQUEST_MAX}.",
    )


def _collision(name: str, other: str) -> Rejected:
    return Rejected(
        ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
    )


def _changed(
    state: PartitionState, *, isr: tuple[BrokerId, ...], leader: BrokerId | None = None
) -> ChangePartition:
    """Naming a leader is an election, even of the same one: its epoch grows."""
    elected = leader is not None
    return ChangePartition(
        state._replace(
            leader=leader if leader is not None else state.leader,
            leader_epoch=LeaderEpoch(state.leader_epoch + elected),
            isr=isr,
            partition_epoch=state.partition_epoch + 1,
        ),
        state.partition_epoch,
    )
