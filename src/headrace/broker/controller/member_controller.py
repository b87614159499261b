"""The controller as the request handlers of a cluster member see it.

If this member is the controller, its term answers. Otherwise the answer is NOT_CONTROLLER, as in
Kafka 3.9, and clients ask the controller. Any member changes settings and auto-creates topics.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from headrace.broker.controller import internal_topics, topic_requests
from headrace.broker.controller.cluster_controller import ClusterController
from headrace.broker.controller.missing_topics import MissingTopics
from headrace.broker.controller.settings_changes import SettingsChanges
from headrace.coordination.registry import Elected, Registry
from headrace.coordination.topic_store import without_leaders
from headrace.core import features
from headrace.core.controller import AddPartitions, Controller, CreateTopic
from headrace.core.elections import IsrProposal
from headrace.core.topics import NewTopic
from headrace.model.cluster_metadata import PartitionState, TopicState
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, ControllerEpoch, TopicId, TopicPartition

if TYPE_CHECKING:
    from headrace.broker.controller.changes import Replicas
    from headrace.broker.metadata.cache import MetadataCache
    from headrace.broker.metadata.dynamic_config import DynamicConfig
    from headrace.broker.peers import Peers
    from headrace.broker.tasks import BackgroundTasks
    from headrace.world.world import World

DEFAULT_TIMEOUT_S = 30.0
# Brokers of a new cluster start one after the other; clients should wait for the last.
_STARTING_S = 30.0


class MemberController:
    def __init__(
        self,
        registry: Registry,
        broker_id: BrokerId,
        dynamic_config: "DynamicConfig",
        metadata_cache: "MetadataCache",
        peers: "Peers",
        replicas: "Replicas",
        world: "World",
        tasks: "BackgroundTasks",
        fail: Callable[[BaseException], None],
        tell_directory_failed: Callable[[], Awaitable[None]],
    ) -> None:
        self._registry = registry
        self._broker_id = broker_id
        self._dynamic_config = dynamic_config
        self._metadata_cache = metadata_cache
        self._peers = peers
        self._world = world
        self._tasks = tasks
        self._fail = fail
        self._tell_directory_failed = tell_directory_failed
        self._settings = SettingsChanges(
            dynamic_config, lambda: metadata_cache.current, replicas, nullcontext()
        )
        self._missing = MissingTopics()
        self._started_at = asyncio.get_running_loop().time()
        self._term: ClusterController | None = None

    def begin_term(
        self, registry: Registry, elected: Elected, on_fenced: Callable[[], None]
    ) -> ClusterController:
        """The term after an election. ``registry`` belongs to the session that was elected."""
        self._term = ClusterController(
            registry,
            elected,
            broker_id=self._broker_id,
            cluster_id=self._metadata_cache.current.cluster_id,
            dynamic_config=self._dynamic_config,
            peers=self._peers,
            world=self._world,
            tasks=self._tasks,
            fail=self._fail,
            on_fenced=on_fenced,
        )
        return self._term

    @property
    def _current(self) -> ClusterController:
        term = self._term
        if term is None or term.has_ended:
            raise _not_controller()
        return term

    def settings_changed(self) -> None:
        """Settings of topics changed, here or by another broker."""
        if self._term is not None:
            self._term.settings_changed()

    # --- topics

    async def create_topics(
        self,
        requests: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> list[CreateTopic | Rejected]:
        try:
            return await self._current.create_topics(
                requests, validate_only=validate_only, timeout_s=timeout_s
            )
        except Rejected as refusal:
            return [refusal for _ in requests]

    async def auto_create(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        """Create topics that clients name in requests, without the controller.

        Returns the errors of the topics that have no leader yet.
        """
        metadata = self._metadata_cache.current
        answers = topic_requests.decide_creates(
            Controller(ControllerEpoch(0), metadata),
            [internal_topics.new_topic(name, self._dynamic_config.config) for name in names],
            self._dynamic_config,
            self._world,
        )
        refusals: dict[str, Rejected] = {}
        for name, answer in zip(names, answers, strict=True):
            try:
                if isinstance(answer, Rejected):
                    raise answer
                await self._registry.create_topic(without_leaders(answer.topic), answer.overrides)
            except Rejected as refusal:
                refusals[name] = refusal
        codes: dict[str, ErrorCode] = {}
        if asyncio.get_running_loop().time() < self._started_at + _STARTING_S:
            for name, refused in refusals.items():
                if refused.code == ErrorCode.INVALID_REPLICATION_FACTOR:
                    codes[name] = ErrorCode.LEADER_NOT_AVAILABLE  # other brokers may be starting
        for name in codes:
            del refusals[name]
        codes |= self._missing.codes(refusals)
        for name in names:
            if name not in codes and name not in self._metadata_cache.current.topics:
                codes[name] = ErrorCode.LEADER_NOT_AVAILABLE
        return codes

    async def delete_topics(
        self, wanted: Sequence[str | TopicId], *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> list[TopicState | Rejected]:
        try:
            return await self._current.delete_topics(wanted, timeout_s=timeout_s)
        except Rejected as refusal:
            return [refusal for _ in wanted]

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[BrokerId]] | None = None,
        *,
        validate_only: bool = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> AddPartitions:
        return await self._current.create_partitions(
            name, count, assignments, validate_only=validate_only, timeout_s=timeout_s
        )

    async def elect_leaders(
        self, topic_partitions: Sequence[TopicPartition], *, unclean: bool
    ) -> list[Rejected | None]:
        try:
            return await self._current.elect_leaders(topic_partitions, unclean=unclean)
        except Rejected as refusal:
            return [refusal for _ in topic_partitions]

    async def replicas_failed(self, lost: Sequence[tuple[TopicPartition, TopicId]]) -> None:
        """Tell the controller, which then asks this broker about each of its replicas."""
        await self._tell_directory_failed()

    async def reassign(
        self,
        targets: Mapping[TopicPartition, Sequence[BrokerId] | None],
        *,
        may_change_factor: bool = True,
    ) -> dict[TopicPartition, Rejected | None]:
        return await self._current.reassignments.alter(targets, may_change_factor=may_change_factor)

    def reassignments(self) -> list[PartitionState]:
        return self._current.reassignments.in_progress

    # --- settings and features

    async def alter_configs(
        self,
        resource_type: int,
        name: str,
        overrides: Mapping[str, str],
        validate_only: bool = False,
        *,
        built_on: Mapping[str, str] | None = None,
    ) -> None:
        """Replace all settings of one resource; other brokers follow."""
        await self._settings.alter(resource_type, name, overrides, validate_only, built_on)
        self.settings_changed()

    async def update_features(
        self, updates: Sequence[features.FeatureUpdate], *, validate_only: bool = False
    ) -> None:
        """Apply all updates, or raise Rejected and apply none."""
        await self._current.features.update(updates, validate_only=validate_only)

    # --- what other brokers request

    async def alter_isr(
        self, broker_id: BrokerId, broker_epoch: int, proposals: Sequence[IsrProposal]
    ) -> list[PartitionState | Rejected]:
        """The state of each partition after the change, or the refusal, in order."""
        return await self._current.alter_isr(broker_id, broker_epoch, proposals)

    async def shut_down(self, broker_id: BrokerId, broker_epoch: int) -> list[TopicPartition]:
        """Move leaderships away from a broker; returns the partitions that it must still lead."""
        return await self._current.shut_down(broker_id, broker_epoch)

    async def allocate_producer_ids(self, broker_id: BrokerId, broker_epoch: int) -> range:
        return await self._current.allocate_producer_ids(broker_id, broker_epoch)


def _not_controller() -> Rejected:
    return Rejected(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
