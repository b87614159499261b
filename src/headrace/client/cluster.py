"""The cluster as a client sees it: leaders, coordinators and the controller, wherever they move.

Every request here may be repeated without harm. A request whose failure may be temporary is sent
again, with growing pauses, until ``api_timeout_ms`` has passed. Requests that must not be repeated
(ending a transaction, producing) belong to their callers.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from headrace.client.blocking import Connection
from headrace.client.errors import ClientError, Disconnected, Refused, error_code
from headrace.client.security import Security
from headrace.model.errors import ConfigError, ErrorCode
from headrace.wire import messages as m
from headrace.wire.schema import Message

_GROUP, _TRANSACTION = 0, 1  # FindCoordinator's key types

_Result = TypeVar("_Result")
_Answer = TypeVar("_Answer", bound=Message)


class ClientSettings(NamedTuple):
    """Where and how to connect; hashable, because clients are shared by their settings."""

    bootstrap_servers: str
    security: Security = Security()
    client_id: str = "headrace"
    request_timeout_ms: int = 30_000
    api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_ms_max: int = 1_000
    metadata_age_ms_max: int = 300_000
    rack: str = ""


class TopicMetadata(NamedTuple):
    topic_id: bytes  # 16 zero bytes from brokers without topic IDs
    leaders: dict[int, int]  # partition -> broker; -1 while there is none
    error: ErrorCode


class Cluster:
    """A client of one cluster, for one thread at a time."""

    def __init__(
        self, settings: ClientSettings, advice: Mapping[ErrorCode, str] | None = None
    ) -> None:
        """``advice`` is what the user can do about an error code; Refused shows it."""
        self.settings = settings
        self.controller_id = -1
        self._advice = advice or {}
        self._addresses = parse_addresses(settings.bootstrap_servers)
        self._nodes: dict[int, tuple[str, int]] = {}
        self._connections: dict[int, Connection] = {}
        self._bootstrap: Connection | None = None
        self._topics: dict[str, tuple[TopicMetadata, float]] = {}  # and when it was received
        self._coordinators: dict[tuple[int, str], int] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        if self._bootstrap is not None:
            self._bootstrap.close()
            self._bootstrap = None

    # --- retries ------------------------------------------------------------------

    def persistently(
        self, attempt: Callable[[], _Result], what: str, *, give_up_on: Iterable[ErrorCode] = ()
    ) -> _Result:
        """Repeat ``attempt`` until it succeeds, fails for good, or the time is over."""
        settings = self.settings
        give_up_at = time.monotonic() + settings.api_timeout_ms / 1000
        pause_ms = settings.retry_backoff_ms
        fatal = frozenset(give_up_on)
        while True:
            try:
                return attempt()
            except Disconnected as failed:
                problem: ClientError = failed
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
            # Random, so that a hundred executors do not retry at the same moment.
            time.sleep(pause_ms * random.uniform(0.8, 1.2) / 1000)
            pause_ms = min(2 * pause_ms, settings.retry_backoff_ms_max)

    def forget(self) -> None:
        """Discard what may be out of date: leaders, coordinators and the controller."""
        self.controller_id = -1
        self._topics.clear()
        self._coordinators.clear()

    def _refuse(self, number: int, what: str) -> None:
        """Raise Refused if the broker's error code is not NONE."""
        if number:
            code = error_code(number)
            raise Refused(code, what, self._advice.get(code, ""))

    # --- connections --------------------------------------------------------------

    def connection(self, broker_id: int) -> Connection:
        """The connection to a broker; opened if there is none."""
        found = self._connections.get(broker_id)
        if found is not None:
            return found
        if broker_id not in self._nodes:
            raise Refused(ErrorCode.BROKER_NOT_AVAILABLE, f"unknown broker {broker_id}")
        found = self._connections[broker_id] = self._connect(*self._nodes[broker_id])
        return found

    def drop(self, broker_id: int) -> None:
        """Close a connection that failed, or whose responses in flight are not wanted."""
        connection = self._connections.pop(broker_id, None)
        if connection is not None:
            connection.close()

    def has_requests_in_flight(self, broker_id: int) -> bool:
        found = self._connections.get(broker_id)
        return found is not None and found.in_flight > 0

    def ask(
        self,
        broker_id: int,
        request: Message,
        kind: type[_Answer],
        *,
        version_max: int | None = None,
        timeout_s: float | None = None,
    ) -> _Answer:
        """Send a request to one broker and wait for its response."""
        try:
            return self.connection(broker_id).request(
                request, kind, version_max=version_max, timeout_s=timeout_s
            )
        except Disconnected:
            self.drop(broker_id)
            raise

    def ask_any(self, request: Message, kind: type[_Answer]) -> _Answer:
        """Send a request that every broker can answer."""
        for broker_id in list(self._connections):
            try:
                return self.ask(broker_id, request, kind)
            except Disconnected:
                continue
        if self._bootstrap is None:
            self._bootstrap = self._connect_to_any()
        try:
            return self._bootstrap.request(request, kind)
        except Disconnected:
            self._bootstrap.close()
            self._bootstrap = None
            raise

    def _connect(self, host: str, port: int) -> Connection:
        settings = self.settings
        return Connection(
            host,
            port,
            client_id=settings.client_id,
            security=settings.security,
            timeout_s=settings.request_timeout_ms / 1000,
        )

    def _connect_to_any(self) -> Connection:
        problems = []
        # Known brokers may still be alive when no bootstrap address is.
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
        """Ask for the metadata of these topics, or of all. A missing topic has its error set.

        ``create`` allows the broker to create the topics (auto.create.topics.enable).
        """
        found = {}
        for topic in self.metadata(names, create=create).topics:
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
        now = time.monotonic()
        self._topics.update((name, (metadata, now)) for name, metadata in found.items())
        return found

    def metadata(
        self, names: Sequence[str] | None = None, *, create: bool = False
    ) -> m.MetadataResponse:
        """As ``topics``, with everything that the broker answers; notes brokers and controller."""
        request = m.MetadataRequest(
            topics=None
            if names is None
            else [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=create,
        )
        response = self.ask_any(request, m.MetadataResponse)
        nodes = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        for broker_id, address in self._nodes.items():
            if nodes.get(broker_id) != address:
                self.drop(broker_id)
        self._nodes = nodes
        self.controller_id = response.controller_id
        return response

    def topic(self, name: str) -> TopicMetadata:
        """The cached metadata of a topic; asked for if it is missing or too old."""
        found, seen_at = self._topics.get(name, (None, 0.0))
        age_ms = (time.monotonic() - seen_at) * 1000
        if found is None or found.error or age_ms > self.settings.metadata_age_ms_max:
            found = self.topics([name]).get(name)
        if found is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r}")
        self._refuse(found.error, f"topic {name!r}")
        return found

    def existing_topic(self, name: str) -> TopicMetadata:
        """As ``topic``, with retries while the brokers are away."""
        return self.persistently(lambda: self.topic(name), f"finding topic {name!r}")

    def leader(self, topic: str, partition: int) -> int:
        leader = self.topic(topic).leaders.get(partition)
        if leader is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition}")
        if leader < 0:
            raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader")
        return leader

    # --- the controller and coordinators ------------------------------------------------

    def ask_controller(
        self,
        request: Message,
        kind: type[_Answer],
        errors: Callable[[_Answer], Iterable[int]],
        what: str,
        *,
        timeout_s: float | None = None,
    ) -> _Answer:
        """Send a request to the controller, and again to the next one after NOT_CONTROLLER.

        ``errors`` returns the error codes of a response; the caller handles all others. The
        request must be repeatable: the old controller may have handled it before it broke down.
        """

        def attempt() -> _Answer:
            if self.controller_id < 0:
                self.metadata([])
            if self.controller_id < 0:
                raise Refused(ErrorCode.BROKER_NOT_AVAILABLE, "the cluster has no controller")
            answer = self.ask(self.controller_id, request, kind, timeout_s=timeout_s)
            if ErrorCode.NOT_CONTROLLER in errors(answer):
                self._refuse(ErrorCode.NOT_CONTROLLER, f"broker {self.controller_id}")
            return answer

        return self.persistently(attempt, what)

    def group_coordinator(self, group: str) -> int:
        return self._coordinator(_GROUP, group)

    def transaction_coordinator(self, transactional_id: str) -> int:
        return self._coordinator(_TRANSACTION, transactional_id)

    def _coordinator(self, key_type: int, key: str) -> int:
        cached = self._coordinators.get((key_type, key))
        if cached is not None:
            return cached
        request = m.FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key])
        response = self.ask_any(request, m.FindCoordinatorResponse)
        # Older versions carry one coordinator in the response itself.
        found = response.coordinators[0] if response.coordinators else response
        self._refuse(found.error_code, f"coordinator of {key!r}")
        self._nodes.setdefault(found.node_id, (found.host, found.port))
        self._coordinators[key_type, key] = found.node_id
        return found.node_id


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """``bootstrap.servers``: host:port, comma-separated, each with an optional protocol://."""
    addresses = []
    for entry in text.split(","):
        entry = entry.strip()
        if not entry:
            continue
        host, colon, port = entry.rpartition(":")
        host = host.rpartition("://")[2].strip("[]")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(f"bootstrap.servers: {entry!r} is not host:port")
        addresses.append((host, int(port)))
    if not addresses:
        raise ConfigError("bootstrap.servers names no broker")
    return addresses
