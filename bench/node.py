"""A broker process to measure: started on loopback, timed, watched and stopped."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from bench import process_tree
from bench.client import CLIENT_ID, framed, split
from headrace.client.blocking import Connection
from headrace.client.errors import Disconnected
from headrace.wire import messages as m
from headrace.wire.session import API_VERSIONS_VERSION

# A broker answers this request from any client. It is encoded once, so that a start does not
# measure our codec.
_API_VERSIONS = framed(API_VERSIONS_VERSION, m.ApiVersionsRequest())

# An installed package has bytecode files. If the environment forbids writing them, every start
# would measure Python's compiler.
_ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}


class NodeFailed(Exception):
    """A broker did not start, or ended unexpectedly; the message holds the end of its log."""


class Node(ABC):
    """One broker process with its data directory. Its address stays the same across restarts."""

    name: str

    def __init__(
        self, data: Path, *, settings: Mapping[str, str] | None = None, log: Path | None = None
    ) -> None:
        self.data = data
        self.settings = dict(settings or {})
        self.log = log or data.with_name(data.name + ".log")
        self.address = f"127.0.0.1:{self.free_port()}"
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0

    @abstractmethod
    def command(self) -> list[str]:
        """The program and its arguments; it must stay in the foreground."""

    def prepare(self) -> None:
        """Prepare a start; not part of the measurement."""
        self.data.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def free_port() -> int:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port: int = listener.getsockname()[1]
            return port

    @property
    def pid(self) -> int:
        assert self._process is not None, "the node is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def seconds_since_start(self, at: float | None = None) -> float:
        """Seconds until now, or until a perf_counter time."""
        return (time.perf_counter() if at is None else at) - self._started_at

    def start(self, limit_s: float = 60) -> float:
        """Start the process and wait until it answers. Return the seconds that this took."""
        self.prepare()
        self.launch()
        while not self._answers():
            if not self.running:
                raise NodeFailed(f"{self.name} ended at start:\n{self._last_words()}")
            if self.seconds_since_start() > limit_s:
                self.kill()
                raise NodeFailed(f"{self.name} does not answer after {limit_s:.0f} s")
            time.sleep(0.002)
        return self.seconds_since_start()

    def launch(self) -> None:
        """Start the process, without waiting for it."""
        with self.log.open("ab") as log:
            self._started_at = time.perf_counter()
            # In a session of its own, as the brokers of ``headrace up``: Linux may share the
            # processor between sessions before it shares it between processes.
            self._process = subprocess.Popen(
                self.command(),
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _answers(self) -> bool:
        try:
            with Connection(
                *split(self.address), client_id=CLIENT_ID, versions={}, timeout_s=5
            ) as connection:
                connection.send_bytes(_API_VERSIONS)
                connection.receive_frame()
        except Disconnected:
            return False
        return True

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def stop(self, limit_s: float = 60) -> float:
        """Stop the process cleanly. Return the seconds that this took."""
        if self._process is None:
            return 0.0
        start = time.perf_counter()
        self.terminate()
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise NodeFailed(f"{self.name} did not stop within {limit_s:.0f} s") from None
        self._process = None
        return time.perf_counter() - start

    def terminate(self) -> None:
        """Ask the process to stop, without waiting for it."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Kill the process, without a clean stop."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def cpu_seconds(self) -> float:
        return process_tree.cpu_seconds(self.pid)

    def resident_mb(self) -> float:
        return process_tree.resident_mb(self.pid)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.running and error is None:
            self.stop()
        else:
            self.kill()


class HeadraceNode(Node):
    """Headrace as a user starts it: ``python -m headrace serve``."""

    name = "Headrace"

    def command(self) -> list[str]:
        line = [sys.executable, "-m", "headrace", "serve"]
        line += ["--listen", self.address, "--data", str(self.data)]
        for setting, value in self.settings.items():
            line += ["-X", f"{setting}={value}"]
        return line


def headrace_of(checkout: Path) -> type[HeadraceNode]:
    """Headrace as another checkout of this project has it, from its own ``.venv``."""
    python = checkout.absolute() / ".venv" / "bin" / "python"
    if not python.exists():
        raise NodeFailed(f"{python} does not exist. Run make setup in {checkout}")

    class OtherNode(HeadraceNode):
        name = f"Headrace of {checkout}"

        def command(self) -> list[str]:
            return [str(python), *super().command()[1:]]

    return OtherNode


class PlainReadNode(HeadraceNode):
    """Headrace without sendfile: records are read into memory and sent from there."""

    name = "Headrace without sendfile"

    def command(self) -> list[str]:
        without = "import os, runpy, sys; del os.sendfile; sys.argv[0] = 'headrace'; "
        without += "runpy.run_module('headrace', run_name='__main__')"
        return [sys.executable, "-c", without, *super().command()[3:]]


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory in TMPDIR that is always deleted afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def free_space_gb(directory: Path) -> float:
    """Free space of the file system of ``directory``, in GB."""
    return os.statvfs(directory).f_bavail * os.statvfs(directory).f_frsize / 1e9
