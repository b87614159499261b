"""Apache Kafka, downloaded with Maven: a node to compare with, and its tools.

The jars are in ``.cache/apache-kafka/VERSION`` of the project. Nodes listen on 127.0.0.1 only, with
the heap and collector settings of Kafka's start script.
"""

import base64
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench import maven
from bench.node import Node

NEWEST = "4.3.1"
LAST_WITH_ZOOKEEPER = "3.9.1"

CACHE = Path(__file__).parent.parent / ".cache" / "apache-kafka"

_SERVER_JVM = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
# A tool runs for seconds: the optimizing compiler would cost more than it gains.
_TOOL_JVM = ("-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")

# Sixteen bytes, as Kafka encodes IDs: the cluster ID of every directory that we format.
_CLUSTER_ID = base64.urlsafe_b64encode(b"headrace-bench-1").rstrip(b"=").decode()


class KafkaMissing(Exception):
    """Apache Kafka is not available; the message says what is missing."""


def missing() -> str | None:
    """Why Apache Kafka cannot run here, or None."""
    absent = [name for name in ("java", "mvn") if shutil.which(name) is None]
    return f"needs {' and '.join(absent)} on the PATH" if absent else None


def jars(kafka_version: str = NEWEST) -> Path:
    """The directory with Kafka's jars and their dependencies, downloaded once."""
    directory = CACHE / kafka_version
    if directory.exists():
        return directory
    if reason := missing():
        raise KafkaMissing(reason)
    names = ("org.apache.kafka:kafka_2.13", "org.apache.kafka:kafka-tools")
    artifacts = {**dict.fromkeys(names, kafka_version), "org.slf4j:slf4j-nop": "1.7.36"}
    # 3.9 brings its own logger, which would warn about the silent one at every start.
    maven.fetch(directory, artifacts, without="org.slf4j:slf4j-reload4j")
    return directory


def tool_command(main_class: str, *arguments: str, kafka_version: str = NEWEST) -> list[str]:
    """The command line of one of Kafka's programs, for callers that run it in the background."""
    return ["java", *_TOOL_JVM, "-cp", f"{jars(kafka_version)}/*", main_class, *arguments]


def tool(
    main_class: str,
    *arguments: str,
    kafka_version: str = NEWEST,
    stdin: str | None = None,
    limit_s: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's command line programs, as its script would, and wait for its end."""
    line = tool_command(main_class, *arguments, kafka_version=kafka_version)
    return subprocess.run(line, input=stdin or "", capture_output=True, text=True, timeout=limit_s)


class KafkaNode(Node):
    """One Kafka 4 process, broker and controller in one, with a data directory."""

    name = f"Apache Kafka {NEWEST}"

    def __init__(
        self, data: Path, *, settings: Mapping[str, str] | None = None, log: Path | None = None
    ) -> None:
        super().__init__(data, settings=settings, log=log)
        self.controller_port = self.free_port()
        jars()

    def properties(self) -> dict[str, str]:
        """The settings of a single node; those of the caller override them."""
        listeners = f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{self.controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "listeners": listeners,
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        } | self.settings

    def prepare(self) -> None:
        """Write the configuration, and format a new directory, as Kafka requires."""
        self.data.mkdir(parents=True, exist_ok=True)
        file = self.data.with_name(self.data.name + ".properties")
        lines = [f"{name}={value}" for name, value in self.properties().items()]
        file.write_text("\n".join(lines) + "\n")
        if not (self.data / "meta.properties").exists():
            done = tool("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(file))
            if done.returncode != 0:
                raise KafkaMissing(f"Kafka cannot format {self.data}: {done.stdout}{done.stderr}")

    def command(self) -> list[str]:
        file = self.data.with_name(self.data.name + ".properties")
        return ["java", *_SERVER_JVM, "-cp", f"{jars()}/*", "kafka.Kafka", str(file)]
