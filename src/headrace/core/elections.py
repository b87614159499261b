"""Elections: who leads a partition, and which replicas are in sync.

Every function decides over a ``Controller`` and changes nothing. The leader epoch grows with every
change but one: a leader that changes its own ISR keeps its epoch.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from headrace.core.controller import NEW_PARTITION, ChangePartition, Controller
from headrace.model.cluster_metadata import NO_LEADER, PartitionState
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, LeaderEpoch, TopicId, TopicPartition

UNKNOWN_BROKER_EPOCH = -1  # Kafka 3.9 sends no epochs of ISR members


class TopicRules(NamedTuple):
    """The topic settings that elections depend on. Each is a function of the topic name."""

    unclean_allowed: Callable[[str], bool] = lambda topic: False
    min_insync_replicas: Callable[[str], int] = lambda topic: 1

    def insync_required(self, state: PartitionState) -> int:
        """The effective minimum, as leaders count it."""
        return min(self.min_insync_replicas(state.topic), len(state.origin_replicas))


KAFKA_DEFAULTS = TopicRules()


class IsrProposal(NamedTuple):
    """The ISR that a partition's leader requests, and the epochs that it knows."""

    topic_id: TopicId
    partition: int
    leader_epoch: LeaderEpoch
    partition_epoch: int
    isr: tuple[BrokerId, ...]
    broker_epochs: Mapping[BrokerId, int]  # of the members; UNKNOWN_BROKER_EPOCH if not sent
    recovering: bool = False


def decide_takeover(
    controller: Controller,
    granted_zxids: Mapping[TopicPartition, int],
    rules: TopicRules,
    states: Iterable[PartitionState] | None = None,
) -> list[ChangePartition]:
    """What a new controller must repair.

    ``granted_zxids`` tells when each partition state was last written. A leader or ISR member
    that registered after that has restarted, perhaps while there was no controller, and its log
    may have lost its tail. A broker registers as one that may have lost records until a
    controller has removed it from the ISRs. ``states`` are the states to check, by default all.
    """
    brokers = controller.metadata.brokers
    doubtful = [b for b, entry in brokers.items() if entry.may_have_lost_records]
    changes: list[ChangePartition] = []
    for state in controller.states() if states is None else states:
        granted = granted_zxids.get(state.topic_partition, 0)
        gone = [
            broker_id
            for broker_id in (state.leader, *state.isr)
            if (entry := brokers.get(broker_id)) is None
            or (entry.broker_epoch > granted and state.partition_epoch != NEW_PARTITION)
        ]
        changes += _without(controller, state, gone, rules, doubtful)
    return changes


def decide_brokers(
    controller: Controller,
    states: Iterable[PartitionState],
    gone: Collection[BrokerId],
    rules: TopicRules,
    doubtful: Collection[BrokerId] = (),
) -> list[ChangePartition]:
    """The live brokers have changed: ``gone`` are the brokers that left (``brokers_changed``).

    Partitions without a leader get one if possible. A broker with a new broker epoch has left and
    joined again: it leads again only if no other replica is in sync. ``doubtful`` are brokers
    that have just joined and may have lost records.
    """
    changes: list[ChangePartition] = []
    for state in states:
        changes += _without(controller, state, gone, rules, doubtful)
    return changes


def decide_failures(
    controller: Controller,
    topic_partitions: Iterable[TopicPartition],
    broker: BrokerId,
    rules: TopicRules = KAFKA_DEFAULTS,
) -> list[ChangePartition]:
    """Elect leaders in place of ``broker`` where its replicas have failed, and shrink the ISRs."""
    changes: list[ChangePartition] = []
    for topic_partition in topic_partitions:
        state = controller.metadata.partition(*topic_partition)
        if state is not None and (state.leader == broker or _follows_in_sync(state, broker)):
            changes += _without(controller, state, [broker], rules)
    return changes


class Departure(NamedTuple):
    """What a broker that shuts down gives up."""

    moved: list[ChangePartition]  # it led these
    left: list[ChangePartition]  # it was in the ISR of these
    remaining: list[TopicPartition]  # it must still lead these: no other replica is in sync


def decide_shutdown(
    controller: Controller,
    states: Iterable[PartitionState],
    broker: BrokerId,
    rules: TopicRules = KAFKA_DEFAULTS,
) -> Departure:
    """What ``broker`` gives up. Call ``Controller.shuts_down`` first.

    Partitions with one replica stay.
    """
    departure = Departure([], [], [])
    for state in states:
        if broker not in state.replicas or len(state.replicas) == 1:
            continue
        if state.leader == broker:
            change = _elect_in_sync(controller, state, state.isr, [broker], rules)
            if change is not None:
                departure.moved.append(change)
            else:
                departure.remaining.append(state.topic_partition)
        elif _follows_in_sync(state, broker):
            isr = _remaining_isr(controller, state, state.leader, state.isr, [broker], rules)
            if isr != state.isr:
                departure.left.append(changed(state, leader=state.leader, isr=isr))
    return departure


