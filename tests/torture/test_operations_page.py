"""docs/operations.md, followed block by block, with brokers and a ZooKeeper of their own.

A producer and a group run from the first broker on. In the end, every acknowledged record is there.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer

from headrace.launch.java import JavaMissing, find_java, zookeeper_class_path

pytestmark = [pytest.mark.torture, pytest.mark.timeout(0)]

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
BROKERS = (1, 2, 3, 4, 5)
FULL_ROUNDS = 3  # make test runs fewer


def blocks():
    """The page's blocks of commands, by the section that they are in."""
    found = []
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        found += [(title, block) for block in re.findall(r"^```\n(.*?)^```$", text, re.M | re.S)]
    return found


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Operator:
    """A shell in which the blocks run one after the other, with free ports."""

    def __init__(self, directory):
        self.directory = directory
        zookeeper, *brokers = free_ports(1 + len(BROKERS))
        self.addresses = [f"127.0.0.1:{port}" for port in brokers]
        self._ports = {"127.0.0.1:2181": f"127.0.0.1:{zookeeper}"}
        self._ports |= {
            f"127.0.0.1:909{n}": a for n, a in zip(BROKERS, self.addresses, strict=True)
        }
        self._zookeeper = zookeeper
        self._environment = {
            **os.environ,
            "PATH": f"{self._commands()}:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": str(directory),
        }

    def _commands(self):
        """A directory with the command ``headrace`` of this checkout."""
        directory = self.directory / "bin"
        directory.mkdir()
        command = directory / "headrace"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m headrace "$@"\n')
        command.chmod(0o755)
        return directory

    def run(self, block):
        for documented, used in self._ports.items():
            block = block.replace(documented, used)
        block = block.replace("headrace zookeeper -daemon", f"headrace zookeeper -daemon "
                              f"--port {self._zookeeper}")  # fmt: skip
        block = re.sub(r"^export (\w+)=(.*)$", self._export, block, flags=re.MULTILINE)
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=self.directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ran.returncode == 0, f"{block}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def _export(self, match):
        self._environment[match[1]] = match[2]
        return match[0]

    def write_properties(self):
        """The port of broker N is 909N on the page; here it is another one."""
        for n, address in zip(BROKERS, self.addresses, strict=True):
            file = self.directory / f"server-{n}.properties"
            file.write_text(file.read_text().replace(f"127.0.0.1:909{n}", address))

    def close(self):
        for file in self.directory.glob("*/*.pid"):
            try:
                os.kill(int(file.read_text().split()[0]), signal.SIGKILL)
            except (ProcessLookupError, ValueError):
                continue


class Load:
    """Sends numbers and counts the acknowledged ones, until it is stopped."""

    def __init__(self, addresses):
        self.acknowledged = []
        self.failed = []
        self._bootstrap = ",".join(addresses)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self):
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "log_level": 0,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        number = 0
        while not self._over.wait(0.01):
            producer.produce("orders", b"%d" % number, on_delivery=self._delivered)
            producer.poll(0)
            number += 1
        producer.flush(60)

    def _delivered(self, error, message):
        (self.failed if error else self.acknowledged).append(message.value())

    def finish(self):
        self._over.set()
        self._thread.join()


def read_all(bootstrap, count, group):
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe(["orders"])
    found = []
    while len(found) < count:
        came = consumer.consume(1000, timeout=30)
        if not came:
            break
        found += [message.value() for message in came if message.error() is None]
    consumer.close()
    return found


@pytest.fixture
def operator(tmp_path):
    try:
        find_java()
        zookeeper_class_path()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    running = Operator(tmp_path)
    yield running
    running.close()


class Followed(NamedTuple):
    sections: list[str]  # one entry per block
    load: Load


def follow(operator, until):
    """Run the blocks up to the end of this section, under load."""
    load = None
    done = []
    try:
        for title, block in blocks():
            if until in done and title != until:
                break
            if title == "Before you change anything":
                continue  # there is no cluster yet; its commands are used below
            operator.run(block)
            done.append(title)
            if "cat > server-" in block:
                operator.write_properties()
            if "topics create orders" in block:
                load = Load(operator.addresses)
                assert read_all(operator.addresses[0], 10, "first")  # creates __consumer_offsets
    finally:
        if load is not None:
            load.finish()
    assert done[-1] == until
    return Followed(done, load)


def check_three_brokers(operator, load):
    assert load.failed == [] and len(load.acknowledged) > 100
    found = read_all(operator.addresses[0], len(load.acknowledged), "last")
    assert sorted(found) == sorted(load.acknowledged)
    listed = operator.run("headrace brokers list --format json")
    assert listed.count('"broker"') == 3
    described = operator.run("headrace topics describe orders __consumer_offsets")
    assert described.count("ReplicationFactor: 3") == 2


def test_the_page_leads_from_one_broker_to_three(operator, torture_rounds):
    if torture_rounds >= FULL_ROUNDS:
        pytest.skip("the whole page is followed")
    followed = follow(operator, "From one to three")
    check_three_brokers(operator, followed.load)


@pytest.mark.long
def test_the_page_leads_from_one_broker_to_five_and_back(operator):
    followed = follow(operator, "Back to three")
    assert len(followed.sections) >= 11
    check_three_brokers(operator, followed.load)
