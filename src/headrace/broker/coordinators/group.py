"""The group coordinator of this broker: its shards, and what they know about the cluster."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.broker.coordinators.host import Host
from headrace.broker.coordinators.runtime import CoordinatorRuntime
from headrace.core.topics import OFFSETS_TOPIC
from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.config import BrokerConfig
from headrace.model.settings.resources import ResourceType

if TYPE_CHECKING:
    from headrace.core.groups.shard import GroupShard


class _ClusterView:
    """Satisfies ``core.groups.group.Cluster``."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @property
    def config(self) -> BrokerConfig:
        return self._host.dynamic_config.config

    @property
    def metadata(self) -> ClusterMetadata:
        return self._host.metadata.current

    def group_settings(self, group_id: str) -> Mapping[str, str]:
        return self._host.dynamic_config.overrides(ResourceType.GROUP, group_id)


class GroupCoordinator(CoordinatorRuntime["GroupShard"]):
    def __init__(self, host: Host) -> None:
        super().__init__(
            host,
            OFFSETS_TOPIC,
            "offsets.topic.num.partitions",
            self._new_shard,
            codec_setting="offsets.topic.compression.codec",
        )
        self._cluster = _ClusterView(host)
        host.metadata.on_topics_changed(self._topics_changed)

    def _new_shard(self, partition: int) -> "GroupShard":
        # Imported with the first shard: a broker without groups does not need it.
        from headrace.core.groups.shard import GroupShard

        return GroupShard(self._cluster)

    def _topics_changed(self, deleted: Sequence[str]) -> None:
        self.shards.refresh()
        if deleted:
            self.tell_all(lambda shard, now: shard.topics_deleted(deleted, now))
