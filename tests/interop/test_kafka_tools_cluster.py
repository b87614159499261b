"""Kafka's own programs, of the last 3.x and the newest 4.x, on a cluster of three brokers."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench import apache_kafka
from headrace.testing import Cluster
from tests.fakes.waiting import wait_until

from . import records
from .test_kafka_tools import MOVED, VERSIONS

pytestmark = pytest.mark.usefixtures("kafka_jars")

TOPIC = "orders"
LIMIT_S = 60
Tool = Callable[..., str]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    settings = {"auto.leader.rebalance.enable": False, "zookeeper.session.timeout.ms": 3000}
    topics = {TOPIC: {"partitions": 3, "min.insync.replicas": 1}}
    with Cluster(process=True, data=tmp_path / "cluster", topics=topics, config=settings) as made:
        yield made


@pytest.fixture(params=VERSIONS)
def tool(request: pytest.FixtureRequest, cluster: Cluster) -> Tool:
    kafka_version: str = request.param

    def run(program: str, *arguments: str) -> str:
        default = (f"org.apache.kafka.tools.{program}",) * 2
        main_class = MOVED.get(program, default)[VERSIONS.index(kafka_version)]
        done = apache_kafka.tool(
            main_class,
            *("--bootstrap-server", cluster.bootstrap_servers),
            *arguments,
            kafka_version=kafka_version,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{program} {arguments}: {said}"
        return said

    return run


def leaders(cluster: Cluster) -> list[int]:
    return [cluster.leader_of(TOPIC, partition) for partition in range(3)]


def test_kafka_topics_and_leader_election_after_a_restart(cluster: Cluster, tool: Tool) -> None:
    assert sorted(leaders(cluster)) == [0, 1, 2]
    moved = leaders(cluster).index(0)
    cluster.kill(0)
    wait_until(lambda: cluster.leader_of(TOPIC, moved) != 0, LIMIT_S)
    shown = tool("TopicCommand", "--describe", "--under-replicated-partitions")
    assert len(re.findall(rf"Topic: {TOPIC}\s", shown)) == 3, shown
    cluster.restart(0)
    cluster.wait_in_sync(TOPIC)
    assert 0 not in leaders(cluster)
    one = ("--topic", TOPIC, "--partition", str(moved))
    shown = tool("LeaderElectionCommand", "--election-type", "preferred", *one)
    assert f"Successfully completed leader election (PREFERRED) for partitions {TOPIC}-{moved}" in (
        shown
    )
    assert sorted(leaders(cluster)) == [0, 1, 2]
    again = tool("LeaderElectionCommand", "--election-type", "preferred", *one)
    assert "Valid replica already elected" in again
    tool("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    described = tool("TopicCommand", "--describe", "--topic", TOPIC)
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 3", described), described


def test_kafka_tools_ask_all_brokers(cluster: Cluster, tool: Tool, tmp_path: Path) -> None:
    cluster.produce(TOPIC, [(f"k{n}", f"{n}") for n in range(300)])
    cluster.wait_in_sync(TOPIC)
    shown = tool("BrokerApiVersionsCommand")
    for broker_id in range(3):
        assert re.search(rf"\(id: {broker_id} rack: null.*\) -> \(", shown), shown

    shown = tool("GetOffsetShell", "--topic", TOPIC)
    ends = {int(p): int(end) for p, end in re.findall(rf"{TOPIC}:(\d):(\d+)", shown)}
    assert sum(ends.values()) == 300

    shown = tool("LogDirsCommand", "--describe", "--topic-list", TOPIC)
    answer = json.loads(shown[shown.index('{"') :].splitlines()[0])
    for broker in answer["brokers"]:
        (directory,) = broker["logDirs"]
        assert {entry["partition"] for entry in directory["partitions"]} == {
            f"{TOPIC}-{n}" for n in range(3)
        }
        assert all(entry["offsetLag"] == 0 for entry in directory["partitions"])

    file = tmp_path / "offsets.json"
    wanted = [{"topic": TOPIC, "partition": n, "offset": 10} for n in range(3)]
    file.write_text(json.dumps({"partitions": wanted, "version": 1}))
    shown = tool("DeleteRecordsCommand", "--offset-json-file", str(file))
    assert shown.count("low_watermark: 10") == 3, shown
    seen = records.read(cluster.bootstrap_servers, TOPIC, partitions=3)
    assert len(seen) == 270 and min(record.offset for record in seen) == 10


def test_kafka_configs_changes_topics_and_brokers(cluster: Cluster, tool: Tool) -> None:
    of_topic = ("--entity-type", "topics", "--entity-name", TOPIC)
    tool("ConfigCommand", *of_topic, "--alter", "--add-config", "retention.ms=1234567")
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=1234567" in tool(
        "ConfigCommand", *of_topic, "--describe"
    )
    for broker_id in ("0", "2"):
        of_broker = ("--entity-type", "brokers", "--entity-name", broker_id)
        change = f"log.cleaner.backoff.ms=1{broker_id}000"
        tool("ConfigCommand", *of_broker, "--alter", "--add-config", change)
        assert change in tool("ConfigCommand", *of_broker, "--describe")
    of_all = ("--entity-type", "brokers", "--entity-default")
    tool("ConfigCommand", *of_all, "--alter", "--add-config", "log.retention.ms=7654321")
    assert "log.retention.ms=7654321" in tool("ConfigCommand", *of_all, "--describe")


def test_kafka_reassign_partitions_moves_replicas_between_brokers(
    cluster: Cluster, tool: Tool, tmp_path: Path
) -> None:
    cluster.produce(TOPIC, [f"{n}" for n in range(100)])
    program = "reassign.ReassignPartitionsCommand"
    wanted = tmp_path / "topics.json"
    wanted.write_text(json.dumps({"version": 1, "topics": [{"topic": TOPIC}]}))
    generate = ("--topics-to-move-json-file", str(wanted), "--broker-list", "0,1", "--generate")
    # Three replicas do not fit on two brokers, which Kafka's program finds out itself.
    refused = pytest.raises(AssertionError, tool, program, *generate)
    assert "replication factor" in str(refused.value).lower()

    targets = {0: [1], 1: [2, 0], 2: [0, 1, 2]}
    plan = tmp_path / "plan.json"
    moves = [{"topic": TOPIC, "partition": n, "replicas": r} for n, r in targets.items()]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    file = ("--reassignment-json-file", str(plan))
    shown = tool(program, *file, "--execute", "--throttle", "50000000")
    assert "Successfully started partition reassignments" in shown, shown

    def is_complete() -> bool:
        return "is still in progress" not in tool(
            program, *file, "--verify", "--preserve-throttles"
        )

    wait_until(is_complete, LIMIT_S)
    shown = tool(program, *file, "--verify")
    assert shown.count("is completed") == 3, shown
    assert "Clearing topic-level throttles" in shown
    assert "No partition reassignments found" in tool(program, "--list")
    described = tool("TopicCommand", "--describe", "--topic", TOPIC)
    for partition, replicas in targets.items():
        listed = ",".join(map(str, replicas))
        assert re.search(rf"Partition: {partition}\s.*Replicas: {listed}\s", described), described
    assert len(records.read(cluster.bootstrap_servers, TOPIC, partitions=3)) == 100


@pytest.mark.parametrize("kafka_version", VERSIONS)
def test_kafka_replica_verification_finds_no_difference(
    cluster: Cluster, kafka_version: str
) -> None:
    cluster.produce(TOPIC, [f"{n}" for n in range(300)])
    cluster.wait_in_sync(TOPIC)
    command = apache_kafka.tool_command(
        "org.apache.kafka.tools.ReplicaVerificationTool",
        *("--broker-list", cluster.bootstrap_servers),
        *("--topics-include", TOPIC, "--time", "-2", "--report-interval-ms", "500"),
        kafka_version=kafka_version,
    )
    reports = re.compile(r"max lag is (\d+) for partition")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as p:
        assert p.stdout is not None
        try:
            said = [line for line, _ in zip(p.stdout, range(6), strict=False)]
        finally:
            p.kill()
    found = [match[1] for line in said if (match := reports.search(line))]
    assert found and found[-1] == "0", said
