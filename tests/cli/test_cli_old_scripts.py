"""A cluster run with Kafka's old command lines only, as its first documents write them."""

import contextlib
import json
import os
import re
import signal

import pytest

from headrace.launch.java import JavaMissing, find_java, zookeeper_class_path
from headrace.launch.zookeeper import free_port
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def java():
    try:
        find_java()
        zookeeper_class_path()
    except JavaMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def script(start, headrace):
    """Run a script and return its output. What stays in the background has another parent."""

    def run(line, stdin=b""):
        if re.match(r"\S+-server-(start|stop)", line):
            process = start(*line.split())
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, (line, err.decode())
            return out.decode()
        return headrace(*line.split(), stdin=stdin).out

    return run


@pytest.fixture
def zookeeper(java, script, tmp_path):
    port = free_port()
    (tmp_path / "zookeeper.properties").write_text(
        f"dataDir={tmp_path / 'zookeeper'}\nclientPort={port}\ntickTime=500\n"
    )
    script("zookeeper-server-start.sh -daemon zookeeper.properties")
    try:
        yield f"localhost:{port}"
    finally:
        script("zookeeper-server-stop.sh")


@pytest.fixture
def brokers(script, zookeeper, tmp_path):
    """The property files of three brokers that run in the background, by broker ID."""
    files = {}
    for number in (1, 2, 3):
        files[number] = tmp_path / f"server-{number}.properties"
        files[number].write_text(
            f"broker.id={number}\n"
            "listeners=PLAINTEXT://127.0.0.1:0\n"
            f"log.dirs={tmp_path / f'logs-{number}'}\n"
            f"zookeeper.connect={zookeeper}\n"
            "zookeeper.session.timeout.ms=2000\n"
            "auto.leader.rebalance.enable=false\n"
            "controlled.shutdown.retry.backoff.ms=100\n"
        )
    try:
        for file in files.values():
            script(f"kafka-server-start.sh -daemon {file}")
        yield files
    finally:
        script("kafka-server-stop.sh")


def described(script, zookeeper, topic):
    """The leader, the replicas and the ISR of the first partition, from kafka-topics."""
    out = script(f"kafka-topics.sh --describe --zookeeper {zookeeper} --topic {topic}")
    (found,) = re.findall(r"^0 +(\S+) +(\S+) +(\S+)$", out, re.M)
    return found


def in_json(tmp_path, name, **content):
    file = tmp_path / name
    file.write_text(json.dumps(content))
    return str(file)


def check_moves(script, headrace, zookeeper, address, tmp_path):
    """One replica becomes two, and two change their order; the election follows a file."""
    at = f"--zookeeper {zookeeper}"
    script(f"kafka-topics.sh --create {at} --replica-assignment 1 --topic moved")

    def move(*replicas):
        entry = {"topic": "moved", "partition": 0, "replicas": list(replicas)}
        file = in_json(tmp_path, "moves.json", version=1, partitions=[entry])
        reassign = f"kafka-reassign-partitions.sh {at} --reassignment-json-file {file}"
        script(f"{reassign} --execute")
        wait_until(lambda: headrace("reassign", "list", "-b", address).out.startswith("No moves"))
        ids = ",".join(map(str, replicas))
        wait_until(lambda: described(script, zookeeper, "moved")[1] == ids)
        assert script(f"{reassign} --verify").splitlines()[1].split()[-1] == "completed"

    move(1, 2)
    move(2, 1)
    assert described(script, zookeeper, "moved")[0] == "1"
    places = in_json(tmp_path, "places.json", partitions=[{"topic": "moved", "partition": 0}])
    script(f"kafka-preferred-replica-election.sh {at} --path-to-json-file {places}")
    wait_until(lambda: described(script, zookeeper, "moved")[0] == "2")
    move(1, 2)
    elect = f"kafka-leader-election.sh --bootstrap-server {address} --election-type preferred"
    script(f"{elect} --path-to-json-file {places}")
    wait_until(lambda: described(script, zookeeper, "moved")[0] == "1")


def test_the_drill_with_the_old_scripts(script, headrace, zookeeper, brokers, tmp_path):
    at = f"--zookeeper {zookeeper}"
    script(f"kafka-topics.sh --create {at} --replication-factor 3 --partitions 1 --topic test")
    script(f"kafka-topics.sh --create {at} --replication-factor 2 --partitions 12 --topic wide")
    assert script(f"kafka-topics.sh --list {at}").split() == ["test", "wide"]
    first, replicas, isr = described(script, zookeeper, "test")
    assert replicas == isr and len(isr.split(",")) == 3
    # Any broker will do for a client; the others are found through it.
    listed = script(f"kafka-run-class.sh kafka.admin.BrokerApiVersionsCommand {at}")
    addresses = re.findall(r"^(\S+:\d+) \(id: ", listed, re.M)
    address = addresses[int(first) % 3]
    script(f"kafka-console-producer.sh --broker-list {address} --topic test", stdin=b"a\nb\n")
    check_moves(script, headrace, zookeeper, address, tmp_path)

    process = int((tmp_path / f"logs-{first}" / "headrace.pid").read_text())
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    wait_until(lambda: described(script, zookeeper, "test")[0] not in (first, "none"), limit_s=30)
    second, _, shorter = described(script, zookeeper, "test")
    assert first not in shorter.split(",") and len(shorter.split(",")) == 2
    read = f"kafka-console-consumer.sh {at} --from-beginning --topic test --max-messages 2"
    assert script(read).splitlines() == ["a", "b"]
    assert "test" in script(f"kafka-topics.sh --describe {at} --under-replicated-partitions")

    script(f"kafka-server-start.sh -daemon {brokers[int(first)]}")
    wait_until(lambda: len(described(script, zookeeper, "test")[2].split(",")) == 3, limit_s=30)
    assert described(script, zookeeper, "test")[0] == second
    script(f"kafka-preferred-replica-election.sh {at}")
    wait_until(lambda: described(script, zookeeper, "test")[0] == first)

    shutdown = "kafka-run-class.sh kafka.admin.ShutdownBroker"
    out = script(f"{shutdown} {at} --broker {first} --num.retries 3 --retry.interval.ms 60")
    assert f"Broker {first} leads no partitions" in out
    wait_until(lambda: described(script, zookeeper, "test")[0] != first)

    # Now the broker goes for good.
    process = int((tmp_path / f"logs-{first}" / "headrace.pid").read_text())
    stop = ("--stop", str(brokers[int(first)]), "-b", addresses[int(second) - 1])
    ran = headrace("brokers", "decommission", first, "--force", *stop)
    assert f"Broker {first} has no replicas" in ran.out
    assert f"Stopped process {process}" in ran.err
    assert not (tmp_path / f"logs-{first}" / "headrace.pid").exists()
    assert script(read).splitlines() == ["a", "b"]
