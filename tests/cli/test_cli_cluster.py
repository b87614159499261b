"""Brokers, elections, features and the health of a cluster, asked of a standalone node."""

import json

import pytest
from confluent_kafka import Consumer, Producer

from headrace.testing import Broker
from tests.fakes.waiting import wait_until

HEALTHY = {
    "controller",
    "brokers",
    "offline partitions",
    "under min ISR",
    "under-replicated",
    "offline replicas",
    "feature levels",
    "preferred leaders",
}


@pytest.fixture
def topics(headrace, topic):
    headrace("topics", "create", topic, "-p", "2")
    return topic


@pytest.fixture
def own_broker(monkeypatch):
    """A broker that only this test changes."""
    with Broker(topics={"orders": 2}) as running:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", running.bootstrap_servers)
        yield running


def test_brokers_are_listed_with_their_leaders_and_replicas(headrace, own_broker):
    ran = headrace("brokers", "list")
    assert [line.split() for line in ran.lines] == [
        ["ID", "ADDRESS", "STATUS", "CONTROLLER", "LEADERS", "REPLICAS", "OUT-OF-SYNC"],
        ["1", own_broker.bootstrap_servers, "online", "yes", "2", "2", "0"],
    ]
    assert headrace("brokers", "list", "--format", "json").document == [
        {
            "broker": 1,
            "address": own_broker.bootstrap_servers,
            "rack": None,
            "status": "online",
            "controller": True,
            "leaders": 2,
            "replicas": 2,
            "out_of_sync": 0,
        }
    ]


def test_a_broker_is_described_with_settings_directories_and_partitions(headrace, own_broker):
    ran = headrace("brokers", "describe", "1", "--format", "json")
    assert ran.document["settings"]["log.dirs"] == str(own_broker.data)
    assert "log.retention.hours" not in ran.document["settings"], "it has its default"
    (log_dir,) = ran.document["log_dirs"]
    assert (log_dir["path"], log_dir["error"], log_dir["size"]) == (str(own_broker.data), None, 0)
    assert ran.document["partitions"] == [
        {"topic": "orders", "partition": n, "leads": True, "in_sync": True} for n in (0, 1)
    ]
    ran = headrace("brokers", "describe", "1")
    assert ran.lines[0] == f"Broker 1 at {own_broker.bootstrap_servers}, controller"
    assert ["orders", "1", "1", "1", "1"] in [line.split() for line in ran.lines]


def test_a_missing_broker_is_refused(headrace):
    for verb in ("describe", "shutdown"):
        ran = headrace("brokers", verb, "7", status=1)
        assert "broker 7 does not exist; broker IDs in this cluster: 1" in ran.err


def test_a_broker_alone_cannot_hand_over_its_partitions(headrace):
    ran = headrace("brokers", "shutdown", "1", status=1)
    assert "no other broker can take over its partitions" in ran.err


def test_a_healthy_cluster(headrace, topics):
    ran = headrace("cluster", "health", "--format", "json")
    assert ran.document["healthy"] is True and ran.document["controller"] == 1
    assert {check["check"] for check in ran.document["checks"]} == HEALTHY
    assert {check["status"] for check in ran.document["checks"]} == {"ok"}
    ran = headrace("cluster", "health")
    assert ran.lines[0].startswith("Cluster ") and "1 broker, controller 1" in ran.lines[0]
    assert ran.lines[-1] == "The cluster is healthy."


