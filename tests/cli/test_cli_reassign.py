"""Partitions move between brokers: what is shown before, and what every mistake is answered."""

import json
import signal

import pytest

from headrace.testing import Cluster
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.slow

THROTTLES = ("leader.replication.throttled", "follower.replication.throttled")


@pytest.fixture
def cluster(monkeypatch):
    config = {"auto.leader.rebalance.enable": "false", "default.replication.factor": "2"}
    with Cluster(brokers=4, config=config) as running:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", running.bootstrap_servers)
        yield running


@pytest.fixture
def orders(headrace, cluster):
    headrace("topics", "create", "orders", "-p", "3", "-r", "2")
    cluster.produce("orders", [(f"k{n}", f"value {n}") for n in range(300)])
    cluster.wait_in_sync("orders")
    return "orders"


def replicas_of(headrace, topic="orders"):
    (found,) = headrace("topics", "describe", topic, "--format", "json").document
    return {one["partition"]: one["replicas"] for one in found["partitions"]}


def write(tmp_path, assignments, topic="orders", name="moves.json", **fields):
    file = tmp_path / name
    entries = [
        {"topic": topic, "partition": number, "replicas": replicas, **fields}
        for number, replicas in assignments.items()
    ]
    file.write_text(json.dumps({"version": 1, "partitions": entries}))
    return str(file)


def elsewhere(headrace, partition=0):
    """The two brokers that do not have the partition."""
    return [b for b in range(4) if b not in replicas_of(headrace)[partition]]


def throttles(headrace):
    """The settings of throttles that are in effect anywhere."""
    ran = [headrace("configs", "get", "topic", "orders", "--changed", "--format", "json").out]
    for broker in range(4):
        ran.append(
            headrace("configs", "get", "broker", str(broker), "--changed", "--format", "json").out
        )
    return [text for text in ran if any(name in text for name in THROTTLES)]


def values_in(cluster):
    return sorted(record.value for record in cluster.records("orders"))


def test_a_plan_shows_the_bytes_and_execute_moves_them(headrace, cluster, orders, tmp_path):
    before, values = replicas_of(headrace), values_in(cluster)
    target = elsewhere(headrace)
    file = write(tmp_path, {0: target})
    ran = headrace("reassign", "plan", "--file", file, "--format", "json")
    (move,) = ran.document["moves"]
    assert (move["from"], move["to"], move["adding"]) == (before[0], target, target)
    assert ran.document["bytes"] == move["bytes"] > 0
    ran = headrace("reassign", "plan", "--file", file)
    assert ran.lines[1].split()[:4] == ["orders", "0", _ids(before[0]), _ids(target)]
    assert "1 partition, " in ran.err and f"broker {target[0]} gets" in ran.err
    assert replicas_of(headrace) == before, "a plan changes nothing"

    ran = headrace("reassign", "execute", "--file", file, "--throttle", "100M")
    assert ran.lines[-1] == "Reassigned 1 partition"
    wait_until(lambda: replicas_of(headrace)[0] == target)
    assert throttles(headrace) == []
    assert values_in(cluster) == values
    # The line for the way back is a file for the way back.
    back = tmp_path / "back.json"
    back.write_text(ran.lines[1])
    headrace("reassign", "execute", "--file", str(back))
    wait_until(lambda: replicas_of(headrace) == before)
    assert "already" in headrace("reassign", "execute", "--file", str(back)).out
    assert headrace("reassign", "list").lines == ["No moves are in progress"]


def _ids(brokers):
    return ",".join(map(str, brokers))


