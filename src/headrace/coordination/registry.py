"""The registry: the cluster's state in a coordination tree, as our types, with guarded writes.

The interface between the broker and the store of its cluster's state. Callers see no nodes and no
JSON; a quorum of brokers would be another such registry. A write may fail in these ways:

    unknown outcome          read back, so that callers never see it (``writer``)
    newer controller         Fenced: the caller steps down. The same if another process changed
                             the nodes of this controller, because its metadata is outdated then
    session ended            SessionLost: the broker registers again, with a new broker epoch
    no disk space            Rejected with KAFKA_STORAGE_ERROR
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from headrace.coordination import controller_writes, paths, values
from headrace.coordination.config_store import ConfigStore
from headrace.coordination.directories import DirectoryStore
from headrace.coordination.tree import (
    ANY_VERSION,
    BadVersion,
    Check,
    Conflict,
    Create,
    Delete,
    Done,
    NodeExists,
    NoNode,
    Operation,
    Set,
    Tree,
    Watch,
)
from headrace.coordination.watched import WatchedNodes
from headrace.coordination.writer import Writer
from headrace.core.controller import UNBORN, Change
from headrace.core.directory_assignment import AssignmentChange
from headrace.core.topics import is_internal
from headrace.model.cluster_metadata import (
    NO_LEADER,
    BrokerEntry,
    PartitionState,
    TopicState,
)
from headrace.model.errors import ConfigError, Fenced
from headrace.model.ids import (
    NO_LEADER_EPOCH,
    NO_TOPIC_ID,
    BrokerId,
    ControllerEpoch,
    Millis,
    TopicPartition,
    ZkVersion,
)

PRODUCER_IDS_PER_BLOCK = 1000


class BrokerIdInUse(ConfigError):
    """Another session holds the registration of this broker id."""

    def __init__(self, holder: BrokerEntry, session_id: int) -> None:
        addresses = ", ".join(f"{host}:{port}" for host, port, _ in holder.endpoints.values())
        super().__init__(
            f"broker.id {holder.broker_id} is in use by the live broker at {addresses}; "
            "every broker needs its own"
        )
        self.holder = holder
        self.session_id = session_id


class Elected(NamedTuple):
    """This broker is the controller."""

    controller_epoch: ControllerEpoch


class OtherController(NamedTuple):
    """Another broker is the controller."""

    broker_id: BrokerId


class LoadedTopics(NamedTuple):
    topics: dict[str, TopicState]
    granted_zxids: dict[TopicPartition, int]  # when each partition's state was last written


class Registry:
    """One broker's access to the cluster's state. ``close`` gives up its registration."""

    def __init__(self, tree: Tree, broker_id: BrokerId) -> None:
        self._tree = tree
        self._broker_id = broker_id
        self._writer = Writer(tree)
        self._controller_epoch = ControllerEpoch(0)
        self._guard: Check | None = None  # of the controller epoch, once this broker is elected
        self.configs = ConfigStore(tree, self._writer)
        self.directories = DirectoryStore(tree, self._writer, broker_id)
        self.watched = WatchedNodes(tree)

    async def close(self) -> None:
        await self._tree.close()

    # --- becoming a member, and the controller

    async def create_persistent_nodes(self) -> None:
        """Create the parents of everything else. They exist after the first start."""
        while True:
            present = await self._tree.get_many(paths.PERSISTENT)
            missing = [
                Create(path)
                for path, node in zip(paths.PERSISTENT, present, strict=True)
                if node is None
            ]
            try:
                if missing:
                    await self._writer.write(missing)
            except NodeExists:
                continue  # another broker starts at the same time
            return

    async def settle_cluster_id(self, known: str | None, new: str) -> str:
        """The cluster's id: ``known`` from the log directories, or ``new`` if there is none yet.

        Raises ConfigError if the directories belong to another cluster than the tree.
        """
        node = await self._writer.get_or_create(
            paths.CLUSTER_ID, values.encode_cluster_id(known or new)
        )
        cluster_id = values.decode_cluster_id(node.value)
        if known is not None and known != cluster_id:
            raise ConfigError(
                f"The log directories belong to another cluster: cluster.id is {known} in "
                f"meta.properties and {cluster_id} in the cluster metadata. Choose the directories "
                "of one cluster in log.dirs, or restore meta.properties"
            )
        return cluster_id

    async def register(self, entry: BrokerEntry, now: Millis) -> BrokerEntry:
        """Be a live broker until the session ends; the entry returned has its broker epoch.

        Raises BrokerIdInUse if another session holds the registration.
        """
        path = paths.broker(entry.broker_id)
        create = Create(path, values.encode_broker(entry, now), ephemeral=True)
        while True:
            try:
                (done,) = await self._writer.write([create])
                return entry._replace(broker_epoch=done.zxid)
            except NodeExists as taken:
                node = await self._tree.get(path)
                if node is not None:
                    holder = values.decode_broker(entry.broker_id, node.value, node.created_zxid)
                    raise BrokerIdInUse(holder, node.ephemeral_owner) from taken

    async def take_controllership(
        self, now: Millis, watch: Watch | None = None
    ) -> Elected | OtherController:
        """Claim the controller's node and increment its epoch, both or neither.

        ``watch`` fires when the other controller's node changes.
        """
        claim = Create(
            paths.CONTROLLER, values.encode_controller(self._broker_id, now), ephemeral=True
        )
        while True:
            node = await self._tree.get(paths.CONTROLLER_EPOCH)
            before = values.decode_controller_epoch(node.value) if node is not None else 0
            controller_epoch = ControllerEpoch(before + 1)
            value = values.encode_controller_epoch(controller_epoch)
            count: Operation = (
                Create(paths.CONTROLLER_EPOCH, value)
                if node is None
                else Set(paths.CONTROLLER_EPOCH, value, node.zk_version)
            )
            try:
                _, counted = await self._writer.write([claim, count])
            except Conflict:
                holder = await self.watched.controller(watch)
                if holder is not None:
                    return OtherController(holder)
                continue  # it resigned meanwhile, or another broker incremented the epoch
            self._controller_epoch = controller_epoch
            self._guard = Check(paths.CONTROLLER_EPOCH, counted.zk_version)
            return Elected(controller_epoch)

    # --- topics

    async def commit(
        self, changes: Sequence[Change], assignment: AssignmentChange | None = None
    ) -> None:
        """Write all ``changes`` of this controller and its broker's ``assignment``, or nothing."""
        operations = controller_writes.operations(changes, self._controller_epoch)
        own = self.directories.operations(assignment) if assignment is not None else []
        results = await self._write_as_controller([*operations, *own])
        self.directories.written(own, results[len(operations) :])

    async def load_topics(self, live: Collection[BrokerId]) -> LoadedTopics:
        names = await self._tree.children(paths.BROKER_TOPICS) or []
        nodes = await self._tree.get_many([paths.topic(name) for name in names])
        assigned = {
            name: values.decode_topic(name, node.value)
            for name, node in zip(names, nodes, strict=True)
            if node is not None
        }
        partitions = [
            TopicPartition(name, partition)
            for name, assignment in assigned.items()
            for partition in range(len(assignment.replicas))
        ]
        found = await self._tree.get_many([paths.state(*each) for each in partitions])
        granted_zxids: dict[TopicPartition, int] = {}
        unborn: list[TopicPartition] = []
        states: dict[str, list[PartitionState]] = {name: [] for name in assigned}
        for topic_partition, node in zip(partitions, found, strict=True):
            name, partition = topic_partition
            assignment = assigned[name]
            replicas = assignment.replicas[partition]
            if node is not None:
                leader, leader_epoch, isr = values.decode_state(name, partition, node.value)
                granted_zxids[topic_partition] = node.modified_zxid
            else:
                # Kafka's tools assign replicas and leave the rest to the controller.
                unborn.append(topic_partition)
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
        await self._create_parents_of_states(unborn)
        topics = {
            name: TopicState(
                name, assignment.topic_id or NO_TOPIC_ID, tuple(states[name]), is_internal(name)
            )
            for name, assignment in assigned.items()
        }
        return LoadedTopics(topics, granted_zxids)

    async def _create_parents_of_states(self, partitions: Sequence[TopicPartition]) -> None:
        parents = dict.fromkeys(
            path
            for topic_partition in partitions
            for path in (
                paths.partitions(topic_partition.topic),
                paths.partition(*topic_partition),
            )
        )
        present = await self._tree.get_many(list(parents)) if parents else []
        missing = [
            Create(path) for path, node in zip(parents, present, strict=True) if node is None
        ]
        if missing:
            await self._write_as_controller(missing)

    async def drop_delete_request(self, topic: str) -> None:
        """Forget the request to delete a topic that does not exist."""
        await self._delete_as_controller(paths.delete_topic(topic))

    async def drop_topic_overrides(self, topic: str) -> None:
        """Delete settings that are left of a topic whose other nodes were lost."""
        await self._delete_as_controller(paths.config("topics", topic))

    # --- features and producer ids

    async def load_features(self, initial: Mapping[str, int]) -> tuple[dict[str, int], int]:
        """The feature levels and their epoch; stores ``initial`` if there are none."""
        node = await self._writer.get_or_create(paths.FEATURE, values.encode_feature(initial))
        return values.decode_feature(node.value), node.zk_version

    async def store_features(self, levels: Mapping[str, int], features_epoch: int) -> int:
        """Replace the levels of ``features_epoch``; returns the new epoch."""
        write = Set(paths.FEATURE, values.encode_feature(levels), ZkVersion(features_epoch))
        (done,) = await self._write_as_controller([write])
        return done.zk_version

    async def reserve_producer_ids(self) -> range:
        """A block of producer ids that no other broker ever gets."""
        while True:
            node = await self._tree.get(paths.PRODUCER_ID_BLOCK)
            assert node is not None, "one of the persistent nodes"
            latest = values.decode_producer_id_block(node.value)
            first = latest.last + 1 if latest is not None else 0
            ids = range(first, first + PRODUCER_IDS_PER_BLOCK)
            block = values.ProducerIdBlock(self._broker_id, first, ids[-1])
            value = values.encode_producer_id_block(block)
            try:
                await self._writer.write([Set(paths.PRODUCER_ID_BLOCK, value, node.zk_version)])
            except BadVersion:
                continue  # another broker took that block
            return ids

    # --- writing as the controller

    async def _write_as_controller(self, operations: Sequence[Operation]) -> list[Done]:
        try:
            return await self._write_guarded(operations)
        except Conflict as conflict:
            raise Fenced(f"another process wrote {conflict.path} ({conflict})") from conflict

    async def _delete_as_controller(self, path: str) -> None:
        with suppress(NoNode):  # it is gone already
            await self._write_guarded([Delete(path, ANY_VERSION)])

    async def _write_guarded(self, operations: Sequence[Operation]) -> list[Done]:
        """Raises Fenced if there is a newer controller."""
        if self._guard is None:
            raise Fenced("this broker is not the controller")
        try:
            return (await self._writer.write([self._guard, *operations]))[1:]
        except Conflict as conflict:
            if conflict.index == 0:
                raise Fenced("another broker has become controller") from conflict
            raise
