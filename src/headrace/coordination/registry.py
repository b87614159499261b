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
from headrace.coordination.term_store import TermStore
from headrace.coordination.topic_store import LoadedTopics, TopicStore
from headrace.coordination.tree import (
    BadVersion,
    Check,
    Conflict,
    Create,
    Done,
    NodeExists,
    Operation,
    OutcomeUnknown,
    Set,
    Tree,
    Watch,
)
from headrace.coordination.watched import FeatureLevels, WatchedNodes
from headrace.coordination.writer import Writer
from headrace.core.controller import Change
from headrace.core.directory_assignment import AssignmentChange
from headrace.model.cluster_metadata import BrokerEntry, TopicState
from headrace.model.errors import ConfigError, Fenced
from headrace.model.ids import BrokerId, ControllerEpoch, Millis, ZkVersion

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


class Registry:
    """One broker's access to the cluster's state. ``close`` gives up its registration."""

    def __init__(self, tree: Tree, broker_id: BrokerId) -> None:
        self._tree = tree
        self._broker_id = broker_id
        self._writer = Writer(tree)
        self._term: TermStore | None = None  # once this broker is elected
        self.configs = ConfigStore(tree, self._writer)
        self.directories = DirectoryStore(tree, self._writer, broker_id)
        self.topics = TopicStore(tree)
        self.watched = WatchedNodes(tree)

    @property
    def term(self) -> TermStore:
        """The latest term of this broker as controller. Raises Fenced if it was never elected."""
        if self._term is None:
            raise Fenced("this broker is not the controller")
        return self._term

    async def close(self) -> None:
        await self._tree.close()

    async def sync(self) -> None:
        """Let the reads that follow see every write that was answered before, to any broker."""
        await self._tree.sync()

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

    async def withdraw_losses(self, entry: BrokerEntry, now: Millis) -> None:
        """Take back from the registration that records may be lost. The broker epoch stays."""
        path = paths.broker(entry.broker_id)
        node = await self._tree.get(path)
        if node is not None and node.created_zxid == entry.broker_epoch:
            with suppress(Conflict):  # the registration has ended
                await self._writer.write(
                    [Set(path, values.encode_broker(entry, now), node.zk_version)]
                )

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
            guard = Check(paths.CONTROLLER_EPOCH, counted.zk_version)
            self._term = TermStore(self._tree, self._writer, controller_epoch, guard)
            return Elected(controller_epoch)

    # --- topics

    async def commit(
        self, changes: Sequence[Change], assignment: AssignmentChange | None = None
    ) -> None:
        """Write all ``changes`` of this controller and its broker's ``assignment``, or nothing."""
        operations = controller_writes.operations(changes, self.term.controller_epoch)
        own = self.directories.operations(assignment) if assignment is not None else []
        results = await self._write_as_controller([*operations, *own])
        self.directories.written(own, results[len(operations) :])

    async def load_topics(self, live: Collection[BrokerId]) -> LoadedTopics:
        """All topics, for this controller. States without parents get them."""
        names = await self.watched.topics()
        loaded = await self.topics.load(names, live)
        if loaded.new_partitions:
            await self.term.create_parents(loaded.new_partitions)
        return loaded

    async def create_topic(self, topic: TopicState, overrides: Mapping[str, str]) -> None:
        """Create a topic that a client or a coordinator needs; any broker may.

        Raises Rejected if it exists.
        """
        await self.topics.create(self._writer.write, topic, overrides)

    async def report_log_dir_failure(self) -> None:
        """Tell the controller that a log directory of this broker has failed."""
        value = values.encode_log_dir_event(self._broker_id)
        while True:
            with suppress(OutcomeUnknown):  # a second notice does no harm
                await self._tree.create(paths.LOG_DIR_EVENT_PREFIX, value, sequential=True)
                return

    async def drop_delete_request(self, topic: str) -> None:
        """Forget the request to delete a topic that does not exist."""
        await self.term.delete(paths.delete_topic(topic))

    async def drop_topic_overrides(self, topic: str) -> None:
        """Delete settings that are left of a topic whose other nodes were lost."""
        await self.term.delete(paths.config("topics", topic))

    # --- features and producer ids

    async def load_features(self, initial: Mapping[str, int]) -> FeatureLevels:
        """The feature levels; stores ``initial`` if there are none."""
        while True:
            found = await self.watched.features()
            if found is not None:
                return found
            # Earlier versions stored the levels of one node in Kafka's own node.
            node = await self._tree.get(paths.FEATURE)
            earlier = values.decode_feature(paths.FEATURE, node.value) if node is not None else {}
            create = Create(paths.FEATURE_LEVELS, values.encode_feature(earlier or initial))
            none = values.encode_feature({})
            clear: Operation = (
                Create(paths.FEATURE, none)
                if node is None
                else Set(paths.FEATURE, none, node.zk_version)
            )
            with suppress(Conflict):  # another controller was first: read again
                await self.term.write([create, clear])

    async def store_features(self, levels: Mapping[str, int], features_epoch: int) -> int:
        """Replace the levels of ``features_epoch``; returns the new epoch."""
        value = values.encode_feature(levels)
        write = Set(paths.FEATURE_LEVELS, value, ZkVersion(features_epoch))
        (done,) = await self._write_as_controller([write])
        return done.zk_version

    async def reserve_producer_ids(self, broker_id: BrokerId | None = None) -> range:
        """A block of producer ids that no other broker ever gets; ``broker_id`` or this one."""
        owner = self._broker_id if broker_id is None else broker_id
        while True:
            node = await self._tree.get(paths.PRODUCER_ID_BLOCK)
            assert node is not None, "one of the persistent nodes"
            latest = values.decode_producer_id_block(node.value)
            first = latest.last + 1 if latest is not None else 0
            ids = range(first, first + PRODUCER_IDS_PER_BLOCK)
            block = values.ProducerIdBlock(owner, first, ids[-1])
            value = values.encode_producer_id_block(block)
            try:
                await self._writer.write([Set(paths.PRODUCER_ID_BLOCK, value, node.zk_version)])
            except BadVersion:
                continue  # another broker took that block
            return ids

    # --- writing as the controller

    async def _write_as_controller(self, operations: Sequence[Operation]) -> list[Done]:
        try:
            return await self.term.write(operations)
        except Conflict as conflict:
            raise Fenced(f"another process wrote {conflict.path} ({conflict})") from conflict
