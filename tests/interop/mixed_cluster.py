"""Clusters of Headrace and Apache Kafka 3.9 on one ZooKeeper, with the test kit's calls and faults.

A broker of either kind has its data in ``broker-N`` of the cluster's directory, and may be replaced
by one of the other kind on the same data.
"""

import os
import random
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic
from kazoo.exceptions import NoNodeError

from bench import apache_kafka
from headrace.client.blocking import Connection
from headrace.client.errors import Disconnected
from headrace.coordination import paths
from headrace.launch import java
from headrace.launch.brokers import write_properties
from headrace.launch.child import Child
from headrace.model.errors import ErrorCode
from headrace.model.ids import BrokerId
from headrace.testing import Cluster
from headrace.testing.environments import Environment, Processes
from headrace.testing.members import Member
from headrace.testing.network_faults import Impairment
from headrace.testing.runners import BrokerFailed
from headrace.wire import messages as m
from headrace.wire.session import API_VERSIONS_VERSION
from tests.fakes.waiting import wait_until


class Kind(Enum):
    HEADRACE = "Headrace"
    KAFKA = "Apache Kafka"


# Two brokers of one kind and one of the other.
MIXTURES = {
    "two of Kafka": (Kind.KAFKA, Kind.KAFKA, Kind.HEADRACE),
    "two of Headrace": (Kind.KAFKA, Kind.HEADRACE, Kind.HEADRACE),
}

# Three brokers of Kafka must fit beside everything else on a small machine.
KAFKA_JVM = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
)
SMALL_KAFKA = {
    "num.network.threads": "2",
    "num.io.threads": "3",
    "background.threads": "2",
    "num.recovery.threads.per.data.dir": "1",
    "log.cleaner.dedupe.buffer.size": str(4 << 20),
}
# A busy machine stops a JVM longer than the test kit's second.
SETTINGS = {
    "zookeeper.session.timeout.ms": "6000",
    "zookeeper.connection.timeout.ms": "60000",
    "replica.lag.time.max.ms": "4000",
    "auto.leader.rebalance.enable": "false",
}
_START_S = 90
_STOP_S = 60
_EXPIRY_S = 60
_ELECTIONS = 30
_ELECTION_S = 60
_PORTS = range(20_000, 32_000)  # below the ports that Linux uses for outgoing connections
_CLIENT_ID = "mixed-cluster"

NO_CONFIG: Mapping[str, str] = {}


def lasting_port() -> int:
    """A free port that no outgoing connection takes while its broker is restarted."""
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"no free port in {_PORTS}")


class KafkaMember:
    """One run of an Apache Kafka 3.9 broker. Kafka has no faults between brokers to switch on."""

    def __init__(self, settings: Mapping[str, str], data: Path) -> None:
        self.host = "127.0.0.1"
        self.port = int(settings["listeners"].rpartition(":")[2]) or lasting_port()
        self._settings = dict(settings) | SMALL_KAFKA
        self._settings["listeners"] = f"PLAINTEXT://{self.host}:{self.port}"
        self._data = data
        self._child: Child | None = None

    @property
    def child(self) -> Child:
        assert self._child is not None, "not started"
        return self._child

    def begin(self) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        properties = self._data.with_name(f"{self._data.name}.properties")
        write_properties(properties, self._settings)
        jars = apache_kafka.jars(apache_kafka.LAST_WITH_ZOOKEEPER)
        command = [
            str(java.find_java()),
            *KAFKA_JVM,
            "-cp",
            f"{jars}/*",
            "kafka.Kafka",
            str(properties),
        ]
        log = self._data.with_name(f"{self._data.name}.out")
        self._child = Child(["nice", "-n", "5", *command], log)

    def wait_started(self) -> None:
        def is_up() -> bool:
            if self.child.exit_status is not None:
                raise BrokerFailed(f"Kafka ended at start:\n{self.child.last_lines()}")
            return answers(self.host, self.port)

        try:
            wait_until(is_up, _START_S)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        self.child.ask_to_end()
        status = self.child.wait(_STOP_S)
        self.child.kill()
        # Java reports the signal that ended it, after a clean shutdown too.
        if status not in (0, 128 + signal.SIGTERM):
            raise BrokerFailed(f"Kafka ended with status {status}:\n{self.child.last_lines()}")

    def kill(self) -> None:
        self.child.kill()

    def pause(self) -> None:
        os.kill(self.child.process_id, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.child.process_id, signal.SIGCONT)

    def impair(self, impairments: Mapping[int, Impairment]) -> None:
        if any(impairments.values()):
            raise NotImplementedError("Kafka's connections cannot be cut or slowed")

    def fill_disk(self) -> None:
        raise NotImplementedError("Kafka's disk cannot be filled")

    def free_disk(self) -> None:
        raise NotImplementedError("Kafka's disk cannot be filled")

    def fail(self, api_key: int, code: ErrorCode, times: int | None) -> None:
        raise NotImplementedError("Kafka cannot be told to fail")

    def delay(self, api_key: int, seconds: float) -> None:
        raise NotImplementedError("Kafka cannot be delayed")


def answers(host: str, port: int) -> bool:
    try:
        with Connection(host, port, client_id=_CLIENT_ID, versions={}) as connection:
            request = m.ApiVersionsRequest()
            connection.request(request, m.ApiVersionsResponse, api_version=API_VERSIONS_VERSION)
    except Disconnected:
        return False
    return True


def metadata(host: str, port: int) -> m.MetadataResponse:
    """What a broker knows of the cluster, without topics."""
    with Connection(host, port, client_id=_CLIENT_ID, versions={}) as connection:
        request = m.MetadataRequest(topics=[])
        return connection.request(request, m.MetadataResponse, api_version=12)


