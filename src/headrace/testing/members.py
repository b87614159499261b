"""A broker of a test's cluster, on a thread of this process or in a child process.

Both kinds run the same broker with the same faulty network and disk. The parent sends its calls to
a child process over a pipe (``member_process``), so every fault works in both.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from headrace.broker.broker import OpenTree
from headrace.model.errors import ErrorCode
from headrace.testing.disk_faults import FillableFiles
from headrace.testing.network_faults import FaultyNetwork, Impairment
from headrace.testing.runners import ThreadRunner
from headrace.world.world import World


class Member(Protocol):
    """One run of a broker: from its start to its stop or its death."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...

    def begin(self) -> None:
        """Start without waiting."""

    def wait_started(self) -> None:
        """Raises the error of a start that failed."""

    def stop(self) -> None:
        """Stop cleanly. Raises BrokerFailed if the broker failed while it ran."""

    def kill(self) -> None:
        """End as ``kill -9`` would."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def impair(self, impairments: Mapping[int, Impairment]) -> None:
        """Set the state of the links to other brokers, by port."""

    def fill_disk(self) -> None: ...
    def free_disk(self) -> None: ...
    def fail(self, api_key: int, code: ErrorCode, times: int | None) -> None: ...
    def delay(self, api_key: int, seconds: float) -> None: ...


class ThreadMember:
    """A broker on a thread of this process."""

    def __init__(
        self,
        settings: Mapping[str, str],
        impairments: Mapping[int, Impairment],
        *,
        open_tree: OpenTree | None = None,
        new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        self._network = FaultyNetwork(impairments)
        self._files = FillableFiles()
        world = World()
        world.network, world.files = self._network, self._files
        self.runner = ThreadRunner(
            settings,
            world=world,
            open_tree=open_tree,
            new_loop=new_loop,
            at_end=self._network.close,
        )
        self._resumed: threading.Event | None = None  # while it is paused

    @property
    def host(self) -> str:
        return self.runner.host

    @property
    def port(self) -> int:
        return self.runner.port

    def begin(self) -> None:
        self.runner.begin()

    def wait_started(self) -> None:
        self.runner.wait_started()

    def stop(self) -> None:
        self.runner.stop()

    def kill(self) -> None:
        self.runner.kill()

    def pause(self) -> None:
        self._resumed = self.runner.pause()

    def resume(self) -> None:
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            resumed.set()

    def impair(self, impairments: Mapping[int, Impairment]) -> None:
        self._do(lambda: self._network.impair(impairments))

    def fill_disk(self) -> None:
        self._files.fill()

    def free_disk(self) -> None:
        self._files.free()

    def fail(self, api_key: int, code: ErrorCode, times: int | None) -> None:
        self._do(lambda: self.runner.faults.fail(api_key, code, times))

    def delay(self, api_key: int, seconds: float) -> None:
        self._do(lambda: self.runner.faults.delay(api_key, seconds))

    def _do(self, action: Callable[[], None]) -> None:
        """Act on the loop of the broker; if it is paused, as soon as it resumes."""
        if self._resumed is None:
            self.runner.call(action)
        else:
            self.runner.loop.call_soon_threadsafe(action)
