"""Nodes that brokers watch: live brokers, the controller, and requests and notices to it.

Each method reads and sets a watch, which fires once. Read again when it does.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from headrace.coordination import paths, values
from headrace.coordination.tree import Tree, Watch
from headrace.model.cluster_metadata import BrokerEntry
from headrace.model.errors import Corrupt
from headrace.model.ids import BrokerId, TopicPartition, ZkVersion

_log = logging.getLogger("headrace.metadata")


class FeatureLevels(NamedTuple):
    levels: dict[str, int]  # by feature
    epoch: int


class ReassignmentRequest(NamedTuple):
    targets: dict[TopicPartition, tuple[BrokerId, ...]]
    zk_version: ZkVersion


class WatchedNodes:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    async def live_brokers(self, watch: Watch | None = None) -> dict[BrokerId, BrokerEntry]:
        """The registered brokers. Registrations that cannot be read are skipped."""
        entries: dict[BrokerId, BrokerEntry] = {}
        for name in await self._tree.children(paths.BROKER_IDS, watch) or []:
            # With a watch of its own: a broker may change its listeners without leaving.
            path = f"{paths.BROKER_IDS}/{name}"
            node = await self._tree.get(path, watch)
            if node is None:
                continue
            try:
                broker_id = BrokerId(int(name))
                entries[broker_id] = values.decode_broker(broker_id, node.value, node.created_zxid)
            except (Corrupt, ValueError) as error:
                _log.error("Ignoring the registration of broker %s: %s", name, error)
        return entries

    async def controller(self, watch: Watch | None = None) -> BrokerId | None:
        node = await self._tree.get(paths.CONTROLLER, watch)
        return values.decode_controller(node.value) if node is not None else None

    async def shutting_down(self) -> dict[BrokerId, int]:
        """Brokers that asked a controller for a shutdown, with their broker epochs then."""
        names = await self._tree.children(paths.SHUTTING_DOWN) or []
        nodes = await self._tree.get_many([f"{paths.SHUTTING_DOWN}/{name}" for name in names])
        return {
            BrokerId(int(name)): int(node.value)
            for name, node in zip(names, nodes, strict=True)
            if node is not None
        }

    async def topics(self, watch: Watch | None = None) -> list[str]:
        return await self._tree.children(paths.BROKER_TOPICS, watch) or []

    async def delete_requests(self, watch: Watch | None = None) -> list[str]:
        """The topics that clients and tools asked to delete."""
        return await self._tree.children(paths.DELETE_TOPICS, watch) or []

    async def reassignment_request(self, watch: Watch | None = None) -> ReassignmentRequest | None:
        """The partitions that a tool asked to reassign."""
        node = await self._tree.get(paths.REASSIGN_PARTITIONS, watch)
        if node is None:
            return None
        return ReassignmentRequest(values.decode_reassignment(node.value), node.zk_version)

    async def preferred_election_request(
        self, watch: Watch | None = None
    ) -> list[TopicPartition] | None:
        """The partitions that a tool asked to give to their preferred leaders."""
        path = paths.PREFERRED_REPLICA_ELECTION
        node = await self._tree.get(path, watch)
        return values.decode_partitions(path, node.value) if node is not None else None

    async def isr_changes(self, watch: Watch | None = None) -> dict[str, list[TopicPartition]]:
        """The partitions in each notice of changed ISRs, by its path."""
        found: dict[str, list[TopicPartition]] = {}
        for path, value in (await self._notices(paths.ISR_CHANGES, watch)).items():
            found[path] = []
            with _ignoring_unreadable():
                found[path] = values.decode_partitions(path, value)
        return found

    async def log_dir_events(self, watch: Watch | None = None) -> dict[str, BrokerId | None]:
        """The broker in each notice of a failed log directory, by its path."""
        found: dict[str, BrokerId | None] = {}
        for path, value in (await self._notices(paths.LOG_DIR_EVENTS, watch)).items():
            found[path] = None
            with _ignoring_unreadable():
                found[path] = values.decode_log_dir_event(path, value)
        return found

    async def features(self, watch: Watch | None = None) -> FeatureLevels | None:
        """The feature levels of the cluster; None before the first controller has set them."""
        path = paths.FEATURE_LEVELS
        node = await self._tree.get(path, watch)
        if node is None:
            return None
        return FeatureLevels(values.decode_feature(path, node.value), node.zk_version)

    async def _notices(self, parent: str, watch: Watch | None) -> dict[str, bytes]:
        """The values of the children, without those deleted between the two reads."""
        names = await self._tree.children(parent, watch) or []
        notices = [f"{parent}/{name}" for name in names]
        nodes = await self._tree.get_many(notices)
        return {
            path: node.value for path, node in zip(notices, nodes, strict=True) if node is not None
        }


@contextmanager
def _ignoring_unreadable() -> Iterator[None]:
    """Another program may write anything. A notice that says nothing is only deleted."""
    try:
        yield
    except Corrupt as error:
        _log.error("Ignoring an unreadable notification: %s", error)
