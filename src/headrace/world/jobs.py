"""Child processes for loops over records in Python, which would block the event loop.

A job is a module with a function

    handle(request: bytes, host: Host) -> None

that answers one request with any number of responses (``host.respond``). ``SystemJobs`` runs it in
a process of its own (``job_process``): a thread would hold the interpreter lock. The process is
not forked, because a fork would inherit the loop, its sockets and locks held by threads. A
simulation passes another object with the same methods, which calls ``handle`` inline.
"""

import asyncio
import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import headrace
from headrace.world.job_host import LENGTH


class ChildJob:
    """A job in a child process, for one caller that awaits its responses."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.pid = process.pid
        self._process = process
        self._requests = process.stdin
        self._responses = process.stdout

    async def send(self, request: bytes | bytearray) -> None:
        """Raises OSError if the process has ended."""
        self._requests.write(LENGTH.pack(len(request)))
        self._requests.write(request)
        await self._requests.drain()

    async def receive(self) -> bytes:
        """The next response. Raises EOFError if the process has ended."""
        (size,) = LENGTH.unpack(await self._responses.readexactly(LENGTH.size))
        return await self._responses.readexactly(size)

    def release(self) -> None:
        """Let the process end; no request may be in progress."""
        self._requests.close()

    async def kill(self) -> None:
        """End the process and wait until it has ended."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._requests.close()

    async def wait(self) -> int:
        """The status of the process, once it has ended."""
        return await self._process.wait()


class PolledJob:
    """A job in a child process, for one request and its one response, which are polled for."""

    def __init__(self, process: "subprocess.Popen[bytes]", request: bytes) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.pid = process.pid
        self._process = process
        self._received = b""
        os.set_blocking(process.stdout.fileno(), False)
        with suppress(BrokenPipeError):  # it has ended, which the first poll reports
            process.stdin.write(LENGTH.pack(len(request)) + request)
            process.stdin.flush()

    def poll(self) -> bytes | None:
        """The response; None while the process works. Raises EOFError if it ended without one."""
        stdout = self._process.stdout
        assert stdout is not None
        while not self._is_complete:
            try:
                piece = os.read(stdout.fileno(), 1 << 16)
            except BlockingIOError:
                return None
            if not piece:
                self.kill()
                raise EOFError(f"it ended with status {self._process.returncode}")
            self._received += piece
        self.kill()
        return self._received[LENGTH.size :]

    @property
    def _is_complete(self) -> bool:
        received = self._received
        if len(received) < LENGTH.size:
            return False
        (size,) = LENGTH.unpack_from(received)
        return len(received) - LENGTH.size == int(size)

    def kill(self) -> None:
        """End the process and wait until it has ended."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()


class SystemJobs:
    """Starts the jobs of a broker as child processes."""

    async def start(self, module: str, *, niceness: int = 0) -> ChildJob:
        """Start the job ``module``. Raises OSError if the system refuses another process."""
        try:
            process = await asyncio.create_subprocess_exec(
                *_command(module, niceness),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=_environment(),
            )
        except RuntimeError as refusal:  # no thread to wait for its end
            raise OSError(errno.EAGAIN, str(refusal)) from refusal
        return ChildJob(process)

    def request(self, module: str, request: bytes) -> PolledJob:
        """Start the job ``module`` for one short request. Raises OSError as ``start`` does."""
        process = subprocess.Popen(
            _command(module, 0),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            bufsize=0,
        )
        return PolledJob(process, request)


def _command(module: str, niceness: int) -> list[str]:
    # -P: do not import from the current directory
    return [sys.executable, "-P", "-m", "headrace.world.job_process", module, str(niceness)]


def _environment() -> dict[str, str]:
    """The child must import the same package as this process."""
    package_root = str(Path(headrace.__file__).parents[1])
    inherited = os.environ.get("PYTHONPATH")
    path = f"{package_root}{os.pathsep}{inherited}" if inherited else package_root
    return {**os.environ, "PYTHONPATH": path}
