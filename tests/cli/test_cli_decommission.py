"""A broker is emptied, so that it can go."""

import json
import signal
import subprocess
import sys

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli import brokers_decommission, reassignment_run
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


def server_file(tmp_path, broker):
    data = tmp_path / "data"
    data.mkdir()
    file = tmp_path / "server.properties"
    file.write_text(f"broker.id={broker}\nlog.dirs={data}\n")
    return str(file)


@pytest.fixture
def stand_in(tmp_path):
    """A process with the pid file of a broker, which ends as a broker does."""
    program = (
        "import signal, sys\n"
        "from headrace.cli.pid_file import PidFile\n"
        "from pathlib import Path\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit())\n"
        "with PidFile(Path(sys.argv[1])):\n"
        "    print('ready', flush=True)\n"
        "    signal.pause()\n"
    )

    def start():
        arguments = [sys.executable, "-c", program, str(tmp_path / "data" / "headrace.pid")]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    started = []
    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_broker_is_stopped_when_it_is_empty(headrace, cluster, tmp_path, stand_in):
    file = server_file(tmp_path, 3)
    process = stand_in()
    arguments = ("brokers", "decommission", "3", "--stop", file, "--format", "json")
    ran = headrace(*arguments)
    assert process.wait(10) == 0
    assert ran.document["broker"] == 3 and ran.document["moves"], "nothing but one document"
    assert f"Stopped process {process.pid}" in ran.err
    wait_until(lambda: replicas_on(headrace, 3) == 0)


def test_the_file_of_another_broker_is_refused_before_anything_moves(
    headrace, cluster, tmp_path, stand_in
):
    before = replicas_on(headrace, 3)
    file = server_file(tmp_path, 2)
    process = stand_in()
    ran = headrace("brokers", "decommission", "3", "--stop", file, status=2)
    assert f"--stop {file} is the file of broker 2, not of broker 3" in ran.err
    assert replicas_on(headrace, 3) == before
    assert process.poll() is None
    missing = str(tmp_path / "missing.properties")
    ran = headrace("brokers", "decommission", "3", "--stop", missing, status=2)
    assert "missing.properties" in ran.err and replicas_on(headrace, 3) == before


def test_a_broker_that_runs_elsewhere_is_refused_before_anything_moves(headrace, cluster, tmp_path):
    before = replicas_on(headrace, 3)
    file = server_file(tmp_path, 3)
    ran = headrace("brokers", "decommission", "3", "--stop", file, status=1)
    assert "no running broker found on this machine" in ran.err
    assert replicas_on(headrace, 3) == before


def test_a_move_in_progress_is_not_replaced(headrace, cluster, tmp_path):
    """It keeps the broker, for another reason than an interrupted decommission."""
    (orders,) = headrace("topics", "describe", "orders", "--format", "json").document
    moved = next(one for one in orders["partitions"] if 3 in one["replicas"])
    (absent,) = {0, 1, 2, 3} - set(moved["replicas"])
    first = next(broker for broker in moved["replicas"] if broker != 3)
    target = [absent if broker == first else broker for broker in moved["replicas"]]
    cluster.cut(absent)
    file = tmp_path / "moves.json"
    entry = {"topic": "orders", "partition": moved["partition"], "replicas": target}
    file.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    headrace("reassign", "execute", "--file", str(file), "--no-wait")
    ran = headrace("brokers", "decommission", "3", status=1)
    assert f"orders-{moved['partition']} is being reassigned to" in ran.err
    assert "--additional" not in ran.err, "this command has no such option"
    (moving,) = headrace("reassign", "list", "--format", "json").document
    assert moving["replicas"] == target
    cluster.heal()


def test_a_broker_that_gets_replicas_all_the_time_is_not_called_empty(
    headrace, cluster, monkeypatch
):
    monkeypatch.setattr(brokers_decommission, "ROUNDS_MAX", 1)
    run_moves = reassignment_run.run_moves

    def run_and_create(*arguments, **options):
        done = run_moves(*arguments, **options)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("late", 1, replica_assignment=[[3]])])["late"].result(30)
        return done

    monkeypatch.setattr(reassignment_run, "run_moves", run_and_create)
    ran = headrace("brokers", "decommission", "3", status=1)
    assert "broker 3 got new replicas while the command ran: late-0" in ran.err
    assert "Run the same command again" in ran.err
    assert "has no replicas" not in ran.out


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