def test_generated_assignments_are_even_and_refused_once_outdated(
    headrace, cluster, orders, tmp_path
):
    headrace("topics", "create", "users", "-p", "4", "-r", "1")
    ran = headrace("reassign", "generate", "orders", "users", "--brokers", "1-3")
    generated = tmp_path / "generated.json"
    generated.write_text(ran.out)
    assert len(ran.lines) == 1
    entries = json.loads(ran.out)["partitions"]
    assert all(0 not in entry["replicas"] for entry in entries)
    outdated = tmp_path / "outdated.json"
    moved = next(entry for entry in entries if entry["topic"] == "orders")
    moved = {**moved, "replicas": moved["replicas"][::-1], "current_replicas": [3, 0, 1]}
    outdated.write_text(json.dumps({"version": 1, "partitions": [moved]}))
    for verb in ("plan", "execute"):
        said = headrace("reassign", verb, "--file", str(outdated), status=1).err
        assert f"orders-{moved['partition']}: the plan is out of date" in said
    headrace("reassign", "execute", "--file", str(generated))
    wait_until(lambda: all(0 not in one for one in replicas_of(headrace).values()))
    # Run again, the plan is done and not outdated.
    assert "already" in headrace("reassign", "execute", "--file", str(generated)).out
    headrace("reassign", "verify", "--file", str(generated))


def test_a_plan_that_was_checked_is_refused_after_a_change(headrace, cluster, orders, tmp_path):
    target = elsewhere(headrace)
    checked = tmp_path / "checked.json"
    headrace("reassign", "plan", "--file", write(tmp_path, {0: target}), "--out", str(checked))
    other = [target[0], replicas_of(headrace)[0][0]]
    headrace("reassign", "execute", "--file", write(tmp_path, {0: other}))
    ran = headrace("reassign", "execute", "--file", str(checked), status=1)
    assert "out of date" in ran.err
    wait_until(lambda: replicas_of(headrace)[0] == other)


@pytest.mark.parametrize(
    ("partition", "replicas", "said"),
    [
        (0, [0, 9], "orders-0: broker 9 is not registered"),
        (7, [0, 1], "orders-7: topic orders has no partition 7"),
    ],
)
def test_an_impossible_target_is_refused(
    headrace, cluster, orders, tmp_path, partition, replicas, said
):
    file = write(tmp_path, {partition: replicas})
    for verb in ("plan", "execute"):
        assert said in headrace("reassign", verb, "--file", file, status=1).err
    missing = write(tmp_path, {0: [0]}, topic="missing")
    ran = headrace("reassign", "execute", "--file", missing, status=1)
    assert "topic missing does not exist" in ran.err
    assert (
        "has no list"
        in headrace("reassign", "execute", "--file", _text(tmp_path, "{}"), status=2).err
    )


def _text(tmp_path, text):
    file = tmp_path / "broken.json"
    file.write_text(text)
    return str(file)


@pytest.fixture
def held(headrace, cluster, orders, tmp_path):
    """A move that does not end: its target is cut off from the leader."""
    target = elsewhere(headrace)
    leader = cluster.leader_of("orders", 0)
    for broker in target:
        for other in range(4):
            if other != broker and other not in target:
                cluster.cut(broker, other)
    file = write(tmp_path, {0: target}, name="held.json")
    headrace("reassign", "execute", "--file", file, "--throttle", "50M", "--no-wait")
    assert leader not in target
    return file


def test_moves_in_progress_are_seen_verified_and_cancelled(
    headrace, cluster, orders, held, tmp_path
):
    before = json.loads(headrace("reassign", "list", "--format", "json").out)
    (moving,) = before
    assert (moving["partition"], moving["adding"]) == (0, moving["replicas"])
    ran = headrace("reassign", "verify", "--file", held, "--format", "json", status=1)
    assert ran.document[0]["status"] == "in progress"
    assert len(throttles(headrace)) >= 3

    # Another target for the same partition, and another partition.
    again = write(tmp_path, {0: moving["replicas"][::-1]})
    beside = write(tmp_path, {1: elsewhere(headrace, 1)}, name="beside.json")
    for verb in ("plan", "execute"):
        said = headrace("reassign", verb, "--file", again, status=1).err
        assert "orders-0 is being reassigned to" in said and "--additional" in said
        said = headrace("reassign", verb, "--file", beside, status=1).err
        assert "another reassignment is in progress: orders-0" in said
    headrace("reassign", "plan", "--file", beside, "--additional")
    said = headrace("topics", "alter", "orders", "-r", "3", status=1).err
    assert "is being reassigned to" in said and "--additional" not in said

    ran = headrace("reassign", "cancel", "--file", held)
    assert ran.lines[1].split()[-1] == "cancelled"
    wait_until(lambda: headrace("reassign", "list").lines == ["No moves are in progress"])
    assert throttles(headrace) == []
    cluster.heal()
    assert "No such move" in headrace("reassign", "cancel", "--file", held).out
    ran = headrace("reassign", "verify", "--file", held, status=1)
    assert "has the replicas" in ran.out


