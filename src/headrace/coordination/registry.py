"""What a cluster has agreed on, kept in a tree: read into our words, written under guard.

The seam between the controller and where its decisions are kept. Above it nobody knows
of nodes and JSON; a quorum of the brokers' own would be another such registry.

Every write of a controller carries a check of its controller epoch, so that one that was
replaced without noticing cannot write any more: it gets ``Fenced``. A tree that cannot keep
anything now refuses the request at hand with KAFKA_STORAGE_ERROR.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from headrace.coordination import controller_writes, paths, values
from headrace.coordination.tree import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    Done,
    NodeExists,
    Operation,
    Set,
    Tree,
    Unwritable,
)
from headrace.core.controller import UNBORN, Change
from headrace.core.topics import is_internal
from headrace.model.cluster_metadata import (
    NO_LEADER,
    BrokerEntry,
    PartitionState,
    TopicDirectories,
    TopicState,
)
from headrace.model.errors import ConfigError, ErrorCode, Fenced, Rejected
from headrace.model.ids import (
    NO_LEADER_EPOCH,
    NO_TOPIC_ID,
    BrokerId,
    ControllerEpoch,
    Millis,
    TopicId,
    TopicPartition,
    ZkVersion,
    id_from_text,
)

PRODUCER_IDS_PER_BLOCK = 1000


class LoadedTopics(NamedTuple):
    topics: dict[str, TopicState]
    granted_zxids: dict[TopicPartition, int]  # when each partition's state was last written


class LoadedAssignment(NamedTuple):
    paths: dict[str, str]  # where each log directory was last seen, by its id
    homes: dict[str, TopicDirectories]  # by topic


class AssignmentChange(NamedTuple):
    """None, or no directory left, where there is nothing more to remember."""

    homes: Mapping[str, TopicDirectories | None]
    deleted: Mapping[TopicId, Collection[str]] = {}


class Registry:
    """One broker's access to what is agreed. ``close`` gives up its registration."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._controller_epoch: ControllerEpoch
        self._controller_epoch_zk_version: ZkVersion
        self._own_nodes: set[str] = set()  # below /headrace: only this broker writes them

    async def close(self) -> None:
        await self._tree.close()

    # --- becoming a member, and the controller

    async def make_folders(self) -> None:
        """The nodes under which everything else lies; there after the first start."""
        present = await self._tree.get_many(paths.PERSISTENT)
        missing: list[Operation] = [
            Create(path)
            for path, node in zip(paths.PERSISTENT, present, strict=True)
            if node is None
        ]
        if missing:
            await self._tree.multi(missing)

    async def settle_cluster_id(self, known: str | None, new: str) -> str:
        """The cluster's id: ``known`` to the log directories, or ``new`` if nobody has one.

        Raises ConfigError when directories and tree belong to different clusters.
        """
        node = await self._tree.get(paths.CLUSTER_ID)
        if node is None:
            cluster_id = known or new
            await self._tree.create(paths.CLUSTER_ID, values.encode_cluster_id(cluster_id))
            return cluster_id
        cluster_id = values.decode_cluster_id(node.value)
        if known is not None and known != cluster_id:
            raise ConfigError(
                f"cluster.id {known} in meta.properties is not that of the coordination tree, "
                f"{cluster_id}: this folder belongs to another cluster"
            )
        return cluster_id

    async def register(self, entry: BrokerEntry, now: Millis) -> BrokerEntry:
        """Be a live broker until the session ends; the entry returned has its broker epoch."""
        path = paths.broker(entry.broker_id)
        try:
            done = await self._tree.create(path, values.encode_broker(entry, now), ephemeral=True)
        except NodeExists as taken:
            raise ConfigError(
                f"broker.id {entry.broker_id} is in use by a live broker; "
                "every broker needs its own"
            ) from taken
        return entry._replace(broker_epoch=done.zxid)

    async def take_controllership(self, broker_id: BrokerId, now: Millis) -> ControllerEpoch:
        """Claim the controller's node and count its epoch up, both or neither."""
        claim = Create(paths.CONTROLLER, values.encode_controller(broker_id, now), ephemeral=True)
        node = await self._tree.get(paths.CONTROLLER_EPOCH)
        before = values.decode_controller_epoch(node.value) if node is not None else 0
        controller_epoch = ControllerEpoch(before + 1)
        value = values.encode_controller_epoch(controller_epoch)
        count: Operation = (
            Create(paths.CONTROLLER_EPOCH, value)
            if node is None
            else Set(paths.CONTROLLER_EPOCH, value, node.zk_version)
        )
        done = await self._tree.multi([claim, count])
        self._controller_epoch = controller_epoch
        self._controller_epoch_zk_version = done[1].zk_version
        return controller_epoch

    # --- topics

    async def commit(
        self, changes: Sequence[Change], broker_id: BrokerId, homes: AssignmentChange | None = None
    ) -> None:
        """Write all ``changes`` of this reign, with what they mean to ``homes``, or nothing."""
        wanted = controller_writes.operations(
            changes, self._controller_epoch, self._controller_epoch_zk_version
        )
        nodes: dict[str, bytes | None] = {}
        if homes is not None:
            for topic, home in homes.homes.items():
                path = paths.topic_directories(broker_id, topic)
                nodes[path] = values.encode_topic_directories(home) if home is not None else None
            for topic_id, away in homes.deleted.items():
                path = paths.pending_deletion(broker_id, topic_id)
                nodes[path] = values.encode_directories(dict.fromkeys(away, "")) if away else None
        for path, value in nodes.items():
            if path not in self._own_nodes:
                wanted += [Create(path, value)] if value is not None else []
            elif value is not None:
                wanted.append(Set(path, value, ANY_VERSION))
            else:
                wanted.append(Delete(path, ANY_VERSION))
        if len(wanted) > 1:  # more than the guard
            await self._write(wanted)
            self._own_nodes -= nodes.keys()
            self._own_nodes |= {path for path, value in nodes.items() if value is not None}

    async def load_directory_assignment(self, broker_id: BrokerId) -> LoadedAssignment:
        """What this broker wrote of its log directories and of what lies in them."""
        parent = paths.directory_assignment(broker_id)
        names, found = await self._own_children(parent)
        node = await self._tree.get(parent)
        assert node is not None, "made a moment ago"
        homes = {
            name: values.decode_topic_directories(f"{parent}/{name}", value)
            for name, value in zip(names, found, strict=True)
        }
        return LoadedAssignment(values.decode_directories(parent, node.value), homes)

    async def store_directories(self, broker_id: BrokerId, known: Mapping[str, str]) -> None:
        path = paths.directory_assignment(broker_id)
        await self._tree.set(path, values.encode_directories(known), ANY_VERSION)

    async def load_deleted(self, broker_id: BrokerId) -> dict[TopicId, set[str]]:
        """The topics that directories have yet to forget, and which directories."""
        parent = paths.pending_deletions(broker_id)
        names, found = await self._own_children(parent)
        return {
            TopicId(id_from_text(name)): set(values.decode_directories(f"{parent}/{name}", value))
            for name, value in zip(names, found, strict=True)
        }

    async def _own_children(self, parent: str) -> tuple[list[str], list[bytes]]:
        names = await self._tree.children(parent)
        if names is None:
            await self._tree.create(parent)
            return [], []
        children = [f"{parent}/{name}" for name in names]
        self._own_nodes.update(children)
        nodes = await self._tree.get_many(children) if children else []
        return names, [node.value for node in nodes if node is not None]

    async def load_topics(self, live: Collection[BrokerId]) -> LoadedTopics:
        names = await self._tree.children(paths.BROKER_TOPICS) or []
        nodes = await self._tree.get_many([paths.topic(name) for name in names])
        assigned = {
            name: values.decode_topic(name, node.value)
            for name, node in zip(names, nodes, strict=True)
            if node is not None
        }
        wanted = [
            TopicPartition(name, partition)
            for name, assignment in assigned.items()
            for partition in range(len(assignment.replicas))
        ]
        found = await self._tree.get_many([paths.state(*each) for each in wanted])
        granted_zxids: dict[TopicPartition, int] = {}
        states: dict[str, list[PartitionState]] = {name: [] for name in assigned}
        for topic_partition, node in zip(wanted, found, strict=True):
            name, partition = topic_partition
            assignment = assigned[name]
            replicas = assignment.replicas[partition]
            if node is not None:
                leader, leader_epoch, isr = values.decode_state(name, partition, node.value)
                granted_zxids[topic_partition] = node.modified_zxid
            else:
                # Somebody assigned replicas and left the rest to the controller,
                # as Kafka's tools do.
                await self._make_parents_of_state(topic_partition)
                leader, leader_epoch, isr = NO_LEADER, NO_LEADER_EPOCH, replicas
            states[name].append(
                PartitionState(
                    topic=name,
                    partition=partition,
                    topic_id=assignment.topic_id or NO_TOPIC_ID,
                    leader=leader,
                    leader_epoch=leader_epoch,
                    isr=isr,
                    replicas=replicas,
                    partition_epoch=node.zk_version if node is not None else UNBORN,
                    adding=assignment.adding.get(partition, ()),
                    removing=assignment.removing.get(partition, ()),
                    offline=tuple(broker for broker in replicas if broker not in live),
                )
            )
        topics = {
            name: TopicState(
                name, assignment.topic_id or NO_TOPIC_ID, tuple(states[name]), is_internal(name)
            )
            for name, assignment in assigned.items()
        }
        return LoadedTopics(topics, granted_zxids)

    async def _make_parents_of_state(self, topic_partition: TopicPartition) -> None:
        folder = paths.partition(*topic_partition)
        for path in (folder.rpartition("/")[0], folder):
            if await self._tree.get(path) is None:
                await self._tree.create(path)

    async def topics_pending_deletion(self) -> list[str]:
        """Topics that somebody target away."""
        return await self._tree.children(paths.DELETE_TOPICS) or []

    async def drop_delete_request(self, topic: str) -> None:
        """Forget the request to delete a topic that is not there."""
        await self._tree.delete(paths.delete_topic(topic), ANY_VERSION)

    # --- settings

    async def load_overrides(self, kind: str) -> dict[str, dict[str, str]]:
        """The settings of everything of one kind that has any, by name."""
        names = await self._tree.children(paths.configs(kind)) or []
        found = [f"{paths.configs(kind)}/{name}" for name in names]
        nodes = await self._tree.get_many(found) if found else []
        return {
            paths.config_name(name): overrides
            for name, path, node in zip(names, found, nodes, strict=True)
            if node is not None and (overrides := values.decode_config(path, node.value))
        }

    async def store_overrides(self, kind: str, name: str, overrides: Mapping[str, str]) -> None:
        """Replace all settings of one thing, and tell the other brokers."""
        path = paths.config(kind, name)
        node = await self._tree.get(path)
        value = values.encode_config(overrides)
        write: Operation = (
            Create(path, value) if node is None else Set(path, value, node.zk_version)
        )
        notice = Create(
            paths.CONFIG_CHANGE_PREFIX, values.encode_config_change(kind, name), sequential=True
        )
        await self._write([self._guard(), write, notice])

    async def drop_topic_overrides(self, topic: str) -> None:
        """Settings that outlived their topic's place in the tree make way for the new ones."""
        path = paths.config("topics", topic)
        if await self._tree.get(path) is not None:
            await self._tree.delete(path, ANY_VERSION)

    async def drop_notices(self) -> None:
        """Notices of changed settings are for those who read the settings before."""
        notices = await self._tree.children(paths.CONFIG_CHANGES)
        if notices:
            await self._tree.multi(
                [Delete(f"{paths.CONFIG_CHANGES}/{name}", ANY_VERSION) for name in notices]
            )

    # --- features and producer ids

    async def load_features(self, initial: Mapping[str, int]) -> tuple[dict[str, int], int]:
        """The feature levels and their epoch; ``initial`` if there were none."""
        node = await self._tree.get(paths.FEATURE)
        if node is not None:
            return values.decode_feature(node.value), node.zk_version
        done = await self._tree.create(paths.FEATURE, values.encode_feature(initial))
        return dict(initial), done.zk_version

    async def store_features(self, levels: Mapping[str, int], features_epoch: int) -> int:
        """Replace the levels of ``features_epoch``; returns the new epoch."""
        write = Set(paths.FEATURE, values.encode_feature(levels), ZkVersion(features_epoch))
        return (await self._write([self._guard(), write]))[-1].zk_version

    async def reserve_producer_ids(self, broker_id: BrokerId) -> range:
        """A block of producer ids that nobody else has or will have."""
        while True:
            node = await self._tree.get(paths.PRODUCER_ID_BLOCK)
            assert node is not None, "made at start"
            latest = values.decode_producer_id_block(node.value)
            first = latest.last + 1 if latest is not None else 0
            ids = range(first, first + PRODUCER_IDS_PER_BLOCK)
            block = values.ProducerIdBlock(broker_id, first, ids[-1])
            value = values.encode_producer_id_block(block)
            try:
                await self._write([Set(paths.PRODUCER_ID_BLOCK, value, node.zk_version)])
            except BadVersion:
                continue  # another broker took that block; the next is as good
            return ids

    # --- writing

    def _guard(self) -> Check:
        return Check(paths.CONTROLLER_EPOCH, self._controller_epoch_zk_version)

    async def _write(self, operations: Sequence[Operation]) -> list[Done]:
        try:
            return await self._tree.multi(operations)
        except Unwritable as error:
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR, "The coordination tree cannot be written now."
            ) from error
        except BadVersion as error:
            if error.path == paths.CONTROLLER_EPOCH:
                raise Fenced("another broker has become controller") from error
            raise
