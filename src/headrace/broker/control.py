"""The control of the cluster as this broker holds it: the tree, the controller, the settings.

The shell around ``core.controller``: it registers the broker, takes the controllership,
loads what the tree has, and for every change writes first, then lets the controller replay it,
then publishes the new picture and tells the replicas. Nothing is decided here.

Life of a topic's deletion, because a crash may come anywhere:

    1. /admin/delete_topics/T is written      from here on the deletion is certain
    2. the topic leaves the picture           clients get UNKNOWN_TOPIC_OR_PARTITION
    3. its folders are given up
    4. its nodes and the wish are removed     the name is free again

A start that finds the wish goes on at 3. So a folder whose topic is neither in the tree
nor wished away belongs to a tree that was lost, or came from another broker, and is taken in.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace.coordination import znodes
from headrace.coordination.tree import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    NodeExists,
    Operation,
    Set,
    Tree,
    Unwritable,
)
from headrace.core import features
from headrace.core.controller import (
    UNBORN,
    AddPartitions,
    Change,
    Controller,
    CreateTopic,
    DeleteTopic,
    Dice,
)
from headrace.core.topics import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
    NewTopic,
    is_internal,
    is_legal_name,
)
from headrace.model.cluster import (
    NO_LEADER,
    BrokerEntry,
    Endpoint,
    PartitionState,
    Picture,
    TopicState,
)
from headrace.model.config import (
    BrokerConfig,
    TopicConfig,
    check_dynamic,
    check_topic_overrides,
    topic_config,
)
from headrace.model.errors import ConfigError, ErrorCode, Fenced, Rejected
from headrace.model.ids import (
    NO_LEADER_EPOCH,
    NO_TOPIC_ID,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    Millis,
    ProducerId,
    TopicId,
    TopicPartition,
    ZkVersion,
    id_to_text,
)

log = logging.getLogger(__name__)

# Kinds of things that have settings, as numbered on the wire.
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32

# Where the settings of each kind lie in the tree. Loggers are of the process and not kept.
_CONFIG_FOLDERS = {
    TOPIC: "topics",
    BROKER: "brokers",
    CLIENT_METRICS: "client-metrics",
    GROUP: "groups",
}
_DEFAULT_BROKER = "<default>"  # Kafka's name for the settings of all brokers

PRODUCER_IDS_PER_BLOCK = 1000

# Internal topics keep the newest state per key for ever: without compaction retention would
# take it. Each with the prefix of the broker settings that shape it.
_INTERNAL_SETTINGS: Mapping[str, tuple[str, dict[str, str]]] = {
    OFFSETS_TOPIC: ("offsets.topic", {"cleanup.policy": "compact"}),
    TRANSACTIONS_TOPIC: (
        "transaction.state.log",
        {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"},
    ),
    SHARE_STATE_TOPIC: (
        "share.coordinator.state.topic",
        {"cleanup.policy": "delete", "retention.ms": "-1"},
    ),
}


class FoundPartition(NamedTuple):
    """A partition folder on this broker's disks at start."""

    topic_partition: TopicPartition
    topic_id: TopicId  # NO_TOPIC_ID if the folder does not say
    last_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH


class Clock(Protocol):
    def now(self) -> Millis: ...


class Replicas(Protocol):
    def apply(self, states: Iterable[PartitionState]) -> Awaitable[None]: ...
    def delete(self, topic_partitions: Iterable[TopicPartition]) -> Awaitable[None]: ...
    def update_topic_config(self, topic: str, config: TopicConfig) -> None: ...


class Logs(Protocol):
    def delete(self, topic_partition: TopicPartition) -> object: ...


class Shell(Protocol):
    """What the control needs of the broker around it."""

    config: BrokerConfig
    picture: Picture

    @property
    def node_id(self) -> BrokerId: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def replicas(self) -> Replicas: ...
    @property
    def logs(self) -> Logs: ...


