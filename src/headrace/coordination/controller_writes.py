"""The controller's changes as operations on the coordination tree. Pure."""

from collections.abc import Iterable
from typing import assert_never

from headrace.coordination import paths, values
from headrace.coordination.tree import ANY_VERSION, Create, Delete, Operation, Set
from headrace.core.controller import (
    NEW_PARTITION,
    AddPartitions,
    Change,
    ChangePartition,
    CreateTopic,
    DeleteTopic,
    MarkForDeletion,
)
from headrace.model.cluster_metadata import PartitionState
from headrace.model.ids import ControllerEpoch, ZkVersion


def operations(changes: Iterable[Change], controller_epoch: ControllerEpoch) -> list[Operation]:
    """The operations that carry out ``changes``, to be written next to a check of the epoch.

    That check guards nodes that only a controller writes. A partition's state is also guarded by
    its own version, because leaders wrote it too before Kafka 2.7.
    """
    writes: list[Operation] = []
    for change in changes:
        match change:
            case CreateTopic(topic, overrides):
                writes.append(
                    Create(paths.config("topics", topic.name), values.encode_config(overrides))
                )
                writes.append(Create(paths.topic(topic.name), values.encode_topic(topic)))
                writes.append(Create(paths.partitions(topic.name)))
                writes += _creates(topic.partitions, controller_epoch)
            case AddPartitions(topic, added):
                writes.append(Set(paths.topic(topic.name), values.encode_topic(topic), ANY_VERSION))
                writes += _creates(added, controller_epoch)
            case ChangePartition(state, expected):
                value = values.encode_state(state, controller_epoch)
                path = paths.state(state.topic, state.partition)
                if expected == NEW_PARTITION:
                    writes.append(Create(path, value))
                else:
                    writes.append(Set(path, value, ZkVersion(expected)))
            case MarkForDeletion(name):
                writes.append(Create(paths.delete_topic(name)))
            case DeleteTopic(topic):
                writes += [
                    Delete(path, ANY_VERSION)
                    for path in nodes_of_topic(topic.name, range(len(topic.partitions)))
                ]
            case _:
                assert_never(change)
    return writes


def nodes_of_topic(name: str, partitions: Iterable[int]) -> list[str]:
    """The nodes of a topic pending deletion, children first, and the request last."""
    nodes = []
    for partition in partitions:
        nodes += [paths.state(name, partition), paths.partition(name, partition)]
    return [
        *nodes,
        paths.partitions(name),
        paths.topic(name),
        paths.config("topics", name),
        paths.delete_topic(name),
    ]


def _creates(
    states: Iterable[PartitionState], controller_epoch: ControllerEpoch
) -> Iterable[Operation]:
    for state in states:
        yield Create(paths.partition(state.topic, state.partition))
        yield Create(
            paths.state(state.topic, state.partition), values.encode_state(state, controller_epoch)
        )
