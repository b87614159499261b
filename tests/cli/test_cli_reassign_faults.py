"""Commands that move partitions, with brokers that fail and with commands that are killed.

The message tells what to do; then it is done, and no record is lost. A command that was killed
goes on when it is run again, and leaves no throttle.
"""

import json

import pytest

from headrace.cli import reassign, reassignment_run, reassignment_throttles
from headrace.cli.main import main
from headrace.testing import Cluster
from tests.fakes.inside import ClusterInside
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.slow

BROKERS = 4
RATE = ("--throttle", "100M")


@pytest.fixture
def cluster(monkeypatch):
    config = {
        "auto.leader.rebalance.enable": "false",
        "default.replication.factor": "2",
        "zookeeper.session.timeout.ms": "500",
        # So that a replica stays the only one in sync, and a leader may be alone.
        "min.insync.replicas": "1",
    }
    with Cluster(brokers=BROKERS, config=config) as running:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", running.bootstrap_servers)
        yield running


@pytest.fixture
def orders(headrace, cluster):
    headrace("topics", "create", "orders", "--replica-assignment", "0:1,1:0")
    cluster.produce("orders", [(f"k{n}", f"value {n}") for n in range(200)])
    cluster.wait_in_sync("orders")
    return sorted(record.value for record in cluster.records("orders"))


@pytest.fixture
def moves(tmp_path):
    """Write a file that moves partition 0."""

    def write(*target):
        file = tmp_path / f"to-{'-'.join(map(str, target))}.json"
        entry = {"topic": "orders", "partition": 0, "replicas": list(target)}
        file.write_text(json.dumps({"version": 1, "partitions": [entry]}))
        return str(file)

    return write


def replicas_of(cluster):
    """The replicas of partition 0 in the tree; a broker may hear of them later."""
    topic = json.loads(ClusterInside(cluster).read("/brokers/topics/orders") or b"")
    return topic["partitions"]["0"]


def throttles(cluster):
    """The nodes of the tree that have a throttle: those of the topic and of brokers."""
    owners = ["topics/orders", *(f"brokers/{broker}" for broker in range(BROKERS))]
    values = {owner: ClusterInside(cluster).read(f"/config/{owner}") or b"" for owner in owners}
    return [owner for owner, value in values.items() if b"replication.throttled" in value]


def moving(headrace):
    return headrace("reassign", "list", "--format", "json").document


def check_kept(cluster, orders):
    wait_until(lambda: sorted(one.value for one in cluster.records("orders")) == orders)


# --- messages -------------------------------------------------------------------------------


@pytest.fixture
def execute(start, cluster):
    """Start ``reassign execute`` in its own process."""

    def run(file):
        return start(
            "reassign", "execute", "--file", file, *RATE,
            env={"HEADRACE_BOOTSTRAP": cluster.bootstrap_servers},
        )  # fmt: skip

    return run


def heard(process, *awaited):
    """Read what the command says, until it has said all of this."""
    said = b""
    while not all(text.encode() in said for text in awaited):
        line = process.stderr.readline()
        assert line, (awaited, said)
        said += line