def test_a_throttle_is_added_to_moves_that_began_without_one(headrace, cluster, orders, held):
    headrace("reassign", "cancel", "--file", held)
    assert throttles(headrace) == []
    headrace("reassign", "execute", "--file", held, "--no-wait")
    assert throttles(headrace) == []
    headrace("reassign", "execute", "--file", held, "--throttle", "40M", "--no-wait")
    (moving,) = headrace("reassign", "list", "--format", "json").document
    followers = setting(headrace, "follower.replication.throttled.replicas")
    assert followers == ",".join(f"0:{broker}" for broker in moving["adding"])
    assert setting(headrace, "leader.replication.throttled.replicas")
    headrace("reassign", "cancel", "--file", held)
    assert throttles(headrace) == []
    cluster.heal()


def setting(headrace, name, kind="topic", owner="orders"):
    (found,) = headrace("configs", "get", kind, owner, name, "--format", "json").document
    return found["value"]


def test_a_refused_partition_leaves_other_moves_as_they_were(
    headrace, cluster, orders, held, tmp_path
):
    """The second plan replaces the move of partition 0; its other partition is refused."""
    (earlier,) = headrace("reassign", "list", "--format", "json").document
    replicas = replicas_of(headrace)
    stopping = next(b for b in range(4) if b not in earlier["replicas"])
    number = next(n for n, found in replicas.items() if n and stopping not in found)
    headrace("brokers", "shutdown", str(stopping))  # it gets no new replicas until it restarts
    target = [stopping, replicas[number][0]]
    file = write(tmp_path, {0: earlier["replicas"][::-1], number: target})
    lists = [setting(headrace, f"{name}.replicas") for name in THROTTLES]
    ran = headrace(
        "reassign", "execute", "--file", file, "--additional", "--throttle", "10M", status=1
    )
    assert f"orders-{number}: " in ran.err
    assert "1 partition refused; the earlier moves go on: orders-0" in ran.err
    assert headrace("reassign", "list", "--format", "json").document == [earlier]
    assert [setting(headrace, f"{name}.replicas") for name in THROTTLES] == lists
    for broker in earlier["replicas"]:
        rate = setting(headrace, f"{THROTTLES[1]}.rate", "broker", str(broker))
        assert rate == str(10 << 20), "still throttled"
    assert "10,485,760 bytes per second" in ran.err
    headrace("reassign", "cancel", "--file", held)
    assert throttles(headrace) == []
    # Nothing else moves now: the next refusal leaves nothing.
    file = write(tmp_path, {number: target})
    ran = headrace("reassign", "execute", "--file", file, "--throttle", "10M", status=1)
    assert "1 partition refused; nothing is reassigned" in ran.err
    assert throttles(headrace) == []
    cluster.heal()


