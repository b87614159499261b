"""The start of a broker in its cluster: register, become controller, load, reconcile, host.

On a cluster of one the log directories override the tree. A partition directory whose topic is
neither in the coordination tree nor marked for deletion is adopted as a topic: its tree was lost,
or it came from another broker. A partition without a directory is created again, unless its log
directory is offline.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.controller import internal_topics
from headrace.broker.controller.changes import ClusterChanges
from headrace.broker.metadata.dynamic_config import DynamicConfig
from headrace.broker.random_ids import draw_cluster_id, draw_topic_id
from headrace.coordination.registry import Elected, Registry
from headrace.core import elections, features, topic_changes
from headrace.core.controller import Controller, CreateTopic, DeleteTopic
from headrace.core.directory_assignment import DirectoryAssignment
from headrace.core.elections import TopicRules
from headrace.core.topics import is_legal_name
from headrace.model.cluster_metadata import (
    BrokerEntry,
    ClusterMetadata,
    Endpoint,
    PartitionState,
    TopicState,
)
from headrace.model.ids import (
    NO_LEADER_EPOCH,
    NO_TOPIC_ID,
    BrokerId,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from headrace.model.settings.resources import ResourceType

if TYPE_CHECKING:
    from headrace.broker.controller.changes import Logs, Replicas
    from headrace.broker.metadata.cache import MetadataCache
    from headrace.world.world import World

_log = logging.getLogger("headrace.controller")

_NAMED_MAX = 5  # partitions in one log line


class FoundPartition(NamedTuple):
    """A partition directory on this broker's disks at start."""

    topic_partition: TopicPartition
    topic_id: TopicId  # NO_TOPIC_ID if the directory does not say
    last_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    directory_id: str = ""


