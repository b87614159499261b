"""The cluster as a client sees it: who leads what, and requests that survive a moved leader.

Everything here may be repeated without harm, so a request that fails in a way that another try
may mend is asked again, with growing pauses, until ``api_timeout_ms`` is over. What must not be
repeated (ending a transaction, producing) lives with its caller.
"""

import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.model.settings.resources import ResourceType
from headrace.spark.connection import Connection
from headrace.spark.failures import (
    BadOption,
    Disconnected,
    PipelineError,
    Refused,
    error_code,
    refuse,
)
from headrace.spark.security import Security
from headrace.wire import messages as m
from headrace.wire.schema import Message

EARLIEST, LATEST = -2, -1  # what ListOffsets takes in place of a timestamp
_EARLIEST_LOCAL = -4
_EARLIEST_LOCAL_SINCE_VERSION = 8
NO_TOPIC_ID = bytes(16)
_NEVER = float("-inf")
_GROUP_BY_NAME_VERSION_MAX = 9
_COORDINATOR_OF_GROUP, _COORDINATOR_OF_TRANSACTION = 0, 1

_Result = TypeVar("_Result")
_Answer = TypeVar("_Answer", bound=Message)


class ClientSettings(NamedTuple):
    """What a client needs to know; hashable, since clients are shared by it."""

    bootstrap_servers: str
    security: Security = Security()
    client_id: str = "headrace-pipeline"
    request_timeout_ms: int = 30_000
    api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_ms_max: int = 1_000
    metadata_age_ms_max: int = 300_000
    rack: str = ""


class TopicMetadata(NamedTuple):
    topic_id: bytes  # 16 zero bytes from brokers that know no ids
    leaders: dict[int, int]  # partition -> broker; -1 while there is none
    error: ErrorCode


