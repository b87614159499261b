"""A broker inside your test: ``with Broker() as broker: broker.bootstrap_servers``.

It runs on a thread of its own with its own event loop, in a temporary folder, on a free port.
``Broker(process=True)`` runs it as a child process instead, for tests that burn CPU in Python
and would starve it of the interpreter lock.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headrace.broker.broker import Broker as Node
from headrace.model.config import BrokerConfig
from headrace.testing.groups import Group

if TYPE_CHECKING:  # loaded by those who need it: a broker starts without
    from confluent_kafka.admin import AdminClient

# What a test wants: no waiting for members that never come, quick reactions, small files.
TEST_DEFAULTS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
}
_START_TIMEOUT_S = 30
_WHERE_ALL_IS_HEARD = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


class BrokerFailed(Exception):
    """The broker inside the test met an error; the cause is attached."""


class Broker:
    """One node of its own for one test, or for many.

    ``config`` takes any Kafka setting. ``topics`` are made up front: names, or name -> partition
    count. ``data`` keeps the files in a folder of yours; without it they go away with the broker.
    """

    def __init__(
        self,
        *,
        config: Mapping[str, Any] | None = None,
        topics: Iterable[str] | Mapping[str, int] = (),
        data: str | Path | None = None,
        process: bool = False,
    ) -> None:
        self._settings = {k: _text(v) for k, v in (config or {}).items()}
        self._topics = _partition_counts(topics)
        self._own_folder = data is None
        self._data = Path(data) if data is not None else None
        self._process = process
        self._runner: _Thread | _Process | None = None
        self._port = 0

    def __repr__(self) -> str:  # pytest shows it beside a test that failed
        place = self.bootstrap_servers if self._runner is not None else "not running"
        return f"<headrace.testing.Broker {place}, data in {self._data}>"

    # --- life ----------------------------------------------------------------

    def start(self) -> "Broker":
        if self._runner is not None:
            raise RuntimeError("this broker is running already")
        if self._data is None:
            self._data = Path(tempfile.mkdtemp(prefix="headrace-"))
        settings = TEST_DEFAULTS | {"listeners": f"PLAINTEXT://127.0.0.1:{self._port}"}
        settings |= {"log.dirs": str(self._data)} | self._settings
        try:
            runner: _Thread | _Process = (
                _Process(settings, self._data) if self._process else _Thread(settings)
            )
            runner.start()
        except BaseException:
            self._remove_folder()
            raise
        self._runner = runner
        self._port = runner.port
        topics, self._topics = self._topics, {}  # made once; restarts find them
        if topics:
            try:
                self.create_topics(topics)
            except BaseException as error:
                # Nobody holds this broker yet, so nobody else will stop it.
                self.__exit__(type(error), error, None)
                raise
        return self

    def stop(self) -> None:
        """Stop cleanly. Raises BrokerFailed if something went wrong inside meanwhile."""
        runner, self._runner = self._runner, None
        try:
            if runner is not None:
                runner.stop()
        finally:
            if self._own_folder:
                self._remove_folder()

    def restart(self) -> None:
        """Stop cleanly and start again with the same folder and port."""
        runner, self._runner = self._running(), None
        runner.stop()
        self.start()

    def kill(self) -> None:
        """End it as ``kill -9`` would: nothing is flushed, no clean mark is left.

        Start it again with ``start()``; folder and port stay.
        """
        runner, self._runner = self._running(), None
        runner.kill()

    def __enter__(self) -> "Broker":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
        else:
            # The test's own failure is the better story.
            with contextlib.suppress(BrokerFailed):
                self.stop()

    async def __aenter__(self) -> "Broker":
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def _remove_folder(self) -> None:
        if self._own_folder and self._data is not None:
            shutil.rmtree(self._data, ignore_errors=True)
            self._data = None

    def _running(self) -> "_Thread | _Process":
        if self._runner is None:
            raise RuntimeError("this broker is not running; use it as a context manager")
        return self._runner

    # --- what a test needs ---------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        runner = self._running()
        return (
            f"[{runner.host}]:{runner.port}"
            if ":" in runner.host
            else f"{runner.host}:{runner.port}"
        )

    @property
    def data(self) -> Path:
        """The folder with the log files."""
        if self._data is None:
            raise RuntimeError("this broker has no folder yet; start it first")
        return self._data

    def create_topics(self, topics: Iterable[str] | Mapping[str, int]) -> None:
        """Make topics, one partition each unless a mapping says how many."""
        from confluent_kafka.cimpl import NewTopic

        counts = _partition_counts(topics)
        admin = self._admin()
        requests = [NewTopic(name, num_partitions=count) for name, count in counts.items()]
        for made in admin.create_topics(requests).values():
            made.result()

    def reset(self) -> None:
        """Delete every topic, so that the next test finds an empty broker.

        Those of the coordinators too, and with them what groups committed.
        """
        admin = self._admin()
        names = list(admin.list_topics(timeout=10).topics)
        if names:
            for gone in admin.delete_topics(names).values():
                gone.result()

    def group(self, name: str) -> Group:
        """A consumer group: its state and lag, a rebalance, the expiry of a member."""
        runner = self._running()
        return Group(runner.host, runner.port, name)

    def _admin(self) -> "AdminClient":
        """A client that keeps to itself what becomes of its connections."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})


