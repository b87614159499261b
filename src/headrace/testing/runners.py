"""Run the node of a test: on a thread of this process, or as a child process.

Both runners have the same methods (``start``, ``stop``, ``kill``) and, once started, the ``host``
and ``port`` of the node. A runner starts once; a restarted broker gets a new one.
"""

import asyncio
import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from headrace.broker.broker import Broker as Node
from headrace.broker.broker import OpenTree
from headrace.launch.child import Child
from headrace.model.config import BrokerConfig
from headrace.testing.faults import Faults
from headrace.world.world import World

_START_TIMEOUT_S = 30
_STOP_TIMEOUT_S = 30
_CALL_TIMEOUT_S = 30
_READY_POLL_S = 0.005
_LOG_TAIL_LENGTH = 2000
# A node that listens on every interface is reached through the loopback interface.
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


class BrokerFailed(Exception):
    """The broker inside the test failed. The cause is attached."""


class ThreadRunner:
    """The node on a thread of this process.

    ``open_tree`` opens a tree that it shares with other nodes. ``at_end`` is called on ``loop``
    after the node has stopped.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        world: World | None = None,
        open_tree: OpenTree | None = None,
        new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = BrokerConfig.parse(settings, strict=True)
        self._world = world
        self._open_tree = open_tree
        self._new_loop = new_loop
        self._at_end = at_end
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._node: Node | None = None
        self._faults: Faults | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-broker", daemon=True)
        self.host, self.port = "127.0.0.1", 0

    @property
    def node(self) -> Node:
        """The node itself. Use it on ``loop`` only."""
        assert self._node is not None, "not started"
        return self._node

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that the node runs on."""
        assert self._loop is not None, "not started"
        return self._loop

    @property
    def faults(self) -> Faults:
        """The faults to inject. Use it on ``loop`` only."""
        if self._faults is None:
            assert self.node.dispatch is not None
            self._faults = Faults(self.node.dispatch, self.loop)
        return self._faults

    def call(self, action: Callable[[], None]) -> None:
        """Run ``action`` on ``loop``, and wait for it."""

        async def act() -> None:
            action()

        asyncio.run_coroutine_threadsafe(act(), self.loop).result(_CALL_TIMEOUT_S)

    def pause(self) -> "threading.Event":
        """Stop the loop where it is, until the caller sets the event."""
        paused, resumed = threading.Event(), threading.Event()

        def wait() -> None:
            paused.set()
            resumed.wait()

        self.loop.call_soon_threadsafe(wait)
        paused.wait(_CALL_TIMEOUT_S)
        return resumed

    def start(self) -> None:
        self.begin()
        self.wait_started()

    def begin(self) -> None:
        """Start without waiting."""
        self._thread.start()

    def wait_started(self) -> None:
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._new_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised again on the test's thread
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._node = Node(
            self._config,
            world=self._world,
            open_tree=self._open_tree,
            is_tree_shared=self._open_tree is not None,
        )
        try:
            await self._node.start()
            host, self.port = next(iter(self._node.addresses.values()))
            self.host = _LOOPBACK.get(host, host)
            self._ready.set()
            await self._node.wait_stopped()
        finally:
            self._at_end()
            await asyncio.sleep(0)  # connections close in the next turn of the loop

    def stop(self) -> None:
        self._end(self.node.stop)

    def kill(self) -> None:
        self._end(self.node.crash)

    def _end(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        node = self.node
        if self._thread.is_alive() and node.failure is None:
            with contextlib.suppress(RuntimeError):  # the loop has ended in the meantime
                asyncio.run_coroutine_threadsafe(end(), self.loop).result(_STOP_TIMEOUT_S)
        self._thread.join(_STOP_TIMEOUT_S)
        error = node.failure or self._error or (node.bugs[0] if node.bugs else None)
        if error is not None:
            raise BrokerFailed(f"the broker failed: {error!r}") from error


class ProcessRunner:
    """The node as a child process, which logs to ``headrace-test.log`` in its data directory.

    It ends with the program that started it, however that ends.
    """

    def __init__(self, settings: Mapping[str, str], data: Path) -> None:
        self._settings = settings
        self._data = data
        self._log_path = data / "headrace-test.log"
        self._child: Child | None = None
        self.host, self.port = "127.0.0.1", 0

    @property
    def child(self) -> Child:
        assert self._child is not None, "not started"
        return self._child

    def start(self) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="headrace-ready-") as ready_directory:
            ready = Path(ready_directory) / "address"
            command = [sys.executable, "-m", "headrace", "serve", "--strict"]
            command += ["--ready-file", str(ready)]
            for name, value in self._settings.items():
                command += ["-X", f"{name}={value}"]
            self._child = Child(command, self._log_path)
            try:
                address = _wait_for_file(ready, self._child)
            except BrokerFailed as failure:
                # The caller may remove the data directory, and the log with it.
                raise BrokerFailed(f"{failure}:\n{self._log_tail()}") from None
            finally:
                if not ready.exists():
                    self._child.kill()
        host, _, port = address.rpartition(":")
        self.host, self.port = host.strip("[]"), int(port)

    def _log_tail(self) -> str:
        return self._log_path.read_text(errors="replace")[-_LOG_TAIL_LENGTH:]

    def stop(self) -> None:
        self.child.ask_to_end()
        status = self.child.wait(_STOP_TIMEOUT_S)
        self.child.kill()
        if status is None:
            raise BrokerFailed(
                f"the broker did not stop within {_STOP_TIMEOUT_S} s:\n{self._log_tail()}"
            )
        if status != 0:
            raise BrokerFailed(f"the broker exited with status {status}:\n{self._log_tail()}")

    def kill(self) -> None:
        self.child.kill()


def _wait_for_file(path: Path, child: Child) -> str:
    """Return the text of the file that the child writes when it accepts connections."""
    give_up_at = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < give_up_at:
        if path.exists():
            return path.read_text().strip()
        if child.exit_status is not None:
            raise BrokerFailed(f"the broker exited with status {child.exit_status} while starting")
        time.sleep(_READY_POLL_S)
    raise BrokerFailed(f"the broker did not start within {_START_TIMEOUT_S} s")