class Startup:
    """Ask ``deleted_topics`` first, then ``run`` once."""

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
        """``endpoints`` are the advertised endpoints, with the bound ports, by listener name.

        ``cluster_id`` is the cluster that the log directories belong to, if they record it.
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
        self._deleted_ids: dict[TopicId, set[str]] = {}

    async def deleted_topics(self) -> Collection[TopicId]:
        """Topics that were deleted while a log directory with some of their files was offline."""
        await self._registry.create_persistent_nodes()
        self._deleted_ids = await self._registry.directories.load_pending_deletions()
        return self._deleted_ids

    async def run(self, found: Iterable[FoundPartition] = ()) -> ClusterChanges:
        """Publish the cluster metadata and host the replicas.

        ``found`` are the partitions in the log directories. Raises ConfigError if they belong to
        another cluster, or if another broker has this broker id.
        """
        self._found = list(found)
        registry = self._registry
        await registry.create_persistent_nodes()
        cluster_id = await registry.settle_cluster_id(
            self._known_cluster_id, draw_cluster_id(self._world.random)
        )
        brokers = {self._broker_id: await self._register()}
        election = await registry.take_controllership(self._world.now())
        assert isinstance(election, Elected), "a cluster of one has one candidate"
        await self._dynamic_config.load(self._world.now())
        levels, features_epoch = await registry.load_features(features.INITIAL_LEVELS)
        self._metadata_cache.publish_features(levels, features_epoch)
        loaded = await registry.load_topics(brokers)
        metadata = ClusterMetadata(
            cluster_id, self._broker_id, brokers, loaded.topics, generation=1
        )
        changes = ClusterChanges(
            registry,
            Controller(election.controller_epoch, metadata),
            await self._load_directory_assignment(),
            self._broker_id,
            self._metadata_cache,
            self._logs,
            self._replicas,
        )
        await self._finish_deletions(changes)
        changes.controller.replicas_failed(self._find_offline(changes), self._broker_id)
        await changes.commit(
            elections.decide_takeover(
                changes.controller, loaded.granted_zxids, TopicRules(self._unclean_allowed)
            )
        )
        await self._adopt_directories(changes)
        await self._settle_directory_assignment(changes)
        changes.publish()
        await self._host_all(changes)
        _log.info(
            "Broker %d is the controller of cluster %s in epoch %d; topics: %d",
            self._broker_id,
            cluster_id,
            election.controller_epoch,
            len(changes.metadata.topics),
        )
        return changes

    async def _register(self) -> BrokerEntry:
        entry = BrokerEntry(
            self._broker_id,
            self._endpoints,
            self._dynamic_config.config.optional_str("broker.rack"),
            broker_epoch=-1,
            features=features.SUPPORTED,
        )
        return await self._registry.register(entry, self._world.now())

    def _unclean_allowed(self, topic: str) -> bool:
        return self._dynamic_config.topic_config(topic).unclean_leader_election_enable

    # --- directories -----------------------------------------------------------

    async def _load_directory_assignment(self) -> DirectoryAssignment:
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
                each.disown("it is empty, but held partitions before. Its disk may not be mounted")
                online.remove(each)
        paths = {each.directory_id: str(each.path) for each in online}
        known = {i: path for i, path in loaded.paths.items() if i in in_use} | paths
        if known != loaded.paths:
            await self._registry.directories.store_paths(known)
        loaded = loaded._replace(paths=known)
        return DirectoryAssignment(loaded, self._deleted_ids, self._online_directory_ids)

    def _online_directory_ids(self) -> set[str]:
        return {each.directory_id for each in self._logs.directories if each.offline is None}

    def _find_offline(self, changes: ClusterChanges) -> Collection[TopicPartition]:
        """Partitions in offline directories: creating them elsewhere would lose their records."""
        logs = self._logs
        topics = changes.metadata.topics.values()
        failed = ", ".join(str(each.path) for each in logs.directories if each.offline is not None)
        offline = changes.directory_assignment.find_offline(
            topics, self._without_directory(changes), failed
        )
        by_place: dict[str, list[TopicPartition]] = {}
        for topic_partition, place in offline.items():
            logs.mark_offline(topic_partition, f"it is in {place}, which is not online")
            by_place.setdefault(place, []).append(topic_partition)
        for place, partitions in by_place.items():
            _log.error(
                "Log directory %s is offline; partitions offline: %d (%s%s). Clients get "
                "KAFKA_STORAGE_ERROR for these partitions only. Mount the disk, or add its "
                "directory to log.dirs again, and restart the broker. If it is lost for good, "
                "delete these topics, or re-create the partitions empty with an unclean leader "
                "election",
                place,
                len(partitions),
                ", ".join(map(str, partitions[:_NAMED_MAX])),
                ", …" if len(partitions) > _NAMED_MAX else "",
            )
        return logs.offline_partitions()

    def _without_directory(self, changes: ClusterChanges) -> list[PartitionState]:
        """Partitions of this broker that have no directory on its disks."""
        served = {found.topic_partition for found in self._found}
        served.update(self._logs.offline_partitions())
        return [
            state
            for topic in changes.metadata.topics.values()
            for state in topic.partitions
            if state.topic_partition not in served
        ]

    async def _settle_directory_assignment(self, changes: ClusterChanges) -> None:
        """Record the log directory of every partition, also of partitions to be created."""
        self._find_offline(changes)  # again: topics with missing partitions may have been adopted
        found = {each.topic_partition: each.directory_id for each in self._found}
        without_directory = self._without_directory(changes)
        if without_directory:
            found |= self._logs.place(state.topic_partition for state in without_directory)
        for state in without_directory:
            # A crash before it was created and a removal by hand look the same.
            _log.error(
                "%s has no directory in log.dirs; creating it, empty. If its disk is not mounted, "
                "stop the broker, mount the disk and remove the empty directory",
                state.topic_partition,
            )
        settled = changes.directory_assignment.decide_settled(changes.metadata.topics, found)
        await changes.commit([], settled)

    # --- topics ----------------------------------------------------------------

    async def _finish_deletions(self, changes: ClusterChanges) -> None:
        """Finish deletions that the last shutdown interrupted (see ``service``)."""
        pending = await self._registry.watched.delete_requests()
        if not pending:
            return
        topics = changes.metadata.topics
        copies = changes.copies_of(topics[name] for name in pending if name in topics)
        present = [found.topic_partition for found in self._found]
        for topic_partition in [*present, *self._logs.offline_partitions()]:
            if topic_partition.topic in pending:
                self._logs.delete(topic_partition)
        self._found = [f for f in self._found if f.topic_partition.topic not in pending]
        for name in pending:
            topic = changes.metadata.topics.get(name)
            if topic is None:
                # A request for a topic that never existed, or only the last step was missing.
                await self._registry.drop_delete_request(name)
                continue
            marked = topic_changes.decide_mark_for_deletion(changes.controller, name)
            changes.controller.replay([marked])
            await changes.commit(
                [DeleteTopic(topic)], changes.directory_assignment.decide_forgotten([topic], copies)
            )
            self._dynamic_config.remember(ResourceType.TOPIC, name, {})
            _log.info("Finished the interrupted deletion of topic %s", name)

    async def _adopt_directories(self, changes: ClusterChanges) -> None:
        """Adopt partition directories that are unknown to the coordination tree as topics."""
        by_topic: dict[str, list[FoundPartition]] = {}
        for found in self._found:
            if is_legal_name(found.topic_partition.topic):
                by_topic.setdefault(found.topic_partition.topic, []).append(found)
        for name, directories in by_topic.items():
            known = changes.metadata.topics.get(name)
            if known is not None:
                directories = await self._reconcile(changes, known, directories)
            if directories:
                await self._adopt(changes, name, directories)

    async def _adopt(
        self, changes: ClusterChanges, name: str, directories: list[FoundPartition]
    ) -> None:
        ids = {found.topic_id for found in directories} - {NO_TOPIC_ID}
        if len(ids) > 1:
            _log.error(
                "The directories of topic %s have %d different topic ids and are left alone. Keep "
                "the directories of one id in log.dirs, and restart the broker",
                name,
                len(ids),
            )
            return
        topic_id = ids.pop() if ids else draw_topic_id(self._world.random)
        overrides = self._dynamic_config.overrides(ResourceType.TOPIC, name)
        change = topic_changes.decide_adopt(
            changes.controller,
            name,
            topic_id,
            {found.topic_partition.partition: found.last_leader_epoch for found in directories},
            overrides or internal_topics.settings_of(name),
        )
        if change is None:
            return
        if isinstance(change, CreateTopic):
            await self._registry.drop_topic_overrides(name)
        await changes.commit([change])
        if isinstance(change, CreateTopic):
            self._dynamic_config.remember(ResourceType.TOPIC, name, change.overrides)
        _log.warning(
            "Found %d partition %s of topic %s, which the cluster metadata does not contain; "
            "added the topic. Topic settings that were lost are back to the broker's defaults; "
            "check them with 'headrace configs get topic %s'",
            len(directories),
            "directory" if len(directories) == 1 else "directories",
            name,
            name,
        )

    async def _reconcile(
        self, changes: ClusterChanges, known: TopicState, directories: list[FoundPartition]
    ) -> list[FoundPartition]:
        """The directories that belong to a known topic.

        A directory with another topic id belongs to an earlier topic of that name, whose disk was
        offline when the topic was deleted. If all of them have another id, they were copied here,
        and their id is used.
        """
        strange = [f for f in directories if f.topic_id not in (NO_TOPIC_ID, known.topic_id)]
        if not strange:
            return directories
        if len(strange) == len(directories):
            _log.warning(
                "All directories of topic %s have another topic id than the cluster metadata; "
                "using the directories' id",
                known.name,
            )
            # In one write: a delete request left by a crash would delete the directories.
            marked = topic_changes.decide_mark_for_deletion(changes.controller, known.name)
            await changes.commit([marked, DeleteTopic(known)])
            return directories
        for found in strange:
            _log.warning(
                "Deleting directory %s: it belongs to an earlier topic of that name",
                found.topic_partition,
            )
            self._logs.delete(found.topic_partition)
        return [found for found in directories if found not in strange]

    async def _host_all(self, changes: ClusterChanges) -> None:
        known = set(self._logs.offline_partitions())
        await changes.host(
            state
            for topic in changes.metadata.topics.values()
            for state in topic.partitions
            if state.topic_partition not in known
        )
        lost = [each for each in self._logs.offline_partitions() if each not in known]
        if lost:
            changes.controller.replicas_failed(lost, self._broker_id)
            await changes.commit(
                elections.decide_failures(changes.controller, lost, self._broker_id)
            )
            changes.publish()
