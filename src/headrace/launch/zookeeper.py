"""Starts ZooKeeper from the jars that PySpark brings, and asks it for its mode.

    DATA/zoo.cfg          written once if there is none, then kept: it can be edited
    DATA/myid             the number of this server in an ensemble
    DATA/version-2        ZooKeeper's snapshots and logs
    DATA/zookeeper.out    what ZooKeeper prints

A cluster's state is a few MB: a small heap, the serial collector and one compiler tier are enough,
and ZooKeeper is ready in half a second.
"""

import errno
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.launch import java
from headrace.launch.child import Child

CLIENT_PORT = 2181
CONFIG_NAME = "zoo.cfg"
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_HEAP_MB = 128
_POLL_S = 0.01
_STARTING_TIMEOUT_S = 0.25  # a ZooKeeper that is about to start may accept and never answer
_STOP_TIMEOUT_S = 10
_ANSWER_MAX = 1 << 16

# tickTime: a session can be as short as two ticks, and expires within one tick after its timeout.
_CONFIG = """\
dataDir={data}
clientPort={port}
clientPortAddress={host}
tickTime=500
initLimit=20
syncLimit=10
maxSessionTimeout=120000
maxClientCnxns=0
4lw.commands.whitelist=srvr,ruok
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""


class ZooKeeperFailed(Exception):
    """ZooKeeper did not start; the message says why and where its output is."""


class ZooKeeperServer:
    """One ZooKeeper process of the configuration file ``config``."""

    def __init__(self, config: Path, *, heap_mb: int = _HEAP_MB) -> None:
        self.config = config
        settings = read_config(config)
        if not settings.get("dataDir"):
            raise ZooKeeperFailed(
                f"{config}: dataDir is missing, the directory for ZooKeeper's data"
            )
        self.data = Path(settings["dataDir"])
        host = settings.get("clientPortAddress", "127.0.0.1")
        self.host = "127.0.0.1" if host in ("0.0.0.0", "::", "*") else host
        self.port = int(settings.get("clientPort", CLIENT_PORT))
        self.is_one_of_several = any(name.startswith("server.") for name in settings)
        self._heap_mb = heap_mb
        self._child: Child | None = None

    @property
    def connect(self) -> str:
        """The address for ``zookeeper.connect``."""
        return f"{self.host}:{self.port}"

    @property
    def child(self) -> Child:
        assert self._child is not None, "ZooKeeper was not started"
        return self._child

    def start(self) -> None:
        """Start the process; ``wait_ready`` waits for its first answer."""
        self.data.mkdir(parents=True, exist_ok=True)
        _check_free(self.host, self.port)
        if self.is_one_of_several and not (self.data / "myid").exists():
            raise ZooKeeperFailed(
                f"{self.config} lists several servers, and {self.data / 'myid'} is missing. "
                f"Write the number of this server to it: echo 1 > {self.data / 'myid'}"
            )
        command = [
            str(java.find_java()),
            "-Xms16m",
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
            "-Dlog4j2.level=WARN",
            "-Dlog4j2.disable.jmx=true",
            "-Dzookeeper.jmx.log4j.disable=true",
            "-Dzookeeper.admin.enableServer=false",  # it needs a web server that PySpark lacks
            "-cp",
            java.zookeeper_class_path(),
            _MAIN,
            str(self.config),
        ]
        self._child = Child(command, self.data / "zookeeper.out")

    def wait_ready(self, timeout_s: float = 30) -> str:
        """Wait until ZooKeeper serves; returns its mode. A member of an ensemble needs a majority.

        Raises ZooKeeperFailed if it ended or is late.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self.child.exit_status is not None
            mode = None if ended else mode_of(self.host, self.port, _STARTING_TIMEOUT_S)
            if mode is not None:
                return mode
            if ended or time.monotonic() > deadline:
                what = "ended at once" if ended else f"did not serve within {timeout_s:g} s"
                raise ZooKeeperFailed(
                    f"ZooKeeper at {self.connect} {what}. Its output is in "
                    f"{self.child.log_path}:\n{self.child.last_lines()}"
                )
            time.sleep(_POLL_S)

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(_STOP_TIMEOUT_S)

    def __enter__(self) -> "ZooKeeperServer":
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()


def write_config(
    data: Path,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    servers: Sequence[str] = (),
    my_id: int | None = None,
) -> Path:
    """Write ``zoo.cfg``, and ``myid`` for an ensemble, and return the path of ``zoo.cfg``.

    ``servers`` are HOST:PEER_PORT:ELECTION_PORT of server 1, 2, …; port 0 chooses a free port.
    """
    data.mkdir(parents=True, exist_ok=True)
    text = _CONFIG.format(data=data.absolute(), port=port or free_port(), host=host)
    text += "".join(f"server.{number}={address}\n" for number, address in enumerate(servers, 1))
    if my_id is not None:
        (data / "myid").write_text(f"{my_id}\n")
    path = data / CONFIG_NAME
    path.write_text(text)
    return path


def read_config(path: Path) -> dict[str, str]:
    """The settings of a ``zoo.cfg``."""
    pairs = (
        line.partition("=")
        for line in path.read_text().splitlines()
        if "=" in line and not line.lstrip().startswith(("#", "!"))
    )
    return {name.strip(): value.strip() for name, _, value in pairs}


def mode_of(host: str, port: int, timeout_s: float = 2) -> str | None:
    """``standalone``, ``leader``, ``follower`` or ``observer``; None if none serves there."""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            if connection.getsockname() == connection.getpeername():
                return None  # without a listener TCP may connect a port to itself
            connection.sendall(b"srvr")
            answer = b""
            while (part := connection.recv(_ANSWER_MAX)) and len(answer) < _ANSWER_MAX:
                answer += part
    except OSError:
        return None
    for line in answer.decode(errors="replace").splitlines():
        if line.startswith("Mode: "):
            return line.removeprefix("Mode: ")
    return None


def _check_free(host: str, port: int) -> None:
    """Otherwise the ZooKeeper that has the port would answer in place of the one to start."""
    try:
        with socket.create_server((host, port), family=_family(host)):
            return
    except OSError as refused:
        if refused.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            raise
        raise ZooKeeperFailed(
            f"Cannot listen on {host}:{port}: {refused.strerror}. Stop the process that uses it, "
            "or choose another clientPort"
        ) from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
    return port
