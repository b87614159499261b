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
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.controller.directory_assignment import DirectoryAssignment
from headrace.broker.metadata.dynamic_config import DynamicConfig
from headrace.coordination.directories import AssignmentChange
from headrace.coordination.registry import Elected, Registry
from headrace.core import elections, features, topic_changes
from headrace.core.controller import (
    AddPartitions,
    Change,
    Controller,
    CreateTopic,
    DeleteTopic,
)
from headrace.core.topic_changes import Dice
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
from headrace.model.config import TopicConfig
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import (
    NO_LEADER_EPOCH,
    NO_TOPIC_ID,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicId,
    TopicPartition,
    id_to_text,
)
from headrace.model.settings.resources import ResourceType

if TYPE_CHECKING:
    # Making a protocol costs a tenth of a millisecond at start, and no check runs then.
    from typing import Protocol

    from headrace.broker.metadata.cache import MetadataCache
    from headrace.world.world import World

    class Replicas(Protocol):
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

    class Logs(Protocol):
        @property
        def directories(self) -> Sequence[Directory]: ...
        @property
        def failed(self) -> dict[TopicPartition, str]: ...
        def place(
            self, topic_partitions: Iterable[TopicPartition]
        ) -> dict[TopicPartition, str]: ...
        def delete(self, topic_partition: TopicPartition) -> object: ...


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
        registry: Registry,
        *,
        broker_id: BrokerId,
        endpoints: Mapping[str, Endpoint],
        cluster_id: str | None,
        world: "World",
        dynamic_config: DynamicConfig,
        metadata_cache: "MetadataCache",
        logs: "Logs",
        replicas: "Replicas",
    ) -> None:
        """``endpoints`` are the advertised ones with the ports really bound, by listener name.

        ``cluster_id`` is what the log directories belong to, if they say.
        """
        self._registry = registry
        self._broker_id = broker_id
        self._endpoints = endpoints
        self._known_cluster_id = cluster_id
        self._world = world
        self._dynamic_config = dynamic_config
        self._metadata_cache = metadata_cache
        self._logs = logs
        self._replicas = replicas
        self._found: list[FoundPartition] = []
        self._directory_assignment: DirectoryAssignment
        self._away: set[TopicPartition] = set()  # their directory is not online
        self._deleted_ids: dict[TopicId, set[str]] = {}
        # One change at a time: a decision holds until it is replayed.
        self._changing = asyncio.Lock()
        self._controller: Controller

    # --- the beginning and the end

    async def deleted_topics(self) -> Collection[TopicId]:
        """Topics of which folders may be left, on disks that were away; to be asked first."""
        await self._registry.create_persistent_nodes()
        self._deleted_ids = await self._registry.directories.load_pending_deletions()
        return self._deleted_ids

    async def start(self, found: Iterable[FoundPartition] = ()) -> None:
        """Register, rule, load; afterwards the metadata is there and the replicas stand.

        ``found`` is what lies in the log directories. Raises ConfigError when the folder
        belongs to another cluster, or the broker id is taken.
        """
        self._found = list(found)
        registry = self._registry
        broker_id = self._broker_id
        await registry.create_persistent_nodes()
        cluster_id = await registry.settle_cluster_id(
            self._known_cluster_id, id_to_text(self._world.random_id())
        )
        entry = BrokerEntry(
            broker_id,
            self._endpoints,
            self._dynamic_config.config.optional_str("broker.rack"),
            broker_epoch=-1,
            features=features.SUPPORTED,
        )
        entry = await registry.register(entry, self._world.now())
        election = await registry.take_controllership(self._world.now())
        assert isinstance(election, Elected), "a cluster of one has one candidate"
        controller_epoch = election.controller_epoch
        await self._dynamic_config.load(self._world.now())
        levels, features_epoch = await registry.load_features(features.INITIAL_LEVELS)
        self._metadata_cache.publish_features(levels, features_epoch)
        brokers = {broker_id: entry}
        topics, granted_zxids = await registry.load_topics(brokers)
        metadata = ClusterMetadata(cluster_id, broker_id, brokers, topics, generation=1)
        self._controller = Controller(controller_epoch, metadata)
        await self._load_directory_assignment()
        await self._finish_deletions()
        away = self._find_away()
        self._controller.replicas_failed(away, broker_id)
        await self._commit(
            elections.decide_takeover(self._controller, granted_zxids, self._unclean_allowed)
        )
        await self._take_in_folders()
        await self._settle_directory_assignment()
        self._publish()
        await self._host_all()
        log.info(
            "broker %d is controller of cluster %s in epoch %d; topics: %d",
            broker_id,
            cluster_id,
            controller_epoch,
            len(self.metadata.topics),
        )

    async def _load_directory_assignment(self) -> None:
        loaded = await self._registry.directories.load_assignment()
        in_use = {d for topic in loaded.topics.values() for d in topic.directories.values()}
        expected = {path for directory_id, path in loaded.paths.items() if directory_id in in_use}
        holding = {found.directory_id for found in self._found}
        online = [each for each in self._logs.directories if each.offline is None]
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
            await self._registry.directories.store_paths(known)
        loaded = loaded._replace(paths=known)
        self._directory_assignment = DirectoryAssignment(loaded, self._deleted_ids, paths)

    def _find_away(self) -> Collection[TopicPartition]:
        """Partitions that are not to be served, because that would cost their records."""
        logs = self._logs
        topics = self.metadata.topics.values()
        failed = ", ".join(str(each.path) for each in logs.directories if each.offline is not None)
        away = self._directory_assignment.find_away(topics, self._without_directory(), failed)
        self._away |= away.keys()
        logs.failed.update(away)
        return logs.failed.keys()

    def _without_directory(self) -> list[PartitionState]:
        """Partitions of this broker that no folder was found of."""
        served = {found.topic_partition for found in self._found} | self._logs.failed.keys()
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
            found |= self._logs.place(state.topic_partition for state in without_directory)
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
        failed = self._logs.failed
        known = set(failed)
        await self._host(
            state
            for topic in self.metadata.topics.values()
            for state in topic.partitions
            if state.topic_partition not in known
        )
        if len(failed) > len(known):
            topics = self.metadata.topics
            await self.replicas_failed(
                [(each, topics[each.topic].topic_id) for each in failed if each not in known]
            )
        self._found.clear()

    async def _host(self, states: Iterable[PartitionState]) -> Rejected | None:
        """Have the replicas host each; the last refusal, if a disk refused any."""
        refusal = None
        for count, state in enumerate(states, 1):
            if count % _HOSTED_PER_TURN == 0:
                await asyncio.sleep(0)  # making folders takes a while; others want an answer too
            try:
                await self._replicas.apply((state,))
            except Rejected as error:
                log.error("%s cannot be served: %s", state.topic_partition, error)
                self._logs.failed[state.topic_partition] = str(error)
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
        pending = await self._registry.watched.delete_requests()
        if not pending:
            return
        folders = [found.topic_partition for found in self._found] + list(self._logs.failed)
        for topic_partition in folders:
            if topic_partition.topic in pending:
                self._logs.delete(topic_partition)
        self._found = [f for f in self._found if f.topic_partition.topic not in pending]
        for name in pending:
            topic = self.metadata.topics.get(name)
            if topic is None:
                # A request for a topic that never was, or the very last step was all that lacked.
                await self._registry.drop_delete_request(name)
                continue
            self._controller.replay(
                [topic_changes.decide_mark_for_deletion(self._controller, name)]
            )
            await self._commit(
                [DeleteTopic(topic)], self._directory_assignment.decide_forgotten([topic])
            )
            self._dynamic_config.remember(ResourceType.TOPIC, name, {})
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
            topic_id = ids.pop() if ids else self._new_topic_id()
            change = topic_changes.decide_adopt(
                self._controller,
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
                self._dynamic_config.remember(ResourceType.TOPIC, name, change.overrides)
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
                [
                    topic_changes.decide_mark_for_deletion(self._controller, known.name),
                    DeleteTopic(known),
                ]
            )
            return folders
        for found in strange:
            log.warning(
                "folder %s belongs to an earlier topic of that name and is deleted",
                found.topic_partition,
            )
            self._logs.delete(found.topic_partition)
        return [f for f in folders if f not in strange]

    # --- topics

    async def create_topics(
        self, requests: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[CreateTopic | Rejected]:
        """One answer per request, in order; those created have their leaders when this returns."""
        config = self._dynamic_config.config
        async with self._changing:
            answers = topic_changes.decide_creates(
                self._controller,
                requests,
                lambda: (self._new_topic_id(), self._throw_dice()),
                default_partition_count=config.int("num.partitions"),
                default_replication_factor=config.int("default.replication.factor"),
                check_settings=self._dynamic_config.check_topic,
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
                self._dynamic_config.remember(
                    ResourceType.TOPIC, change.topic.name, change.overrides
                )
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
        answers = await self.create_topics([self._auto_created(name) for name in names])
        return {
            name: answer.code
            for name, answer in zip(names, answers, strict=True)
            # Somebody else was quicker: then it is there.
            if isinstance(answer, Rejected) and answer.code != ErrorCode.TOPIC_ALREADY_EXISTS
        }

    def _auto_created(self, name: str) -> NewTopic:
        config = self._dynamic_config.config
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
        if not self._dynamic_config.config.bool("delete.topic.enable"):
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
            [
                topic_changes.decide_mark_for_deletion(self._controller, topic.name)
                for topic in pending
            ]
        )
        self._publish()
        for topic in pending:
            await self._replicas.delete(s.topic_partition for s in topic.partitions)
            self._dynamic_config.remember(ResourceType.TOPIC, topic.name, {})
        await self._commit(
            [DeleteTopic(topic) for topic in pending],
            self._directory_assignment.decide_forgotten(pending),
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
            change = topic_changes.decide_add_partitions(self._controller, name, count, assignments)
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
            assignment = None
            if unclean and topic_partition in self._away:
                assignment = self._give_up(topic_partition)
            change = elections.decide_election(self._controller, topic_partition, unclean=unclean)
            await self._commit([change], assignment)
            self._publish()
            await self._host([change.state])

    def _give_up(self, topic_partition: TopicPartition) -> AssignmentChange | None:
        """Somebody says that what is away is lost: the partition may begin anew, empty."""
        topic = self.metadata.topics.get(topic_partition.topic)
        if topic is None:
            return None
        log.warning("%s begins anew, empty: an unclean election asked for it", topic_partition)
        self._away.discard(topic_partition)
        self._logs.delete(topic_partition)
        self._controller.replicas_failed([topic_partition], self._broker_id, failed=False)
        placed = self._logs.place([topic_partition])
        return self._directory_assignment.decide_placed([topic], placed)

    def _place(self, topics: Sequence[TopicState], new: Sequence[TopicState]) -> AssignmentChange:
        """Choose directories for the partitions of ``new``, which are parts of ``topics``."""
        placed = self._logs.place(
            state.topic_partition
            for topic in new
            for state in topic.partitions
            if self._broker_id in state.replicas
        )
        return self._directory_assignment.decide_placed(topics, placed)

    async def replicas_failed(self, lost: Sequence[tuple[TopicPartition, TopicId]]) -> None:
        """The disk under these failed while running: everybody may know that nobody leads them."""
        node_id = self._broker_id
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
                await self._commit(
                    elections.decide_failures(self._controller, topic_partitions, node_id)
                )
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
        elections.check_reassignment(self._controller, topic_partition, replicas)

    # --- settings

    def topic_overrides(self, topic: str) -> dict[str, str]:
        return self._dynamic_config.overrides(ResourceType.TOPIC, topic)

    def broker_overrides(self, broker_id: int | None = None) -> dict[str, str]:
        """The dynamic settings of one broker, or, for None, those of all brokers."""
        return self._dynamic_config.overrides(
            ResourceType.BROKER, "" if broker_id is None else str(broker_id)
        )

    def overrides(self, resource_type: int, name: str) -> dict[str, str]:
        """Any kind's own settings; the empty broker name stands for all brokers."""
        return self._dynamic_config.overrides(resource_type, name)

    def configured_names(self, resource_type: int) -> list[str]:
        """The names of one kind that have settings of their own."""
        return self._dynamic_config.names(resource_type)

    def topic_config(self, topic: str) -> TopicConfig:
        """What a topic lives by now. The same object until a setting changes."""
        return self._dynamic_config.topic_config(topic)

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
            if resource_type == ResourceType.TOPIC and name not in self.metadata.topics:
                raise Rejected(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
                )
            if built_on is not None and built_on != self.overrides(resource_type, name):
                raise Rejected(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"'{name}' was deleted and made anew meanwhile; ask again.",
                )
            self._dynamic_config.check(resource_type, name, overrides)
            if validate_only:
                return
            await self._dynamic_config.replace(resource_type, name, overrides)
            touched: Iterable[str] = ()
            if resource_type == ResourceType.BROKER:
                touched = self.metadata.topics
            elif resource_type == ResourceType.TOPIC:
                touched = (name,)
            for topic in touched:
                self._replicas.update_topic_config(topic, self.topic_config(topic))

    def _new_topic_id(self) -> TopicId:
        return TopicId(self._world.random_id())

    def _throw_dice(self) -> Dice:
        dice = self._world.dice
        return Dice(dice.getrandbits(32), dice.getrandbits(32))

    def _unclean_allowed(self, topic: str) -> bool:
        return self.topic_config(topic).unclean_leader_election_enable

    # --- features

    async def update_features(
        self, updates: Sequence[features.FeatureUpdate], *, validate_only: bool = False
    ) -> None:
        """All of them or, with Rejected, none."""
        async with self._changing:
            cache = self._metadata_cache
            levels = features.decide_levels(
                cache.feature_levels, updates, self._controller.metadata.brokers.values()
            )
            if not validate_only and levels != cache.feature_levels:
                epoch = await self._registry.store_features(levels, cache.features_epoch)
                cache.publish_features(levels, epoch)

    # --- writing

    async def _commit(
        self, changes: Sequence[Change], assignment: AssignmentChange | None = None
    ) -> None:
        """Write, then apply: a refused change leaves no trace."""
        if changes:
            await self._registry.commit(changes, assignment)
            self._controller.replay(changes)
        elif assignment is not None:
            await self._registry.directories.store(assignment)
        if assignment is not None:
            self._directory_assignment.replay(assignment)

    def _publish(self) -> None:
        self._metadata_cache.publish(self._controller.metadata)
