"""The commands for clusters, asked of three brokers in this process."""

import json

import pytest

from headrace.testing import Cluster
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(monkeypatch):
    config = {"auto.leader.rebalance.enable": "false"}
    with Cluster(brokers=3, config=config, topics={"orders": 3}) as running:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", running.bootstrap_servers)
        yield running


def partitions_of(headrace, *filters):
    ran = headrace("topics", "describe", "orders", *filters, "--format", "json")
    return {one["partition"]: one for one in ran.document}


def brokers_of(headrace):
    ran = headrace("brokers", "list", "--format", "json")
    return {row["broker"]: row for row in ran.document}


def failed_checks(headrace, status=1):
    ran = headrace("cluster", "health", "--format", "json", status=status)
    return {
        check["check"]: check["items"]
        for check in ran.document["checks"]
        if check["status"] == "failed"
    }


def test_each_broker_leads_its_share(headrace, cluster):
    rows = brokers_of(headrace)
    assert {number: row["leaders"] for number, row in rows.items()} == {0: 1, 1: 1, 2: 1}
    assert {row["replicas"] for row in rows.values()} == {3}
    assert [number for number, row in rows.items() if row["controller"]] == [
        cluster.controller_id()
    ]
    ran = headrace("brokers", "describe", "2", "--format", "json")
    assert sum(one["leads"] for one in ran.document["partitions"]) == 1
    assert failed_checks(headrace, status=0) == {}


def test_requests_for_the_controller_find_it_from_any_broker(headrace, cluster, monkeypatch):
    for broker in cluster.brokers:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.bootstrap_servers)
        headrace("elect-leaders", "--all")
        headrace("topics", "create", f"made-at-{broker.broker_id}")
        headrace("features", "upgrade", "transaction.version=2", "--dry-run")
    assert len(headrace("topics", "list", "--names").lines) == 4


def test_a_killed_broker_shows_and_comes_back(headrace, cluster):
    killed = cluster.leader_of("orders", 0)
    cluster.kill(killed)
    wait_until(lambda: brokers_of(headrace)[killed]["status"] == "offline")
    wait_until(lambda: len(partitions_of(headrace, "--under-replicated")) == 3)
    row = brokers_of(headrace)[killed]
    assert (row["address"], row["leaders"], row["replicas"], row["out_of_sync"]) == (None, 0, 3, 3)
    assert all(len(one["isr"]) == 2 for one in partitions_of(headrace, "--at-min-isr").values())
    assert partitions_of(headrace, "--under-min-isr", "--unavailable") == {}
    failed = failed_checks(headrace)
    assert failed["brokers"] == [f"broker {killed} is not registered"]
    assert len(failed["under-replicated"]) == 3 and "offline partitions" not in failed

    cluster.restart(killed)
    cluster.wait_in_sync("orders")
    wait_until(lambda: partitions_of(headrace, "--under-replicated") == {})
    ran = headrace("cluster", "health")
    (note,) = (line for line in ran.lines if "warning" in line)
    assert f"broker {killed} leads 0 of 1" in note

    ran = headrace("elect-leaders", "--all")
    assert [line.split() for line in ran.lines[1:]] == [["orders", "0", "elected"]]
    assert cluster.leader_of("orders", 0) == killed


def test_a_broker_hands_over_its_leaderships_and_keeps_running(headrace, cluster):
    broker_id = cluster.leader_of("orders", 0)
    ran = headrace("brokers", "shutdown", str(broker_id))
    assert ran.lines == [f"Broker {broker_id} leads no partitions; it can be stopped"]
    wait_until(lambda: brokers_of(headrace)[broker_id]["leaders"] == 0)
    assert brokers_of(headrace)[broker_id]["status"] == "online"
    ran = headrace("elect-leaders", "--topic", "orders", "--partition", "0", status=1)
    assert "PREFERRED_LEADER_NOT_AVAILABLE" in ran.out
    cluster.restart(broker_id)
    cluster.wait_in_sync("orders")
    headrace("elect-leaders", "--topic", "orders", "--partition", "0")
    assert cluster.leader_of("orders", 0) == broker_id


def test_a_partition_that_no_other_broker_can_lead_remains(headrace, cluster):
    last, *others = [one.broker_id for one in cluster.brokers]
    for broker_id in others:
        cluster.kill(broker_id)
    wait_until(lambda: len(brokers_of(headrace)) == 3)
    wait_until(lambda: brokers_of(headrace)[last]["leaders"] == 3)
    arguments = ("--num-retries", "1", "--retry-interval-ms", "1", "--format", "json")
    ran = headrace("brokers", "shutdown", str(last), *arguments, status=1)
    assert ran.document["remaining"] == [{"topic": "orders", "partition": n} for n in (0, 1, 2)]
    assert "retrying" in ran.err and "no other replica is in sync" in ran.err
    assert len(failed_checks(headrace)["under min ISR"]) == 3
    for broker_id in others:
        cluster.restart(broker_id)


def test_an_unclean_election_revives_a_partition(headrace, cluster, tmp_path):
    leader = cluster.leader_of("orders", 0)
    others = [one.broker_id for one in cluster.brokers if one.broker_id != leader]
    for broker_id in others:
        cluster.kill(broker_id)
    short = ("--under-min-isr",)
    wait_until(lambda: partitions_of(headrace, *short).get(0, {}).get("isr") == [leader])
    cluster.kill(leader)
    cluster.restart(others[0])  # it is not in the ISR
    wait_until(lambda: 0 in partitions_of(headrace, "--unavailable"))
    assert "orders-0" in failed_checks(headrace)["offline partitions"]

    file = tmp_path / "partitions.json"
    file.write_text(json.dumps({"partitions": [{"topic": "orders", "partition": 0}]}))
    ran = headrace(
        "kafka-leader-election.sh", "--election-type", "unclean", "--path-to-json-file", str(file)
    )
    assert ran.lines[1].split() == ["orders", "0", "elected"]
    assert cluster.leader_of("orders", 0) == others[0]
    for broker_id in (leader, others[1]):
        cluster.restart(broker_id)