def _partition_counts(topics: Iterable[str] | Mapping[str, int]) -> dict[str, int]:
    if isinstance(topics, str):  # Python would take it for a list of letters
        raise TypeError(f"topics takes several names: topics=[{topics!r}]")
    return dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Thread:
    """The node on a thread of this process."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._config = BrokerConfig.parse(settings, strict=True)
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._node: Node | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-broker", daemon=True)
        self.host, self.port = "127.0.0.1", 0

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._node = Node(self._config)
        await self._node.start()
        host, self.port = next(iter(self._node.addresses.values()))
        self.host = _WHERE_ALL_IS_HEARD.get(host, host)
        self._ready.set()
        await self._node.wait_stopped()

    def stop(self) -> None:
        self._end(lambda node: node.stop())

    def kill(self) -> None:
        self._end(lambda node: node.crash())

    def _end(self, how: Any) -> None:
        loop, node = self._loop, self._node
        assert loop is not None and node is not None
        if self._thread.is_alive() and node.failure is None:
            with contextlib.suppress(RuntimeError):  # the loop ended by itself meanwhile
                asyncio.run_coroutine_threadsafe(how(node), loop).result(_START_TIMEOUT_S)
        self._thread.join(_START_TIMEOUT_S)
        error = node.failure or self._error or (node.bugs[0] if node.bugs else None)
        if error is not None:
            raise BrokerFailed(f"the broker met an error: {error!r}") from error


class _Process:
    """The node as a child process."""

    def __init__(self, settings: Mapping[str, str], data: Path) -> None:
        self._settings = settings
        self._data = data
        self._log_path = data / "headrace-test.log"
        self._child: subprocess.Popen[bytes] | None = None
        self.host, self.port = "127.0.0.1", 0

    def start(self) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="headrace-ready-") as ready_folder,
            self._log_path.open("ab") as log,
        ):
            ready = Path(ready_folder) / "address"
            command = [sys.executable, "-m", "headrace", "serve", "--strict"]
            command += ["--ready-file", str(ready)]
            for name, value in self._settings.items():
                command += ["-X", f"{name}={value}"]
            self._child = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                address = _wait_for_file(ready, self._child)
            except BrokerFailed as failure:
                # The folder may go with this broker, and the log in it.
                raise BrokerFailed(f"{failure}:\n{self._log_tail()}") from None
            finally:
                if not ready.exists():
                    self._child.kill()
                    self._child.wait()
        host, _, port = address.rpartition(":")
        self.host, self.port = host.strip("[]"), int(port)

    def _log_tail(self) -> str:
        return self._log_path.read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        child = self._child
        assert child is not None
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
        status = child.wait(_START_TIMEOUT_S)
        if status != 0:
            raise BrokerFailed(f"the broker ended with status {status}:\n{self._log_tail()}")

    def kill(self) -> None:
        assert self._child is not None
        os.kill(self._child.pid, signal.SIGKILL)
        self._child.wait()


def _wait_for_file(path: Path, child: "subprocess.Popen[bytes]") -> str:
    """The text of a file that the child writes when it accepts connections."""
    import time

    give_up_at = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < give_up_at:
        if path.exists():
            return path.read_text().strip()
        if child.poll() is not None:
            raise BrokerFailed(f"the broker ended with status {child.returncode} while starting")
        time.sleep(0.005)
    raise BrokerFailed(f"the broker did not start within {_START_TIMEOUT_S} s")
