"""Spark's view of the cluster: topics, offsets and committed offsets for sources and sinks.

As in ``headrace.client.cluster``, every request here may be repeated without harm.
"""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence

from headrace.client import cluster as client_cluster
from headrace.client.cluster import ClientSettings
from headrace.client.errors import Refused
from headrace.model.errors import ConfigError, ErrorCode
from headrace.model.ids import TopicPartition
from headrace.model.settings.resources import ResourceType
from headrace.spark.failures import PERMISSIONS, BadOption, refuse
from headrace.wire import messages as m

EARLIEST, LATEST = -2, -1  # what ListOffsets takes in place of a timestamp
_EARLIEST_LOCAL = -4
_EARLIEST_LOCAL_SINCE_VERSION = 8
NO_TOPIC_ID = bytes(16)
_GROUP_BY_NAME_VERSION_MAX = 9


class Cluster(client_cluster.Cluster):
    """A client of one cluster. One thread at a time."""

    def __init__(self, settings: ClientSettings) -> None:
        try:
            super().__init__(settings, PERMISSIONS)
        except ConfigError as wrong:
            raise BadOption(f"kafka.{wrong}") from wrong

    # --- topics -------------------------------------------------------------------------

    def create_topic(
        self, name: str, partition_count: int, configs: Mapping[str, str], *, option: str = ""
    ) -> None:
        """Create the topic if it is missing, with the cluster's default replication factor.

        ``option`` is the option that names the topic; errors mention it.
        """
        self.create_topics([name], partition_count, configs, option=option)

    def create_topics(
        self,
        names: Sequence[str],
        partition_count: int,
        configs: Mapping[str, str],
        *,
        option: str = "",
    ) -> None:
        """As ``create_topic``, for several topics with the same settings."""
        what = f"finding or creating topic {', '.join(map(repr, names))}"
        what += f" (option {option})" if option else ""
        config_of = m.CreateTopicsRequest.CreatableTopicConfig
        topic_of = m.CreateTopicsRequest.CreatableTopic

        def attempt() -> None:
            known = self.topics(names)
            missing = [
                name
                for name in names
                if known[name].error or min(known[name].leaders.values(), default=-1) < 0
            ]
            if not missing:
                return
            if any(known[name].error == ErrorCode.TOPIC_AUTHORIZATION_FAILED for name in missing):
                # We could not see it even if it existed.
                refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED, what)
            request = m.CreateTopicsRequest(
                topics=[
                    topic_of(
                        name=name,
                        num_partitions=partition_count,
                        replication_factor=-1,
                        configs=[config_of(name=key, value=configs[key]) for key in configs],
                    )
                    for name in missing
                ],
                timeout_ms=self.settings.request_timeout_ms,
            )
            for result in self.ask(self.controller_id, request, m.CreateTopicsResponse).topics:
                if result.error_code not in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                    refuse(result.error_code, f"{what}: {result.error_message or 'refused'}")
            refuse(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {missing[0]!r} is being created")

        self.persistently(attempt, what)

    def topic_setting(self, names: Sequence[str], setting: str) -> dict[str, str]:
        """One setting of these topics, without the topics that we may not describe."""
        resource_of = m.DescribeConfigsRequest.DescribeConfigsResource
        request = m.DescribeConfigsRequest(
            resources=[
                resource_of(
                    resource_type=ResourceType.TOPIC,
                    resource_name=name,
                    configuration_keys=[setting],
                )
                for name in names
            ]
        )
        response = self.persistently(
            lambda: self.ask_any(request, m.DescribeConfigsResponse), "asking for settings"
        )
        return {
            result.resource_name: entry.value
            for result in response.results
            if not result.error_code
            for entry in result.configs
            if entry.name == setting and entry.value is not None
        }

    # --- offsets ----------------------------------------------------------------------

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool, patient: bool = True
    ) -> dict[TopicPartition, int]:
        """The first offset at or after each timestamp (or EARLIEST, LATEST); -1 if there is none.

        LATEST is the last stable offset for read_committed and the high watermark otherwise.
        With ``patient=False`` a failure is raised at once, without retries.
        """
        found: dict[TopicPartition, int] = {}

        def ask_for_the_rest() -> None:
            by_leader: dict[int, dict[str, list[TopicPartition]]] = defaultdict(
                lambda: defaultdict(list)
            )
            for place in wanted:
                if place not in found:
                    leader = self.leader(place.topic, place.partition)
                    by_leader[leader][place.topic].append(place)
            for leader, by_topic in by_leader.items():
                found.update(self._list_offsets_of(leader, by_topic, wanted, read_committed))

        if patient:
            self.persistently(ask_for_the_rest, "asking for offsets")
        else:
            ask_for_the_rest()
        return found

    def is_remote(self, place: TopicPartition, offset: int) -> bool:
        """Whether the leader has moved this offset to remote storage (tiered storage).

        Asks the leader once. False for brokers without tiered storage.
        """
        leader = self.leader(*place)
        version = self.connection(leader).version_of(m.ListOffsetsRequest)
        if version < _EARLIEST_LOCAL_SINCE_VERSION:
            return False
        by_topic = {place.topic: [place]}
        try:
            found = self._list_offsets_of(leader, by_topic, {place: _EARLIEST_LOCAL}, False)
        except Refused as refused:
            if refused.retriable:
                raise
            return False
        return offset < found[place]

    def _list_offsets_of(
        self,
        leader: int,
        by_topic: Mapping[str, Sequence[TopicPartition]],
        wanted: Mapping[TopicPartition, int],
        read_committed: bool,
    ) -> dict[TopicPartition, int]:
        topic_of, partition_of = (
            m.ListOffsetsRequest.ListOffsetsTopic,
            m.ListOffsetsRequest.ListOffsetsPartition,
        )
        request = m.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(read_committed),
            topics=[
                topic_of(
                    name=topic,
                    partitions=[
                        partition_of(
                            partition_index=place.partition,
                            current_leader_epoch=-1,
                            timestamp=wanted[place],
                        )
                        for place in places
                    ],
                )
                for topic, places in by_topic.items()
            ],
            timeout_ms=self.settings.request_timeout_ms,
        )
        response = self.ask(leader, request, m.ListOffsetsResponse)
        found: dict[TopicPartition, int] = {}
        for topic in response.topics:
            for partition in topic.partitions:
                place = TopicPartition(topic.name, partition.partition_index)
                refuse(partition.error_code, f"{place.topic}-{place.partition}")
                found[place] = partition.offset
        return found

    # --- committed offsets ---------------------------------------------------------------

    def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        """All offsets that the group has committed."""

        def attempt() -> dict[TopicPartition, int]:
            request = m.OffsetFetchRequest(
                group_id=group,
                topics=None,
                groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)],
                require_stable=True,
            )
            response = self.ask(
                self.group_coordinator(group),
                request,
                m.OffsetFetchResponse,
                version_max=_GROUP_BY_NAME_VERSION_MAX,
            )
            found = response.groups[0] if response.groups else response
            refuse(found.error_code, f"group {group!r}")
            return {
                TopicPartition(topic.name, partition.partition_index): partition.committed_offset
                for topic in found.topics
                for partition in topic.partitions
            }

        return self.persistently(attempt, f"asking for the offsets of group {group!r}")


_shared: dict[tuple[int, ClientSettings], Cluster] = {}


def shared_cluster(settings: ClientSettings) -> Cluster:
    """The client of this process for these settings.

    Spark keeps Python workers between tasks, so a stream's next batch reuses the connections of
    the last one. The process ID is part of the key because Spark forks workers.
    """
    key = (os.getpid(), settings)
    found = _shared.get(key)
    if found is None:
        found = _shared[key] = Cluster(settings)
    return found