class _BothKinds(Processes):
    """Brokers of both kinds in child processes."""

    def __init__(self, data: Path, kinds: Sequence[Kind]) -> None:
        super().__init__(data)
        self.kinds = list(kinds)
        # Headrace waits for them: a new cluster gets the feature levels that all brokers support.
        self._first_starts: list[int] = []

    def member(
        self,
        broker_id: int,
        settings: Mapping[str, str],
        impairments: Mapping[int, Impairment],
        data: Path,
    ) -> Member:
        if self.kinds[broker_id] is Kind.HEADRACE:
            for other in set(self._first_starts) - {broker_id}:
                wait_until(lambda n=other: self._is_registered(n), _START_S)
            self._first_starts = []
            return super().member(broker_id, settings, impairments, data)
        # Kafka ends if the node of its predecessor is still there.
        wait_until(lambda: not self._is_registered(broker_id), _EXPIRY_S)
        if not data.exists():
            self._first_starts.append(broker_id)
        return KafkaMember({"zookeeper.connect": self.connect_of(broker_id), **settings}, data)

    def end_term(self) -> None:
        """Delete the node of the controller, and wait for the next one."""
        epoch = self.read(paths.CONTROLLER_EPOCH)
        with suppress(NoNodeError):
            self._zookeeper().delete(paths.CONTROLLER)
        wait_until(
            lambda: self.read(paths.CONTROLLER_EPOCH) != epoch and self.read(paths.CONTROLLER)
        )

    def _is_registered(self, broker_id: int) -> bool:
        return self.read(paths.broker(BrokerId(broker_id))) is not None


class MixedCluster(Cluster):
    """One broker of each kind in ``kinds``, as processes; the first has id 0."""

    def __init__(
        self, kinds: Sequence[Kind], data: Path, *, config: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(len(kinds), process=True, data=data, config=SETTINGS | dict(config or {}))
        self._kinds = kinds
        self._both: _BothKinds | None = None

    def _environment(self, data: Path) -> Environment:
        self._both = _BothKinds(data / "zookeeper", self._kinds)
        return self._both

    @property
    def _of_both(self) -> _BothKinds:
        assert self._both is not None, "not started"
        return self._both

    def kind(self, broker_id: int) -> Kind:
        return self._of_both.kinds[broker_id]

    def ids(self, kind: Kind) -> list[int]:
        """The brokers of one kind."""
        return [number for number, each in enumerate(self._of_both.kinds) if each is kind]

    def replace(self, broker_id: int, kind: Kind) -> None:
        """Stop a broker and start one of this kind, with the same id, address and data."""
        slot = self._brokers.slot(broker_id)
        self._brokers.stop([slot])
        self._of_both.kinds[broker_id] = kind
        self._brokers.start([slot])

    def read(self, path: str) -> bytes | None:
        """The value of a node of the coordination tree."""
        return self._of_both.read(path)

    def make_controller(self, kind: Kind) -> int:
        """Delete the controller's node, as operators do, until a broker of this kind has it."""
        for _ in range(_ELECTIONS):
            if self.kind(controller := self.controller_id()) is kind:
                # Stock admin clients do not retry NOT_CONTROLLER.
                wait_until(lambda n=controller: self._all_know_controller(n))
                return controller
            self._of_both.end_term()
        raise AssertionError(f"no {kind.value} broker was elected in {_ELECTIONS} elections")

    def _all_know_controller(self, controller: int) -> bool:
        known = set()
        for broker in self.brokers:
            host, _, port = broker.bootstrap_servers.rpartition(":")
            known.add(metadata(host, int(port)).controller_id)
        return known == {controller}

    def elect_preferred_leaders(self, places: Sequence[tuple[str, int]]) -> None:
        """Let the first replica of each partition lead it, which is in sync."""
        wanted = [TopicPartition(*place) for place in places]

        def lead() -> bool:
            admin = self._admin()  # its answers end with it
            try:
                found = admin.elect_leaders(ElectionType.PREFERRED, wanted).result(30)
            except KafkaException:  # the controller has just changed
                return False
            errors = [error for error in found.values() if error is not None]
            return all(error.code() == KafkaError.ELECTION_NOT_NEEDED for error in errors)

        wait_until(lead, _ELECTION_S)

    def leader_kind(self, topic: str, partition: int = 0) -> Kind:
        return self.kind(self.leader_of(topic, partition))

    def create(
        self, topic: str, first: Kind, *, partitions: int = 1, config: Mapping[str, str] = NO_CONFIG
    ) -> None:
        """A topic with all replicas, led by one kind, and by the other kind if that one stops."""
        other = next(kind for kind in Kind if kind is not first)
        leader, *rest = self.ids(first)
        next_leader, *others = self.ids(other)
        assignment = [[leader, next_leader, *rest, *others]] * partitions
        new = NewTopic(topic, partitions, replica_assignment=assignment, config=dict(config))
        admin = self._admin()  # its answers end with it
        admin.create_topics([new])[topic].result()
        for partition in range(partitions):
            assert self.leader_kind(topic, partition) is first

    def address(self, broker_id: int) -> str:
        return self.brokers[broker_id].bootstrap_servers

    def log_bytes(self, broker_id: int, topic: str, partition: int = 0) -> bytes:
        """What a replica has on disk."""
        directory = self.brokers[broker_id].data / f"{topic}-{partition}"
        return b"".join(file.read_bytes() for file in sorted(directory.glob("*.log")))

    def wait_level(self, topic: str, partition: int = 0) -> None:
        """Wait until all replicas have the same bytes."""
        self.wait_in_sync(topic)
        ids = [broker.broker_id for broker in self.brokers]
        wait_until(lambda: len({self.log_bytes(each, topic, partition) for each in ids}) == 1)
