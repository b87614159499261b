"""Reassignments: which replicas a partition gets, and when the old ones may go.

While a partition moves from [1, 2] to [3, 2], it has the replicas [3, 2, 1]: ``adding`` is [3],
``removing`` is [1]. Once the whole target is in sync, the leader moves there if it must, and the
others are removed. No replica is removed earlier, so the partition never has fewer copies than
before.

Every function decides over a ``Controller`` and changes nothing.
"""

from collections.abc import Iterable, Iterator, Sequence

from headrace.core.controller import NEW_PARTITION, ChangePartition, Controller
from headrace.core.elections import changed, existing
from headrace.model.cluster_metadata import NO_LEADER, PartitionState
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, TopicPartition


def in_progress(controller: Controller) -> Iterator[PartitionState]:
    return (state for state in controller.states() if state.is_reassigning)


def decide_target(
    controller: Controller,
    topic_partition: TopicPartition,
    target: Sequence[BrokerId] | None,
    *,
    may_change_factor: bool = True,
) -> PartitionState:
    """The state with the replicas of a move to ``target``; leader, ISR and epochs are unchanged.

    None cancels the move in progress. A new target replaces the target of a move in progress:
    replicas that were added only for the old target are dropped. Raises Rejected.
    """
    state = existing(controller, topic_partition)
    if target is None:
        if not state.is_reassigning:
            raise Rejected(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{topic_partition} is not being reassigned."
            )
        target = state.origin_replicas
    _check_target(target)
    if state.partition_epoch == NEW_PARTITION:
        raise Rejected(
            ErrorCode.LEADER_NOT_AVAILABLE,
            f"{topic_partition} has no leader yet. Try again once it has one.",
        )
    factor = len(state.origin_replicas)
    if not may_change_factor and len(target) != factor:
        raise Rejected(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{topic_partition} has {factor} replica(s); {list(target)} would change that, which "
            "the request does not allow.",
        )
    moving = _moving_to(state, tuple(target))
    for broker in moving.adding:
        if broker not in controller.metadata.brokers:
            raise _refused(f"Broker {broker} cannot get a replica: it is not registered.")
        if broker not in state.replicas and not controller.can_serve(
            state, broker, controller.metadata.brokers
        ):
            raise _refused(
                f"Broker {broker} cannot get a replica: it is shutting down, or its disk failed."
            )
    _check_in_sync_stays(controller, state, moving)
    return moving


def _check_target(target: Sequence[BrokerId]) -> None:
    if not target:
        raise _refused("A partition needs at least one replica.")
    if len(set(target)) != len(target):
        raise _refused(f"The assignment {list(target)} names a broker more than once.")


def _moving_to(state: PartitionState, target: tuple[BrokerId, ...]) -> PartitionState:
    origin = state.origin_replicas
    return state._replace(
        replicas=(*target, *(broker for broker in origin if broker not in target)),
        adding=tuple(broker for broker in target if broker not in origin),
        removing=tuple(broker for broker in origin if broker not in target),
    )


def _check_in_sync_stays(
    controller: Controller, state: PartitionState, moving: PartitionState
) -> None:
    """Refuse to drop the only replicas in sync, which a move in progress may have added."""
    staying = [member for member in state.isr if member in moving.replicas]
    able = [m for m in staying if controller.can_serve(state, m, controller.metadata.brokers)]
    if not staying or (state.leader != NO_LEADER and not able):
        raise _refused(
            f"{state.topic_partition} cannot leave the replicas {list(state.isr)}, which the "
            "reassignment in progress added: only these have all its records. Let it finish."
        )


def _refused(message: str) -> Rejected:
    return Rejected(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def decide_begin(controller: Controller, states: Iterable[PartitionState]) -> list[ChangePartition]:
    """Start a leader epoch, in which the leader and all replicas learn of the new assignment.

    ``states`` already have the assignment (``decide_target``). A replica that a new target drops
    loses its leadership and leaves the ISR.
    """
    return [_restricted(controller, state) for state in states]


def decide_resumption(
    controller: Controller, states: Iterable[PartitionState]
) -> list[ChangePartition]:
    """Begin every move again: Kafka's controller may have written one without telling the leader.

    It may also have dropped replicas that are still in the ISR. Headrace's controller writes the
    assignment and the new leader epoch together.
    """
    return decide_begin(
        controller,
        [
            state
            for state in states
            if state.partition_epoch != NEW_PARTITION
            and not set(state.isr).isdisjoint(state.replicas)
            and (state.is_reassigning or not set(state.isr) <= set(state.replicas))
        ],
    )


def is_ready(controller: Controller, state: PartitionState) -> bool:
    """Whether the move can end: the whole target is in sync, and alive.

    The ISR may have dead members (min.insync.replicas). A move must not end on these alone.
    """
    live = controller.metadata.brokers
    return state.is_reassigning and all(
        broker in state.isr and controller.can_serve(state, broker, live)
        for broker in state.target_replicas
    )


def decide_completion(
    controller: Controller, states: Iterable[PartitionState]
) -> list[ChangePartition]:
    """The target is now the assignment, with the leader and the ISR in it."""
    return [
        _restricted(controller, _completed(state))
        for state in states
        if is_ready(controller, state)
    ]


def _completed(state: PartitionState) -> PartitionState:
    target = state.target_replicas
    return state._replace(
        replicas=target,
        adding=(),
        removing=(),
        offline=tuple(broker for broker in state.offline if broker in target),
    )


def _restricted(controller: Controller, state: PartitionState) -> ChangePartition:
    """A new leader epoch with leader and ISR among the replicas."""
    isr = tuple(member for member in state.isr if member in state.replicas)
    leader = state.leader
    if leader not in state.replicas:
        live = controller.metadata.brokers
        able = (b for b in state.replicas if b in isr and controller.can_serve(state, b, live))
        leader = next(able, NO_LEADER)
    return changed(state, leader=leader, isr=isr)
