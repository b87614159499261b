"""``headrace up``: run a whole cluster in the foreground, brokers and ZooKeeper."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from headrace import __version__
from headrace.cli import output, pid_file, values
from headrace.cli.cluster_view import ClusterView, read_view
from headrace.cli.options import examples
from headrace.cli.serve import write_atomically
from headrace.cli.up_status import COLUMNS, ProcessState, Status, changes
from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.errors import ClientError
from headrace.launch.cluster import ClusterFailed, ClusterProcesses, taken_port
from headrace.launch.java import JavaMissing

DEFAULT_DATA = "headrace-cluster"
_STATUS_S = 1.0
_ANSWER_MS = 1000
_BROKERS_MAX = 100


def register(root: typer.Typer) -> None:
    root.command(
        "up",
        epilog=examples(
            "headrace up",
            "headrace up --brokers 5 --data /var/lib/cluster -X num.partitions=6",
            "headrace up --zookeeper zk1:2181,zk2:2181,zk3:2181/kafka",
        ),
    )(up)


BrokerCount = Annotated[
    int, typer.Option("--brokers", metavar="N", min=1, max=_BROKERS_MAX, help="Brokers to run.")
]
DataDirectory = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="Data directory of the whole cluster.")
]
FirstPort = Annotated[
    int,
    typer.Option(
        "--port",
        metavar="PORT",
        min=0,
        max=65535,
        help="Port of broker 1; broker 2 listens on the next one, and so on. 0 picks free ports.",
    ),
]
BrokerSettings = Annotated[
    list[str] | None,
    typer.Option("-X", metavar="KEY=VALUE", help="Setting of every broker; may be repeated."),
]
ZooKeeper = Annotated[
    str | None,
    typer.Option(
        "--zookeeper",
        metavar="HOST:PORT",
        show_default="start one on a free port; requires Java 17 or newer",
        help="Running ZooKeeper to use.",
    ),
]
ReadyFile = Annotated[
    Path | None,
    typer.Option(
        "--ready-file",
        metavar="FILE",
        help="Write the brokers' addresses to this file when the cluster accepts clients.",
    ),
]


def up(
    brokers: BrokerCount = 3,
    data: DataDirectory = Path(DEFAULT_DATA),
    port: FirstPort = 9092,
    settings: BrokerSettings = None,
    zookeeper: ZooKeeper = None,
    ready_file: ReadyFile = None,
) -> None:
    """Run a whole cluster: brokers and a ZooKeeper.

    New topics get three replicas, or fewer with fewer brokers. With three or more brokers, acks=all
    requires two in-sync replicas. The settings of broker 1 are in DIR/server-1.properties, its data
    and its log in DIR/broker-1. Ctrl-C, SIGTERM or 'headrace stop --data DIR' stops the cluster
    cleanly; a second signal stops it immediately. To continue, run the command with the same DIR.
    """
    if port and port + brokers - 1 > 65535:
        raise values.wrong(f"--port {port}: too high for {brokers} brokers")
    overrides = values.pairs(settings or (), "-X")
    taken = taken_port(port, brokers) if port else None
    if taken is not None:
        raise output.CommandFailed(
            f"Cannot listen on port {taken}: the address is in use. Stop the process that uses it, "
            "or choose other ports with --port"
        )
    try:
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
        with hold_directory(data.absolute()) as directory:
            cluster = ClusterProcesses(
                directory, brokers=brokers, port=port, settings=overrides, zookeeper=zookeeper
            )
            _run(cluster, ready_file)
    except (JavaMissing, ClusterFailed) as failure:
        raise output.CommandFailed(str(failure)) from None
    except OSError as failure:
        raise output.CommandFailed(output.reason(failure)) from None


@contextlib.contextmanager
def hold_directory(directory: Path) -> Iterator[Path]:
    """Hold the directory, so that no second cluster starts in it and 'headrace stop' finds us."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / pid_file.NAME
    try:
        held = pid_file.PidFile(path)
    except (BlockingIOError, PermissionError) as failure:
        holder = pid_file.holder_of(path)
        if holder is None:
            raise failure
        holder.close()
        raise ClusterFailed(
            f"a cluster (process {holder.process}) already runs in {directory}. Stop it with "
            f"'headrace stop --data {directory}', or choose another directory with --data"
        ) from None
    with held:
        yield directory


def _run(cluster: ClusterProcesses, ready_file: Path | None) -> None:
    stop_asked = _stop_on_signals()
    started_at = time.monotonic()
    try:
        cluster.start()
        cluster.wait_ready(stop_asked.is_set)
        if not stop_asked.is_set():
            _announce(cluster, ready_file, time.monotonic() - started_at)
            _watch(cluster, stop_asked)
    finally:
        if stop_asked.is_set():
            output.note("Stopping the cluster")
        cluster.stop()
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)


def _stop_on_signals() -> threading.Event:
    """Set when a signal asks to stop. A second signal ends this process, and so its children."""
    asked = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, on_signal)
    return asked


def _announce(cluster: ClusterProcesses, ready_file: Path | None, seconds: float) -> None:
    if ready_file is not None:
        write_atomically(ready_file, f"{cluster.bootstrap_servers}\n")
    zookeeper = cluster.brokers[0].settings["zookeeper.connect"]
    output.line(
        f"Headrace {__version__}: {values.counted(len(cluster.brokers), 'broker')} listening on "
        f"{cluster.bootstrap_servers}, ZooKeeper at {zookeeper}, data in {cluster.directory}, "
        f"ready after {seconds:.1f} s"
    )


def _watch(cluster: ClusterProcesses, stop_asked: threading.Event) -> None:
    """Show the state of the cluster until it is asked to stop, or has no broker left."""
    client = Cluster(
        ClientSettings(
            cluster.bootstrap_servers,
            client_id="headrace-up",
            request_timeout_ms=_ANSWER_MS,
            api_timeout_ms=_ANSWER_MS,
        )
    )
    with contextlib.closing(client), contextlib.ExitStack() as shown:
        show = _live_table(shown) if output.is_terminal() else _changes_only()
        while True:
            status = _status(cluster, client)
            show(status)
            if all(process.exit_status is not None for process in status.processes):
                raise ClusterFailed(
                    f"all brokers have ended; see {cluster.directory}/broker-*/headrace.log"
                )
            if stop_asked.wait(_STATUS_S):
                return


def _status(cluster: ClusterProcesses, client: Cluster) -> Status:
    view: ClusterView | None = None
    with contextlib.suppress(ClientError):
        view = read_view(client)
    zookeeper = cluster.zookeeper
    return Status(
        tuple(
            ProcessState(
                broker.broker_id, broker.address, broker.child.process_id, broker.child.exit_status
            )
            for broker in cluster.brokers
        ),
        zookeeper is None or zookeeper.child.exit_status is None,
        view,
    )


def _changes_only() -> Callable[[Status], None]:
    last: Status | None = None

    def show(status: Status) -> None:
        nonlocal last
        for text in changes(last, status) if last is not None else ():
            output.line(text)
        last = status

    return show


def _live_table(shown: contextlib.ExitStack) -> Callable[[Status], None]:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    live = shown.enter_context(Live(auto_refresh=False, transient=True))

    def show(status: Status) -> None:
        table = output.rich_table(COLUMNS, [list(map(output.cell, row)) for row in status.rows()])
        note = Text(f"{status.summary()}. Ctrl-C stops the cluster.", style="dim")
        live.update(Group(table, note), refresh=True)

    return show
