"""The control of the cluster as this broker holds it: registration, controllership, changes.

The shell around ``core.controller``: for every change it writes first, then lets the
controller replay it, then publishes the new metadata and tells the replicas. Nothing is
decided here.

Life of a topic's deletion, because a crash may come anywhere:

    1. the request is written                    from here on the deletion is certain
    2. the topic leaves the metadata           clients get UNKNOWN_TOPIC_OR_PARTITION
    3. its folders are given up
    4. its place and the request are removed     the name is free again

A start that finds the request goes on at 3. So a folder whose topic is neither in the registry
nor target away belongs to a tree that was lost, or came from another broker, and is taken in.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.controller.directory_assignment import DirectoryAssignment
from headrace.broker.metadata.dynamic_config import BROKER, TOPIC, Settings
from headrace.coordination.registry import AssignmentChange, Registry
from headrace.coordination.tree import Tree
from headrace.core import features
from headrace.core.controller import (
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
    is_legal_name,
)
from headrace.model.cluster_metadata import (
    BrokerEntry,
    ClusterMetadata,
    Endpoint,
    PartitionState,
    TopicState,
)
from headrace.model.config import BrokerConfig, TopicConfig
from headrace.model.errors import ErrorCode, Rejected
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
    id_to_text,
)

if TYPE_CHECKING:
    # Making a protocol costs a tenth of a millisecond at start, and nobody asks for it then.
    from typing import Protocol

    class Clock(Protocol):
        def now(self) -> Millis: ...

    class ReplicaManager(Protocol):
        def apply(self, states: Iterable[PartitionState]) -> Awaitable[None]: ...
        def delete(self, topic_partitions: Iterable[TopicPartition]) -> Awaitable[None]: ...
        def update_topic_config(self, topic: str, config: TopicConfig) -> None: ...

    class Directory(Protocol):
        @property
        def path(self) -> object: ...
        @property
        def directory_id(self) -> str: ...
        @property
        def offline(self) -> str | None: ...
        @property
        def is_new(self) -> bool: ...
        def disown(self, reason: str) -> None: ...

    class LogManager(Protocol):
        @property
        def directories(self) -> Sequence[Directory]: ...
        def mark_offline(self, topic_partition: TopicPartition, reason: str) -> None: ...
        def offline_partitions(self) -> Sequence[TopicPartition]: ...
        def copy_directory_ids(self, topic_partition: TopicPartition) -> Collection[str]: ...
        def place(
            self, topic_partitions: Iterable[TopicPartition]
        ) -> dict[TopicPartition, str]: ...
        def delete(self, topic_partition: TopicPartition) -> object: ...

    class Shell(Protocol):
        """What the control needs of the broker around it."""

        config: BrokerConfig
        metadata: ClusterMetadata

        @property
        def node_id(self) -> BrokerId: ...
        @property
        def clock(self) -> Clock: ...
        @property
        def replicas(self) -> ReplicaManager: ...
        @property
        def logs(self) -> LogManager: ...


log = logging.getLogger(__name__)

_HOSTED_PER_TURN = 32  # partitions, a few milliseconds

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
    directory_id: str = ""


class ControllerService:
    """Make one, ``start`` it once; ``close`` gives up the registration."""

    def __init__(
        self,
        broker: "Shell",
        tree: Tree,
        *,
        endpoints: Mapping[str, Endpoint],
        cluster_id: str | None = None,
    ) -> None:
        """``endpoints`` are the advertised ones with their true ports, by listener name.

        ``cluster_id`` is what the log directories belong to, if they say.
        """
        self._broker = broker
        self._registry = Registry(tree)
        self._settings = Settings(self._registry, broker.config, broker.node_id)
        self._endpoints = endpoints
        self._found: list[FoundPartition] = []
        self._directory_assignment: DirectoryAssignment
        self._away: set[TopicPartition] = set()  # their directory is not online
        self._deleted_ids: dict[TopicId, set[str]] = {}
        self._known_cluster_id = cluster_id
        # One change at a time: a decision holds until it is replayed.
        self._changing = asyncio.Lock()
        self._controller: Controller
        self._producer_ids = iter(range(0))  # what is left of the block in hand
        self._taking_producer_id = asyncio.Lock()
        self.feature_levels: Mapping[str, int] = {}
        self.features_epoch = -1

    # --- the beginning and the end

    async def deleted_topics(self) -> Collection[TopicId]:
        """Topics of which folders may be left, on disks that were away; to be asked first."""
        await self._registry.make_folders()
        self._deleted_ids = await self._registry.load_deleted(self._broker.node_id)
        return self._deleted_ids

    async def start(self, found: Iterable[FoundPartition] = ()) -> None:
        """Register, rule, load; afterwards the metadata is there and the replicas stand.

        ``found`` is what lies in the log directories. Raises ConfigError when the folder
        belongs to another cluster, or the broker id is taken.
        """
        self._found = list(found)
        broker = self._broker
        registry = self._registry
        await registry.make_folders()
        cluster_id = await registry.settle_cluster_id(
            self._known_cluster_id, id_to_text(_random_id())
        )
        entry = BrokerEntry(
            broker.node_id,
            self._endpoints,
            broker.config.optional_str("broker.rack"),
            broker_epoch=-1,
            features=features.SUPPORTED,
        )
        entry = await registry.register(entry, broker.clock.now())
        controller_epoch = await registry.take_controllership(broker.node_id, broker.clock.now())
        await self._settings.load()
        broker.config = self._settings.config
        self.feature_levels, self.features_epoch = await registry.load_features(
            features.INITIAL_LEVELS
        )
        brokers = {broker.node_id: entry}
        topics, granted_zxids = await registry.load_topics(brokers)
        metadata = ClusterMetadata(cluster_id, broker.node_id, brokers, topics, generation=1)
        self._controller = Controller(controller_epoch, metadata)
        await self._load_directory_assignment()
        await self._finish_deletions()
        away = self._find_away()
        self._controller.replicas_failed(away, broker.node_id)
        await self._commit(self._controller.decide_takeover(granted_zxids, self._unclean_allowed))
        await self._take_in_folders()
        await self._settle_directory_assignment()
        self._publish()
        await self._host_all()
        log.info(
            "broker %d is controller of cluster %s in epoch %d; topics: %d",
            broker.node_id,
            cluster_id,
            controller_epoch,
            len(self.metadata.topics),
        )

    async def _load_directory_assignment(self) -> None:
        loaded = await self._registry.load_directory_assignment(self._broker.node_id)
        in_use = {d for homes in loaded.homes.values() for d in homes.directories.values()}
        expected = {path for directory_id, path in loaded.paths.items() if directory_id in in_use}
        holding = {found.directory_id for found in self._found}
        online = [each for each in self._broker.logs.directories if each.offline is None]
        for each in list(online):
            if (
                each.is_new
                and str(each.path) in expected
                and each.directory_id not in holding
                and len(online) > 1
            ):
                each.disown("it is empty, and partitions lay here. Its disk may not be mounted")
                online.remove(each)
        paths = {each.directory_id: str(each.path) for each in online}
        known = {i: path for i, path in loaded.paths.items() if i in in_use} | paths
        if known != loaded.paths:
            await self._registry.store_directories(self._broker.node_id, known)
        loaded = loaded._replace(paths=known)
        self._directory_assignment = DirectoryAssignment(
            loaded, self._deleted_ids, self._online_directory_ids
        )

    def _online_directory_ids(self) -> set[str]:
        return {e.directory_id for e in self._broker.logs.directories if e.offline is None}

    def _copy_directory_ids(self, topics: Iterable[TopicState]) -> dict[TopicId, set[str]]:
        """Directories with copies that unfinished moves of these topics have made."""
        return {
            topic.topic_id: {
                directory_id
                for state in topic.partitions
                for directory_id in self._broker.logs.copy_directory_ids(state.topic_partition)
            }
            for topic in topics
        }

    def _find_away(self) -> Collection[TopicPartition]:
        """Partitions that are not to be served, because that would cost their records."""
        logs = self._broker.logs
        topics = self.metadata.topics.values()
        failed = ", ".join(str(each.path) for each in logs.directories if each.offline is not None)
        away = self._directory_assignment.find_away(topics, self._without_directory(), failed)
        self._away |= away.keys()
        for topic_partition, reason in away.items():
            logs.mark_offline(topic_partition, reason)
        return logs.offline_partitions()

    def _without_directory(self) -> list[PartitionState]:
        """Partitions of this broker that no folder was found of."""
        served = {found.topic_partition for found in self._found}
        served.update(self._broker.logs.offline_partitions())
        return [
            state
            for topic in self.metadata.topics.values()
            for state in topic.partitions
            if state.topic_partition not in served
        ]

    async def _settle_directory_assignment(self) -> None:
        """Write down where all partitions lie, and where those without a folder will."""
        self._find_away()  # again: topics with holes may have been taken in
        found = {each.topic_partition: each.directory_id for each in self._found}
        without_directory = self._without_directory()
        if without_directory:
            found |= self._broker.logs.place(state.topic_partition for state in without_directory)
        for state in without_directory:
            # A crash came before it was made, or somebody took it away: nobody can tell.
            log.error(
                "%s has no folder in log.dirs and begins anew, empty. If its disk is not "
                "mounted, stop the broker, mount it and remove the empty folder",
                state.topic_partition,
            )
        await self._commit(
            [], self._directory_assignment.decide_settled(self.metadata.topics, found)
        )

    async def _host_all(self) -> None:
        logs = self._broker.logs
        known = set(logs.offline_partitions())
        await self._host(
            state
            for topic in self.metadata.topics.values()
            for state in topic.partitions
            if state.topic_partition not in known
        )
        failed = [each for each in logs.offline_partitions() if each not in known]
        if failed:
            topics = self.metadata.topics
            await self.replicas_failed([(each, topics[each.topic].topic_id) for each in failed])
        self._found.clear()

    async def _host(self, states: Iterable[PartitionState]) -> Rejected | None:
        """Have the replicas host each; the last refusal, if a disk refused any."""
        refusal = None
        for count, state in enumerate(states, 1):
            if count % _HOSTED_PER_TURN == 0:
                await asyncio.sleep(0)  # making folders takes a while; others want an answer too
            try:
                await self._broker.replicas.apply((state,))
            except Rejected as error:
                log.error("%s cannot be served: %s", state.topic_partition, error)
                self._broker.logs.mark_offline(state.topic_partition, str(error))
                refusal = error
        return refusal

    async def close(self) -> None:
        async with self._changing:
            await self._registry.close()

    @property
    def metadata(self) -> ClusterMetadata:
        return self._controller.metadata

    @property
    def controller_epoch(self) -> ControllerEpoch:
        return self._controller.controller_epoch

    async def _finish_deletions(self) -> None:
        pending = await self._registry.topics_pending_deletion()
        if not pending:
            return
        copies = self._copy_directory_ids(
            self.metadata.topics[name] for name in pending if name in self.metadata.topics
        )
        found_here = [found.topic_partition for found in self._found]
        for topic_partition in [*found_here, *self._broker.logs.offline_partitions()]:
            if topic_partition.topic in pending:
                self._broker.logs.delete(topic_partition)
        self._found = [f for f in self._found if f.topic_partition.topic not in pending]
        for name in pending:
            topic = self.metadata.topics.get(name)
            if topic is None:
                # A request for a topic that never was, or the very last step was all that lacked.
                await self._registry.drop_delete_request(name)
                continue
            self._controller.replay([self._controller.decide_mark_for_deletion(name)])
            await self._commit(
                [DeleteTopic(topic)], self._directory_assignment.decide_forgotten([topic], copies)
            )
            self._settings.remember(TOPIC, name, {})
            log.info("topic %s: the deletion that a stop interrupted is finished", name)

    async def _take_in_folders(self) -> None:
        by_topic: dict[str, list[FoundPartition]] = {}
        for found in self._found:
            if is_legal_name(found.topic_partition.topic):
                by_topic.setdefault(found.topic_partition.topic, []).append(found)
        for name, folders in by_topic.items():
            known = self.metadata.topics.get(name)
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
                self.topic_overrides(name) or _INTERNAL_SETTINGS.get(name, ("", {}))[1],
            )
            if change is None:
                continue
            if isinstance(change, CreateTopic):
                await self._registry.drop_topic_overrides(name)
            await self._commit([change])
            if isinstance(change, CreateTopic):
                self._settings.remember(TOPIC, name, change.overrides)
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
            # In one go: a request to delete that a crash left behind would cost the folders.
            await self._commit(
                [self._controller.decide_mark_for_deletion(known.name), DeleteTopic(known)]
            )
            return folders
        for found in strange:
            log.warning(
                "folder %s belongs to an earlier topic of that name and is deleted",
                found.topic_partition,
            )
            self._broker.logs.delete(found.topic_partition)
        return [f for f in folders if f not in strange]

    # --- topics

    async def create_topics(
        self, requests: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[CreateTopic | Rejected]:
        """One answer per request, in order; those created have their leaders when this returns."""
        config = self._broker.config
        async with self._changing:
            answers = self._controller.decide_creates(
                requests,
                lambda: (_new_topic_id(), _throw_dice()),
                default_partition_count=config.int("num.partitions"),
                default_replication_factor=config.int("default.replication.factor"),
                check_settings=self._settings.check_topic,
            )
            accepted = [answer for answer in answers if isinstance(answer, CreateTopic)]
            if not accepted or validate_only:
                return answers
            topics = [change.topic for change in accepted]
            try:
                await self._commit(accepted, self._place(topics, topics))
            except Rejected as refusal:
                return [refusal if isinstance(a, CreateTopic) else a for a in answers]
            for change in accepted:
                self._settings.remember(TOPIC, change.topic.name, change.overrides)
            self._publish()
            for index, answer in enumerate(answers):
                if isinstance(answer, CreateTopic):
                    answers[index] = await self._host_new(answer)
        return answers

    async def _host_new(self, created: CreateTopic) -> CreateTopic | Rejected:
        """A topic whose folders cannot be made is taken back: nobody has written to it yet."""
        topic = created.topic
        refusal = await self._host(topic.partitions)
        if refusal is None:
            return created
        try:
            await self._delete([topic])
        except Rejected as error:
            log.error("topic %s stays, though parts of it cannot be served: %s", topic.name, error)
        return refusal

    async def auto_create(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        """Make topics that a client mentioned; why not, for those that could not be made."""
        answers = await self.create_topics([self._request_deletion(name) for name in names])
        return {
            name: answer.code
            for name, answer in zip(names, answers, strict=True)
            # Somebody else was quicker: then it is there.
            if isinstance(answer, Rejected) and answer.code != ErrorCode.TOPIC_ALREADY_EXISTS
        }

    def _request_deletion(self, name: str) -> NewTopic:
        config = self._broker.config
        settings = _INTERNAL_SETTINGS.get(name)
        if settings is None:
            return NewTopic(name)
        prefix, overrides = settings
        overrides = {**overrides, "segment.bytes": str(config.int(f"{prefix}.segment.bytes"))}
        if name != OFFSETS_TOPIC:
            overrides["min.insync.replicas"] = str(config.int(f"{prefix}.min.isr"))
        return NewTopic(
            name,
            config.int(f"{prefix}.num.partitions"),
            config.int(f"{prefix}.replication.factor"),
            overrides=overrides,
        )

    async def delete_topics(self, wanted: Sequence[str | TopicId]) -> list[TopicState | Rejected]:
        """One answer per name or id, in order: the topic that is gone, or why not."""
        if not self._broker.config.bool("delete.topic.enable"):
            return [
                Rejected(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false.")
                for _ in wanted
            ]
        async with self._changing:
            answers: list[TopicState | Rejected] = []
            pending = []
            for each in wanted:
                if isinstance(each, str):
                    topic = self.metadata.topics.get(each)
                    missing = Rejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                else:
                    topic = self.metadata.topic_by_id(each)
                    missing = Rejected(ErrorCode.UNKNOWN_TOPIC_ID, "The topic is gone by now.")
                if topic is None:
                    answers.append(missing)
                else:
                    answers.append(topic)
                    pending.append(topic)
            try:
                await self._delete(pending)
            except Rejected as refusal:
                return [refusal if isinstance(a, TopicState) else a for a in answers]
        return answers

    async def _delete(self, pending: Sequence[TopicState]) -> None:
        await self._commit(
            [self._controller.decide_mark_for_deletion(topic.name) for topic in pending]
        )
        self._publish()
        copies = self._copy_directory_ids(pending)
        for topic in pending:
            await self._broker.replicas.delete(s.topic_partition for s in topic.partitions)
            self._settings.remember(TOPIC, topic.name, {})
        await self._commit(
            [DeleteTopic(topic) for topic in pending],
            self._directory_assignment.decide_forgotten(pending, copies),
        )

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
                added = change.topic._replace(partitions=change.added)
                await self._commit([change], self._place([change.topic], [added]))
                self._publish()
                refusal = await self._host(change.added)
                if refusal is not None:
                    raise refusal
        return change

    async def elect_leader(self, topic_partition: TopicPartition, *, unclean: bool) -> None:
        """Raises Rejected, with ELECTION_NOT_NEEDED when the right one leads already."""
        async with self._changing:
            homes = None
            if unclean and topic_partition in self._away:
                homes = self._give_up(topic_partition)
            change = self._controller.decide_election(topic_partition, unclean=unclean)
            await self._commit([change], homes)
            self._publish()
            await self._host([change.state])

    def _give_up(self, topic_partition: TopicPartition) -> AssignmentChange | None:
        """Somebody says that what is away is lost: the partition may begin anew, empty."""
        topic = self.metadata.topics.get(topic_partition.topic)
        if topic is None:
            return None
        log.warning("%s begins anew, empty: an unclean election asked for it", topic_partition)
        self._away.discard(topic_partition)
        self._broker.logs.delete(topic_partition)
        self._controller.replicas_failed([topic_partition], self._broker.node_id, failed=False)
        placed = self._broker.logs.place([topic_partition])
        return self._directory_assignment.decide_placed([topic], placed)

    def _place(self, topics: Sequence[TopicState], new: Sequence[TopicState]) -> AssignmentChange:
        """Choose directories for the partitions of ``new``, which are parts of ``topics``."""
        placed = self._broker.logs.place(
            state.topic_partition
            for topic in new
            for state in topic.partitions
            if self._broker.node_id in state.replicas
        )
        return self._directory_assignment.decide_placed(topics, placed)

    async def replicas_failed(self, lost: Sequence[tuple[TopicPartition, TopicId]]) -> None:
        """The disk under these failed while running: everybody may know that nobody leads them."""
        node_id = self._broker.node_id
        async with self._changing:
            # Not those deleted meanwhile: the next topic of that name lies on another disk.
            topics = self.metadata.topics
            topic_partitions = [
                each
                for each, topic_id in lost
                if (topic := topics.get(each.topic)) is not None and topic.topic_id == topic_id
            ]
            self._controller.replicas_failed(topic_partitions, node_id)
            try:
                await self._commit(self._controller.decide_failures(topic_partitions, node_id))
            except Rejected as refusal:
                log.error("the tree does not know of the failed disk: %s", refusal)
            self._publish()

    async def moved(self, topic_partition: TopicPartition, directory_id: str) -> None:
        """Remember that a partition of this broker lies in another directory now."""
        async with self._changing:
            topic = self.metadata.topics.get(topic_partition.topic)
            if topic is not None:
                placed = {topic_partition: directory_id}
                await self._commit([], self._directory_assignment.decide_placed([topic], placed))

    def check_reassignment(
        self, topic_partition: TopicPartition, replicas: Sequence[BrokerId] | None
    ) -> None:
        """Raises Rejected unless the partition is where it should go."""
        self._controller.check_reassignment(topic_partition, replicas)

    # --- settings

    def topic_overrides(self, topic: str) -> dict[str, str]:
        return self._settings.overrides(TOPIC, topic)

    def broker_overrides(self, broker_id: int | None = None) -> dict[str, str]:
        """The dynamic settings of one broker, or, for None, those of all brokers."""
        return self._settings.overrides(BROKER, "" if broker_id is None else str(broker_id))

    def overrides(self, resource_type: int, name: str) -> dict[str, str]:
        """Any kind's own settings; the empty broker name stands for all brokers."""
        return self._settings.overrides(resource_type, name)

    def configured_names(self, resource_type: int) -> list[str]:
        """The names of one kind that have settings of their own."""
        return self._settings.names(resource_type)

    def topic_config(self, topic: str) -> TopicConfig:
        """What a topic lives by now. The same object until a setting changes."""
        return self._settings.topic_config(topic)

    async def alter_configs(
        self,
        resource_type: int,
        name: str,
        overrides: Mapping[str, str],
        validate_only: bool = False,
        *,
        built_on: Mapping[str, str] | None = None,
    ) -> None:
        """Replace all settings of one resource. Raises Rejected when they cannot stand.

        ``built_on`` are those that these were made of, if they were.
        """
        async with self._changing:
            if resource_type == TOPIC and name not in self.metadata.topics:
                raise Rejected(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
                )
            if built_on is not None and built_on != self.overrides(resource_type, name):
                raise Rejected(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"'{name}' was deleted and made anew meanwhile; ask again.",
                )
            self._settings.check(resource_type, name, overrides)
            if validate_only:
                return
            await self._settings.replace(resource_type, name, overrides)
            touched: Iterable[str] = ()
            if resource_type == BROKER:
                self._broker.config = self._settings.config
                touched = self.metadata.topics
            elif resource_type == TOPIC:
                touched = (name,)
            for topic in touched:
                self._broker.replicas.update_topic_config(topic, self.topic_config(topic))

    def _unclean_allowed(self, topic: str) -> bool:
        return self.topic_config(topic).unclean_leader_election_enable

    # --- producer ids and features

    async def next_producer_id(self) -> ProducerId:
        """An id that no producer of this cluster ever had."""
        async with self._taking_producer_id:
            producer_id = next(self._producer_ids, None)
            if producer_id is None:
                block = await self._registry.reserve_producer_ids(self._broker.node_id)
                self._producer_ids = iter(block)
                producer_id = next(self._producer_ids)
        return ProducerId(producer_id)

    async def update_features(
        self, updates: Sequence[features.FeatureUpdate], *, validate_only: bool = False
    ) -> None:
        """All of them or, with Rejected, none."""
        async with self._changing:
            levels = features.decide_levels(
                self.feature_levels, updates, self._controller.metadata.brokers.values()
            )
            if not validate_only and levels != self.feature_levels:
                self.features_epoch = await self._registry.store_features(
                    levels, self.features_epoch
                )
                self.feature_levels = levels

    # --- writing

    async def _commit(
        self, changes: Sequence[Change], homes: AssignmentChange | None = None
    ) -> None:
        """Write first, then believe: what was refused was never so."""
        if changes or homes is not None:
            await self._registry.commit(changes, self._broker.node_id, homes)
            self._controller.replay(changes)
            if homes is not None:
                self._directory_assignment.replay(homes)

    def _publish(self) -> None:
        self._broker.metadata = self._controller.metadata


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
