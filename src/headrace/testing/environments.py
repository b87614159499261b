"""Where the brokers of a test's cluster run, and what they agree in.

Threads of this process share a tree in memory. Child processes share a ZooKeeper, which each of
them reaches through a proxy of its own.
"""

import importlib
import pkgutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace import broker
from headrace.coordination import paths
from headrace.coordination.tree import Tree
from headrace.model.ids import BrokerId
from headrace.storage.log_manager import LogManager
from headrace.testing.members import Member, ThreadMember
from headrace.testing.network_faults import Impairment
from headrace.testing.tree_sessions import Silence, TreeSessions
from headrace.world.world import World

if TYPE_CHECKING:
    from kazoo.client import KazooClient

    from headrace.launch.zookeeper import ZooKeeperServer
    from headrace.testing.proxies import Proxies

_POLL_S = 0.01
_EXPIRY_TIMEOUT_S = 30
_READ_TRIES = 100
_READ_RETRY_S = 0.05


class Environment(Protocol):
    """What a cluster asks of the place where its brokers run."""

    def start(self) -> None: ...
    def close(self) -> None: ...

    def member(
        self,
        broker_id: int,
        settings: Mapping[str, str],
        impairments: Mapping[int, Impairment],
        data: Path,
    ) -> Member:
        """A broker that is about to start."""

    def kill(self, broker_id: int, member: Member) -> None: ...
    def pause(self, broker_id: int, member: Member) -> None: ...
    def resume(self, broker_id: int, member: Member) -> None: ...
    def impair_tree(self, broker_id: int, impairment: Impairment) -> None:
        """Set the state of the link between a broker and the tree."""

    def expire_session(self, broker_id: int) -> None: ...
    def restart_tree(self) -> None:
        """Close all connections to the tree, and serve it again. Sessions live on."""

    def read(self, path: str) -> bytes | None:
        """The value of a node of the tree."""


class Threads:
    """Brokers on threads of this process, and a tree in memory.

    The tree is saved beside the data of the brokers, for another start.
    """

    def __init__(self, saved_tree: Path, session_timeout_s: float) -> None:
        self._saved_tree = saved_tree
        snapshot = saved_tree.read_bytes() if saved_tree.exists() else None
        self.sessions = TreeSessions(session_timeout_s, snapshot)

    def start(self) -> None:
        if "_pytest.assertion.rewrite" in sys.modules:
            _import_all_of_the_broker()

    def close(self) -> None:
        self.sessions.close()
        self._saved_tree.write_bytes(self.sessions.snapshot())

    def member(
        self,
        broker_id: int,
        settings: Mapping[str, str],
        impairments: Mapping[int, Impairment],
        data: Path,
    ) -> Member:
        # A process that starts again in the same directory ends the session of its predecessor.
        self.sessions.expire(broker_id)
        self.sessions.end_silence(broker_id, Silence.KILLED)

        async def open_tree(logs: LogManager, world: World) -> Tree:
            return self.sessions.open(broker_id)

        return ThreadMember(settings, impairments, open_tree=open_tree)

    def kill(self, broker_id: int, member: Member) -> None:
        try:
            member.kill()
        finally:
            self.sessions.silence(broker_id, Silence.KILLED)

    def pause(self, broker_id: int, member: Member) -> None:
        member.pause()
        self.sessions.silence(broker_id, Silence.PAUSED)

    def resume(self, broker_id: int, member: Member) -> None:
        self.sessions.end_silence(broker_id, Silence.PAUSED)
        member.resume()

    def impair_tree(self, broker_id: int, impairment: Impairment) -> None:
        if impairment.delay_s:
            raise ValueError(
                "slow: a tree in memory has no connection to slow down; use Cluster(process=True)"
            )
        if impairment.cut:
            self.sessions.silence(broker_id, Silence.CUT)
        else:
            self.sessions.end_silence(broker_id, Silence.CUT)

    def expire_session(self, broker_id: int) -> None:
        self.sessions.expire(broker_id)

    def restart_tree(self) -> None:
        self.sessions.reconnect_all()

    def read(self, path: str) -> bytes | None:
        return self.sessions.read(path)


