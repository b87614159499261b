"""The coordinator of groups on this broker: its shards and what they may know of the cluster."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.broker.coordinators.runtime import Coordinator
from headrace.core.topics import OFFSETS_TOPIC
from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.config import BrokerConfig
from headrace.model.settings.resources import ResourceType

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.core.groups.shard import GroupShard


class _Surroundings:
    """``core.groups.group.Cluster``."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    @property
    def config(self) -> BrokerConfig:
        return self._broker.config

    @property
    def metadata(self) -> ClusterMetadata:
        return self._broker.metadata

    def group_settings(self, group_id: str) -> Mapping[str, str]:
        return self._broker.control.overrides(ResourceType.GROUP, group_id)


def group_coordinator(broker: "Broker") -> "Coordinator[GroupShard]":
    surroundings = _Surroundings(broker)

    def make_shard(partition: int) -> "GroupShard":
        # Imported with the first shard: a broker without groups starts without them.
        from headrace.core.groups.shard import GroupShard

        return GroupShard(surroundings)

    return Coordinator(
        broker,
        OFFSETS_TOPIC,
        "offsets.topic.num.partitions",
        make_shard,
        codec_setting="offsets.topic.compression.codec",
    )