def ended(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out.decode().splitlines()[-1], err.decode()


REASSIGNED = (0, "Reassigned 1 partition")


def test_a_disk_that_fills_up_while_it_copies_is_named_and_freed(
    headrace, cluster, orders, moves, execute
):
    cluster.delay("Fetch", 1000)  # so that the replica exists, and has nothing yet
    process = execute(moves(0, 3))
    wait_until((cluster.brokers[3].data / "orders-0" / "partition.metadata").exists)
    cluster.fill_disk(3)
    cluster.delay("Fetch", 0)
    heard(process, "broker 3: log directory", "is full", "headrace reassign cancel --file")
    assert [one["adding"] for one in moving(headrace)] == [[3]]
    cluster.heal()
    assert ended(process)[:2] == REASSIGNED
    assert replicas_of(cluster) == [0, 3] and throttles(cluster) == []
    check_kept(cluster, orders)


def test_a_disk_that_is_full_from_the_start_needs_a_restart_of_its_broker(
    headrace, cluster, orders, moves, execute
):
    cluster.fill_disk(3)
    process = execute(moves(0, 3))
    heard(process, "is full", "orders-0 is offline on broker 3", "restart the broker, or cancel")
    cluster.heal()
    cluster.restart(3)
    assert ended(process)[:2] == REASSIGNED
    assert replicas_of(cluster) == [0, 3] and throttles(cluster) == []
    check_kept(cluster, orders)


def test_a_move_to_a_full_disk_is_cancelled(headrace, cluster, orders, moves, execute):
    cluster.fill_disk(3)
    file = moves(0, 3)
    process = execute(file)
    heard(process, "is full")
    process.kill()
    headrace("reassign", "cancel", "--file", file)
    assert replicas_of(cluster) == [0, 1] and throttles(cluster) == []
    cluster.heal()
    check_kept(cluster, orders)


def test_a_target_that_dies_is_named_and_started_again(headrace, cluster, orders, moves, execute):
    cluster.cut(3)
    process = execute(moves(2, 3))
    wait_until(lambda: moving(headrace))
    cluster.kill(3)
    heard(process, "broker 3 is not registered; the reassignment waits for it. Start it, or cancel")
    cluster.heal()
    cluster.restart(3)
    assert ended(process)[:2] == REASSIGNED
    assert replicas_of(cluster) == [2, 3] and throttles(cluster) == []
    check_kept(cluster, orders)


def test_a_move_to_a_target_that_never_returns_is_cancelled(
    headrace, cluster, orders, moves, execute
):
    cluster.cut(3)
    file = moves(2, 3)
    process = execute(file)
    wait_until(lambda: moving(headrace))
    cluster.kill(3)
    heard(process, "broker 3 is not registered")
    process.kill()
    ran = headrace("reassign", "cancel", "--file", file)
    assert ran.lines[1].split()[-1] == "cancelled"
    assert moving(headrace) == [] and replicas_of(cluster) == [0, 1]
    check_kept(cluster, orders)
    # Its rate is gone too, should a broker with this ID ever start.
    cluster.heal()
    cluster.restart(3)
    wait_until(lambda: len(headrace("brokers", "list").lines) == BROKERS + 1)
    assert throttles(cluster) == []


def test_a_source_that_dies_is_named_if_it_has_the_only_copy(
    headrace, cluster, orders, moves, execute
):
    headrace("topics", "alter", "orders", "-r", "1")
    source = replicas_of(cluster)[0]
    cluster.cut(3)
    process = execute(moves(3))
    wait_until(lambda: moving(headrace))
    cluster.kill(source)
    heard(process, "orders-0 has no leader", f"Start an in-sync replica of it: broker {source}")
    cluster.heal()
    cluster.restart(source)
    assert ended(process)[:2] == REASSIGNED
    assert replicas_of(cluster) == [3] and throttles(cluster) == []
    check_kept(cluster, orders)


def test_a_source_that_dies_is_replaced_by_another(headrace, cluster, orders, moves, execute):
    cluster.cut(3)
    process = execute(moves(2, 3))
    wait_until(lambda: moving(headrace))
    source = cluster.leader_of("orders")
    cluster.kill(source)
    cluster.heal()
    assert ended(process)[:2] == REASSIGNED
    assert replicas_of(cluster) == [2, 3]
    check_kept(cluster, orders)
    cluster.restart(source)


# --- killed commands ------------------------------------------------------------------------


class Killed(BaseException):
    """Ends a command as a kill does: nothing that it would still do is done."""


@pytest.fixture
def kill(monkeypatch, capfd):
    """Let a command die before or after it calls a function."""

    def run(when, module, name, *command):
        function = getattr(module, name)

        def dies(*arguments, **options):
            if when == "after":
                function(*arguments, **options)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(module, name, dies)
            with pytest.raises(Killed):
                main(command)
        capfd.readouterr()

    return run


POINTS = [
    ("after", reassignment_run, "throttle"),
    ("after", reassignment_run, "alter_reassignments"),
    ("before", reassignment_run, "remove_throttles"),
    # The brokers have no rates any more, but the topics still name the replicas.
    ("after", reassignment_throttles, "could_change_broker"),
]


def command_of(tool, number, cluster, moves):
    """Each run changes something: there and back."""
    if tool == "execute":
        return "reassign", "execute", "--file", moves(0, 1) if number % 2 else moves(2, 3)
    if tool == "topics alter":
        return "topics", "alter", "orders", "-r", "2" if number % 2 else "3"
    return "brokers", "decommission", str(replicas_of(cluster)[0])


def is_told(headrace, cluster):
    """Whether the controller's broker answers with the assignments in the tree.

    It hears of the end of a move a moment later than the tree, and shows all replicas till then.
    """
    address = cluster.brokers[cluster.controller_id()].bootstrap_servers
    described = headrace("topics", "describe", "--internal", "-b", address, "--format", "json")
    return all(
        one["replicas"] == tree["partitions"][str(one["partition"])]
        for topic in described.document
        for tree in [json.loads(ClusterInside(cluster).read(f"/brokers/topics/{topic['name']}"))]
        for one in topic["partitions"]
    )


@pytest.mark.parametrize("tool", ["execute", "topics alter", "decommission"])
def test_a_command_that_was_killed_goes_on(headrace, cluster, orders, moves, kill, tool):
    for number, (when, module, name) in enumerate(POINTS):
        command = command_of(tool, number, cluster, moves)
        if module is reassignment_throttles:
            # The same function sets the rates: let it pass there.
            kill("before", reassignment_run, "remove_throttles", *command, *RATE)
            wait_until(lambda: is_told(headrace, cluster))
        kill(when, module, name, *command, *RATE)
        assert throttles(cluster), name
        wait_until(lambda: is_told(headrace, cluster))
        headrace(*command, *RATE)
        assert moving(headrace) == [], name
        assert throttles(cluster) == [], name
    check_kept(cluster, orders)


@pytest.mark.parametrize("chosen", ["--file", "--all"])
def test_a_cancel_that_was_killed_goes_on(headrace, cluster, orders, moves, kill, chosen):
    file = moves(2, 3)
    command = ("reassign", "cancel", *(("--file", file) if chosen == "--file" else ("--all",)))
    cluster.cut(3)
    for when, module, name in [
        ("before", reassign, "alter_reassignments"),
        ("after", reassign, "alter_reassignments"),
        ("before", reassignment_run, "remove_throttles"),
        ("after", reassignment_throttles, "could_change_broker"),
    ]:
        headrace("reassign", "execute", "--file", file, *RATE, "--no-wait")
        kill(when, module, name, *command)
        assert throttles(cluster), name
        headrace(*command)
        assert moving(headrace) == [] and throttles(cluster) == [], name
        assert replicas_of(cluster) == [0, 1]
    cluster.heal()
    check_kept(cluster, orders)
