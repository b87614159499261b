"""Topic changes: which topics are created, grow, are marked for deletion or adopted.

Every function decides over a ``Controller`` and changes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headrace.core import placement
from headrace.core.controller import AddPartitions, Controller, CreateTopic, MarkForDeletion
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
from headrace.model.cluster_metadata import NO_LEADER, PartitionState, TopicState
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, LeaderEpoch, TopicId


class PlacementSeed(NamedTuple):
    """Random numbers that the caller draws: where placement starts, and with which shift."""

    start: int
    shift: int


def decide_creates(
    controller: Controller,
    requests: Sequence[NewTopic],
    draw: Callable[[], tuple[TopicId, PlacementSeed]],
    *,
    default_partition_count: int,
    default_replication_factor: int,
    check_settings: Callable[[Mapping[str, str]], None],
) -> list[CreateTopic | Rejected]:
    """One answer per request, in order. The accepted topics can be created together.

    ``check_settings`` raises Rejected; ``draw`` gives each topic its id and its seed.
    """
    total = sum(partition_count_of(wanted, default_partition_count) for wanted in requests)
    if total > PARTITIONS_PER_REQUEST_MAX:
        # Checked first: all further work is proportional to the request.
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
            topic_id, seed = draw()
            change = decide_create(
                controller,
                wanted,
                topic_id,
                default_partition_count=default_partition_count,
                default_replication_factor=default_replication_factor,
                check_settings=check_settings,
                seed=seed,
            )
            other = accepted.setdefault(collision_key(wanted.name), wanted.name)
            if other != wanted.name:
                raise _collision(wanted.name, other)
            answers.append(change)
        except Rejected as refusal:
            answers.append(refusal)
    return answers


def decide_create(
    controller: Controller,
    wanted: NewTopic,
    topic_id: TopicId,
    *,
    default_partition_count: int,
    default_replication_factor: int,
    check_settings: Callable[[Mapping[str, str]], None],
    seed: PlacementSeed,
) -> CreateTopic:
    """Raises Rejected; if several checks fail, with the reason that Kafka reports."""
    _check_name_is_free(controller, wanted.name)
    overrides = {}
    for name, value in wanted.overrides.items():
        if value is None:
            raise Rejected(ErrorCode.INVALID_CONFIG, f"Topic setting {name} has a null value.")
        overrides[name] = value
    check_settings(overrides)
    check_counts(wanted)
    brokers = controller.metadata.brokers
    if wanted.assignments:
        replicas = check_assignments(wanted.assignments, brokers)
    else:
        factor = wanted.replication_factor
        count = wanted.partition_count
        replicas = placement.place(
            brokers.values(),
            default_partition_count if count == DEFAULT else count,
            default_replication_factor if factor == DEFAULT else factor,
            start=seed.start,
            shift=seed.shift,
        )
    partitions = tuple(
        _new_partition(controller, wanted.name, topic_id, partition, chosen)
        for partition, chosen in enumerate(replicas)
    )
    topic = TopicState(wanted.name, topic_id, partitions, is_internal(wanted.name))
    return CreateTopic(topic, overrides)


def _check_name_is_free(controller: Controller, name: str) -> None:
    check_name(name)
    if name in FORBIDDEN_TOPICS:
        raise Rejected(ErrorCode.INVALID_REQUEST, f"Clients cannot create the topic {name}.")
    if name in controller.metadata.topics or name in controller.pending_deletion:
        # The name of a topic pending deletion is taken until its files are gone. Otherwise the
        # files of two topics would mix.
        raise Rejected(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = controller.names_by_collision_key.get(collision_key(name))
    if other is not None:
        raise _collision(name, other)


def decide_add_partitions(
    controller: Controller,
    name: str,
    count: int,
    assignments: Sequence[Sequence[BrokerId]] | None,
) -> AddPartitions:
    """Grow ``name`` to ``count`` partitions. ``assignments`` has the replicas of the new ones."""
    topic = controller.metadata.topics.get(name)
    if topic is None:
        raise Rejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    present = len(topic.partitions)
    if count == present:
        raise Rejected(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if count < present:
        raise Rejected(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {name} currently has {present} partition(s); "
            f"{count} would not be an increase.",
        )
    if any(state.is_reassigning for state in topic.partitions):
        raise Rejected(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"Partitions of topic {name} are being reassigned. Add partitions when that is done.",
        )
    more = count - present
    if more > PARTITIONS_PER_REQUEST_MAX:
        raise _too_many(more)
    brokers = controller.metadata.brokers
    first_replicas = topic.partitions[0].replicas
    if assignments is not None:
        chosen = _check_new_assignments(controller, more, assignments, len(first_replicas))
    else:
        # Starting where the topic started keeps the leaders of old and new partitions even.
        later = (i for i, broker in enumerate(sorted(brokers)) if broker >= first_replicas[0])
        start = next(later, 0)
        chosen = placement.place(
            brokers.values(),
            more,
            len(first_replicas),
            start=start,
            shift=start,
            first_partition=present,
        )
    added = tuple(
        _new_partition(controller, name, topic.topic_id, partition, replicas)
        for partition, replicas in enumerate(chosen, present)
    )
    return AddPartitions(topic._replace(partitions=topic.partitions + added), added)


def _check_new_assignments(
    controller: Controller,
    count: int,
    assignments: Sequence[Sequence[BrokerId]],
    replication_factor: int,
) -> list[tuple[BrokerId, ...]]:
    if len(assignments) != count:
        raise Rejected(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The request adds {count} partition(s) and assigns {len(assignments)}.",
        )
    for replicas in assignments:
        check_replicas(replicas, controller.metadata.brokers)
        if len(replicas) != replication_factor:
            raise Rejected(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The assignment {list(replicas)} must have {replication_factor} replica(s), "
                "as the existing partitions do.",
            )
    return [tuple(replicas) for replicas in assignments]


def decide_mark_for_deletion(controller: Controller, name: str) -> MarkForDeletion:
    if name not in controller.metadata.topics:
        raise Rejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return MarkForDeletion(name)


def decide_adopt(
    controller: Controller,
    name: str,
    topic_id: TopicId,
    leader_epochs: Mapping[int, LeaderEpoch],
    overrides: Mapping[str, str],
) -> CreateTopic | AddPartitions | None:
    """Adopt a topic whose partition directories exist and whose metadata is lost.

    Only in a cluster of one: the broker that finds a directory holds the only replica.
    ``leader_epochs`` has the last epoch in the log of each partition found (-1 for none); the
    new leader epoch is above it. Partitions without a directory are created as well, because a
    topic has no gaps.
    """
    (broker,) = controller.metadata.brokers
    known = controller.metadata.topics.get(name)
    present = known.partitions if known is not None else ()
    added = tuple(
        _new_partition(controller, name, topic_id, partition, (broker,))._replace(
            leader_epoch=LeaderEpoch(leader_epochs.get(partition, -1) + 1)
        )
        for partition in range(len(present), max(leader_epochs) + 1)
    )
    if known is None:
        return CreateTopic(TopicState(name, topic_id, added, is_internal(name)), overrides)
    if not added:
        return None
    return AddPartitions(known._replace(partitions=present + added), added)


def _new_partition(
    controller: Controller,
    topic: str,
    topic_id: TopicId,
    partition: int,
    replicas: tuple[BrokerId, ...],
) -> PartitionState:
    live = tuple(broker for broker in replicas if broker in controller.metadata.brokers)
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


def _too_many(partition_count: int) -> Rejected:
    return Rejected(
        ErrorCode.POLICY_VIOLATION,
        f"{partition_count} new partitions in one request, limit {PARTITIONS_PER_REQUEST_MAX}.",
    )


def _collision(name: str, other: str) -> Rejected:
    return Rejected(
        ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
    )