def _import_all_of_the_broker() -> None:
    """Import on this thread what the threads of the brokers would import on demand.

    pytest parses the modules of a package with a plugin to rewrite their assertions, and
    CPython 3.11 fails if several threads parse at the same time (SystemError: "AST constructor
    recursion depth mismatch").
    """
    for module in pkgutil.walk_packages(broker.__path__, f"{broker.__name__}."):
        importlib.import_module(module.name)


class Processes:
    """Brokers in child processes, and a ZooKeeper."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._server: ZooKeeperServer | None = None
        self._proxies: Proxies | None = None
        self._proxy_ports: dict[int, int] = {}  # by broker
        self._client: KazooClient | None = None

    def start(self) -> None:
        from headrace.launch.zookeeper import ZooKeeperServer, write_config
        from headrace.testing.proxies import Proxies

        self._server = ZooKeeperServer(write_config(self._data))
        self._server.start()
        self._proxies = Proxies(self._server.host, self._server.port)
        self._server.wait_ready()

    def close(self) -> None:
        if self._client is not None:
            self._client.stop()
            self._client.close()
        if self._proxies is not None:
            self._proxies.close()
        if self._server is not None:
            self._server.stop()

    @property
    def proxies(self) -> "Proxies":
        assert self._proxies is not None, "not started"
        return self._proxies

    def member(
        self,
        broker_id: int,
        settings: Mapping[str, str],
        impairments: Mapping[int, Impairment],
        data: Path,
    ) -> Member:
        from headrace.testing.member_process import ProcessMember

        connect = {"zookeeper.connect": self.connect_of(broker_id)}
        return ProcessMember(connect | dict(settings), impairments, data)

    def connect_of(self, broker_id: int) -> str:
        """The address of ZooKeeper for one broker: its proxy."""
        if broker_id not in self._proxy_ports:
            self._proxy_ports[broker_id] = self.proxies.add()
        return f"127.0.0.1:{self._proxy_ports[broker_id]}"

    def kill(self, broker_id: int, member: Member) -> None:
        member.kill()

    def pause(self, broker_id: int, member: Member) -> None:
        member.pause()

    def resume(self, broker_id: int, member: Member) -> None:
        member.resume()

    def impair_tree(self, broker_id: int, impairment: Impairment) -> None:
        self.proxies.impair(self._proxy_ports[broker_id], impairment)

    def expire_session(self, broker_id: int) -> None:
        """Cut the broker off until ZooKeeper has expired its session."""
        path = paths.broker(BrokerId(broker_id))
        port = self._proxy_ports[broker_id]
        before = self.proxies.impairment(port)
        self.proxies.impair(port, Impairment(cut=True))
        try:
            give_up_at = time.monotonic() + _EXPIRY_TIMEOUT_S
            while self.read(path) is not None:
                if time.monotonic() > give_up_at:
                    raise TimeoutError(f"{path} still exists after {_EXPIRY_TIMEOUT_S} s")
                time.sleep(_POLL_S)
        finally:
            self.proxies.impair(port, before)

    def restart_tree(self) -> None:
        assert self._server is not None, "not started"
        self._server.stop()
        self._server.start()
        self._server.wait_ready()

    def read(self, path: str) -> bytes | None:
        from kazoo.exceptions import NoNodeError

        try:
            client = self._zookeeper()
            value: bytes = client.retry(client.get, path)[0]
        except NoNodeError:
            return None
        return value

    def _zookeeper(self) -> "KazooClient":
        if self._client is None:
            from kazoo.client import KazooClient
            from kazoo.retry import KazooRetry

            assert self._server is not None, "not started"
            # A restart of ZooKeeper breaks the connection, and may end the session.
            retry = KazooRetry(max_tries=_READ_TRIES, delay=_READ_RETRY_S, backoff=1)
            self._client = KazooClient(self._server.connect, command_retry=retry)
            self._client.start()
        return self._client
