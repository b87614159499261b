"""Changes to the cluster, one at a time: write, replay, publish, then update the replicas.

The shell around ``core.controller``. A change is replayed after it was written, and published
after it was replayed, so a change that the coordination tree refuses has no effect.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.coordination.registry import Registry
from headrace.core.controller import Change, Controller
from headrace.core.directory_assignment import AssignmentChange, DirectoryAssignment
from headrace.model.cluster_metadata import ClusterMetadata, PartitionState, TopicState
from headrace.model.errors import Rejected
from headrace.model.ids import BrokerId, TopicId, TopicPartition

if TYPE_CHECKING:
    # At runtime nothing checks these, and defining a protocol would take 0.1 ms of the start.
    from collections.abc import Awaitable, Collection
    from typing import Protocol

    from headrace.broker.metadata.cache import MetadataCache
    from headrace.model.config import TopicConfig

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
        def directories(self) -> Iterable[Directory]: ...
        def mark_offline(self, topic_partition: TopicPartition, reason: str) -> None: ...
        def abandon_offline(self, topic_partition: TopicPartition) -> None: ...
        def offline_partitions(self) -> Sequence[TopicPartition]: ...
        def copy_directory_ids(self, topic_partition: TopicPartition) -> Collection[str]: ...
        def place(
            self, topic_partitions: Iterable[TopicPartition]
        ) -> dict[TopicPartition, str]: ...
        def delete(self, topic_partition: TopicPartition) -> object: ...


_log = logging.getLogger("headrace.controller")

_PARTITIONS_PER_TURN = 32  # created or deleted in a few milliseconds


class ClusterChanges:
    """The controller's state and its changes. Callers hold ``lock`` while they decide."""

    def __init__(
        self,
        registry: Registry,
        controller: Controller,
        directory_assignment: DirectoryAssignment,
        broker_id: BrokerId,
        metadata_cache: "MetadataCache",
        logs: "Logs",
        replicas: "Replicas",
    ) -> None:
        self.registry = registry
        self.controller = controller
        self.directory_assignment = directory_assignment
        self.broker_id = broker_id
        self.logs = logs
        self.replicas = replicas
        self._metadata_cache = metadata_cache
        self.lock = asyncio.Lock()  # held from a decision until its replay
        self._handled_count = 0  # partitions that were created or deleted

    @property
    def metadata(self) -> ClusterMetadata:
        return self.controller.metadata

    async def commit(
        self, changes: Sequence[Change], assignment: AssignmentChange | None = None
    ) -> None:
        """Write changes, and replay them once they are written."""
        if changes:
            await self.registry.commit(changes, assignment)
            self.controller.replay(changes)
        elif assignment is not None:
            await self.registry.directories.store(assignment)
        if assignment is not None:
            self.directory_assignment.replay(assignment)

    def publish(self) -> None:
        self._metadata_cache.publish(self.controller.metadata)

    async def host(self, states: Iterable[PartitionState]) -> Rejected | None:
        """Host partitions on this broker; returns the last refusal if a disk refused any."""
        refusal = None
        for state in states:
            await self._let_requests_run()
            try:
                await self.replicas.apply((state,))
            except Rejected as error:
                _log.error("Cannot serve %s: %s", state.topic_partition, error)
                self.logs.mark_offline(state.topic_partition, str(error))
                refusal = error
        return refusal

    async def delete(self, states: Iterable[PartitionState]) -> None:
        """Stop hosting partitions on this broker, and delete their files."""
        for state in states:
            await self._let_requests_run()
            await self.replicas.delete((state.topic_partition,))

    async def _let_requests_run(self) -> None:
        """Pause regularly: creating and deleting directories takes time."""
        self._handled_count += 1
        if self._handled_count % _PARTITIONS_PER_TURN == 0:
            await asyncio.sleep(0)

    def place(self, topics: Sequence[TopicState], new: Sequence[TopicState]) -> AssignmentChange:
        """Choose log directories for the partitions of ``new``, which are parts of ``topics``."""
        placed = self.logs.place(
            state.topic_partition
            for topic in new
            for state in topic.partitions
            if self.broker_id in state.replicas
        )
        return self.record_directories(topics, placed)

    def copies_of(self, topics: Iterable[TopicState]) -> dict[TopicId, set[str]]:
        """Log directories with copies of these topics that unfinished moves left."""
        return {
            topic.topic_id: {
                directory_id
                for state in topic.partitions
                for directory_id in self.logs.copy_directory_ids(state.topic_partition)
            }
            for topic in topics
        }

    def record_directories(
        self, topics: Sequence[TopicState], placed: Mapping[TopicPartition, str]
    ) -> AssignmentChange:
        return self.directory_assignment.decide_placed(topics, placed)
