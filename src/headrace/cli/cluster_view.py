"""The cluster as one broker describes it: its brokers, its controller, and every partition."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.client.cluster import Cluster
from headrace.core.topics import is_internal
from headrace.model.settings.resources import ResourceType
from headrace.wire import messages as m

MIN_ISR = "min.insync.replicas"

Topic = m.MetadataResponse.MetadataResponseTopic
Setting = m.DescribeConfigsResponse.DescribeConfigsResourceResult


class BrokerView(NamedTuple):
    broker_id: int
    host: str
    port: int
    rack: str | None

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PartitionView(NamedTuple):
    topic: str
    partition: int
    leader: int | None
    replicas: list[int]
    isr: list[int]
    offline_replicas: list[int]
    min_isr: int

    @property
    def is_unavailable(self) -> bool:
        return self.leader is None

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def is_under_min_isr(self) -> bool:
        """As in Kafka's tools, also if there is no leader."""
        return self.leader is None or len(self.isr) < self.min_isr

    @property
    def is_at_min_isr(self) -> bool:
        return len(self.isr) == self.min_isr

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


class ClusterView(NamedTuple):
    cluster_id: str | None
    controller_id: int | None
    brokers: dict[int, BrokerView]  # the live ones
    partitions: list[PartitionView]

    @property
    def missing_brokers(self) -> list[int]:
        """Brokers that have replicas, but are not registered."""
        assigned = {broker_id for one in self.partitions for broker_id in one.replicas}
        return sorted(assigned - self.brokers.keys())

    def led_by(self, broker_id: int) -> list[PartitionView]:
        return [one for one in self.partitions if one.leader == broker_id]

    def replicas_on(self, broker_id: int) -> list[PartitionView]:
        return [one for one in self.partitions if broker_id in one.replicas]


def read_view(cluster: Cluster) -> ClusterView:
    """Ask any broker for everything; internal topics are included."""
    response = cluster.persistently(cluster.metadata, "reading the cluster metadata")
    names = [topic.name for topic in response.topics if topic.name is not None]
    min_isr = {
        topic: min_isr_of(settings)
        for topic, settings in read_topic_settings(cluster, names, [MIN_ISR]).items()
    }
    return ClusterView(
        response.cluster_id,
        response.controller_id if response.controller_id >= 0 else None,
        {
            broker.node_id: BrokerView(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in sorted(response.brokers, key=lambda one: one.node_id)
        },
        [
            partition
            for topic in sorted(response.topics, key=lambda one: (_is_internal(one), one.name))
            if topic.name is not None
            for partition in partitions_of(topic, min_isr.get(topic.name, 1))
        ],
    )


def partitions_of(topic: Topic, min_isr: int) -> list[PartitionView]:
    return [
        PartitionView(
            topic.name or "",
            one.partition_index,
            one.leader_id if one.leader_id >= 0 else None,
            list(one.replica_nodes),
            list(one.isr_nodes),
            list(one.offline_replicas),
            min_isr,
        )
        for one in sorted(topic.partitions, key=lambda one: one.partition_index)
    ]


def min_isr_of(settings: Iterable[Setting]) -> int:
    """The effective min.insync.replicas among the settings of a topic."""
    return next((int(one.value) for one in settings if one.name == MIN_ISR and one.value), 1)


def numbers(broker_ids: Iterable[int]) -> str:
    """Broker IDs as the tables show them: ``1,2,3``."""
    return ",".join(map(str, broker_ids))


def _is_internal(topic: Topic) -> bool:
    return topic.is_internal or is_internal(topic.name or "")


def read_topic_settings(
    cluster: Cluster, topics: Sequence[str], names: list[str] | None = None
) -> dict[str, list[Setting]]:
    """The settings with these names of each topic, or all settings."""
    if not topics:
        return {}
    request = m.DescribeConfigsRequest(
        resources=[
            m.DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=ResourceType.TOPIC, resource_name=topic, configuration_keys=names
            )
            for topic in topics
        ]
    )
    response = cluster.persistently(
        lambda: cluster.ask_any(request, m.DescribeConfigsResponse), "reading topic settings"
    )
    return {result.resource_name: list(result.configs) for result in response.results}
