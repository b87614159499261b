"""The file that says which process runs a node, and whether it still does.

    headrace.pid    the process id in decimal and a line feed

The process keeps an fcntl lock on the file until the system takes it away at
its very end. A file without a lock is a leftover of a crash, so a number that
the system has given to someone else in the meantime is never signalled; and
who waits for the lock waits for the end of the process, not for its promise.
"""

import fcntl
import os
from pathlib import Path
from types import TracebackType

NAME = "headrace.pid"


class PidFile:
    """Held by the node; the name goes when the node is done, the lock when the process is."""

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
        # Unlinked while locked: nobody can have put a new one in its place.
        # The descriptor stays open, see above.
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
    """Who holds ``path`` now; None if nobody does. To be closed."""
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
