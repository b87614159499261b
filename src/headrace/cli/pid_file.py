"""The pid file of a server: its process ID, and a lock that tells whether the process runs.

    headrace.pid     of a broker: the process ID in decimal and a line feed
    zookeeper.pid    of ``headrace zookeeper``: the same

The process holds an fcntl lock on the file until it ends. A file without a lock is left over from a
crash; its process ID may belong to another process by now, so it is never signaled. Waiting for the
lock means waiting for the end of the process.
"""

import fcntl
import os
from pathlib import Path
from types import TracebackType

NAME = "headrace.pid"
ZOOKEEPER_NAME = "zookeeper.pid"


class PidFile:
    """Held by the server; removed when the server stops, unlocked when its process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def __enter__(self) -> "PidFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Unlinked while locked, so no other process can have replaced the file.
        # The descriptor stays open to hold the lock until the process ends.
        self.path.unlink(missing_ok=True)


class Holder:
    """The process that holds a pid file."""

    def __init__(self, process: int, descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor

    def has_ended(self) -> bool:
        return _lock(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def holder_of(path: Path) -> Holder | None:
    """The process that holds ``path``; None if there is none. The caller closes it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    text = os.read(descriptor, 32).decode("ascii", "replace").strip()
    if _lock(descriptor) or not text.isdigit():
        os.close(descriptor)
        return None
    return Holder(int(text), descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows either for "held by another"
        return False
    return True
