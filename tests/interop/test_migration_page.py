"""docs/migration.md, command by command, on a cluster under load: to Headrace and back to Kafka."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from bench import apache_kafka, topics
from headrace.client.errors import Disconnected
from headrace.launch import java
from headrace.launch.brokers import write_properties
from headrace.launch.zookeeper import ZooKeeperServer, write_config
from tests.fakes.waiting import wait_until
from tests.history.checker import anomalies
from tests.history.history import History
from tests.history.stock_clients import StockClients

from . import records
from .mixed_cluster import KAFKA_JVM, SMALL_KAFKA, lasting_port, metadata

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
PARTITIONS = 2
LIMIT_S = 240

pytestmark = [pytest.mark.usefixtures("kafka_jars"), pytest.mark.timeout(0)]

# Kafka's own scripts are not part of its jars. These do the same with the same arguments.
START = """#!/bin/sh
nohup nice -n 5 {java} kafka.Kafka "$2" > kafka.out 2>&1 &
echo $! > kafka.pid
cat /proc/$!/stat > kafka.stat
"""
STOP = """#!/bin/sh
kill -s TERM $(cat kafka.pid)
"""
HEADRACE = """#!/bin/sh
exec {python} -m headrace "$@"
"""


class Member(NamedTuple):
    broker_id: int
    data: Path
    directory: Path  # of its server.properties
    address: str


class Machines:
    """Three machines with a property file each, and a shell."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self.brokers = []
        for broker_id in (1, 2, 3):
            own = directory / f"machine-{broker_id}"
            own.mkdir()
            member = Member(broker_id, own / "data", own, f"127.0.0.1:{lasting_port()}")
            self.brokers.append(member)
            write_properties(
                own / "server.properties",
                {
                    **SMALL_KAFKA,
                    "broker.id": str(broker_id),
                    "listeners": f"PLAINTEXT://{member.address}",
                    "log.dirs": str(member.data),
                    "zookeeper.connect": zookeeper,
                    "min.insync.replicas": "2",
                    "offsets.topic.num.partitions": "4",
                    "transaction.state.log.num.partitions": "4",
                    "group.initial.rebalance.delay.ms": "0",
                    "auto.leader.rebalance.enable": "false",
                },
            )
        self.bootstrap_servers = ",".join(member.address for member in self.brokers)
        scripts = directory / "bin"
        scripts.mkdir()
        jars = apache_kafka.jars(apache_kafka.LAST_WITH_ZOOKEEPER)
        command = " ".join([str(java.find_java()), *KAFKA_JVM, "-cp", f"'{jars}/*'"])
        for name, text in (
            ("kafka-server-start.sh", START.format(java=command)),
            ("kafka-server-stop.sh", STOP),
            ("headrace", HEADRACE.format(python=sys.executable)),
        ):
            (scripts / name).write_text(text)
            (scripts / name).chmod(0o755)
        self._environment = os.environ | {
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "HEADRACE_BOOTSTRAP": self.bootstrap_servers,
            "XDG_RUNTIME_DIR": str(directory),
        }

    def type(self, commands: str, member: Member) -> None:
        """Run lines of the page on one machine; each must succeed."""
        output = member.directory / "shell.out"  # background brokers keep it open
        with output.open("ab") as out:
            done = subprocess.run(
                ["/bin/sh", "-e", "-c", commands],
                cwd=member.directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                timeout=LIMIT_S,
            )
        assert done.returncode == 0, f"{commands}\n{output.read_text()[-3000:]}"

    def wait_in_sync(self, topic: str) -> None:
        self.type("until headrace cluster health > /dev/null; do sleep 1; done", self.brokers[0])

    def is_kafka(self, member: Member) -> bool:
        return kafka_process(member) is not None

    def is_headrace(self, member: Member) -> bool:
        return headrace_process(member) is not None

    def kill_all(self) -> None:
        for member in self.brokers:
            for pid in (kafka_process(member), headrace_process(member)):
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)


def kafka_process(member: Member) -> int | None:
    """The process that the start script forked, if it still runs.

    Another process may have its number by now; numbers are used again within minutes. The start
    time tells them apart. The command line does not: it is the shell's until the process executes
    Java. Nor does the working directory: Java uses another one for a moment.
    """
    with suppress(FileNotFoundError, ProcessLookupError):
        pid = int((member.directory / "kafka.pid").read_text())
        _, at_start = _state_and_start((member.directory / "kafka.stat").read_text())
        state, started = _state_and_start(Path(f"/proc/{pid}/stat").read_text())
        if started == at_start and state != "Z":
            return pid
    return None


