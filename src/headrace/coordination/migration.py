"""Carry the state of a standalone node over to the tree of a cluster.

Both trees have Kafka 3.9's layout, so nodes are copied as they are. What belongs to one session or
to one moment stays behind: live brokers, the controller, notices of changed settings. A migration
that was interrupted is repeated from the start; nodes that it wrote before are replaced.
"""

from collections.abc import Mapping
from typing import NamedTuple

from headrace.coordination import paths, values
from headrace.coordination.tree import ANY_VERSION, Tree
from headrace.model.errors import ConfigError
from headrace.model.ids import ControllerEpoch, LeaderEpoch, TopicPartition

_LEFT_BEHIND = (paths.BROKER_IDS, paths.CONTROLLER, paths.CONFIG_CHANGES)


class Migrated(NamedTuple):
    cluster_id: str
    topics: list[str]


async def migrate(
    source: Tree, target: Tree, last_epochs: Mapping[TopicPartition, LeaderEpoch]
) -> Migrated:
    """Copy ``source`` to ``target``. ``last_epochs`` are the last leader epochs in the logs.

    Raises ConfigError if the target has another cluster, or brokers that run.
    """
    own = await source.get(paths.CLUSTER_ID)
    if own is None:
        raise ConfigError("The standalone node has no cluster id: it was never started")
    cluster_id = values.decode_cluster_id(own.value)
    await _check_target(target, cluster_id)
    nodes = await _read_all(source)
    _raise_epochs(nodes, last_epochs)
    # The id comes last: a cluster with it is complete.
    del nodes[paths.CLUSTER_ID]
    for path, value in nodes.items():
        await _put(target, path, value)
    await _put(target, paths.CLUSTER_ID, own.value)
    return Migrated(cluster_id, await target.children(paths.BROKER_TOPICS) or [])


async def _check_target(target: Tree, cluster_id: str) -> None:
    present = await target.get(paths.CLUSTER_ID)
    if present is not None:
        other = values.decode_cluster_id(present.value)
        if other != cluster_id:
            raise ConfigError(
                f"ZooKeeper has cluster {other} there, and this node belongs to cluster "
                f"{cluster_id}. Choose another path in zookeeper.connect, such as host:2181/name"
            )
    elif await target.children(paths.BROKER_TOPICS):
        raise ConfigError(
            "ZooKeeper has topics there, but no cluster id. Choose another path in "
            "zookeeper.connect, such as host:2181/name"
        )
    if live := await target.children(paths.BROKER_IDS):
        raise ConfigError(f"Brokers of that cluster run: {', '.join(live)}. Stop them first")


async def _read_all(source: Tree) -> dict[str, bytes]:
    """The values of all nodes to copy, parents first."""
    found: dict[str, bytes] = {}
    pending = ["/"]
    while pending:
        path = pending.pop(0)
        node = await source.get(path)
        if node is None:
            continue
        if path != "/":
            found[path] = node.value
        if path not in _LEFT_BEHIND:
            names = await source.children(path) or []
            pending += [f"{path.rstrip('/')}/{name}" for name in names]
    found.pop(paths.CONTROLLER, None)
    return found


def _raise_epochs(
    nodes: dict[str, bytes], last_epochs: Mapping[TopicPartition, LeaderEpoch]
) -> None:
    """No leader may get an epoch below the one in its log: followers would truncate by it."""
    epoch = values.decode_controller_epoch(nodes.get(paths.CONTROLLER_EPOCH, b"0"))
    for (topic, partition), last_epoch in last_epochs.items():
        path = paths.state(topic, partition)
        if path in nodes:
            nodes[path] = _with_epoch(topic, partition, nodes[path], epoch, last_epoch)


def _with_epoch(
    topic: str, partition: int, value: bytes, controller_epoch: ControllerEpoch, lowest: LeaderEpoch
) -> bytes:
    state = values.decode_state(topic, partition, value)
    if state.leader_epoch >= lowest:
        return value
    return values.encode_state(state._replace(leader_epoch=lowest), controller_epoch)


async def _put(target: Tree, path: str, value: bytes) -> None:
    if await target.get(path) is None:
        await target.create(path, value)
    else:
        await target.set(path, value, ANY_VERSION)
