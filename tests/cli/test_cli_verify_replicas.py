"""``verify-replicas`` finds what a disk changed behind a broker's back, and names the broker."""

import json
import signal

import pytest

from headrace.records.batch import headers, seal
from headrace.testing import Cluster
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.slow

COMPACTED = {"partitions": 1, "cleanup.policy": "compact"}


@pytest.fixture
def cluster(monkeypatch):
    topics = {"orders": 2, "users": COMPACTED}
    with Cluster(brokers=3, topics=topics) as running:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", running.bootstrap_servers)
        running.produce("orders", [(f"k{n}", f"value {n}") for n in range(200)])
        running.produce("users", [(f"user {n % 10}", f"value {n}") for n in range(100)])
        for topic in topics:
            running.wait_in_sync(topic)
        yield running


def log_file(cluster, broker_id, name):
    directory = cluster.brokers[broker_id].data
    (found,) = directory.rglob(f"{name}/00000000000000000000.log")
    return found


def change(cluster, broker_id, name, last_batch=False, with_crc=False):
    """Change one byte of a value in a replica's file; the offset of its batch."""
    file = log_file(cluster, broker_id, name)
    data = bytearray(file.read_bytes())
    batches = list(headers(data))
    position, header = batches[-1 if last_batch else 0]
    data[position + header.size - 3] ^= 0x20
    if with_crc:
        seal(memoryview(data)[position : position + header.size])
    with file.open("r+b") as opened:
        opened.write(data)
    return header.base_offset


def follower_of(cluster, topic, partition=0):
    leader = cluster.leader_of(topic, partition)
    return next(one.broker_id for one in cluster.brokers if one.broker_id != leader)


def test_replicas_are_the_same(headrace, cluster):
    ran = headrace("verify-replicas")
    assert "All replicas are the same" in ran.lines[0]
    ran = headrace("verify-replicas", "orders", "--throttle", "10M", "--format", "json")
    assert ran.document["partitions"] == 2
    assert ran.document["bytes_fetched"] > 3 * 1000
    assert ran.document["differences"] == ran.document["not_compared"] == []


@pytest.mark.parametrize(("topic", "whose"), [("orders", "follower"), ("users", "leader")])
def test_a_changed_byte_is_found(headrace, cluster, topic, whose):
    leader = cluster.leader_of(topic)
    broker_id = leader if whose == "leader" else follower_of(cluster, topic)
    offset = change(cluster, broker_id, f"{topic}-0")
    ran = headrace("verify-replicas", "--format", "json", status=1)
    (difference,) = ran.document["differences"]
    assert (difference["topic"], difference["partition"]) == (topic, 0)
    assert (difference["broker"], difference["offset"]) == (broker_id, offset)
    assert "damaged" in difference["problem"]
    assert (f"headrace brokers shutdown {broker_id}" in difference["advice"]) is (whose == "leader")
    ran = headrace("verify-replicas", status=1)
    assert ran.lines[1].split()[:4] == [topic, "0", str(broker_id), str(offset)]
    assert f"move its directory {topic}-0 out of log.dirs" in ran.err


@pytest.mark.parametrize("topic", ["orders", "users"])
def test_the_majority_is_right_against_the_leader(headrace, cluster, topic):
    """The leader's batch is intact, so that only the other replicas show what is wrong."""
    leader = cluster.leader_of(topic)
    change(cluster, leader, f"{topic}-0", last_batch=True, with_crc=True)
    (difference,) = differences_in_sync(headrace, topic)
    assert (difference["broker"], difference["is_tie"]) == (leader, False)
    assert f"headrace brokers shutdown {leader}" in difference["advice"]


def differences_in_sync(headrace, topic):
    """What the command finds when it can compare all replicas: a busy follower leaves the ISR."""
    found = {}

    def is_complete():
        ran = headrace("verify-replicas", topic, "--format", "json", status=1)
        found.update(ran.document)
        return found["not_compared"] == [] and found["differences"]

    wait_until(is_complete)
    return found["differences"]


def test_without_a_majority_the_advice_is_to_compare(headrace, cluster):
    headrace("topics", "create", "pair", "-r", "2", "-c", "cleanup.policy=compact")
    cluster.produce("pair", [("k", "a value")])
    cluster.wait_in_sync("pair")
    leader = cluster.leader_of("pair")
    change(cluster, leader, "pair-0", with_crc=True)
    (difference,) = differences_in_sync(headrace, "pair")
    assert difference["broker"] != leader and difference["is_tie"]
    assert f"broker {leader}, which leads; there is no majority" in difference["problem"]
    assert "no majority of the replicas tells which one is right" in difference["advice"]


def test_the_advice_repairs_the_replica(headrace, cluster, tmp_path):
    broker_id = follower_of(cluster, "orders")
    change(cluster, broker_id, "orders-0")
    headrace("verify-replicas", status=1)
    directory = log_file(cluster, broker_id, "orders-0").parent
    cluster.kill(broker_id)
    directory.rename(tmp_path / "orders-0")
    cluster.restart(broker_id)
    cluster.wait_in_sync("orders")
    wait_until(lambda: under_replicated(headrace) == [])
    headrace("verify-replicas")


def under_replicated(headrace):
    return headrace("topics", "describe", "--under-replicated", "--format", "json").document


def test_a_replica_that_is_down_is_not_compared(headrace, cluster):
    broker_id = follower_of(cluster, "orders")
    cluster.kill(broker_id)
    wait_until(lambda: len(headrace("brokers", "list").lines) == 4)
    cluster.leader_of("orders")
    wait_until(lambda: skipped(headrace) == [(broker_id, "offline or not in sync")])
    cluster.restart(broker_id)


def skipped(headrace):
    ran = headrace("verify-replicas", "orders:0", "--format", "json", status=1)
    assert ran.document["differences"] == []
    return [(one["broker"], one["reason"]) for one in ran.document["not_compared"]]


def test_a_killed_run_continues_where_it_was(headrace, start, cluster, tmp_path, monkeypatch):
    cluster.produce("orders", [("k", "x" * 900_000)] * 12)
    cluster.wait_in_sync("orders")
    broker_id = follower_of(cluster, "orders")
    change(cluster, broker_id, "orders-0")
    state = tmp_path / "state.json"
    # Slow enough that the run is somewhere in the middle when it is killed.
    process = start(
        "verify-replicas", "orders", "--state", str(state), "--throttle", "6M",
        env={"HEADRACE_BOOTSTRAP": cluster.bootstrap_servers},
    )  # fmt: skip
    wait_until(lambda: state.exists() or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.wait()
    saved = json.loads(state.read_text())["partitions"]
    assert saved and not all(one["is_done"] for one in saved.values()), saved

    ran = headrace("verify-replicas", "orders", "--state", str(state), "--format", "json", status=1)
    assert "Continuing an earlier run" in ran.err
    assert ran.document["bytes_fetched"] < 3 * 12 * 900_000
    assert [one["broker"] for one in ran.document["differences"]] == [broker_id]
    assert not state.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing"], "topic missing does not exist"),
        (["orders:9"], "no partition 9"),
        (["--throttle", "fast"], "expected a number of bytes"),
        (["--throttle", "0"], "at least 1 byte"),
    ],
)
def test_wrong_arguments_are_refused(headrace, cluster, arguments, said):
    status = 2 if arguments[0].startswith("--") else 1
    assert said in headrace("verify-replicas", *arguments, status=status).err