def decide_isr(
    controller: Controller, proposal: IsrProposal, by: BrokerId, rules: TopicRules = KAFKA_DEFAULTS
) -> ChangePartition | PartitionState:
    """A leader requests another ISR. Returns the current state if it has that ISR already.

    Epochs are checked before the members, so that a repeated request gets the result of the first
    one. Raises Rejected with Kafka's code.
    """
    topic = controller.metadata.topic_by_id(proposal.topic_id)
    if topic is None:
        raise Rejected(ErrorCode.UNKNOWN_TOPIC_ID)
    if not 0 <= proposal.partition < len(topic.partitions):
        raise Rejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    state = topic.partitions[proposal.partition]
    if (
        proposal.leader_epoch > state.leader_epoch
        or proposal.partition_epoch > state.partition_epoch
    ):
        raise Rejected(ErrorCode.NOT_CONTROLLER, "A newer controller has changed this partition.")
    if proposal.leader_epoch < state.leader_epoch:
        raise Rejected(ErrorCode.FENCED_LEADER_EPOCH)
    if state.leader != by:
        raise Rejected(ErrorCode.INVALID_REQUEST, f"Broker {by} is not the leader.")
    if set(proposal.isr) == set(state.isr):
        return state
    if proposal.partition_epoch < state.partition_epoch:
        raise Rejected(ErrorCode.INVALID_UPDATE_VERSION)
    if proposal.recovering and len(proposal.isr) > 1:
        raise Rejected(ErrorCode.INVALID_REQUEST, "A recovering leader is alone in the ISR.")
    if by not in proposal.isr or not set(proposal.isr) <= set(state.replicas):
        raise Rejected(
            ErrorCode.INVALID_REQUEST,
            f"ISR {list(proposal.isr)} must contain the leader and only assigned replicas.",
        )
    isr = _without_dead(controller, state, proposal.isr, rules)
    for member in isr:
        _check_eligible(controller, state, member, proposal.broker_epochs)
    return changed(state, leader=by, isr=isr, same_term=True)


def _without_dead(
    controller: Controller,
    state: PartitionState,
    proposed: tuple[BrokerId, ...],
    rules: TopicRules,
) -> tuple[BrokerId, ...]:
    """Remove dead members, which were kept for min.insync.replicas, once enough others are in."""
    live = controller.metadata.brokers
    isr = tuple(
        member
        for member in proposed
        if member not in state.isr or controller.can_serve(state, member, live)
    )
    return isr if len(isr) >= rules.insync_required(state) else proposed


def _check_eligible(
    controller: Controller,
    state: PartitionState,
    member: BrokerId,
    broker_epochs: Mapping[BrokerId, int],
) -> None:
    """Raise Rejected if a member is dead, or has restarted since the leader saw it fetch."""
    brokers = controller.metadata.brokers
    if not controller.can_serve(state, member, brokers):
        raise Rejected(ErrorCode.INELIGIBLE_REPLICA, f"Broker {member} cannot serve now.")
    seen = broker_epochs.get(member, UNKNOWN_BROKER_EPOCH)
    if seen not in (UNKNOWN_BROKER_EPOCH, brokers[member].broker_epoch):
        raise Rejected(ErrorCode.INELIGIBLE_REPLICA, f"Broker {member} has registered again since.")