class Control:
    """Make one, ``start`` it once; ``close`` gives up the registration."""

    def __init__(
        self,
        broker: Shell,
        tree: Tree,
        *,
        endpoints: Mapping[str, Endpoint],
        cluster_id: str | None = None,
        found: Iterable[FoundPartition] = (),
    ) -> None:
        """``endpoints`` are the advertised ones with their true ports, by listener name.

        ``cluster_id`` is what the log directories belong to, if they say; ``found`` is
        what lies in them.
        """
        self._broker = broker
        self._tree = tree
        self._endpoints = endpoints
        self._found = list(found)
        self._wanted_cluster_id = cluster_id
        # One change at a time: a decision holds until it is replayed.
        self._changing = asyncio.Lock()
        self._controller: Controller
        self._controller_epoch_zk_version: ZkVersion
        self._file_config = broker.config  # without anything dynamic
        self._overrides: dict[int, dict[str, dict[str, str]]] = {
            kind: {} for kind in _CONFIG_FOLDERS
        }
        self._topic_configs: dict[str, TopicConfig] = {}
        self._next_producer_id = 0
        self._producer_id_end = 0  # exclusive, of the block in hand
        self._block_in_flight = asyncio.Lock()
        self.feature_levels: Mapping[str, int] = {}
        self.features_epoch = -1

    # --- the beginning and the end

    async def start(self) -> None:
        """Register, rule, load; afterwards the picture is there and the replicas stand.

        Raises ConfigError when the folder belongs to another cluster, or the
        broker id is taken.
        """
        await self._make_persistent_nodes()
        cluster_id = await self._settle_cluster_id()
        broker_id = self._broker.node_id
        entry = await self._register()
        controller_epoch = await self._take_controllership()
        await self._load_settings()
        await self._load_features()
        topics, granted_zxids = await self._load_topics()
        brokers = {broker_id: entry}
        picture = Picture(cluster_id, broker_id, brokers, topics, generation=1)
        self._controller = Controller(controller_epoch, picture)
        await self._finish_deletions()
        await self._commit(self._controller.decide_reign(granted_zxids, self._unclean_allowed))
        await self._take_in_folders()
        self._publish()
        await self._broker.replicas.apply(
            state for topic in self.picture.topics.values() for state in topic.partitions
        )
        log.info(
            "broker %d is controller of cluster %s in epoch %d, with %d topics",
            broker_id,
            cluster_id,
            controller_epoch,
            len(self.picture.topics),
        )

    async def close(self) -> None:
        async with self._changing:
            await self._tree.close()

    @property
    def picture(self) -> Picture:
        return self._controller.picture

    @property
    def controller_epoch(self) -> ControllerEpoch:
        return self._controller.controller_epoch

    async def _make_persistent_nodes(self) -> None:
        present = await self._tree.get_many(znodes.PERSISTENT)
        missing: list[Operation] = [
            Create(path)
            for path, node in zip(znodes.PERSISTENT, present, strict=True)
            if node is None
        ]
        if missing:
            await self._tree.multi(missing)

    async def _settle_cluster_id(self) -> str:
        wanted = self._wanted_cluster_id
        node = await self._tree.get(znodes.CLUSTER_ID)
        if node is None:
            cluster_id = wanted or id_to_text(_random_id())
            await self._tree.create(znodes.CLUSTER_ID, znodes.cluster_id_value(cluster_id))
            return cluster_id
        cluster_id = znodes.read_cluster_id(node.value)
        if wanted is not None and wanted != cluster_id:
            raise ConfigError(
                f"cluster.id {wanted} in meta.properties is not that of the coordination tree, "
                f"{cluster_id}: this folder belongs to another cluster"
            )
        return cluster_id

    async def _register(self) -> BrokerEntry:
        broker_id = self._broker.node_id
        rack = self._broker.config.optional_str("broker.rack")
        entry = BrokerEntry(broker_id, self._endpoints, rack, broker_epoch=-1)
        value = znodes.broker_value(entry, self._broker.clock.now())
        try:
            done = await self._tree.create(znodes.broker_path(broker_id), value, ephemeral=True)
        except NodeExists as taken:
            raise ConfigError(
                f"broker.id {broker_id} is in use by a live broker; every broker needs its own"
            ) from taken
        return entry._replace(broker_epoch=done.zxid)

    async def _take_controllership(self) -> ControllerEpoch:
        value = znodes.controller_value(self._broker.node_id, self._broker.clock.now())
        claim = Create(znodes.CONTROLLER, value, ephemeral=True)
        node = await self._tree.get(znodes.CONTROLLER_EPOCH)
        if node is None:
            controller_epoch = ControllerEpoch(1)
            written = znodes.controller_epoch_value(controller_epoch)
            done = await self._tree.multi([claim, Create(znodes.CONTROLLER_EPOCH, written)])
        else:
            controller_epoch = ControllerEpoch(znodes.read_controller_epoch(node.value) + 1)
            written = znodes.controller_epoch_value(controller_epoch)
            done = await self._tree.multi(
                [claim, Set(znodes.CONTROLLER_EPOCH, written, node.zk_version)]
            )
        self._controller_epoch_zk_version = done[1].zk_version
        return controller_epoch

    async def _load_settings(self) -> None:
        for kind, folder in _CONFIG_FOLDERS.items():
            names = await self._tree.children(f"/config/{folder}") or []
            paths = [znodes.config_path(folder, name) for name in names]
            nodes = await self._tree.get_many(paths) if paths else []
            for name, path, node in zip(names, paths, nodes, strict=True):
                overrides = znodes.read_config(path, node.value) if node is not None else {}
                if overrides:
                    self._overrides[kind][_name_from_node(name)] = overrides
        # Notices of changes are for those who read the settings before; all is read now.
        notices = await self._tree.children(znodes.CONFIG_CHANGES)
        if notices:
            await self._tree.multi(
                [Delete(f"{znodes.CONFIG_CHANGES}/{name}", ANY_VERSION) for name in notices]
            )
        if self._overrides[BROKER]:
            try:
                self._broker.config = self._file_config.with_dynamic(self._dynamic_settings())
            except ConfigError as error:
                # It was right when it was set; the file has changed since. The
                # node must come up, or nobody could correct it.
                log.error(
                    "dynamic broker settings are left out until they are corrected: %s", error
                )

    async def _load_features(self) -> None:
        node = await self._tree.get(znodes.FEATURE)
        if node is None:
            self.feature_levels = features.INITIAL_LEVELS
            done = await self._tree.create(
                znodes.FEATURE, znodes.feature_value(self.feature_levels)
            )
            self.features_epoch = done.zk_version
        else:
            self.feature_levels = znodes.read_feature(node.value)
            self.features_epoch = node.zk_version

    async def _load_topics(self) -> tuple[dict[str, TopicState], dict[TopicPartition, int]]:
        """All topics in the tree, and for each partition the zxid of its last write."""
        names = await self._tree.children(znodes.BROKER_TOPICS) or []
        if not names:
            return {}, {}
        nodes = await self._tree.get_many([znodes.topic_path(name) for name in names])
        assigned = {
            name: znodes.read_topic(name, node.value)
            for name, node in zip(names, nodes, strict=True)
            if node is not None
        }
        wanted = [
            TopicPartition(name, partition)
            for name, assignment in assigned.items()
            for partition in range(len(assignment.replicas))
        ]
        states = await self._tree.get_many([znodes.state_path(*wish) for wish in wanted])
        granted_zxids: dict[TopicPartition, int] = {}
        partitions: dict[str, list[PartitionState]] = {name: [] for name in assigned}
        live = (self._broker.node_id,)
        for (name, partition), node in zip(wanted, states, strict=True):
            assignment = assigned[name]
            replicas = assignment.replicas[partition]
            if node is not None:
                leader, leader_epoch, isr = znodes.read_state(name, partition, node.value)
                granted_zxids[TopicPartition(name, partition)] = node.modified_zxid
            else:
                await self._make_parents_of_state(name, partition)
                leader, leader_epoch, isr = NO_LEADER, NO_LEADER_EPOCH, replicas
            partitions[name].append(
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
                    offline=tuple(b for b in replicas if b not in live),
                )
            )
        topics = {
            name: TopicState(
                name,
                assignment.topic_id or NO_TOPIC_ID,
                tuple(partitions[name]),
                is_internal(name),
            )
            for name, assignment in assigned.items()
        }
        return topics, granted_zxids

    async def _make_parents_of_state(self, topic: str, partition: int) -> None:
        """Somebody assigned replicas and left the rest to the controller, as Kafka's tools do."""
        folder = znodes.partition_path(topic, partition)
        for path in (folder.rpartition("/")[0], folder):
            if await self._tree.get(path) is None:
                await self._tree.create(path)

    async def _finish_deletions(self) -> None:
        doomed = await self._tree.children(znodes.DELETE_TOPICS) or []
        if not doomed:
            return
        for found in self._found:
            if found.topic_partition.topic in doomed:
                self._broker.logs.delete(found.topic_partition)
        self._found = [f for f in self._found if f.topic_partition.topic not in doomed]
        for name in doomed:
            topic = self.picture.topics.get(name)
            if topic is None:
                # A wish for a topic that never was, or the very last step was all that lacked.
                await self._tree.delete(znodes.delete_topic_path(name), ANY_VERSION)
                continue
            self._controller.replay([self._controller.decide_doom(name)])
            await self._commit([DeleteTopic(topic)])
            self._forget_settings(name)
            log.info("topic %s: the deletion that a stop interrupted is finished", name)

    async def _take_in_folders(self) -> None:
        by_topic: dict[str, list[FoundPartition]] = {}
        for found in self._found:
            if is_legal_name(found.topic_partition.topic):
                by_topic.setdefault(found.topic_partition.topic, []).append(found)
        self._found.clear()
        for name, folders in by_topic.items():
            known = self.picture.topics.get(name)
            if known is not None:
                folders = await self._reconcile(known, folders)
                if not folders:
                    continue
            ids = {f.topic_id for f in folders} - {NO_TOPIC_ID}
            if len(ids) > 1:
                log.error(
                    "topic %s: its folders carry %d different topic ids and are left alone; "
                    "keep those of one id in log.dirs and start again",
                    name,
                    len(ids),
                )
                continue
            topic_id = ids.pop() if ids else _new_topic_id()
            change = self._controller.decide_adopt(
                name,
                topic_id,
                {f.topic_partition.partition: f.last_leader_epoch for f in folders},
                self._overrides[TOPIC].get(name) or _INTERNAL_SETTINGS.get(name, ("", {}))[1],
            )
            if change is None:
                continue
            if isinstance(change, CreateTopic):
                await self._make_room_for_settings(name)
            await self._commit([change])
            self._remember_settings(change)
            log.warning(
                "topic %s: %d partition folders were here without a place in the coordination "
                "tree; they are taken in, with the broker's settings unless it had its own",
                name,
                len(folders),
            )

    async def _reconcile(
        self, known: TopicState, folders: list[FoundPartition]
    ) -> list[FoundPartition]:
        """Folders of a topic that the tree knows: those that belong to it.

        A folder with another topic id is of an earlier topic of that name, on a
        disk that was away when it was deleted, unless all of them are: then the
        folders were brought here, and on a cluster of one the disk is the truth.
        """
        strange = [f for f in folders if f.topic_id not in (NO_TOPIC_ID, known.topic_id)]
        if not strange:
            return folders
        if len(strange) == len(folders):
            log.warning(
                "topic %s: all its folders carry another topic id than the coordination tree; "
                "the folders are believed",
                known.name,
            )
            # In one go: a wish to delete that a crash left behind would cost the folders.
            await self._commit([self._controller.decide_doom(known.name), DeleteTopic(known)])
            return folders
        for found in strange:
            log.warning(
                "folder %s belongs to an earlier topic of that name and is deleted",
                found.topic_partition,
            )
            self._broker.logs.delete(found.topic_partition)
        return [f for f in folders if f not in strange]

    async def _make_room_for_settings(self, name: str) -> None:
        """A topic's settings may have outlived its place in the tree."""
        path = znodes.config_path("topics", name)
        if await self._tree.get(path) is not None:
            await self._tree.delete(path, ANY_VERSION)

    # --- topics

    async def create_topics(
        self, wishes: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[CreateTopic | Rejected]:
        """One answer per wish, in order; those created have their leaders when this returns."""
        config = self._broker.config
        async with self._changing:
            answers = self._controller.decide_creates(
                wishes,
                lambda: (_new_topic_id(), _throw_dice()),
                default_partition_count=config.int("num.partitions"),
                default_replication_factor=config.int("default.replication.factor"),
                check_settings=self._check_topic_settings,
            )
            accepted = [answer for answer in answers if isinstance(answer, CreateTopic)]
            if accepted and not validate_only:
                await self._commit(accepted)
                for change in accepted:
                    self._remember_settings(change)
                self._publish()
                for change in accepted:
                    await self._broker.replicas.apply(change.topic.partitions)
        return answers

    async def auto_create(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        """Make topics that a client mentioned; why not, for those that could not be made."""
        answers = await self.create_topics([self._wish_for(name) for name in names])
        return {
            name: answer.code
            for name, answer in zip(names, answers, strict=True)
            # Somebody else was quicker: then it is there.
            if isinstance(answer, Rejected) and answer.code != ErrorCode.TOPIC_ALREADY_EXISTS
        }

    def _wish_for(self, name: str) -> NewTopic:
        config = self._broker.config
        settings = _INTERNAL_SETTINGS.get(name)
        if settings is None:
            return NewTopic(name)
        prefix, overrides = settings
        return NewTopic(
            name,
            config.int(f"{prefix}.num.partitions"),
            config.int(f"{prefix}.replication.factor"),
            overrides={**overrides, "segment.bytes": str(config.int(f"{prefix}.segment.bytes"))},
        )

    async def delete_topics(self, names: Sequence[str]) -> list[TopicState | Rejected]:
        """One answer per name, in order: the topic that is gone, or why not."""
        if not self._broker.config.bool("delete.topic.enable"):
            return [
                Rejected(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false.")
                for _ in names
            ]
        async with self._changing:
            answers: list[TopicState | Rejected] = []
            dooms = []
            for name in names:
                try:
                    dooms.append(self._controller.decide_doom(name))
                    answers.append(self.picture.topics[name])
                except Rejected as refusal:
                    answers.append(refusal)
            if not dooms:
                return answers
            await self._commit(dooms)
            self._publish()
            gone = [self._controller.doomed[doom.name] for doom in dooms]
            for topic in gone:
                await self._broker.replicas.delete(s.topic_partition for s in topic.partitions)
                self._forget_settings(topic.name)
            await self._commit([DeleteTopic(topic) for topic in gone])
        return answers

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[BrokerId]] | None = None,
        *,
        validate_only: bool = False,
    ) -> AddPartitions:
        """Grow a topic to ``count`` partitions. Raises Rejected."""
        async with self._changing:
            change = self._controller.decide_add_partitions(name, count, assignments)
            if not validate_only:
                await self._commit([change])
                self._publish()
                await self._broker.replicas.apply(change.added)
        return change

    async def elect_leader(self, topic_partition: TopicPartition, *, unclean: bool) -> None:
        """Raises Rejected, with ELECTION_NOT_NEEDED when the right one leads already."""
        async with self._changing:
            change = self._controller.decide_election(topic_partition, unclean=unclean)
            await self._commit([change])
            self._publish()
            await self._broker.replicas.apply([change.state])

    def check_reassignment(
        self, topic_partition: TopicPartition, replicas: Sequence[BrokerId] | None
    ) -> None:
        """Raises Rejected unless the partition is where it should go."""
        self._controller.check_reassignment(topic_partition, replicas)

    # --- settings

    def topic_overrides(self, topic: str) -> dict[str, str]:
        return dict(self._overrides[TOPIC].get(topic, {}))

    def broker_overrides(self, broker_id: int | None = None) -> dict[str, str]:
        """The dynamic settings of one broker, or, for None, those of all brokers."""
        name = _DEFAULT_BROKER if broker_id is None else str(broker_id)
        return dict(self._overrides[BROKER].get(name, {}))

    def overrides(self, resource_type: int, name: str) -> dict[str, str]:
        """Any kind's own settings; the empty broker name stands for all brokers."""
        return dict(self._overrides[resource_type].get(_stored_name(resource_type, name), {}))

    def configured_names(self, resource_type: int) -> list[str]:
        """The names of one kind that have settings of their own."""
        return sorted(self._overrides.get(resource_type, ()))

    def topic_config(self, topic: str) -> TopicConfig:
        """What a topic lives by now. The same object until a setting changes."""
        config = self._topic_configs.get(topic)
        if config is None:
            overrides = self._overrides[TOPIC].get(topic)
            if not overrides:
                return topic_config(self._broker.config, {})
            config = self._topic_configs[topic] = self._usable_config(topic, overrides)
        return config

    def _usable_config(self, topic: str, overrides: Mapping[str, str]) -> TopicConfig:
        """Without what cannot stand any more: it was right when it was set.

        One by one, so that a bad retention does not take the compaction along.
        """
        usable: dict[str, str] = {}
        config = topic_config(self._broker.config, usable)
        for name, text in overrides.items():
            try:
                config = topic_config(self._broker.config, {**usable, name: text})
                usable[name] = text
            except ConfigError as error:
                log.error("topic %s: left out until it is set anew: %s", topic, error)
        return config

    async def alter_configs(
        self,
        resource_type: int,
        name: str,
        overrides: Mapping[str, str],
        validate_only: bool = False,
    ) -> None:
        """Replace all settings of one resource. Raises Rejected when they cannot stand."""
        async with self._changing:
            broker_config = self._check_settings(resource_type, name, overrides)
            if validate_only:
                return
            stored = _stored_name(resource_type, name)
            folder = _CONFIG_FOLDERS[resource_type]
            await self._store_settings(folder, _node_from_name(stored), overrides)
            if overrides:
                self._overrides[resource_type][stored] = dict(overrides)
            else:
                self._overrides[resource_type].pop(stored, None)
            if broker_config is not None:
                self._broker.config = broker_config
                self._topic_configs.clear()
                for topic in self.picture.topics:
                    self._broker.replicas.update_topic_config(topic, self.topic_config(topic))
            elif resource_type == TOPIC:
                self._topic_configs.pop(name, None)
                self._broker.replicas.update_topic_config(name, self.topic_config(name))

    def _check_settings(
        self, resource_type: int, name: str, overrides: Mapping[str, str]
    ) -> BrokerConfig | None:
        """Raise Rejected unless they can stand; of a broker, all its settings with these."""
        if resource_type == TOPIC:
            if name not in self.picture.topics:
                raise Rejected(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
                )
            self._check_topic_settings(overrides)
        elif resource_type == BROKER:
            stored = _stored_name(resource_type, name)
            try:
                # Alone first: the message should blame what was asked for now.
                check_dynamic(self._file_config, overrides, for_all=not name)
                dynamic = self._dynamic_settings({stored: dict(overrides)})
                return self._file_config.with_dynamic(dynamic)
            except ConfigError as error:
                raise Rejected(ErrorCode.INVALID_CONFIG, str(error)) from error
        elif resource_type not in _CONFIG_FOLDERS:
            raise Rejected(
                ErrorCode.INVALID_REQUEST, f"Resources of type {resource_type} keep no settings."
            )
        return None

    def _check_topic_settings(self, overrides: Mapping[str, str]) -> None:
        try:
            check_topic_overrides(self._broker.config, overrides)
        except ConfigError as error:
            raise Rejected(ErrorCode.INVALID_CONFIG, str(error)) from error

    def _dynamic_settings(self, changed: dict[str, dict[str, str]] | None = None) -> dict[str, str]:
        """This broker's dynamic settings over those of all brokers."""
        stored = self._overrides[BROKER] | (changed or {})
        mine = stored.get(str(self._broker.node_id), {})
        return stored.get(_DEFAULT_BROKER, {}) | mine

    async def _store_settings(
        self, folder: str, node_name: str, overrides: Mapping[str, str]
    ) -> None:
        path = znodes.config_path(folder, node_name)
        node = await self._tree.get(path)
        value = znodes.config_value(overrides)
        write: Operation = (
            Create(path, value) if node is None else Set(path, value, node.zk_version)
        )
        await self._write([self._guard(), write, znodes.config_change(folder, node_name)])

    def _remember_settings(self, change: CreateTopic | AddPartitions) -> None:
        if isinstance(change, CreateTopic) and change.overrides:
            self._overrides[TOPIC][change.topic.name] = dict(change.overrides)
            self._topic_configs.pop(change.topic.name, None)

    def _forget_settings(self, topic: str) -> None:
        self._overrides[TOPIC].pop(topic, None)
        self._topic_configs.pop(topic, None)

    def _unclean_allowed(self, topic: str) -> bool:
        return self.topic_config(topic).unclean_leader_election_enable

    # --- producer ids

    async def next_producer_id(self) -> ProducerId:
        """An id that no producer of this cluster ever had."""
        async with self._block_in_flight:
            if self._next_producer_id >= self._producer_id_end:
                await self._reserve_producer_ids()
            producer_id = self._next_producer_id
            self._next_producer_id += 1
        return ProducerId(producer_id)

    async def _reserve_producer_ids(self) -> None:
        while True:
            node = await self._tree.get(znodes.PRODUCER_ID_BLOCK)
            assert node is not None, "made at start"
            latest = znodes.read_producer_id_block(node.value)
            first = latest.last + 1 if latest is not None else 0
            block = znodes.ProducerIdBlock(
                self._broker.node_id, first, first + PRODUCER_IDS_PER_BLOCK - 1
            )
            value = znodes.producer_id_block_value(block)
            try:
                await self._write([Set(znodes.PRODUCER_ID_BLOCK, value, node.zk_version)])
            except BadVersion:
                continue  # another broker took that block; the next is as good
            self._next_producer_id, self._producer_id_end = block.first, block.last + 1
            return

    # --- features

    async def update_features(
        self, updates: Sequence[features.FeatureUpdate], *, validate_only: bool = False
    ) -> None:
        """All of them or, with Rejected, none."""
        async with self._changing:
            levels = features.decide_levels(self.feature_levels, updates)
            if validate_only or levels == self.feature_levels:
                return
            expected = ZkVersion(self.features_epoch)
            write = Set(znodes.FEATURE, znodes.feature_value(levels), expected)
            done = await self._write([self._guard(), write])
            self.feature_levels = levels
            self.features_epoch = done

    # --- writing

    def _guard(self) -> Check:
        return Check(znodes.CONTROLLER_EPOCH, self._controller_epoch_zk_version)

    async def _commit(self, changes: Sequence[Change]) -> None:
        """Write first, then believe: what the tree refused was never so."""
        if not changes:
            return
        controller = self._controller
        await self._write(
            znodes.operations(
                changes, controller.controller_epoch, self._controller_epoch_zk_version
            )
        )
        controller.replay(changes)

    async def _write(self, operations: Sequence[Operation]) -> ZkVersion:
        """One ``multi``; the version that its last node then has."""
        try:
            done = await self._tree.multi(operations)
        except Unwritable as error:
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR, "The coordination tree cannot be written now."
            ) from error
        except BadVersion as error:
            if error.path == znodes.CONTROLLER_EPOCH:
                raise Fenced("another broker has become controller") from error
            raise
        return done[-1].zk_version

    def _publish(self) -> None:
        self._broker.picture = self._controller.picture


def _random_id() -> bytes:
    """A random UUID (version 4), never one that prints with a leading dash.

    Such a text would look like an option on a command line; Kafka avoids it too.
    """
    while True:
        raw = bytearray(os.urandom(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        if raw[0] >> 2 != 62:
            return bytes(raw)


def _new_topic_id() -> TopicId:
    return TopicId(_random_id())


def _throw_dice() -> Dice:
    raw = os.urandom(8)
    return Dice(int.from_bytes(raw[:4]), int.from_bytes(raw[4:]))


def _stored_name(resource_type: int, name: str) -> str:
    return _DEFAULT_BROKER if resource_type == BROKER and not name else name


def _node_from_name(name: str) -> str:
    """Group names may hold anything; a node's name must hold no slash."""
    return name.replace("%", "%25").replace("/", "%2F")


def _name_from_node(name: str) -> str:
    return name.replace("%2F", "/").replace("%25", "%")
