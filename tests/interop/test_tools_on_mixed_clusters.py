"""Headrace's tools on a cluster with an Apache Kafka 3.9 broker, and with it as controller."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.fakes.waiting import wait_until

from . import records
from .mixed_cluster import MIXTURES, Kind, MixedCluster

KAFKA, FIRST, SECOND = range(3)  # the brokers of "two of Headrace"
LIMIT_S = 60


@pytest.fixture(scope="module")
def cluster(kafka_jars: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    data = tmp_path_factory.mktemp("tools")
    with MixedCluster(MIXTURES["two of Headrace"], data) as running:
        assert running.kind(KAFKA) is Kind.KAFKA
        yield running


def headrace(cluster: MixedCluster, *arguments: str, status: int = 0) -> str:
    """Run a command; its output, and its errors if it must fail."""
    ran = subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        env={**os.environ, "HEADRACE_BOOTSTRAP": cluster.bootstrap_servers},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == status, f"{arguments}: {ran.stdout}{ran.stderr}"
    return ran.stdout if status == 0 else ran.stderr


def moves(directory: Path, topic: str, targets: list[list[int]]) -> str:
    file = directory / "moves.json"
    entries = [
        {"topic": topic, "partition": number, "replicas": replicas}
        for number, replicas in enumerate(targets)
    ]
    file.write_text(json.dumps({"version": 1, "partitions": entries}))
    return str(file)


def described(cluster: MixedCluster, topic: str) -> list[dict[str, object]]:
    (found,) = json.loads(headrace(cluster, "topics", "describe", topic, "--format", "json"))
    partitions: list[dict[str, object]] = found["partitions"]
    return partitions


def throttles(cluster: MixedCluster, topic: str) -> list[str]:
    shown = [headrace(cluster, "configs", "get", "topic", topic, "--changed")]
    for number in range(3):
        shown.append(headrace(cluster, "configs", "get", "broker", str(number), "--changed"))
    return [text for text in shown if "replication.throttled" in text]


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name.lower())
def test_partitions_move_are_verified_and_get_their_leaders(
    cluster: MixedCluster, tmp_path: Path, kind: Kind
) -> None:
    cluster.make_controller(kind)
    topic = f"moved-under-{kind.name.lower()}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    new = NewTopic(topic, 2, replica_assignment=[[KAFKA, FIRST], [FIRST, KAFKA]])
    admin.create_topics([new])[topic].result()
    sent = [f"value {n}" for n in range(300)]
    cluster.produce(topic, [(f"k{n}", value) for n, value in enumerate(sent)])
    cluster.wait_in_sync(topic)
    headrace(cluster, "cluster", "health")

    more = moves(tmp_path, topic, [[FIRST, SECOND, KAFKA]] * 2)
    keep = "--disallow-replication-factor-change"
    refusal = headrace(cluster, "reassign", "execute", "--file", more, keep, status=1)
    assert f"{topic}-0: the target has 3 replicas" in refusal

    for targets in (
        [[FIRST, SECOND], [SECOND, FIRST]],  # away from Kafka's broker
        [[KAFKA, SECOND], [KAFKA, FIRST]],  # and back
        [[KAFKA, FIRST, SECOND], [FIRST, SECOND, KAFKA]],
    ):
        file = moves(tmp_path, topic, targets)
        headrace(cluster, "reassign", "plan", "--file", file)
        headrace(cluster, "reassign", "execute", "--file", file, "--throttle", "50M")
        assert "completed" in headrace(cluster, "reassign", "verify", "--file", file)
        assert [one["replicas"] for one in described(cluster, topic)] == targets
        assert throttles(cluster, topic) == []

    headrace(cluster, "elect-leaders", "--all")
    wait_until(
        lambda: [one["leader"] for one in described(cluster, topic)] == [KAFKA, FIRST], LIMIT_S
    )
    headrace(cluster, "cluster", "health")
    headrace(cluster, "verify-replicas", topic)
    found = records.read(cluster.bootstrap_servers, topic, partitions=2)
    assert sorted((record.value or b"").decode() for record in found) == sorted(sent)
    assert cluster.kind(cluster.controller_id()) is kind