def decide_election(
    controller: Controller,
    topic_partition: TopicPartition,
    rules: TopicRules = KAFKA_DEFAULTS,
    *,
    unclean: bool,
) -> ChangePartition:
    """Elect the preferred replica; with ``unclean``, any live replica if there is no leader.

    Raises Rejected with ELECTION_NOT_NEEDED if the preferred replica leads already; with
    ``unclean``, if there is a leader.
    """
    state = existing(controller, topic_partition)
    if unclean:
        if state.leader != NO_LEADER:
            raise Rejected(ErrorCode.ELECTION_NOT_NEEDED)
        change = _elect_in_sync(controller, state, state.isr, (), rules) or _elect_unclean(
            controller, state
        )
        if change is None:
            raise Rejected(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
        return change
    preferred = state.replicas[0]
    if state.leader == preferred:
        raise Rejected(ErrorCode.ELECTION_NOT_NEEDED)
    if not _can_lead(controller, state, preferred):
        raise Rejected(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
    return changed(state, leader=preferred, isr=state.isr)


def decide_rebalance(controller: Controller, imbalance_max: int) -> list[ChangePartition]:
    """Give leadership back to brokers that lead too few of the partitions they should lead.

    ``imbalance_max`` is the percentage of a broker's preferred partitions that others may lead.
    """
    preferred: dict[BrokerId, list[PartitionState]] = {}
    for state in controller.states():
        preferred.setdefault(state.replicas[0], []).append(state)
    changes: list[ChangePartition] = []
    for broker_id, states in preferred.items():
        elsewhere = [state for state in states if state.leader != broker_id]
        if 100 * len(elsewhere) <= imbalance_max * len(states):
            continue
        for state in elsewhere:
            if not state.is_reassigning and _can_lead(controller, state, broker_id):
                changes.append(changed(state, leader=broker_id, isr=state.isr))
    return changes


def existing(controller: Controller, topic_partition: TopicPartition) -> PartitionState:
    state = controller.metadata.partition(*topic_partition)
    if state is None:
        raise Rejected(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic_partition}."
        )
    return state


def _without(
    controller: Controller,
    state: PartitionState,
    gone: Collection[BrokerId],
    rules: TopicRules,
    doubtful: Collection[BrokerId] = (),
) -> list[ChangePartition]:
    """Remove brokers that are gone or doubtful from the ISR, and elect a leader if there is none.

    A member that is down stays in the ISR rather than a doubtful one: it has all acknowledged
    records. If all members are doubtful, any of them may lead, because no replica is better.
    """
    members = tuple(member for member in state.isr if member not in doubtful) or state.isr
    lost = state.leader in gone or (state.leader in state.isr and state.leader not in members)
    if lost or state.leader == NO_LEADER:
        change = _elect_in_sync(controller, state, members, gone, rules)
        if change is None and rules.unclean_allowed(state.topic):
            change = _elect_unclean(controller, state)
        if change is None and (state.leader != NO_LEADER or members != state.isr):
            # The members stay in the ISR: they may lead when they return.
            change = changed(state, leader=NO_LEADER, isr=members)
        return [change] if change is not None else []
    isr = _remaining_isr(controller, state, state.leader, members, gone, rules)
    live = controller.metadata.brokers
    if isr == state.isr and not any(member in gone and member in live for member in isr):
        return []
    # The leader must not wait for a dead follower. Once the follower has caught up, the leader
    # proposes it for the ISR again. A member that registered again and stays in the ISR needs a
    # new leader epoch: its fetches in that epoch tell the leader its new broker epoch.
    return [changed(state, leader=state.leader, isr=isr)]


def _elect_in_sync(
    controller: Controller,
    state: PartitionState,
    members: tuple[BrokerId, ...],
    gone: Collection[BrokerId],
    rules: TopicRules,
) -> ChangePartition | None:
    """Elect the first live member. A member that left and returned is the last choice."""
    live = controller.metadata.brokers
    able = [member for member in members if controller.can_serve(state, member, live)]
    best = [member for member in able if member not in gone] or able
    for broker in state.replicas:
        if broker in best:
            isr = _remaining_isr(controller, state, broker, members, gone, rules)
            return changed(state, leader=broker, isr=isr)
    return None


def _remaining_isr(
    controller: Controller,
    state: PartitionState,
    leader: BrokerId,
    members: tuple[BrokerId, ...],
    gone: Collection[BrokerId],
    rules: TopicRules,
) -> tuple[BrokerId, ...]:
    """The members that can serve, or all members if fewer than min.insync.replicas can.

    With too few members no record is acknowledged, so removing the others gains nothing. It could
    lose records: if the last member also fails and loses records that it has not flushed, one of
    the others must lead. The leader removes the others once its own log is flushed.
    """
    live = controller.metadata.brokers
    able = tuple(m for m in members if m == leader or controller.can_serve(state, m, live))
    fresh = tuple(m for m in able if m == leader or m not in gone)
    required = 1 if state.partition_epoch == NEW_PARTITION else rules.insync_required(state)
    return next((isr for isr in (fresh, able) if len(isr) >= required), members)


def _elect_unclean(controller: Controller, state: PartitionState) -> ChangePartition | None:
    # A replica that is being added may be empty yet.
    for broker in (*state.origin_replicas, *state.adding):
        if controller.can_serve(state, broker, controller.metadata.brokers):
            # Records that only other replicas have are lost, which the topic allows.
            return changed(state, leader=broker, isr=(broker,))
    return None


def _can_lead(controller: Controller, state: PartitionState, broker: BrokerId) -> bool:
    return broker in state.isr and controller.can_serve(state, broker, controller.metadata.brokers)


def _follows_in_sync(state: PartitionState, broker: BrokerId) -> bool:
    return broker in state.isr and state.leader not in (broker, NO_LEADER)


def changed(
    state: PartitionState,
    *,
    leader: BrokerId,
    isr: tuple[BrokerId, ...],
    same_term: bool = False,
) -> ChangePartition:
    """``same_term`` keeps the leader epoch. Otherwise it grows, even if the leader stays."""
    return ChangePartition(
        state._replace(
            leader=leader,
            leader_epoch=LeaderEpoch(state.leader_epoch + (not same_term)),
            isr=isr,
            partition_epoch=state.partition_epoch + 1,
        ),
        state.partition_epoch,
    )
