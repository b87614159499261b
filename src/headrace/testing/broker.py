"""A broker inside your test: ``with Broker() as broker: broker.bootstrap_servers``.

It runs on its own thread and event loop, in a temporary directory, on a free port.
``Broker(process=True)`` runs it as a child process instead, for tests that use much CPU in Python:
there the broker would compete with the test for the interpreter lock.
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from headrace.testing.faults import parse_api, parse_delay, parse_error, parse_times
from headrace.testing.groups import Group
from headrace.testing.handle import Handle
from headrace.testing.runners import ProcessRunner, ThreadRunner
from headrace.testing.settings import TEST_DEFAULTS, as_text
from headrace.testing.topics import Topics, ensure_topics, parse_topics


class Broker(Handle):
    """A single-node cluster for one test, or for many.

    ``config`` takes any Kafka broker setting. ``topics`` are created before ``start`` returns:
    names, or a mapping from name to partition count, or to settings with ``partitions`` among
    them. ``data`` is your own directory for the files; without it the broker uses a temporary
    directory and removes it at the end.
    """

    def __init__(
        self,
        *,
        config: Mapping[str, Any] | None = None,
        topics: Topics = (),
        data: str | Path | None = None,
        process: bool = False,
    ) -> None:
        self._settings = as_text("config", {} if config is None else config)
        self._topics = parse_topics(topics)
        self._is_temporary = data is None
        self._data = Path(data) if data is not None else None
        self._process = process
        self._runner: ThreadRunner | ProcessRunner | None = None
        self._port = 0

    def __repr__(self) -> str:  # pytest shows it beside a failed test
        place = self.bootstrap_servers if self._runner is not None else "not running"
        return f"<headrace.testing.Broker {place}, data in {self._data}>"

    # --- life ----------------------------------------------------------------

    def start(self) -> Self:
        if self._runner is not None:
            raise RuntimeError("this broker is already running")
        if self._data is None:
            self._data = Path(tempfile.mkdtemp(prefix="headrace-"))
        settings = TEST_DEFAULTS | {"listeners": f"PLAINTEXT://127.0.0.1:{self._port}"}
        settings |= {"log.dirs": str(self._data)} | self._settings
        try:
            runner = (
                ProcessRunner(settings, self._data) if self._process else ThreadRunner(settings)
            )
            runner.start()
        except BaseException:
            self._remove_temporary_data()
            raise
        self._runner = runner
        self._port = runner.port
        shapes, self._topics = self._topics, {}  # created once; a restart finds them
        if shapes:
            try:
                ensure_topics(self._admin(), (runner.host, runner.port), shapes)
            except BaseException as error:
                # The caller has no broker yet that it could stop.
                self.__exit__(type(error), error, None)
                raise
        return self

    def stop(self) -> None:
        """Stop cleanly. Raises BrokerFailed if the broker failed while it ran."""
        runner, self._runner = self._runner, None
        try:
            if runner is not None:
                runner.stop()
        finally:
            self._remove_temporary_data()

    def restart(self) -> None:
        """Stop cleanly, then start again with the same directory and port."""
        runner, self._runner = self.runner, None
        runner.stop()
        self.start()

    def kill(self) -> None:
        """End as ``kill -9`` would: flush nothing, leave no clean shutdown marker.

        ``start`` starts the broker again, with the same directory and port.
        """
        runner, self._runner = self.runner, None
        runner.kill()

    def _remove_temporary_data(self) -> None:
        if self._is_temporary and self._data is not None:
            shutil.rmtree(self._data, ignore_errors=True)
            self._data = None

    @property
    def runner(self) -> ThreadRunner | ProcessRunner:
        """Internal: the thread or process of this broker, for Headrace's own tests."""
        if self._runner is None:
            raise RuntimeError("this broker is not running; use it in a with block")
        return self._runner

    # --- use -----------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        host, port = self.runner.host, self.runner.port
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def data(self) -> Path:
        """The directory with the log files."""
        if self._data is None:
            raise RuntimeError("this broker has no directory yet; start it first")
        return self._data

    def group(self, name: str) -> Group:
        """A consumer group: read its state and lag, force a rebalance, expire a member."""
        return Group(self.runner.host, self.runner.port, name)

    # --- faults --------------------------------------------------------------

    def fail(self, api: str | int, error: str | int, times: int | None = 1) -> None:
        """Answer the next ``times`` requests of an API with an error, and do not handle them.

            broker.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=3)

        ``times=None`` fails every request and ``times=0`` none. A second call for the same API
        replaces the first. A restart of the broker removes all faults.
        """
        runner = self._in_this_process("fail")
        api_key, code, count = parse_api(api), parse_error(error), parse_times(times)
        runner.call(lambda: runner.faults.fail(api_key, code, count))

    def delay(self, api: str | int, ms: float) -> None:
        """Handle each request of an API that many milliseconds late, until ``delay(api, 0)``."""
        runner = self._in_this_process("delay")
        api_key, seconds = parse_api(api), parse_delay(ms)
        runner.call(lambda: runner.faults.delay(api_key, seconds))

    def _in_this_process(self, method: str) -> ThreadRunner:
        if not isinstance(self.runner, ThreadRunner):
            raise RuntimeError(
                f"{method}() reaches only a broker in this process; this one was made with "
                "process=True"
            )
        return self.runner
