"""Jobs that run inline, in virtual time, with the methods of ``headrace.world.jobs.SystemJobs``.

Each request is handled at once, at a later time that the loop draws. The throttle of a job does
not wait: inline, it would stop the time of everything else.
"""

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

from headrace.world.job_host import Host


class SimulatedJob:
    """``ChildJob`` without a process."""

    def __init__(self, handle: Callable[[bytes, Host], None], files: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._handle = handle
        self._responses: asyncio.Queue[bytes | None] = asyncio.Queue()  # None: it has ended
        self._host = Host(files, self._responses.put_nowait, self._loop.time, lambda seconds: None)
        self._handled: asyncio.Future[None] = self._loop.create_future()
        self._handled.set_result(None)
        self._has_ended = False

    async def send(self, request: bytes | bytearray) -> None:
        """Handled after the requests before it."""
        if self._has_ended:
            raise BrokenPipeError("the job has ended")
        self._handled = asyncio.ensure_future(self._run(self._handled, bytes(request)))

    async def _run(self, before: "asyncio.Future[None]", request: bytes) -> None:
        await before
        if not self._has_ended:
            await self._loop.run_in_executor(None, self._handle, request, self._host)

    async def receive(self) -> bytes:
        """Raises what the job raised: a bug must not pass for a death."""
        if self._responses.empty():
            await self._handled
        response = None if self._responses.empty() else self._responses.get_nowait()
        if response is None or self._has_ended:
            raise EOFError("the job has ended")
        return response

    def release(self) -> None:
        self._has_ended = True

    async def kill(self) -> None:
        self._has_ended = True
        self._handled.cancel()

    async def wait(self) -> int:
        return 0


class SimulatedPolledJob:
    """``PolledJob`` without a process."""

    def __init__(self, handle: Callable[[bytes, Host], None], files: Any, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._responses: list[bytes] = []
        host = Host(files, self._responses.append, loop.time, lambda seconds: None)
        self._handled = loop.run_in_executor(None, handle, request, host)

    def poll(self) -> bytes | None:
        if not self._handled.done():
            return None
        self._handled.result()
        return self._responses[0]

    def kill(self) -> None:
        self._handled.cancel()


class SimulatedJobs:
    def __init__(self, files: Any) -> None:
        self._files = files

    async def start(self, module: str, *, niceness: int = 0) -> SimulatedJob:
        return SimulatedJob(importlib.import_module(module).handle, self._files)

    def request(self, module: str, request: bytes) -> SimulatedPolledJob:
        return SimulatedPolledJob(importlib.import_module(module).handle, self._files, request)
