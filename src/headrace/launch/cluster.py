"""A whole cluster on this machine: a ZooKeeper and brokers, started together, stopped in order.

    DIR/zookeeper              ZooKeeper's data, its zoo.cfg and its output
    DIR/server-N.properties    settings of broker N; DIR/broker-N is its data

Everything starts at once: brokers retry until ZooKeeper answers. The controller stops last, so that
it can move the leaderships of the others, and ZooKeeper stops after it.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.errors import ClientError
from headrace.launch.brokers import BrokerProcess
from headrace.launch.zookeeper import ZooKeeperServer, write_config
from headrace.model.settings.replication import replication_settings

_HOST = "127.0.0.1"
# A broker is ready or fails within this time, even if it must recover its logs.
_START_S = 120.0
_STOP_BROKERS_S = 6.0
_STOP_CONTROLLER_S = 2.0
_POLL_S = 0.01


class ClusterFailed(Exception):
    """A process did not start; the message says why and where its output is."""


class ClusterProcesses:
    """The processes of one cluster in one directory."""

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int,
        port: int,
        settings: Mapping[str, str],
        zookeeper: str | None = None,
    ) -> None:
        """Brokers 1, 2, … listen on ``port``, ``port`` + 1, …; port 0 chooses free ports.

        ``zookeeper`` is the address of a ZooKeeper that runs already; None starts one.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.zookeeper: ZooKeeperServer | None = None
        if zookeeper is None:
            self.zookeeper = ZooKeeperServer(write_config(directory / "zookeeper"))
        connect = self.zookeeper.connect if self.zookeeper is not None else zookeeper
        chosen = {
            "zookeeper.connect": str(connect),
            **default_settings(brokers),
            **settings,
        }
        self.brokers = [
            BrokerProcess(number, directory, f"{_HOST}:{port + number - 1 if port else 0}", chosen)
            for number in range(1, brokers + 1)
        ]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def start(self) -> None:
        """Start every process. Raises JavaMissing."""
        if self.zookeeper is not None:
            self.zookeeper.start()
        for broker in self.brokers:
            broker.start()

    def wait_ready(self, is_canceled: Callable[[], bool] = lambda: False) -> None:
        """Wait until every broker accepts clients and knows all others. Raises ClusterFailed."""
        deadline = time.monotonic() + _START_S
        waiting = list(self.brokers)
        while waiting and not is_canceled():
            self._check_started(deadline)
            waiting = [one for one in waiting if not (one.is_ready() and self._knows_all(one))]
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop the brokers, the controller last, then ZooKeeper; kill what does not end in time."""
        controller = self._controller_id()
        last = [broker for broker in self.brokers if broker.broker_id == controller]
        first = [broker for broker in self.brokers if broker.broker_id != controller]
        for brokers, timeout_s in ((first, _STOP_BROKERS_S), (last, _STOP_CONTROLLER_S)):
            for broker in brokers:
                if broker.is_running:
                    broker.child.ask_to_end()
            deadline = time.monotonic() + timeout_s
            for broker in brokers:
                broker.stop(max(0.0, deadline - time.monotonic()))
        if self.zookeeper is not None:
            self.zookeeper.stop()

    def _check_started(self, deadline: float) -> None:
        if self.zookeeper is not None and self.zookeeper.child.exit_status is not None:
            child = self.zookeeper.child
            raise ClusterFailed(
                f"ZooKeeper did not start: {child.last_lines(1)} (output: {child.log_path})"
            )
        for broker in self.brokers:
            if broker.child.exit_status is not None:
                said = broker.child.last_lines(1).removeprefix("headrace: ")
                raise ClusterFailed(
                    f"broker {broker.broker_id} did not start: {said} (log: {broker.log_path})"
                )
        if time.monotonic() > deadline:
            raise ClusterFailed(
                f"the brokers did not form a cluster within {_START_S:g} s; see the logs "
                f"{self.directory}/broker-*/headrace.log"
            )

    def _knows_all(self, broker: BrokerProcess) -> bool:
        with contextlib.closing(_client(broker.address)) as cluster:
            try:
                response = cluster.metadata([])
            except ClientError:
                return False
        return len(response.brokers) == len(self.brokers) and response.controller_id >= 0

    def _controller_id(self) -> int:
        """-1 if no broker answers."""
        addresses = [one.address for one in self.brokers if one.is_running and one.is_ready()]
        if not addresses:
            return -1
        with contextlib.closing(_client(",".join(addresses))) as cluster:
            try:
                return cluster.metadata([]).controller_id
            except ClientError:
                return -1


def taken_port(first: int, count: int) -> int | None:
    """The first of ``count`` ports that another process listens on; None if all are free."""
    for port in range(first, first + count):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except OSError:
                return port
    return None


def default_settings(brokers: int) -> dict[str, str]:
    """The settings that depend on the number of brokers, and those for a cluster on one machine."""
    return replication_settings(brokers) | {
        # On one machine no network is slow: find a killed broker sooner than after 18 s.
        "zookeeper.session.timeout.ms": "6000",
        # All processes start at once, and a busy machine needs a while for Java.
        "zookeeper.connection.timeout.ms": "60000",
        # The last broker to stop finds no other leader; it must not wait for one.
        "controlled.shutdown.retry.backoff.ms": "100",
    }


def _client(addresses: str) -> Cluster:
    return Cluster(ClientSettings(addresses, client_id="headrace-up", request_timeout_ms=1000))
