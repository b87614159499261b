"""Nodes that brokers watch: live brokers, the controller, and requests and notices to it.

Each method reads and sets a watch, which fires once. Read again when it does.
"""

from typing import NamedTuple

from headrace.coordination import paths, values
from headrace.coordination.tree import Node, Tree, Watch
from headrace.model.cluster_metadata import BrokerEntry
from headrace.model.ids import BrokerId, TopicPartition


class FeatureLevels(NamedTuple):
    levels: dict[str, int]  # by feature
    epoch: int


class WatchedNodes:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    async def live_brokers(self, watch: Watch | None = None) -> dict[BrokerId, BrokerEntry]:
        """Does not fire when a broker changes its registration without leaving."""
        entries = [
            values.decode_broker(BrokerId(int(name)), node.value, node.created_zxid)
            for name, node in (await self._children(paths.BROKER_IDS, watch)).items()
        ]
        return {entry.broker_id: entry for entry in entries}

    async def controller(self, watch: Watch | None = None) -> BrokerId | None:
        node = await self._tree.get(paths.CONTROLLER, watch)
        return values.decode_controller(node.value) if node is not None else None

    async def topics(self, watch: Watch | None = None) -> list[str]:
        return await self._tree.children(paths.BROKER_TOPICS, watch) or []

    async def delete_requests(self, watch: Watch | None = None) -> list[str]:
        """The topics that clients and tools asked to delete."""
        return await self._tree.children(paths.DELETE_TOPICS, watch) or []

    async def reassignment_request(
        self, watch: Watch | None = None
    ) -> dict[TopicPartition, tuple[BrokerId, ...]]:
        """The target replicas of partitions that a tool asked to reassign."""
        node = await self._tree.get(paths.REASSIGN_PARTITIONS, watch)
        return values.decode_reassignment(node.value) if node is not None else {}

    async def preferred_election_request(
        self, watch: Watch | None = None
    ) -> list[TopicPartition] | None:
        """The partitions that a tool asked to give to their preferred leaders."""
        path = paths.PREFERRED_REPLICA_ELECTION
        node = await self._tree.get(path, watch)
        return values.decode_partitions(path, node.value) if node is not None else None

    async def isr_changes(self, watch: Watch | None = None) -> dict[str, list[TopicPartition]]:
        """The partitions in each notice of changed ISRs, by its path."""
        parent = paths.ISR_CHANGES
        return {
            f"{parent}/{name}": values.decode_partitions(f"{parent}/{name}", node.value)
            for name, node in (await self._children(parent, watch)).items()
        }

    async def log_dir_events(self, watch: Watch | None = None) -> dict[str, BrokerId]:
        """The broker in each notice of a failed log directory, by its path."""
        parent = paths.LOG_DIR_EVENTS
        return {
            f"{parent}/{name}": values.decode_log_dir_event(f"{parent}/{name}", node.value)
            for name, node in (await self._children(parent, watch)).items()
        }

    async def features(self, watch: Watch | None = None) -> FeatureLevels | None:
        """The feature levels of the cluster; None before the first controller has set them."""
        path = paths.FEATURE_LEVELS
        node = await self._tree.get(path, watch)
        if node is None:
            return None
        return FeatureLevels(values.decode_feature(path, node.value), node.zk_version)

    async def _children(self, parent: str, watch: Watch | None) -> dict[str, Node]:
        """The children, without those deleted between the two reads."""
        names = await self._tree.children(parent, watch) or []
        nodes = await self._tree.get_many([f"{parent}/{name}" for name in names])
        return {n: node for n, node in zip(names, nodes, strict=True) if node is not None}
