"""The controller as request handlers see it, on one node and in a cluster."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from headrace.core.controller import AddPartitions, CreateTopic
from headrace.core.features import FeatureUpdate
from headrace.core.topics import NewTopic
from headrace.model.cluster_metadata import PartitionState, TopicState
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, TopicId, TopicPartition


class ControllerApi(Protocol):
    """``ControllerService`` on one node, ``MemberController`` in a cluster.

    A time-out limits the wait for other brokers; one node does not wait.
    """

    async def create_topics(
        self, requests: Sequence[NewTopic], *, validate_only: bool = False, timeout_s: float = ...
    ) -> list[CreateTopic | Rejected]:
        """One result per request, in order; created topics have leaders when this returns."""
        ...

    async def auto_create(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        """Create topics that a client asked for; returns the errors of those not created."""
        ...

    async def delete_topics(
        self, wanted: Sequence[str | TopicId], *, timeout_s: float = ...
    ) -> list[TopicState | Rejected]:
        """One result per name or id, in order: the deleted topic, or the error."""
        ...

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[BrokerId]] | None = None,
        *,
        validate_only: bool = False,
        timeout_s: float = ...,
    ) -> AddPartitions:
        """Increase a topic to ``count`` partitions. Raises Rejected."""
        ...

    async def elect_leaders(
        self, topic_partitions: Sequence[TopicPartition], *, unclean: bool
    ) -> list[Rejected | None]:
        """Elect leaders; the refusal of each partition, ELECTION_NOT_NEEDED if it leads already."""
        ...

    async def replicas_failed(self, lost: Sequence[tuple[TopicPartition, TopicId]]) -> None:
        """The disk of these replicas of this broker failed."""
        ...

    async def reassign(
        self,
        targets: Mapping[TopicPartition, Sequence[BrokerId] | None],
        *,
        may_change_factor: bool = True,
    ) -> dict[TopicPartition, Rejected | None]:
        """Begin to move partitions to these replicas; None cancels. The refusal of each."""
        ...

    def reassignments(self) -> list[PartitionState]:
        """The partitions that are being moved. Raises Rejected if another broker knows."""
        ...

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
        ...

    async def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
    ) -> None:
        """Apply all updates, or raise Rejected and apply none."""
        ...
