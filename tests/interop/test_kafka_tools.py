"""Kafka's own command line programs, of the last 3.x and the newest 4.x, unchanged."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import apache_kafka, topics
from bench.node import Node
from tests.fakes.waiting import wait_until

from . import directories, records

pytestmark = pytest.mark.usefixtures("kafka_jars")

VERSIONS = (apache_kafka.LAST_WITH_ZOOKEEPER, apache_kafka.NEWEST)

# Programs that moved to another package between these versions.
MOVED = {
    "ConsoleProducer": ("kafka.tools.ConsoleProducer", "org.apache.kafka.tools.ConsoleProducer"),
    "BrokerApiVersionsCommand": (
        "kafka.admin.BrokerApiVersionsCommand",
        "org.apache.kafka.tools.BrokerApiVersionsCommand",
    ),
    "ConfigCommand": ("kafka.admin.ConfigCommand", "kafka.admin.ConfigCommand"),
    "ConsoleConsumer": ("org.apache.kafka.tools.consumer.ConsoleConsumer",) * 2,
}

# Runs a program against the node and returns its output.
Tool = Callable[..., str]


@pytest.fixture(params=VERSIONS)
def tool(request: pytest.FixtureRequest, headrace_node: Node) -> Tool:
    kafka_version: str = request.param

    def run(program: str, *arguments: str, stdin: str | None = None, fails: bool = False) -> str:
        default = (f"org.apache.kafka.tools.{program}",) * 2
        main_class = MOVED.get(program, default)[VERSIONS.index(kafka_version)]
        done = apache_kafka.tool(
            main_class,
            *("--bootstrap-server", headrace_node.address),
            *arguments,
            kafka_version=kafka_version,
            stdin=stdin,
        )
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, f"{program} {arguments}: {said}"
        return said

    return run


def test_kafka_topics_creates_lists_describes_alters_and_deletes(
    tool: Tool, headrace_node: Node
) -> None:
    create = ("--create", "--topic", "orders", "--partitions", "3", "--replication-factor", "1")
    assert "Created topic orders" in tool(
        "TopicCommand", *create, "--config", "retention.ms=7000000"
    )
    assert "already exists" in tool("TopicCommand", *create, fails=True)
    assert "orders" in tool("TopicCommand", "--list").split()

    described = tool("TopicCommand", "--describe", "--topic", "orders")
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1", described), described
    assert "retention.ms=7000000" in described
    assert len(re.findall(r"Partition: \d\s+Leader: \d+", described)) == 3
    assert not tool("TopicCommand", "--describe", "--under-replicated-partitions").strip()
    assert not tool("TopicCommand", "--describe", "--unavailable-partitions").strip()

    tool("TopicCommand", "--alter", "--topic", "orders", "--partitions", "5")
    described = tool("TopicCommand", "--describe", "--topic", "orders")
    assert re.search(r"PartitionCount: 5", described), described
    tool("TopicCommand", "--alter", "--topic", "orders", "--partitions", "2", fails=True)

    tool("TopicCommand", "--delete", "--topic", "orders")
    assert "orders" not in tool("TopicCommand", "--list").split()
    assert "does not exist" in tool("TopicCommand", "--delete", "--topic", "orders", fails=True)


def test_kafka_topics_reports_an_invalid_name_or_replication_factor(tool: Tool) -> None:
    bad_name = tool("TopicCommand", "--create", "--topic", "a/b", fails=True)
    assert "Topic name is invalid" in bad_name, bad_name
    many = ("--create", "--topic", "x", "--replication-factor", "3")
    refused = tool("TopicCommand", *many, fails=True)
    assert "replication factor" in refused.lower(), refused


def test_the_console_consumer_reads_what_the_console_producer_wrote(
    tool: Tool, headrace_node: Node
) -> None:
    topics.create(headrace_node.address, "lines")
    lines = "".join(f"k{i}:value {i}\n" for i in range(100))
    with_keys = ("--property", "parse.key=true", "--property", "key.separator=:")
    tool("ConsoleProducer", "--topic", "lines", *with_keys, stdin=lines)
    assert [(r.key, r.value) for r in records.read(headrace_node.address, "lines")] == [
        (f"k{i}".encode(), f"value {i}".encode()) for i in range(100)
    ]
    shown = tool(
        "ConsoleConsumer",
        *("--topic", "lines", "--partition", "0", "--offset", "earliest"),
        *("--max-messages", "100", "--timeout-ms", "30000"),
        *("--property", "print.key=true", "--property", "print.offset=true"),
    )
    for i in (0, 50, 99):
        assert f"Offset:{i}\tk{i}\tvalue {i}\n" in shown, shown
    assert "Processed a total of 100 messages" in shown


@pytest.mark.parametrize("codec", records.CODECS[1:])
def test_the_console_producers_codecs_are_stored_unchanged(
    tool: Tool, headrace_node: Node, codec: str
) -> None:
    topics.create(headrace_node.address, "packed")
    lines = "".join(f"a line that packs well, number {i}\n" for i in range(300))
    tool("ConsoleProducer", "--topic", "packed", "--compression-codec", codec, stdin=lines)
    seen = records.read(headrace_node.address, "packed")
    assert b"".join((r.value or b"") + b"\n" for r in seen) == lines.encode()
    wanted = {records.CODECS.index(codec)} - {0}
    assert directories.codecs_in(headrace_node.data / "packed-0") == wanted


def test_kafka_configs_shows_and_changes_topics_and_brokers(
    tool: Tool, headrace_node: Node
) -> None:
    topics.create(headrace_node.address, "set")
    of_topic = ("--entity-type", "topics", "--entity-name", "set")
    tool("ConfigCommand", *of_topic, "--alter", "--add-config", "retention.ms=1234567,flush.ms=9")
    shown = tool("ConfigCommand", *of_topic, "--describe")
    assert "retention.ms=1234567" in shown
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=1234567" in shown
    tool("ConfigCommand", *of_topic, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in tool("ConfigCommand", *of_topic, "--describe")
    everything = tool("ConfigCommand", *of_topic, "--describe", "--all")
    assert "retention.ms=604800000" in everything
    assert "flush.ms=9" in everything
    bad = ("--alter", "--add-config", "retention.ms=often")
    assert "retention.ms" in tool("ConfigCommand", *of_topic, *bad, fails=True)

    of_all_brokers = ("--entity-type", "brokers", "--entity-default")
    tool("ConfigCommand", *of_all_brokers, "--alter", "--add-config", "log.retention.ms=7654321")
    shown = tool("ConfigCommand", *of_all_brokers, "--describe")
    assert "log.retention.ms=7654321" in shown
    assert "retention.ms=7654321" in tool("ConfigCommand", *of_topic, "--describe", "--all")


def test_kafka_get_offsets_knows_ends_starts_and_times(tool: Tool, headrace_node: Node) -> None:
    topics.create(headrace_node.address, "counted")
    start_ms = records.minutes_ago(60)
    written = records.write_every_kind(headrace_node.address, "counted", start_ms=start_ms)
    of_topic = ("--topic", "counted")
    assert f"counted:0:{written}" in tool("GetOffsetShell", *of_topic)
    assert "counted:0:0" in tool("GetOffsetShell", *of_topic, "--time", "earliest")
    latest = tool("GetOffsetShell", *of_topic, "--time", "max-timestamp")
    assert f"counted:0:{written - 1}" in latest
    by_time = tool("GetOffsetShell", *of_topic, "--time", str(start_ms + 10_000))
    assert "counted:0:600" in by_time  # the first record of the second codec


def test_kafka_log_dirs_shows_sizes(tool: Tool, headrace_node: Node) -> None:
    topics.create(headrace_node.address, "sized", partitions=2)
    records.write_every_kind(headrace_node.address, "sized")
    shown = tool("LogDirsCommand", "--describe", "--topic-list", "sized")
    answer = json.loads(shown[shown.index('{"') :].splitlines()[0])
    (directory,) = answer["brokers"][0]["logDirs"]
    assert directory["error"] is None
    sizes = {entry["partition"]: entry["size"] for entry in directory["partitions"]}
    directory = headrace_node.data / "sized-0"
    assert sizes == {
        "sized-0": sum(file.stat().st_size for file in directory.glob("*.log")),
        "sized-1": 0,
    }


@pytest.mark.parametrize("kafka_version", VERSIONS)
def test_kafka_reassign_partitions_moves_a_partition_to_another_directory(
    start_headrace: Callable[..., Node], tmp_path: Path, kafka_version: str
) -> None:
    directories = [tmp_path / "headrace", tmp_path / "other"]
    node = start_headrace({"log.dirs": ",".join(map(str, directories))})
    topics.create(node.address, "moving")
    records.write_every_kind(node.address, "moving")
    (target,) = (directory for directory in directories if not (directory / "moving-0").exists())
    plan = tmp_path / "plan.json"
    wanted = {"topic": "moving", "partition": 0, "replicas": [1], "log_dirs": [str(target)]}
    plan.write_text(json.dumps({"version": 1, "partitions": [wanted]}))

    def ask(action: str) -> str:
        done = apache_kafka.tool(
            "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
            *("--bootstrap-server", node.address),
            *("--reassignment-json-file", str(plan), action),
            kafka_version=kafka_version,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert f"Successfully started moving log directory to {target}" in ask("--execute")
    wait_until((target / "moving-0").exists)
    assert "Reassignment of replica moving-0-1 completed successfully" in ask("--verify")


def test_kafka_features_describes_the_finalized_features(tool: Tool) -> None:
    shown = tool("FeatureCommand", "describe")
    assert re.search(r"Feature: metadata.version\s+SupportedMinVersion: \S+", shown), shown


def test_kafka_features_lowers_and_raises_the_level_of_transactions(headrace_node: Node) -> None:
    def ask(*arguments: str) -> str:
        done = apache_kafka.tool(
            "org.apache.kafka.tools.FeatureCommand",
            *("--bootstrap-server", headrace_node.address),
            *arguments,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def level() -> str:
        (found,) = re.findall(
            r"Feature: transaction.version.*FinalizedVersionLevel: (\S+)", ask("describe")
        )
        return str(found)

    assert level() == "2"
    ask("downgrade", "--feature", "transaction.version=1")
    assert level() == "1"
    ask("upgrade", "--feature", "transaction.version=2")
    assert level() == "2"


@pytest.mark.parametrize("kafka_version", VERSIONS)
def test_kafka_cluster_prints_the_cluster_id(headrace_node: Node, kafka_version: str) -> None:
    shown = apache_kafka.tool(
        "org.apache.kafka.tools.ClusterTool",
        *("cluster-id", "--bootstrap-server", headrace_node.address),
        kafka_version=kafka_version,
    )
    written = (headrace_node.data / "meta.properties").read_text()
    cluster_id = re.search(r"cluster.id=(\S+)", written)
    assert cluster_id is not None
    assert f"Cluster ID: {cluster_id.group(1)}" in shown.stdout, shown


def test_kafka_delete_records_moves_the_log_start(
    tool: Tool, headrace_node: Node, tmp_path: Path
) -> None:
    topics.create(headrace_node.address, "cut")
    written = records.write_every_kind(headrace_node.address, "cut")
    wanted = {"topic": "cut", "partition": 0, "offset": 700}
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"partitions": [wanted], "version": 1}))
    shown = tool("DeleteRecordsCommand", "--offset-json-file", str(file))
    assert "low_watermark: 700" in shown
    seen = records.read(headrace_node.address, "cut")
    assert (seen[0].offset, seen[-1].offset) == (700, written - 1)
    assert "cut:0:700" in tool("GetOffsetShell", "--topic", "cut", "--time", "earliest")


def test_kafka_broker_api_versions_is_answered(tool: Tool) -> None:
    shown = tool("BrokerApiVersionsCommand")
    assert re.search(r"Produce\(0\): 0 to 13 \[usable: \d+\]", shown), shown
    assert re.search(r"Fetch\(1\): 4 to 18 \[usable: \d+\]", shown), shown


@pytest.mark.parametrize("kafka_version", VERSIONS)
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_kafka_producer_perf_test_sends_all_records(
    headrace_node: Node, kafka_version: str, acks: str
) -> None:
    topics.create(headrace_node.address, "perf")
    done = apache_kafka.tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "perf", "--num-records", "20000", "--record-size", "200"),
        *("--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={headrace_node.address}", f"acks={acks}"),
        kafka_version=kafka_version,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20000 records sent" in done.stdout
    assert len(records.read(headrace_node.address, "perf")) == 20000


@pytest.mark.parametrize("kafka_version", VERSIONS)
def test_every_record_of_kafkas_verifiable_producer_is_acknowledged(
    headrace_node: Node, kafka_version: str
) -> None:
    topics.create(headrace_node.address, "verified")
    done = apache_kafka.tool(
        "org.apache.kafka.tools.VerifiableProducer",
        *("--topic", "verified", "--max-messages", "500", "--acks", "-1"),
        *("--bootstrap-server", headrace_node.address),
        kafka_version=kafka_version,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count('"producer_send_success"') == 500