def _state_and_start(stat: str) -> tuple[str, int]:
    fields = stat.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def headrace_process(member: Member) -> int | None:
    """The process of Headrace's pid file, if its command line is one of Headrace."""
    with suppress(FileNotFoundError, ValueError, ProcessLookupError):
        pid = int((member.data / "headrace.pid").read_text())
        if b"headrace" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return pid
    return None


def blocks() -> dict[str, list[str]]:
    """The commands of the page, by the heading above them."""
    found = {}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
        heading, _, text = section.partition("\n")
        if commands := re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S):
            found[heading] = commands
    return found


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with ZooKeeperServer(write_config(tmp_path / "zookeeper")) as zookeeper:
        zookeeper.start()
        zookeeper.wait_ready()
        made = Machines(tmp_path, zookeeper.connect)
        try:
            yield made
        finally:
            made.kill_all()


def test_a_cluster_moves_to_headrace_and_back_as_the_page_says(machines: Machines) -> None:
    shown = blocks()
    (first,) = shown.pop("Before you start")
    (replace,) = shown.pop("Replace a broker")
    (afterwards,) = shown.pop("After the last Kafka broker")
    downgrade, give_back = shown.pop("Go back to Kafka")
    assert not shown, "commands that this test does not run"
    name, check = first.split("\n", 1)
    assert name.startswith("export HEADRACE_BOOTSTRAP=")

    one = machines.brokers[0]
    for member in machines.brokers:
        machines.type("kafka-server-start.sh -daemon server.properties", member)
    # A broker that has just started knows no controller yet. A stock client that asks this broker
    # first does not ask again for minutes, and its admin requests wait.
    wait_until(lambda: all(knows_all(machines, member) for member in machines.brokers), LIMIT_S)
    history = History()
    with StockClients(history, machines) as clients:
        for topic in ("load", "transactions"):
            topics.create(machines.bootstrap_servers, topic, PARTITIONS, replication_factor=3)
        clients.produce("load", "load", PARTITIONS, compression="zstd")
        clients.join("member", "group", ["load"])
        everyone = list(machines.brokers)
        machines.type(check, one)
        transactions = records_of_transactions(machines)

        for member in everyone:
            clients.wait_progress()
            machines.type(replace, member)
            assert machines.is_headrace(member) and not machines.is_kafka(member)
            transactions()
        machines.type(afterwards, one)
        transactions()
        machines.type(downgrade, one)
        for member in everyone:
            clients.wait_progress()
            machines.type(give_back, member)
            assert machines.is_kafka(member) and not machines.is_headrace(member)
            transactions()
        clients.wait_progress()
        clients.finish()
    assert anomalies(history) == []
    for member in everyone:
        machines.type("kafka-server-stop.sh", member)
    wait_until(lambda: not any(machines.is_kafka(member) for member in everyone), LIMIT_S)


def test_a_start_counts_before_the_shell_has_executed_kafka(machines: Machines) -> None:
    member = machines.brokers[0]
    # The shell that the script forks opens its output first, and waits for a reader.
    os.mkfifo(member.directory / "kafka.out")
    machines.type("kafka-server-start.sh -daemon server.properties", member)
    assert machines.is_kafka(member)


def knows_all(machines: Machines, member: Member) -> bool:
    assert machines.is_kafka(member), f"Kafka ended: {member.directory / 'kafka.out'}"
    host, _, port = member.address.rpartition(":")
    try:
        found = metadata(host, int(port))
    except Disconnected:
        return False
    return found.controller_id >= 0 and len(found.brokers) == len(machines.brokers)


def records_of_transactions(machines: Machines) -> Callable[[], None]:
    """Each call writes three transactions, one of them aborted, with one transactional ID."""
    calls = 0

    def write_and_read() -> None:
        nonlocal calls
        calls += 1
        servers = machines.bootstrap_servers
        records.write_transactions(servers, "transactions")
        committed = records.read(servers, "transactions", isolation="read_committed")
        assert len(committed) == calls * 100
        assert not any(b"dropped" in (record.value or b"") for record in committed)

    return write_and_read
