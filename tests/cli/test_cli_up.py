"""A whole cluster with one command: started, stopped, started again, and killed."""

import os
import re
import signal
import subprocess

import pytest

from headrace.launch.brokers import write_properties
from headrace.launch.cluster import default_settings
from headrace.launch.java import JavaMissing, find_java, zookeeper_class_path
from headrace.model.config import parse_properties
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def java():
    try:
        find_java()
        zookeeper_class_path()
    except JavaMissing as missing:
        pytest.skip(str(missing))


def is_running(process_id):
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    # A child of this test that has ended, but was not waited for, is a zombie.
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(process_id)], capture_output=True)
    return not state.stdout.startswith(b"Z")


def brokers_of(up):
    """The processes of the brokers and of ZooKeeper, by their command lines."""
    listed = subprocess.run(
        ["ps", "-ww", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True
    )
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    return {int(pid): args for pid, parent, args in rows if int(parent) == up.pid}


def started(start, tmp_path, *options):
    ready = tmp_path / "ready"
    ready.unlink(missing_ok=True)  # of a command that was killed
    up = start("up", "--port", "0", "--data", "cluster", "--ready-file", str(ready), *options)
    wait_until(lambda: ready.exists() or up.poll() is not None, limit_s=60)
    assert up.poll() is None, up.communicate()
    return up, ready.read_text().strip()


def headrace(start, address, *words, stdin=b""):
    process = start(*words, "-b", address, stdin=subprocess.PIPE)
    out, err = process.communicate(stdin, 60)
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.usefixtures("java")
def test_a_cluster_starts_stops_and_starts_again_with_its_records(start, tmp_path):
    up, address = started(start, tmp_path)
    assert len(address.split(",")) == 3
    headrace(start, address, "topics", "create", "orders", "-p", "3")
    described = headrace(start, address, "topics", "describe", "orders")
    assert "ReplicationFactor: 3" in described and "min.insync.replicas=2" in described
    headrace(start, address, "produce", "orders", stdin=b"a\nb\n")
    assert "The cluster is healthy." in headrace(start, address, "cluster", "health")

    children = brokers_of(up)
    up.send_signal(signal.SIGINT)
    out, err = up.communicate(timeout=60)
    assert up.returncode == 0, err.decode()
    assert "3 brokers listening on " in out.decode()
    assert [args for pid, args in children.items() if is_running(pid)] == []
    for number in (1, 2, 3):
        log = (tmp_path / "cluster" / f"broker-{number}" / "headrace.log").read_text()
        assert "Shutting down: received SIGTERM" in log

    up, address = started(start, tmp_path)
    read = headrace(start, address, "consume", "orders", "--from-beginning", "--max", "2")
    assert sorted(read.splitlines()) == ["a", "b"]
    stopped = start("stop", "--data", "cluster")
    assert stopped.communicate(timeout=60)[0] == f"Stopped process {up.pid}\n".encode()
    assert up.wait(60) == 0


@pytest.mark.usefixtures("java")
def test_killing_the_command_leaves_no_process_behind(start, tmp_path):
    up, address = started(start, tmp_path, "--brokers", "2")
    children = brokers_of(up)
    assert len(children) == 3, "two brokers and a ZooKeeper"
    up.kill()
    wait_until(lambda: not any(map(is_running, children)), limit_s=10)
    up.wait()
    # The directory starts again after that.
    up, address = started(start, tmp_path, "--brokers", "2")
    assert len(address.split(",")) == 2
    up.send_signal(signal.SIGINT)
    assert up.wait(60) == 0


@pytest.mark.usefixtures("java")
def test_the_death_of_a_broker_is_reported(start, tmp_path):
    up, address = started(start, tmp_path)
    headrace(start, address, "topics", "create", "orders")
    (victim,) = (pid for pid, args in brokers_of(up).items() if "server-2.properties" in args)
    os.kill(victim, signal.SIGKILL)
    said = b""
    assert up.stdout is not None
    while b"broker 2 (process" not in said:
        line = up.stdout.readline()
        assert line, said
        said += line
    assert re.search(rb"broker 2 \(process \d+\) killed by signal 9", said)
    up.send_signal(signal.SIGINT)
    assert up.wait(60) == 0


def test_a_running_zookeeper_can_be_used(zookeeper, start, tmp_path):
    connect = f"{zookeeper.connect}/of-up"
    up, address = started(start, tmp_path, "--brokers", "1", "--zookeeper", connect)
    assert [args for args in brokers_of(up).values() if "java" in args] == []
    # A script that names this ZooKeeper finds the broker there.
    listed = start("kafka-broker-api-versions.sh", "--zookeeper", connect)
    assert listed.communicate(timeout=60)[0].decode().startswith(f"{address} (id: 1 ")
    other = start("up", "--port", "0", "--data", "cluster", "--zookeeper", connect)
    _, err = other.communicate(timeout=60)
    assert other.returncode == 1 and f"a cluster (process {up.pid}) already runs in" in err.decode()
    # The second signal does not wait for a clean shutdown.
    children = brokers_of(up)
    up.send_signal(signal.SIGTERM)
    up.send_signal(signal.SIGTERM)
    assert up.wait(60) in (0, 128 + signal.SIGTERM)
    wait_until(lambda: not any(map(is_running, children)), limit_s=10)


@pytest.mark.usefixtures("java")
def test_the_drill_of_a_killed_leader(start):
    demo = start("demo", "cluster", "--port", "0")
    out, err = demo.communicate(timeout=120)
    text = out.decode()
    assert demo.returncode == 0, text + err.decode()
    described = re.findall(r"^ +0 +(\d+) +([\d,]+) +([\d,]+)$", text, re.M)
    (first, _, full), (second, _, shorter), (_, _, full_again) = described
    assert first != second, "another broker leads"
    assert len(full.split(",")) == len(full_again.split(",")) == 3
    assert sorted(shorter.split(",")) == sorted(set(full.split(",")) - {first})
    assert "The cluster is healthy." in text


def test_without_java_one_line_says_what_to_install(start, tmp_path):
    up = start("up", env={"PATH": str(tmp_path), "JAVA_HOME": ""})
    _, err = up.communicate(timeout=60)
    assert up.returncode == 1
    (line,) = err.decode().splitlines()
    assert "ZooKeeper requires Java 17 or newer" in line and "Install it" in line


def test_wrong_options_are_refused(headrace):
    assert "too high for 3 brokers" in headrace("up", "--port", "65534", status=2).err
    assert "expected KEY=VALUE" in headrace("up", "-X", "nonsense", status=2).err


def test_a_port_in_use_is_named_before_anything_starts(headrace, broker, tmp_path):
    port = broker.bootstrap_servers.rpartition(":")[2]
    ran = headrace("up", "--port", port, "--brokers", "1", "--data", str(tmp_path), status=1)
    assert f"Cannot listen on port {port}: the address is in use" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_replication_follows_the_number_of_brokers():
    for brokers, replicas, min_isr in ((1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (5, "3", "2")):
        settings = default_settings(brokers)
        assert settings["default.replication.factor"] == replicas
        assert settings["offsets.topic.replication.factor"] == replicas
        assert settings["transaction.state.log.replication.factor"] == replicas
        assert settings["min.insync.replicas"] == min_isr
        assert settings["transaction.state.log.min.isr"] == min_isr


def test_a_property_file_is_read_back_as_it_was_written(tmp_path):
    settings = {"log.dirs": "/a b\\c", "listeners": "PLAINTEXT://127.0.0.1:0"}
    write_properties(tmp_path / "server.properties", settings)
    assert parse_properties((tmp_path / "server.properties").read_text(), "file") == settings
