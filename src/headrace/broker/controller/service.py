"""The controller service: carries out changes to topics, leaders, settings and features.

Nothing is decided here; ``core.topic_changes``, ``core.elections`` and ``core.features`` decide.

The deletion of a topic has four steps, and a crash may interrupt it after any of them:

    1. write the delete request               from here on the deletion is certain
    2. remove the topic from the metadata     clients get UNKNOWN_TOPIC_OR_PARTITION
    3. delete its directories
    4. delete its nodes and the request       the name can be used again

A start that finds the request continues with step 3 (``startup``).
"""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.broker.controller import internal_topics, topic_requests
from headrace.broker.controller.changes import ClusterChanges
from headrace.broker.controller.missing_topics import MissingTopics
from headrace.broker.controller.settings_changes import SettingsChanges
from headrace.broker.metadata.dynamic_config import DynamicConfig
from headrace.core import elections, features, reassignment, topic_changes
from headrace.core.controller import AddPartitions, CreateTopic, DeleteTopic
from headrace.core.directory_assignment import AssignmentChange
from headrace.core.topics import NewTopic
from headrace.model.cluster_metadata import PartitionState, TopicState
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, TopicId, TopicPartition
from headrace.model.settings.resources import ResourceType

if TYPE_CHECKING:
    from headrace.broker.metadata.cache import MetadataCache
    from headrace.world.world import World

_log = logging.getLogger("headrace.controller")


