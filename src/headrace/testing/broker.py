"""A broker inside your test: ``with Broker() as broker: broker.bootstrap_servers``.

It runs on a thread of its own with its own event loop, in a temporary folder, on a free port.
``Broker(process=True)`` runs it as a child process instead, for tests that burn CPU in Python
and would starve it of the interpreter lock.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headrace.testing.groups import Group
from headrace.testing.runners import BrokerFailed, ProcessRunner, ThreadRunner

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
        self._runner: ThreadRunner | ProcessRunner | None = None
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
            runner: ThreadRunner | ProcessRunner = (
                ProcessRunner(settings, self._data) if self._process else ThreadRunner(settings)
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
        runner, self._runner = self.runner, None
        runner.stop()
        self.start()

    def kill(self) -> None:
        """End it as ``kill -9`` would: nothing is flushed, no clean mark is left.

        Start it again with ``start()``; folder and port stay.
        """
        runner, self._runner = self.runner, None
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

    @property
    def runner(self) -> ThreadRunner | ProcessRunner:
        """Internal: the thread or process of this broker, for Headrace's own tests."""
        if self._runner is None:
            raise RuntimeError("this broker is not running; use it as a context manager")
        return self._runner

    # --- what a test needs ---------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        runner = self.runner
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
        runner = self.runner
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