def test_an_offline_partition_is_unhealthy(headrace, monkeypatch, tmp_path):
    log_dirs = [tmp_path / name for name in "ab"]
    config = {"log.dirs": ",".join(map(str, log_dirs))}
    with Broker(config=config, data=tmp_path, topics={"orders": 2}):
        pass
    (lost,) = (path for path in log_dirs if (path / "orders-1").exists())
    lost.rename(tmp_path / "kept")
    lost.write_bytes(b"")  # no directory
    with Broker(config=config, data=tmp_path) as broken:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", broken.bootstrap_servers)
        ran = headrace("cluster", "health", "--format", "json", status=1)
        failed = {
            check["check"]: check["items"]
            for check in ran.document["checks"]
            if check["status"] == "failed"
        }
        assert "orders-1" in failed["offline partitions"]
        assert "orders-1 on broker 1" in failed["offline replicas"]
        ran = headrace("cluster", "health", status=1)
        assert ran.lines[-1] == "The cluster is NOT healthy."
        ran = headrace("topics", "describe", "--unavailable", "orders", "--format", "json")
        assert [one["partition"] for one in ran.document if one["leader"] is None] != []
        ran = headrace("kafka-topics.sh", "--describe", "--unavailable-partitions")
        assert any(line.split()[:3] == ["orders", "1", "none"] for line in ran.lines)


def test_the_health_of_a_cluster_that_is_down(headrace):
    ran = headrace("cluster", "health", "-b", "127.0.0.1:1", status=1)
    assert "cannot reach a broker" in ran.err and ran.out == ""


def test_a_cluster_is_described(headrace, own_broker):
    ran = headrace("cluster", "describe", "--format", "json")
    assert (ran.document["brokers"], ran.document["controller"]) == ([1], 1)
    assert ran.document["features"]["transaction.version"] == 2
    ran = headrace("cluster", "describe")
    cells = [line.split() for line in ran.lines]
    assert ["brokers", own_broker.bootstrap_servers] in cells and ["partitions", "2"] in cells


def test_kafka_cluster_prints_the_cluster_id(headrace, broker):
    cluster_id = headrace("cluster", "describe", "--format", "json").document["cluster_id"]
    ran = headrace("kafka-cluster.sh", "cluster-id", "--bootstrap-server", broker.bootstrap_servers)
    assert ran.lines == [f"Cluster ID: {cluster_id}"]


# --- elections


def test_leaders_are_elected(headrace, topics, tmp_path):
    assert headrace("elect-leaders", "--all").lines == ["No election was needed"]
    assert headrace("elect-leaders", "--all", "--format", "json").document == []
    ran = headrace("elect-leaders", "--topic", topics)
    assert [line.split() for line in ran.lines[1:]] == [
        [topics, "0", "unchanged"],
        [topics, "1", "unchanged"],
    ]
    file = tmp_path / "partitions.json"
    file.write_text(json.dumps({"partitions": [{"topic": topics, "partition": 1}]}))
    ran = headrace(
        "kafka-leader-election.sh", "--election-type", "unclean", "--path-to-json-file", str(file)
    )
    assert ran.lines[1].split() == [topics, "1", "unchanged"]
    ran = headrace("kafka-preferred-replica-election.sh", "--path-to-json-file", str(file))
    assert ran.lines[1].split() == [topics, "1", "unchanged"]


def test_an_election_that_fails_is_reported(headrace, tmp_path):
    file = tmp_path / "partitions.json"
    file.write_text(json.dumps({"partitions": [{"topic": "nope", "partition": 0}]}))
    ran = headrace("elect-leaders", "--path-to-json-file", str(file), status=1)
    assert ran.lines[1].split()[:4] == ["nope", "0", "failed", "UNKNOWN_TOPIC_OR_PARTITION"]
    ran = headrace("elect-leaders", "--topic", "nope", status=1)
    assert "topic nope does not exist" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--all", "--topic", "t"], "give one of --all, --topic"),
        (["--type", "unclean"], "give one of --all, --topic"),
        (["--all", "--partition", "0"], "--partition needs exactly one --topic"),
        (["--path-to-json-file", "none.json"], "none.json: No such file"),
    ],
)
def test_an_ambiguous_election_is_refused(headrace, arguments, message):
    assert message in headrace("elect-leaders", *arguments, status=2).err


# --- the controller moves


