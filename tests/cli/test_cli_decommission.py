"""A broker is emptied, so that it can go."""

import json
import signal

import pytest

from headrace.testing import Cluster
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(monkeypatch):
    config = {"auto.leader.rebalance.enable": "false", "min.insync.replicas": "1"}
    with Cluster(brokers=4, config=config, topics={"orders": 4}) as running:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", running.bootstrap_servers)
        running.produce("orders", [(f"k{n}", f"value {n}") for n in range(300)])
        running.wait_in_sync("orders")
        yield running


def replicas_on(headrace, broker):
    rows = headrace("brokers", "list", "--format", "json").document
    return next((row["replicas"] for row in rows if row["broker"] == broker), 0)


def values_in(cluster):
    return sorted(record.value for record in cluster.records("orders"))


def test_everything_moves_away(headrace, cluster):
    values = values_in(cluster)
    count = replicas_on(headrace, 3)
    assert count > 0
    ran = headrace("brokers", "decommission", "3", "--dry-run", "--format", "json")
    assert len(ran.document["moves"]) == count == replicas_on(headrace, 3)
    assert all(move["removing"] == [3] for move in ran.document["moves"])
    ran = headrace("brokers", "decommission", "3", "--throttle", "100M")
    assert ran.lines[-1] == "Broker 3 has no replicas"
    assert "Now stop broker 3: on 127.0.0.1, run 'headrace stop SERVER.PROPERTIES'" in ran.err
    wait_until(lambda: replicas_on(headrace, 3) == 0)
    headrace("cluster", "health")
    assert values_in(cluster) == values
    ran = headrace("brokers", "decommission", "3", "--format", "json")
    assert ran.document == {"broker": 3, "moves": [], "left": []}


def test_a_broker_that_runs_elsewhere_is_not_stopped(headrace, cluster, tmp_path):
    file = tmp_path / "server.properties"
    file.write_text(f"broker.id=3\nlog.dirs={tmp_path / 'elsewhere'}\n")
    ran = headrace("brokers", "decommission", "3", "--stop", str(file), status=1)
    assert "it was not stopped: no running broker found" in ran.err
    assert "Now stop broker 3: on 127.0.0.1, run" in ran.err
    wait_until(lambda: replicas_on(headrace, 3) == 0)


def test_a_broker_without_a_successor_is_refused_unless_forced(headrace, cluster):
    headrace("topics", "alter", "orders", "-r", "4")
    ran = headrace("brokers", "decommission", "3", status=1)
    assert "needs 4 brokers" in ran.err and "--force" in ran.err
    headrace("brokers", "decommission", "3", "--force")
    wait_until(lambda: replicas_on(headrace, 3) == 0)


def test_a_dead_broker_is_emptied(headrace, cluster):
    cluster.kill(3)
    wait_until(lambda: "offline" in headrace("brokers", "list").out)
    wait_until(lambda: headrace("topics", "describe", "--unavailable").lines[1:] == [])
    ran = headrace("brokers", "decommission", "3", "--throttle", "100M")
    assert "Broker 3 is offline. Do not start it again" in ran.err
    wait_until(lambda: replicas_on(headrace, 3) == 0)
    headrace("cluster", "health")
    cluster.restart(3)


def test_a_broker_that_was_killed_just_now_is_emptied(headrace, cluster):
    """It is still registered, and does not answer."""
    cluster.kill(3)
    ran = headrace("brokers", "decommission", "3", "--throttle", "100M")
    assert ran.lines[-1] == "Broker 3 has no replicas"
    wait_until(lambda: replicas_on(headrace, 3) == 0)
    cluster.restart(3)


def test_what_nobody_else_has_is_left_behind_only_by_force(headrace, cluster):
    headrace("topics", "create", "alone", "-r", "1")
    owner = cluster.leader_of("alone")
    cluster.kill(owner)
    wait_until(lambda: "offline" in headrace("brokers", "list").out)
    unavailable = ("topics", "describe", "--unavailable", "--format", "json")
    wait_until(lambda: [one["topic"] for one in headrace(*unavailable).document] == ["alone"])
    ran = headrace("brokers", "decommission", str(owner), status=1)
    assert "alone-0: no live replica is in sync" in ran.err
    ran = headrace("brokers", "decommission", str(owner), "--force", "--format", "json")
    assert ran.document["left"] == [{"topic": "alone", "partition": 0}]
    wait_until(lambda: replicas_on(headrace, owner) == 1)
    cluster.restart(owner)


def test_an_unknown_broker_is_refused(headrace, cluster):
    assert "broker 9 does not exist" in headrace("brokers", "decommission", "9", status=1).err


def test_a_killed_command_goes_on_when_it_is_run_again(headrace, start, cluster):
    # The other brokers get nothing from anybody until the cluster is healed.
    for broker in range(4):
        cluster.slow(broker, None, 200)
    process = start(
        "brokers", "decommission", "3", env={"HEADRACE_BOOTSTRAP": cluster.bootstrap_servers}
    )
    wait_until(
        lambda: (
            json.loads(headrace("reassign", "list", "--format", "json").out) != []
            or process.poll() is not None
        ),
        limit_s=90,  # every request between brokers is slow
    )
    process.send_signal(signal.SIGKILL)
    process.wait()
    cluster.heal()
    headrace("brokers", "decommission", "3")
    wait_until(lambda: replicas_on(headrace, 3) == 0)
    headrace("cluster", "health")
