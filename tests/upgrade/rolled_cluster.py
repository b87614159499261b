"""Three brokers with a ZooKeeper, each of which can come back with another version of Headrace."""

import contextlib
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from headrace.launch.brokers import write_properties
from headrace.launch.child import Child
from headrace.launch.zookeeper import ZooKeeperServer, free_port, write_config
from headrace.testing import cluster_state
from headrace.testing.cluster import ClusterBroker
from headrace.testing.cluster_state import wait_for
from headrace.testing.settings import TEST_DEFAULTS, cluster_defaults

BROKERS = 3
_STOP_TIMEOUT_S = 30


class RolledBroker:
    """One broker: its settings and its data stay, its version changes."""

    def __init__(self, broker_id, directory, zookeeper_connect):
        self.broker_id = broker_id
        self.data = directory / f"broker-{broker_id}"
        self.data.mkdir()
        self.address = f"127.0.0.1:{free_port()}"
        self.version = None
        self.log_path = directory / f"broker-{broker_id}.log"
        self._ready = directory / f"broker-{broker_id}.ready"
        self._properties = directory / f"server-{broker_id}.properties"
        self._child = None
        settings = TEST_DEFAULTS | cluster_defaults(BROKERS)
        settings |= {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": str(self.data),
            "zookeeper.connect": zookeeper_connect,
            # No session has to expire here, and a busy machine must not end one.
            "zookeeper.session.timeout.ms": "10000",
            # A replaced member gets its partitions when the session of its predecessor expires.
            "group.consumer.min.session.timeout.ms": "6000",
            "group.consumer.session.timeout.ms": "6000",
        }
        write_properties(self._properties, settings)

    def start(self, version):
        self.version = version
        self._ready.unlink(missing_ok=True)
        line = [version.python, "-m", "headrace", "serve", self._properties]
        line += ["--ready-file", self._ready]
        self._child = Child(list(map(str, line)), self.log_path)

    def wait_ready(self):
        def look():
            if self._child.exit_status is not None:
                raise AssertionError(f"{self} ended:\n{self._child.last_lines(20)}")
            return self._ready.exists() or None

        wait_for(look, lambda: f"{self} is not ready:\n{self._child.last_lines(20)}\n")

    def stop(self):
        """Shut it down cleanly."""
        if self._child is not None:
            self._child.ask_to_end()
            status = self._child.wait(_STOP_TIMEOUT_S)
            self._child.kill()
            assert status == 0, f"{self} ended with {status}:\n{self._child.last_lines(20)}"

    def kill(self):
        if self._child is not None:
            self._child.kill()

    def __str__(self):
        return f"broker {self.broker_id} of {self.version.name}"


class RolledCluster:
    """What ``StockClients`` needs of a cluster, and ``roll``."""

    def __init__(self, directory: Path, versions):
        self._server = ZooKeeperServer(write_config(directory / "zookeeper"))
        self._directory = directory
        self._versions = versions
        self._client = None
        self.nodes = []

    def __enter__(self):
        with contextlib.ExitStack() as undo:
            undo.push(self.__exit__)
            self._server.start()
            self._server.wait_ready()
            self._client = KazooClient(self._server.connect)
            self._client.start()
            for broker_id, version in enumerate(self._versions):
                self.nodes.append(RolledBroker(broker_id, self._directory, self._server.connect))
                self.nodes[-1].start(version)
            for node in self.nodes:
                node.wait_ready()
            cluster_state.wait_ready([_split(node.address) for node in self.nodes])
            undo.pop_all()
        return self

    def __exit__(self, kind, *_):
        try:
            for node in self.nodes:
                if kind is None:
                    node.stop()
        finally:
            for node in self.nodes:
                node.kill()
            if self._client is not None:
                self._client.stop()
                self._client.close()
            self._server.stop()

    @property
    def bootstrap_servers(self):
        return ",".join(node.address for node in self.nodes)

    @property
    def brokers(self):
        return [ClusterBroker(n.broker_id, n.address, n.data, "running") for n in self.nodes]

    def roll(self, broker_id, version, *, clean=True):
        """End one broker, and start another version on its data."""
        node = self.nodes[broker_id]
        node.stop() if clean else node.kill()
        node.start(version)
        node.wait_ready()

    def read(self, path):
        """The value of a node of the tree."""
        try:
            return self._client.get(path)[0]
        except NoNodeError:
            return None

    def controller_id(self):
        return wait_for(lambda: cluster_state.controller_id(self.read), lambda: "no controller")

    def wait_in_sync(self, topic):
        wait_for(
            lambda: not cluster_state.out_of_sync(self.read, topic) or None,
            lambda: f"{topic} lacks replicas: {cluster_state.out_of_sync(self.read, topic)}",
        )


def _split(address):
    host, _, port = address.rpartition(":")
    return host, int(port)
