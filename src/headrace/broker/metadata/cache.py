"""The metadata cache: the cluster metadata that this broker serves, and listeners for changes."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.errors import MetadataUnknown

if TYPE_CHECKING:
    from headrace.wire.messages import UpdateMetadataRequest

TopicsChanged = Callable[[Sequence[str]], None]

# A member of a cluster knows its metadata a few milliseconds after it accepts connections. If that
# takes longer, another broker may answer sooner.
_HELD_S_MAX = 2.0


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
        self._held: asyncio.Event | None = None

    @property
    def can_be_told(self) -> bool:
        """Whether clients can be told who the brokers are and which topics exist."""
        return self._held is None and bool(self.current.brokers)

    def hold(self) -> None:
        """Tell clients nothing before ``release``: what the controller has sent is not complete."""
        self._held = asyncio.Event()

    def release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.set()

    async def wait_to_be_told(self) -> None:
        """Wait until clients can be told of the cluster. Raises MetadataUnknown."""
        if self._held is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_HELD_S_MAX):
                    await self._held.wait()
        if not self.current.brokers:
            raise MetadataUnknown("no controller has sent the cluster metadata yet")

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