class ControllerService:
    def __init__(
        self,
        changes: ClusterChanges,
        dynamic_config: DynamicConfig,
        metadata_cache: "MetadataCache",
        world: "World",
    ) -> None:
        self._changes = changes
        self._dynamic_config = dynamic_config
        self._metadata_cache = metadata_cache
        self._world = world
        self._settings = SettingsChanges(
            dynamic_config, lambda: changes.metadata, changes.replicas, changes.lock
        )
        self._missing = MissingTopics()

    # --- topics

    async def create_topics(
        self, requests: Sequence[NewTopic], *, validate_only: bool = False, timeout_s: float = 0.0
    ) -> list[CreateTopic | Rejected]:
        """One result per request, in order; created topics have leaders when this returns."""
        async with self._changes.lock:
            answers = topic_requests.decide_creates(
                self._changes.controller, requests, self._dynamic_config, self._world
            )
            accepted = [answer for answer in answers if isinstance(answer, CreateTopic)]
            if not accepted or validate_only:
                return answers
            topics = [change.topic for change in accepted]
            try:
                await self._changes.commit(accepted, self._changes.place(topics, topics))
            except Rejected as refusal:
                return [refusal if isinstance(a, CreateTopic) else a for a in answers]
            for change in accepted:
                self._dynamic_config.remember(
                    ResourceType.TOPIC, change.topic.name, change.overrides
                )
            self._changes.publish()
            for index, answer in enumerate(answers):
                if isinstance(answer, CreateTopic):
                    answers[index] = await self._host_new(answer)
        return answers

    async def _host_new(self, created: CreateTopic) -> CreateTopic | Rejected:
        """Delete a new topic whose directories cannot be created; it has no records yet."""
        topic = created.topic
        refusal = await self._changes.host(topic.partitions)
        if refusal is None:
            _log.info("Created topic %s with %s", topic.name, _counted(len(topic.partitions)))
            return created
        try:
            await self._delete([topic])
        except Rejected as error:
            _log.error(
                "Could not delete topic %s, though some of its partitions cannot be served: %s. "
                "Delete it with a client",
                topic.name,
                error,
            )
        return refusal

    async def auto_create(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        """Create topics that clients name in requests; returns the errors of the others."""
        answers = await self.create_topics(
            [internal_topics.new_topic(name, self._dynamic_config.config) for name in names]
        )
        return self._missing.codes(
            {
                name: answer
                for name, answer in zip(names, answers, strict=True)
                if isinstance(answer, Rejected)
            }
        )

    async def delete_topics(
        self, wanted: Sequence[str | TopicId], *, timeout_s: float = 0.0
    ) -> list[TopicState | Rejected]:
        """One result per name or id, in order: the deleted topic, or the error."""
        async with self._changes.lock:
            answers = topic_requests.find_to_delete(
                self._changes.metadata, wanted, self._dynamic_config.config
            )
            pending = [answer for answer in answers if isinstance(answer, TopicState)]
            try:
                await self._delete(pending)
            except Rejected as refusal:
                return [refusal if isinstance(a, TopicState) else a for a in answers]
            for topic in pending:
                _log.info("Deleted topic %s", topic.name)
        return answers

    async def _delete(self, pending: Sequence[TopicState]) -> None:
        await self._changes.commit(
            [
                topic_changes.decide_mark_for_deletion(self._changes.controller, topic.name)
                for topic in pending
            ]
        )
        self._changes.publish()
        copies = self._changes.copies_of(pending)
        for topic in pending:
            await self._changes.delete(topic.partitions)
            self._dynamic_config.remember(ResourceType.TOPIC, topic.name, {})
        await self._changes.commit(
            [DeleteTopic(topic) for topic in pending],
            self._changes.directory_assignment.decide_forgotten(pending, copies),
        )

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[BrokerId]] | None = None,
        *,
        validate_only: bool = False,
        timeout_s: float = 0.0,
    ) -> AddPartitions:
        """Increase a topic to ``count`` partitions. Raises Rejected."""
        async with self._changes.lock:
            change = topic_changes.decide_add_partitions(
                self._changes.controller, name, count, assignments
            )
            if not validate_only:
                added = change.topic._replace(partitions=change.added)
                await self._changes.commit([change], self._changes.place([change.topic], [added]))
                self._changes.publish()
                refusal = await self._changes.host(change.added)
                if refusal is not None:
                    raise refusal
                _log.info(
                    "Added %s to topic %s; it now has %d",
                    _counted(len(change.added)),
                    name,
                    count,
                )
        return change

    async def elect_leaders(
        self, topic_partitions: Sequence[TopicPartition], *, unclean: bool
    ) -> list[Rejected | None]:
        """Elect leaders. Returns the refusal of each partition, such as ELECTION_NOT_NEEDED."""
        refusals: list[Rejected | None] = []
        for each in topic_partitions:
            try:
                await self._elect_leader(each, unclean=unclean)
                refusals.append(None)
            except Rejected as refusal:
                refusals.append(refusal)
        return refusals

    async def _elect_leader(self, topic_partition: TopicPartition, *, unclean: bool) -> None:
        async with self._changes.lock:
            assignment = None
            if unclean and self._changes.directory_assignment.is_offline(topic_partition):
                assignment = self._abandon(topic_partition)
            change = elections.decide_election(
                self._changes.controller, topic_partition, unclean=unclean
            )
            await self._changes.commit([change], assignment)
            self._changes.publish()
            refusal = await self._changes.host([change.state])
            if refusal is not None:
                raise refusal

    def _abandon(self, topic_partition: TopicPartition) -> AssignmentChange | None:
        """Abandon the offline directory of a partition, and create the partition again, empty."""
        topic = self._changes.metadata.topics.get(topic_partition.topic)
        if topic is None:
            return None
        _log.warning(
            "Creating %s again, empty: a client requested an unclean leader election while its "
            "log directory is offline",
            topic_partition,
        )
        self._changes.directory_assignment.abandon(topic_partition)
        self._changes.logs.delete(topic_partition)
        self._changes.controller.replicas_failed(
            [topic_partition], self._changes.broker_id, failed=False
        )
        placed = self._changes.logs.place([topic_partition])
        return self._changes.directory_assignment.decide_placed([topic], placed)

    async def replicas_failed(self, lost: Sequence[tuple[TopicPartition, TopicId]]) -> None:
        """Record that the disk of these replicas failed, so that they have no leader now."""
        node_id = self._changes.broker_id
        async with self._changes.lock:
            # Skip deleted topics: a new topic of the same name is on another disk.
            topics = self._changes.metadata.topics
            topic_partitions = [
                each
                for each, topic_id in lost
                if (topic := topics.get(each.topic)) is not None and topic.topic_id == topic_id
            ]
            self._changes.controller.replicas_failed(topic_partitions, node_id)
            try:
                await self._changes.commit(
                    elections.decide_failures(self._changes.controller, topic_partitions, node_id)
                )
            except Rejected as refusal:
                _log.error(
                    "Could not record the offline replicas in the cluster metadata: %s", refusal
                )
            self._changes.publish()

    async def moved(self, topic_partition: TopicPartition, directory_id: str) -> None:
        """Record that a partition of this broker is now in another log directory."""
        async with self._changes.lock:
            topic = self._changes.metadata.topics.get(topic_partition.topic)
            if topic is not None:
                placed = {topic_partition: directory_id}
                await self._changes.commit(
                    [], self._changes.directory_assignment.decide_placed([topic], placed)
                )

    async def reassign(
        self,
        targets: Mapping[TopicPartition, Sequence[BrokerId] | None],
        *,
        may_change_factor: bool = True,
    ) -> dict[TopicPartition, Rejected | None]:
        """Refuse every target but the current replicas: there is only one broker."""
        answers: dict[TopicPartition, Rejected | None] = {}
        for each, target in targets.items():
            try:
                reassignment.decide_target(
                    self._changes.controller, each, target, may_change_factor=may_change_factor
                )
                answers[each] = None
            except Rejected as refusal:
                answers[each] = refusal
        return answers

    def reassignments(self) -> list[PartitionState]:
        return []

    # --- settings

    async def alter_configs(
        self,
        resource_type: int,
        name: str,
        overrides: Mapping[str, str],
        validate_only: bool = False,
        *,
        built_on: Mapping[str, str] | None = None,
    ) -> None:
        """Replace all settings of one resource. Raises Rejected if they are invalid."""
        await self._settings.alter(resource_type, name, overrides, validate_only, built_on)

    # --- features

    async def update_features(
        self, updates: Sequence[features.FeatureUpdate], *, validate_only: bool = False
    ) -> None:
        """Apply all updates, or raise Rejected and apply none."""
        async with self._changes.lock:
            cache = self._metadata_cache
            levels = features.decide_levels(
                cache.feature_levels, updates, self._changes.controller.metadata.brokers.values()
            )
            if not validate_only and levels != cache.feature_levels:
                epoch = await self._changes.registry.store_features(levels, cache.features_epoch)
                cache.publish_features(levels, epoch)


def _counted(partition_count: int) -> str:
    return f"{partition_count} partition{'' if partition_count == 1 else 's'}"