def test_a_killed_execute_goes_on_when_it_is_run_again(headrace, start, cluster, orders, held):
    process = start(
        "reassign", "execute", "--file", held, "--throttle", "40M",
        env={"HEADRACE_BOOTSTRAP": cluster.bootstrap_servers},
    )  # fmt: skip
    wait_until(lambda: process.stdout.readline() or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(json.loads(headrace("reassign", "list", "--format", "json").out)) == 1
    cluster.heal()
    ran = headrace("reassign", "execute", "--file", held, "--throttle", "40M")
    assert ran.lines[-1].startswith(("Reassigned", "All partitions"))
    headrace("reassign", "verify", "--file", held)
    assert throttles(headrace) == []


def test_the_replication_factor_changes(headrace, cluster, orders):
    values = values_in(cluster)
    ran = headrace("topics", "alter", "orders", "--replication-factor", "3")
    assert "3 replica(s) per partition now; 3 partitions changed" in ran.out
    wait_until(lambda: all(len(one) == 3 for one in replicas_of(headrace).values()))
    assert "already" in headrace("topics", "alter", "orders", "-r", "3").out
    headrace("topics", "alter", "orders", "-r", "1")
    wait_until(lambda: all(len(one) == 1 for one in replicas_of(headrace).values()))
    assert values_in(cluster) == values
    assert "needs 5 brokers" in headrace("topics", "alter", "orders", "-r", "5", status=1).err
    assert "does not exist" in headrace("topics", "alter", "no", "-r", "1", status=1).err
    assert "give one of" in headrace("topics", "alter", "orders", status=2).err


def test_a_change_of_the_replication_factor_can_be_refused(headrace, cluster, orders, tmp_path):
    before = replicas_of(headrace)
    keep = "--disallow-replication-factor-change"
    file = write(tmp_path, {0: [0, 1, 2]})
    ran = headrace("reassign", "execute", "--file", file, keep, status=1)
    assert "orders-0: the target has 3 replicas, the partition 2" in ran.err
    assert replicas_of(headrace) == before
    file = write(tmp_path, {0: before[0][::-1]})
    headrace("kafka-reassign-partitions.sh", "--execute", "--reassignment-json-file", file, keep)
    wait_until(lambda: replicas_of(headrace)[0] == before[0][::-1])


def test_throttles_of_a_broker_that_is_down_are_removed(headrace, cluster, orders, tmp_path):
    """Else the broker would replicate slowly when it is back, and nobody would know why."""
    target = elsewhere(headrace)
    file = write(tmp_path, {0: target})
    headrace("reassign", "execute", "--file", file, "--throttle", "50M", "--no-wait")
    wait_until(lambda: headrace("reassign", "list").lines == ["No moves are in progress"])
    wait_until(lambda: replicas_of(headrace)[0] == target)
    assert len(throttles(headrace)) >= 3
    cluster.kill(target[0])
    wait_until(lambda: "offline" in headrace("brokers", "list").out)
    assert "Throttles removed" in headrace("reassign", "verify", "--file", file).err
    cluster.restart(target[0])
    wait_until(lambda: "offline" not in headrace("brokers", "list").out)
    wait_until(lambda: throttles(headrace) == [])


def test_the_throttle_of_a_source_that_has_nothing_left_is_removed(headrace, cluster, tmp_path):
    """It is down, and no partition names it any more."""
    headrace("topics", "create", "solo", "-r", "1")
    source = cluster.leader_of("solo")
    target = (source + 1) % 4
    file = write(tmp_path, {0: [target]}, topic="solo")
    headrace("reassign", "execute", "--file", file, "--throttle", "50M", "--no-wait")
    wait_until(lambda: replicas_of(headrace, "solo")[0] == [target])
    cluster.kill(source)
    wait_until(lambda: len(headrace("brokers", "list").lines) == 4)
    assert "Throttles removed" in headrace("reassign", "verify", "--file", file).err
    cluster.restart(source)
    wait_until(lambda: len(headrace("brokers", "list").lines) == 5)
    changed = headrace("configs", "get", "broker", str(source), "--changed").out
    assert "throttled" not in changed


def test_kafkas_script_moves_partitions(headrace, cluster, orders, tmp_path):
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "orders"}]}))
    script = "kafka-reassign-partitions.sh"
    ran = headrace(
        script, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "0,1,2"
    )
    file = tmp_path / "moves.json"
    file.write_text(ran.lines[-1])
    headrace(script, "--execute", "--reassignment-json-file", str(file))
    arguments = ("reassign", "verify", "--file", str(file), "--format", "json")

    def is_completed():
        # Its status is 1 until all moves are over.
        try:
            return headrace(*arguments).document is not None
        except AssertionError:
            return False

    wait_until(is_completed)
    ran = headrace(script, "--verify", "--reassignment-json-file", str(file))
    assert all(line.split()[-1] == "completed" for line in ran.lines[1:])
