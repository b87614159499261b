"""The metadata cache: the cluster metadata that this broker serves, and listeners for changes."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.model.cluster_metadata import ClusterMetadata

if TYPE_CHECKING:
    from headrace.wire.messages import UpdateMetadataRequest

TopicsChanged = Callable[[Sequence[str]], None]


class MetadataCache:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, fail: Callable[[BaseException], None]
    ) -> None:
        """``fail`` stops the broker: after a bug in a listener its state is unknown."""
        self._loop = loop
        self._fail = fail
        self._listeners: list[TopicsChanged] = []
        self.current = ClusterMetadata("")
        self._generation = self.current.generation
        self.feature_levels: Mapping[str, int] = {}
        self.features_epoch = -1

    def on_topics_changed(self, listener: TopicsChanged) -> None:
        """Call ``listener`` after every change of topics, with the names of the deleted ones."""
        self._listeners.append(listener)

    def publish(self, metadata: ClusterMetadata) -> None:
        """Serve ``metadata`` from now on."""
        before, self.current = self.current, metadata
        if self._generation != metadata.generation:
            self._generation = metadata.generation
            # Later: the replicas apply the metadata first, and listeners depend on the replicas.
            self._loop.call_soon(self._tell, before, metadata)

    def set_cluster_id(self, cluster_id: str) -> None:
        """The id of the cluster, before its controller has sent anything."""
        self.current = ClusterMetadata(cluster_id)

    def apply_update(self, request: "UpdateMetadataRequest") -> None:
        """Serve what the controller tells all brokers of a cluster."""
        # Imported here: one node never needs it.
        from headrace.broker.metadata import updates

        self.publish(updates.apply(self.current, request))

    def keep_only_topics(self, names: Collection[str]) -> None:
        """Forget all other topics: they were deleted while no controller reached this broker."""
        gone = [name for name in self.current.topics if name not in names]
        if gone:
            self.publish(self.current.with_topics((), gone))

    def publish_features(self, levels: Mapping[str, int], epoch: int) -> None:
        self.feature_levels = levels
        self.features_epoch = epoch

    def _tell(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        deleted: list[str] = []
        if before.topics is not after.topics:
            deleted = [
                topic.name
                for topic in before.topics.values()
                if (now := after.topics.get(topic.name)) is None or now.topic_id != topic.topic_id
            ]
        try:
            for listener in self._listeners:
                listener(deleted)
        except Exception as error:  # noqa: BLE001 - see ``fail``
            self._fail(error)