@pytest.mark.parametrize(
    ("api", "command"),
    [
        ("CreateTopics", "topics create x"),
        ("CreatePartitions", "topics alter orders --partitions 3"),
        ("DeleteTopics", "topics delete orders"),
        ("ElectLeaders", "elect-leaders --topic orders"),
        ("UpdateFeatures", "features downgrade transaction.version=1"),
    ],
)
def test_a_command_finds_the_next_controller(headrace, own_broker, api, command):
    own_broker.fail(api, "NOT_CONTROLLER", times=2)
    ran = headrace(*command.split())
    assert "NOT_CONTROLLER" not in ran.out


# --- features


def test_a_level_that_a_group_or_a_transaction_uses_is_not_lowered(headrace, own_broker):
    # The producer has no close and may outlive the broker: other tests must not see its log lines.
    quiet = {"bootstrap.servers": own_broker.bootstrap_servers, "log_level": 0}
    headrace("topics", "create", "used")
    consumer = Consumer({**quiet, "group.id": "new", "group.protocol": "consumer"})
    producer = Producer({**quiet, "transactional.id": "open"})
    try:
        consumer.subscribe(["used"])
        wait_until(lambda: consumer.poll(0.1) is None and consumer.assignment())
        ran = headrace("features", "downgrade", "group.version=0", status=1)
        assert "group new of the new protocol has members" in ran.err
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("used", b"x")
        producer.flush()
        ran = headrace("features", "downgrade", "transaction.version=0", status=1)
        assert "transaction open is open" in ran.err
        producer.commit_transaction()
    finally:
        consumer.close()
    headrace("features", "downgrade", "group.version=0")
    wait_until(lambda: "Complete" in headrace("transactions", "list").out)
    headrace("features", "downgrade", "transaction.version=0")


def test_feature_levels_are_shown_and_changed(headrace, own_broker):
    ran = headrace("features", "describe")
    assert ["transaction.version", "2", "2"] in [line.split() for line in ran.lines]
    headrace("features", "downgrade", "transaction.version=1", "--dry-run")
    ran = headrace("kafka-features.sh", "downgrade", "--feature", "transaction.version=1")
    assert ran.lines[1].split() == ["transaction.version", "1", "set"]
    ran = headrace("features", "describe", "--format", "json")
    levels = {row["feature"]: (row["supported"], row["finalized"]) for row in ran.document}
    assert levels["transaction.version"] == (2, 1)
    headrace("features", "upgrade", "transaction.version=2")
    ran = headrace("features", "upgrade", "transaction.version=9", status=1)
    assert "INVALID_UPDATE_VERSION" in ran.out
    assert "nothing to downgrade" in headrace("features", "downgrade").out
    assert "expected a number" in headrace("features", "upgrade", "a=b", status=2).err


def test_partitions_are_filtered_by_their_replicas(headrace, topics):
    assert headrace("topics", "describe", topics, "--under-replicated", "--format=json").out == (
        "[]\n"
    )
    ran = headrace("topics", "describe", topics, "--at-min-isr")
    assert [line.split() for line in ran.lines] == [
        ["Topic", "Partition", "Leader", "Replicas", "Isr", "MinIsr"],
        [topics, "0", "1", "1", "1", "1"],
        [topics, "1", "1", "1", "1", "1"],
    ]
    headrace("configs", "set", "topic", topics, "min.insync.replicas=2")
    ran = headrace("kafka-topics.sh", "--describe", "--under-min-isr-partitions")
    assert [topics, "0", "1", "1", "1", "2"] in [line.split() for line in ran.lines]
    ran = headrace("topics", "describe", topics, "--at-min-isr", "--unavailable", "--format=json")
    assert ran.document == []


def test_kafka_broker_api_versions_lists_every_broker(headrace, broker):
    ran = headrace("kafka-broker-api-versions.sh", "-b", broker.bootstrap_servers)
    assert ran.lines[0].startswith(f"{broker.bootstrap_servers} (id: 1 rack: null) -> (")
    assert any(line.startswith("\tProduce(0): 0 to ") for line in ran.lines)
    assert ran.lines[-1] == ")"
