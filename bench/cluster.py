"""Clusters of three brokers to measure: Headrace's ``up``, and Apache Kafka with its own quorum."""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench import process_tree
from bench.apache_kafka import KafkaNode
from bench.node import HeadraceNode, Node, NodeFailed

BROKERS = 3
IDS = range(1, BROKERS + 1)
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


class HeadraceCluster(HeadraceNode):
    """``headrace up``: three brokers and a ZooKeeper, as one process tree."""

    name = "Headrace, 3 brokers"

    def __init__(
        self, data: Path, *, settings: Mapping[str, str] | None = None, log: Path | None = None
    ) -> None:
        super().__init__(data, settings=SETTINGS | dict(settings or {}), log=log)
        self.ready = data.with_name(data.name + ".ready")

    def command(self) -> list[str]:
        line = super().command()
        line[line.index("serve") :] = ["up", "--brokers", str(BROKERS), "--data", str(self.data)]
        line += ["--port", self.address.rpartition(":")[2], "--ready-file", str(self.ready)]
        for setting, value in self.settings.items():
            line += ["-X", f"{setting}={value}"]
        return line

    def prepare(self) -> None:
        super().prepare()
        self.ready.unlink(missing_ok=True)

    def _answers(self) -> bool:
        return self.ready.exists()

    @property
    def zookeeper(self) -> str:
        """The address of its ZooKeeper."""
        lines = self._settings_file(IDS[0]).read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)["zookeeper.connect"]

    def _settings_file(self, broker_id: int) -> Path:
        return self.data / f"server-{broker_id}.properties"

    def broker_pid(self, broker_id: int) -> int:
        """The process of one broker: the one with its settings file."""
        settings = str(self._settings_file(broker_id))
        for pid in process_tree.members(self.pid):
            with contextlib.suppress(OSError):  # it has just ended
                if settings in Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0"):
                    return pid
        raise NodeFailed(f"{self.name} has no broker {broker_id}")

    def brokers_mb(self) -> float:
        """Resident memory of the brokers, without ``up`` and ZooKeeper."""
        return sum(process_tree.resident_mb(self.broker_pid(each)) for each in IDS)


class _Member(KafkaNode):
    """One of three Kafka processes, each broker and controller."""

    def __init__(self, data: Path, node_id: int, settings: Mapping[str, str]) -> None:
        super().__init__(data, settings=settings)
        self.node_id = node_id
        self.voters = ""

    def properties(self) -> dict[str, str]:
        own = {"node.id": str(self.node_id), "controller.quorum.voters": self.voters}
        return super().properties() | own | self.settings


class KafkaCluster(Node):
    """Three Kafka 4 processes."""

    name = "Apache Kafka, 3 brokers"

    def __init__(
        self, data: Path, *, settings: Mapping[str, str] | None = None, log: Path | None = None
    ) -> None:
        super().__init__(data, settings=SETTINGS | dict(settings or {}), log=log)
        self.members = [_Member(data / f"broker-{each}", each, self.settings) for each in IDS]
        voters = ",".join(f"{m.node_id}@127.0.0.1:{m.controller_port}" for m in self.members)
        for member in self.members:
            member.voters = voters
        self.address = self.members[0].address

    def command(self) -> list[str]:
        return []  # its members have commands

    def start(self, limit_s: float = 60) -> float:
        for member in self.members:
            member.prepare()
        self._started_at = time.perf_counter()
        for member in self.members:
            member.launch()
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": "2"})
        while True:
            try:
                if len(admin.list_topics(timeout=1).brokers) == BROKERS:
                    return self.seconds_since_start()
            except KafkaException as refusal:
                if self.seconds_since_start() > limit_s:
                    raise NodeFailed(f"{self.name} does not answer: {refusal}") from refusal

    @property
    def running(self) -> bool:
        return any(member.running for member in self.members)

    def stop(self, limit_s: float = 60) -> float:
        start = time.perf_counter()
        for member in self.members:
            member.terminate()
        for member in self.members:
            member.stop(limit_s)
        return time.perf_counter() - start

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    def cpu_seconds(self) -> float:
        return sum(member.cpu_seconds() for member in self.members if member.running)

    def resident_mb(self) -> float:
        return sum(member.resident_mb() for member in self.members if member.running)

    def broker_pid(self, broker_id: int) -> int:
        return self.members[broker_id - 1].pid

    def brokers_mb(self) -> float:
        return self.resident_mb()