class Cluster:
    """A client of one cluster. One thread at a time."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._addresses = _parse_addresses(settings.bootstrap_servers)
        self._nodes: dict[int, tuple[str, int]] = {}
        self._connections: dict[int, Connection] = {}
        self._bootstrap: Connection | None = None
        self._topics: dict[str, TopicMetadata] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._seen_at = _NEVER
        self._controller = -1

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        if self._bootstrap is not None:
            self._bootstrap.close()
            self._bootstrap = None

    # --- asking again -----------------------------------------------------------

    def persistently(
        self, attempt: Callable[[], _Result], what: str, *, give_up_on: Iterable[ErrorCode] = ()
    ) -> _Result:
        """``attempt`` until it succeeds, fails for good, or the time is over."""
        settings = self.settings
        give_up_at = time.monotonic() + settings.api_timeout_ms / 1000
        pause_ms = settings.retry_backoff_ms
        fatal = frozenset(give_up_on)
        while True:
            try:
                return attempt()
            except Disconnected as failed:
                problem: PipelineError = failed
            except Refused as failed:
                if not failed.retriable or failed.code in fatal:
                    raise
                problem = failed
            if time.monotonic() + pause_ms / 1000 > give_up_at:
                raise Disconnected(
                    f"{what} did not succeed within {settings.api_timeout_ms} ms; the last "
                    f"problem was: {problem}"
                ) from problem
            self.forget()
            # Spread, so that a hundred executors do not come back at the same moment.
            time.sleep(pause_ms * random.uniform(0.8, 1.2) / 1000)
            pause_ms = min(2 * pause_ms, settings.retry_backoff_ms_max)

    def forget(self) -> None:
        """Throws away what may have become wrong: leaders and coordinators."""
        self._seen_at = _NEVER
        self._coordinators.clear()

    # --- connections --------------------------------------------------------------

    def connection(self, broker_id: int) -> Connection:
        found = self._connections.get(broker_id)
        if found is not None:
            return found
        if broker_id not in self._nodes:
            raise Refused(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not known")
        found = self._connections[broker_id] = self._connect(*self._nodes[broker_id])
        return found

    def drop(self, broker_id: int) -> None:
        """Closes a connection that failed or has answers under way that nobody wants."""
        connection = self._connections.pop(broker_id, None)
        if connection is not None:
            connection.close()

    def has_answers_under_way(self, broker_id: int) -> bool:
        found = self._connections.get(broker_id)
        return found is not None and found.under_way > 0

    def ask(
        self,
        broker_id: int,
        request: Message,
        kind: type[_Answer],
        *,
        version_max: int | None = None,
        timeout_s: float | None = None,
    ) -> _Answer:
        try:
            return self.connection(broker_id).ask(
                request, kind, version_max=version_max, timeout_s=timeout_s
            )
        except Disconnected:
            self.drop(broker_id)
            raise

    def ask_any(self, request: Message, kind: type[_Answer]) -> _Answer:
        """For requests that every broker answers."""
        for broker_id in list(self._connections):
            try:
                return self.ask(broker_id, request, kind)
            except Disconnected:
                continue
        if self._bootstrap is None:
            self._bootstrap = self._connect_to_any()
        try:
            return self._bootstrap.ask(request, kind)
        except Disconnected:
            self._bootstrap.close()
            self._bootstrap = None
            raise

    def _connect(self, host: str, port: int) -> Connection:
        settings = self.settings
        return Connection(
            host, port, settings.security, settings.client_id, settings.request_timeout_ms / 1000
        )

    def _connect_to_any(self) -> Connection:
        problems = []
        # Brokers seen before may still live when every bootstrap address has moved.
        for host, port in [*self._addresses, *self._nodes.values()]:
            try:
                return self._connect(host, port)
            except Disconnected as failed:
                problems.append(str(failed))
        raise Disconnected("; ".join(dict.fromkeys(problems)))

    # --- metadata -------------------------------------------------------------------

    def topics(
        self, names: Sequence[str] | None = None, *, create: bool = False
    ) -> dict[str, TopicMetadata]:
        """A fresh metadata of these topics, or of all. One that is missing carries its error.

        With ``create`` a broker that makes topics by itself may do so, as for any producer.
        """
        request = m.MetadataRequest(
            topics=None
            if names is None
            else [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=create,
        )
        answer = self.ask_any(request, m.MetadataResponse)
        nodes = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        for broker_id, address in self._nodes.items():
            if nodes.get(broker_id) != address:
                self.drop(broker_id)
        self._nodes = nodes
        found = {}
        for topic in answer.topics:
            if topic.name is None or (names is None and topic.is_internal):
                continue
            found[topic.name] = TopicMetadata(
                topic.topic_id,
                {
                    partition.partition_index: partition.leader_id
                    for partition in sorted(topic.partitions, key=lambda p: p.partition_index)
                },
                error_code(topic.error_code),
            )
        self._topics.update(found)
        self._controller = answer.controller_id
        self._seen_at = time.monotonic()
        return found

    def topic(self, name: str) -> TopicMetadata:
        """The topic as last seen; asked for if it is unknown or the metadata is too old."""
        age_ms = (time.monotonic() - self._seen_at) * 1000
        found = self._topics.get(name)
        if found is None or found.error or age_ms > self.settings.metadata_age_ms_max:
            found = self.topics([name]).get(name)
        if found is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r}")
        refuse(found.error, f"topic {name!r}")
        return found

    def existing_topic(self, name: str) -> TopicMetadata:
        """The same for who cannot ask again: waits for brokers that are away."""
        return self.persistently(lambda: self.topic(name), f"finding topic {name!r}")

    def leader(self, topic: str, partition: int) -> int:
        leader = self.topic(topic).leaders.get(partition)
        if leader is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition}")
        if leader < 0:
            raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader")
        return leader

    def create_topic(
        self, name: str, partition_count: int, configs: Mapping[str, str], *, option: str = ""
    ) -> None:
        """Makes the topic unless it is there, with the cluster's own replication factor.

        ``option`` is the one that names the topic, for whoever is told that it cannot be made.
        """
        what = f"finding or making topic {name!r}" + (f" (option {option})" if option else "")
        config_of = m.CreateTopicsRequest.CreatableTopicConfig
        request = m.CreateTopicsRequest(
            topics=[
                m.CreateTopicsRequest.CreatableTopic(
                    name=name,
                    num_partitions=partition_count,
                    replication_factor=-1,
                    configs=[config_of(name=key, value=value) for key, value in configs.items()],
                )
            ],
            timeout_ms=self.settings.request_timeout_ms,
        )

        def attempt() -> None:
            known = self.topics([name])[name]
            if not known.error and known.leaders and min(known.leaders.values()) >= 0:
                return
            if known.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                refuse(known.error, what)  # made or not, we could never see it
            answer = self.ask(self._controller, request, m.CreateTopicsResponse)
            told = answer.topics[0]
            if told.error_code not in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                refuse(told.error_code, f"{what}: {told.error_message or 'refused'}")
            refuse(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name!r} is being made")

        self.persistently(attempt, what)

    def topic_setting(self, names: Sequence[str], setting: str) -> dict[str, str]:
        """One setting of these topics; those that we may not ask about are left out."""
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
        answer = self.persistently(
            lambda: self.ask_any(request, m.DescribeConfigsResponse), "asking for settings"
        )
        return {
            result.resource_name: entry.value
            for result in answer.results
            if not result.error_code
            for entry in result.configs
            if entry.name == setting and entry.value is not None
        }

    # --- offsets ----------------------------------------------------------------------

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool, patient: bool = True
    ) -> dict[TopicPartition, int]:
        """Timestamps (or EARLIEST, LATEST) to offsets; -1 where no record is that young.

        LATEST is the last stable offset for read_committed and the high watermark otherwise.
        Who is not ``patient`` wants to know of a failure at once.
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

        Asked of the leader once; False from brokers that know no such thing.
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
        answer = self.ask(leader, request, m.ListOffsetsResponse)
        found: dict[TopicPartition, int] = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                place = TopicPartition(topic.name, partition.partition_index)
                refuse(partition.error_code, f"{place.topic}-{place.partition}")
                found[place] = partition.offset
        return found

    # --- coordinators -------------------------------------------------------------------

    def group_coordinator(self, group: str) -> int:
        return self._coordinator(_COORDINATOR_OF_GROUP, group)

    def transaction_coordinator(self, transactional_id: str) -> int:
        return self._coordinator(_COORDINATOR_OF_TRANSACTION, transactional_id)

    def _coordinator(self, kind: int, key: str) -> int:
        found = self._coordinators.get((kind, key))
        if found is not None:
            return found
        request = m.FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
        answer = self.ask_any(request, m.FindCoordinatorResponse)
        if answer.coordinators:
            told = answer.coordinators[0]
            refuse(told.error_code, f"the coordinator of {key!r}")
            node, host, port = told.node_id, told.host, told.port
        else:
            refuse(answer.error_code, f"the coordinator of {key!r}")
            node, host, port = answer.node_id, answer.host, answer.port
        self._nodes.setdefault(node, (host, port))
        self._coordinators[kind, key] = node
        return node

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits without being a member, as tools do; refused while the group has members."""
        by_topic: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for place, offset in offsets.items():
            by_topic[place.topic].append((place.partition, offset))
        topic_of, partition_of = (
            m.OffsetCommitRequest.OffsetCommitRequestTopic,
            m.OffsetCommitRequest.OffsetCommitRequestPartition,
        )
        request = m.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            topics=[
                topic_of(
                    name=topic,
                    partitions=[
                        partition_of(partition_index=partition, committed_offset=offset)
                        for partition, offset in places
                    ],
                )
                for topic, places in by_topic.items()
            ],
        )
        answer = self.ask(
            self.group_coordinator(group),
            request,
            m.OffsetCommitResponse,
            version_max=_GROUP_BY_NAME_VERSION_MAX,
        )
        for topic in answer.topics:
            for partition in topic.partitions:
                refuse(
                    partition.error_code,
                    f"group {group!r} on {topic.name}-{partition.partition_index}",
                )

    def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        """What the group has committed, on every partition that it ever committed on."""

        def attempt() -> dict[TopicPartition, int]:
            request = m.OffsetFetchRequest(
                group_id=group,
                topics=None,
                groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)],
                require_stable=True,
            )
            answer = self.ask(
                self.group_coordinator(group),
                request,
                m.OffsetFetchResponse,
                version_max=_GROUP_BY_NAME_VERSION_MAX,
            )
            told = answer.groups[0] if answer.groups else answer
            refuse(told.error_code, f"group {group!r}")
            return {
                TopicPartition(topic.name, partition.partition_index): partition.committed_offset
                for topic in told.topics
                for partition in topic.partitions
            }

        return self.persistently(attempt, f"asking for the offsets of group {group!r}")


def _parse_addresses(text: str) -> list[tuple[str, int]]:
    addresses = []
    for entry in text.split(","):
        entry = entry.strip()
        if not entry:
            continue
        host, colon, port = entry.rpartition(":")
        host = host.rpartition("://")[2].strip("[]")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise BadOption(f"kafka.bootstrap.servers: {entry!r} is no host:port")
        addresses.append((host, int(port)))
    if not addresses:
        raise BadOption("kafka.bootstrap.servers names no broker")
    return addresses


_shared: dict[tuple[int, ClientSettings], Cluster] = {}


def shared_cluster(settings: ClientSettings) -> Cluster:
    """The client of this process for these settings.

    Spark keeps Python workers between tasks, so a stream's next batch finds the connections
    of the last one. The process id is part of the key because workers are forked.
    """
    key = (os.getpid(), settings)
    found = _shared.get(key)
    if found is None:
        found = _shared[key] = Cluster(settings)
    return found
