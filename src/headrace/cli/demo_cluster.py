"""``headrace demo cluster``: kill the leader of a replicated topic, and lose nothing.

Each step prints the command that it runs, so that a reader can type it too.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import output
from headrace.cli.options import BOOTSTRAP_VARIABLE
from headrace.cli.up import hold_directory
from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.errors import ClientError
from headrace.launch.brokers import BrokerProcess
from headrace.launch.cluster import ClusterFailed, ClusterProcesses, taken_port
from headrace.launch.java import JavaMissing

_TOPIC = "drill"
_RECORDS = ("one", "two", "three")
_BROKERS = 3
_FIRST_PORT = 9092
# A killed broker is replaced after this time; the default is 18 s.
_SESSION_MS = 2000
_LIMIT_S = 30.0


def demo_cluster(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Data directory of the cluster.",
            show_default="a temporary directory, removed at the end",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="PORT",
            min=0,
            max=65533,
            help="Port of broker 1; the others listen on the next ones. 0 picks free ports.",
            show_default="9092 if it and the next ones are free, otherwise any ports",
        ),
    ] = None,
) -> None:
    """Kill the leader of a replicated topic, and lose nothing.

    Starts a ZooKeeper and three brokers on this machine, writes records to a topic with three
    replicas, kills the leader with kill -9, reads the records from the next leader, and starts the
    killed broker again. Requires Java 17 or newer, for ZooKeeper.
    """
    # SIGTERM and a closed terminal end the demo like Ctrl-C, so that its directory is removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as temporary:
        directory = Path(temporary) / "cluster" if data is None else data.absolute()
        try:
            with hold_directory(directory):
                processes = ClusterProcesses(
                    directory,
                    brokers=_BROKERS,
                    port=_first_port() if port is None else port,
                    settings={"zookeeper.session.timeout.ms": str(_SESSION_MS)},
                )
                try:
                    FailoverDemo(processes).run()
                finally:
                    processes.stop()
        except (JavaMissing, ClusterFailed, ClientError) as failure:
            raise output.CommandFailed(str(failure)) from None


class FailoverDemo:
    """The steps, one after the other."""

    def __init__(self, processes: ClusterProcesses) -> None:
        self._processes = processes
        self._environment: dict[str, str] = {}

    def run(self) -> None:
        self._start()
        self._write()
        killed = self._kill_the_leader()
        self._read_again()
        self._bring_back(killed)

    def _start(self) -> None:
        processes = self._processes
        assert processes.zookeeper is not None
        output.heading("1. Three property files, a ZooKeeper and three brokers")
        _say(f"$ headrace zookeeper {processes.zookeeper.config}")
        for broker in processes.brokers:
            _say(f"$ headrace serve {broker.properties}")
        started_at = time.monotonic()
        processes.start()
        processes.wait_ready()
        for broker in processes.brokers:
            _say(f"broker {broker.broker_id} listens on {broker.address}, data in {broker.data}")
        _say(f"ready after {time.monotonic() - started_at:.1f} s")
        self._environment = {BOOTSTRAP_VARIABLE: processes.bootstrap_servers}
        _say(f"$ export {BOOTSTRAP_VARIABLE}={processes.bootstrap_servers}")

    def _write(self) -> None:
        output.heading("\n2. A topic with three replicas, and records that all of them have")
        self._headrace(
            "topics", "create", _TOPIC, "--partitions", "1", "--replicas", "3", "--if-not-exists"
        )
        self._headrace("produce", _TOPIC, "--acks", "all", records=_RECORDS)
        self._headrace("topics", "describe", _TOPIC)

    def _kill_the_leader(self) -> BrokerProcess:
        leader, _ = self._leader_and_isr()
        (broker,) = (one for one in self._processes.brokers if one.broker_id == leader)
        output.heading(f"\n3. kill -9 of the leader, broker {leader}")
        _say(f"$ kill -9 {broker.child.process_id}")
        killed_at = time.monotonic()
        broker.kill()
        self._wait(
            "another broker leads",
            lambda: (
                self._leader_and_isr()[0] not in (leader, -1)
                and leader not in self._leader_and_isr()[1]
            ),
        )
        _say(
            f"another leader after {time.monotonic() - killed_at:.1f} s, of which ZooKeeper waited "
            f"{_SESSION_MS / 1000:g} s for the broker (zookeeper.session.timeout.ms)"
        )
        self._headrace("topics", "describe", _TOPIC)
        return broker

    def _read_again(self) -> None:
        output.heading("\n4. The records are still there")
        read = self._headrace("consume", _TOPIC, "--from-beginning", "--max", str(len(_RECORDS)))
        if tuple(read.splitlines()) != _RECORDS:
            raise ClusterFailed(f"read {read!r}; expected {_RECORDS}")
        self._headrace("produce", _TOPIC, "--acks", "all", records=("four",))

    def _bring_back(self, killed: BrokerProcess) -> None:
        output.heading(f"\n5. Broker {killed.broker_id} comes back and catches up")
        _say(f"$ headrace serve {killed.properties}")
        killed.start()
        self._wait("all replicas are in sync", lambda: len(self._leader_and_isr()[1]) == _BROKERS)
        self._headrace("topics", "describe", _TOPIC)
        self._headrace("elect-leaders", "--topic", _TOPIC)
        self._headrace("cluster", "health")

    # --- means

    def _headrace(self, *words: str, records: tuple[str, ...] = ()) -> str:
        """Run a command, print it and its output, and return the output."""
        line = shlex.join(["headrace", *words])
        lines = "".join(f"{record}\\n" for record in records)
        _say(f"$ printf '{lines}' | {line}" if records else f"$ {line}")
        ran = subprocess.run(
            [sys.executable, "-m", "headrace", *words],
            input="".join(f"{record}\n" for record in records),
            capture_output=True,
            text=True,
            env={**os.environ, **self._environment},
            timeout=_LIMIT_S,
        )
        for text in (ran.stdout + ran.stderr).splitlines():
            _say(f"  {text}")
        if ran.returncode:
            raise ClusterFailed(f"'{line}' failed with status {ran.returncode}")
        return ran.stdout

    def _leader_and_isr(self) -> tuple[int, list[int]]:
        client = Cluster(ClientSettings(self._processes.bootstrap_servers, request_timeout_ms=2000))
        try:
            (topic,) = client.metadata([_TOPIC]).topics
        finally:
            client.close()
        (partition,) = topic.partitions
        return partition.leader_id, list(partition.isr_nodes)

    def _wait(self, what: str, is_reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _LIMIT_S
        while True:
            try:
                if is_reached():
                    return
            except ClientError:
                pass  # the broker that was asked is the one that was killed
            if time.monotonic() > deadline:
                raise ClusterFailed(f"gave up after {_LIMIT_S:g} s: {what}")
            time.sleep(0.05)


def _say(text: str) -> None:
    output.line(f"   {text}")


def _first_port() -> int:
    """Kafka's port if it and the next ones are free; otherwise 0, which picks free ports."""
    return _FIRST_PORT if taken_port(_FIRST_PORT, _BROKERS) is None else 0
