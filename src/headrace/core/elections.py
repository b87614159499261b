"""Elections: who leads a partition, and which replicas are in sync.

Every function decides over a ``Controller`` and changes nothing.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from headrace.core.controller import Change, ChangePartition, Controller
from headrace.core.topics import check_replicas
from headrace.model.cluster_metadata import NO_LEADER, BrokerEntry, PartitionState
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, LeaderEpoch, TopicPartition


def decide_takeover(
    controller: Controller,
    granted_zxids: Mapping[TopicPartition, int],
    unclean_allowed: Callable[[str], bool],
) -> list[Change]:
    """What a new controller must repair after it has taken over the controllership.

    ``granted_zxids`` tells when each partition state was last written. A leader that registered
    after that is a new broker under an old id: even a restart that went unnoticed gets a new
    leader epoch.
    """
    brokers = controller.metadata.brokers
    changes: list[Change] = []
    for topic in controller.metadata.topics.values():
        for state in topic.partitions:
            leader = brokers.get(state.leader)
            granted = granted_zxids.get(state.topic_partition, 0)
            if leader is None or granted < leader.broker_epoch:
                changes += _elect(controller, state, brokers, unclean_allowed(topic.name))
    return changes


def decide_brokers(
    controller: Controller,
    brokers: Mapping[BrokerId, BrokerEntry],
    unclean_allowed: Callable[[str], bool],
) -> list[Change]:
    """The live brokers have changed to ``brokers``.

    Partitions without a leader get one if possible. A broker with a new broker epoch counts as a
    departure and an arrival.
    """
    before = controller.metadata.brokers
    gone = {
        broker_id
        for broker_id, entry in before.items()
        if broker_id not in brokers or brokers[broker_id].broker_epoch != entry.broker_epoch
    }
    came = any(broker_id not in before or broker_id in gone for broker_id in brokers)
    changes: list[Change] = []
    for topic in controller.metadata.topics.values():
        for state in topic.partitions:
            if state.leader in gone or (state.leader == NO_LEADER and came):
                changes += _elect(controller, state, brokers, unclean_allowed(topic.name))
            elif not gone.isdisjoint(state.isr):
                # The leader must not wait for a dead follower. It takes the follower back into
                # the ISR once that has caught up.
                isr = tuple(b for b in state.isr if b not in gone)
                changes.append(_changed(state, isr=isr))
    return changes


def decide_failures(
    controller: Controller, topic_partitions: Iterable[TopicPartition], broker: BrokerId
) -> list[Change]:
    """Elect leaders in place of ``broker`` where its replicas have failed."""
    changes: list[Change] = []
    for topic_partition in topic_partitions:
        state = controller.metadata.partition(*topic_partition)
        if state is not None and state.leader == broker:
            changes += _elect(controller, state, controller.metadata.brokers, unclean_allowed=False)
    return changes


def decide_isr(controller: Controller, target: PartitionState, by: BrokerId) -> ChangePartition:
    """A leader requests another ISR: ``target`` is the current state with that ISR.

    Raises Rejected unless ``by`` still leads in this leader epoch and partition epoch.
    """
    state = controller.metadata.partition(target.topic, target.partition)
    if state is None or state.topic_id != target.topic_id:
        raise Rejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if state.leader != by or target.leader_epoch != state.leader_epoch:
        raise Rejected(ErrorCode.FENCED_LEADER_EPOCH)
    if target.partition_epoch != state.partition_epoch:
        raise Rejected(ErrorCode.INVALID_UPDATE_VERSION)
    if by not in target.isr or not set(target.isr) <= set(state.replicas):
        raise Rejected(
            ErrorCode.INVALID_REQUEST,
            f"ISR {list(target.isr)} must contain the leader and only assigned replicas.",
        )
    if not set(target.isr) <= controller.metadata.brokers.keys():
        raise Rejected(ErrorCode.INELIGIBLE_REPLICA)
    return _changed(state, isr=target.isr)


def decide_election(
    controller: Controller, topic_partition: TopicPartition, *, unclean: bool
) -> ChangePartition:
    """Elect the preferred replica; with ``unclean``, any live replica if there is no leader.

    Raises Rejected with ELECTION_NOT_NEEDED if that is the case already.
    """
    state = _existing(controller, topic_partition)
    brokers = controller.metadata.brokers
    if unclean:
        if state.leader != NO_LEADER:
            raise Rejected(ErrorCode.ELECTION_NOT_NEEDED)
        changes = _elect(controller, state, brokers, unclean_allowed=True)
        if not changes or changes[0].state.leader == NO_LEADER:
            raise Rejected(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
        return changes[0]
    preferred = state.replicas[0]
    if state.leader == preferred:
        raise Rejected(ErrorCode.ELECTION_NOT_NEEDED)
    if preferred not in state.isr or not controller.can_serve(state, preferred, brokers):
        raise Rejected(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
    return _changed(state, leader=preferred, isr=state.isr)


def check_reassignment(
    controller: Controller, topic_partition: TopicPartition, replicas: Sequence[BrokerId] | None
) -> None:
    """Raise Rejected unless ``replicas`` are the current replicas. None cancels a move.

    Replicas cannot be moved between brokers yet.
    """
    state = _existing(controller, topic_partition)
    if replicas is None:
        raise Rejected(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    check_replicas(replicas, controller.metadata.brokers)
    if tuple(replicas) != state.replicas:
        raise Rejected(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Replicas of {topic_partition} cannot be moved to {list(replicas)}: "
            "moving replicas between brokers is not supported yet.",
        )


def _existing(controller: Controller, topic_partition: TopicPartition) -> PartitionState:
    state = controller.metadata.partition(*topic_partition)
    if state is None:
        raise Rejected(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic_partition}."
        )
    return state


def _elect(
    controller: Controller,
    state: PartitionState,
    live: Container[BrokerId],
    unclean_allowed: bool,
) -> list[ChangePartition]:
    """Elect the first live in-sync replica; else, if allowed, the first live one; else none."""
    isr = tuple(broker for broker in state.isr if controller.can_serve(state, broker, live))
    for broker in state.replicas:
        if broker in isr:
            return [_changed(state, leader=broker, isr=isr)]
    if unclean_allowed:
        for broker in state.replicas:
            if controller.can_serve(state, broker, live):
                # Records that only other replicas have are lost, which the topic allows.
                return [_changed(state, leader=broker, isr=(broker,))]
    if state.leader == NO_LEADER:
        return []
    # The ISR stays as it was: its members may lead when they return.
    return [_changed(state, leader=NO_LEADER, isr=state.isr)]


def _changed(
    state: PartitionState, *, isr: tuple[BrokerId, ...], leader: BrokerId | None = None
) -> ChangePartition:
    """Every choice of a leader is an election, even of the same broker: the leader epoch grows."""
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
