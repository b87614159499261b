"""The background servers of this user on this machine, so that ``stop`` finds them.

    headrace-UID/PID    the path of that process's pid file

The directory is in the system's runtime or temporary directory, and only this user may write to
it: anyone else could make ``stop`` signal any process. An entry is only a hint; the lock on the pid
file tells whether the server still runs.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from headrace.cli import pid_file


def remember(process: int, pid_path: Path) -> None:
    """Register a server. If this fails, the user must name the server to ``stop``."""
    with contextlib.suppress(OSError):
        directory = _directory()
        directory.mkdir(mode=0o700, exist_ok=True)
        if _is_ours(directory):
            (directory / str(process)).write_text(str(pid_path.absolute()))


def running(*, zookeepers: bool = False) -> list[Path]:
    """The pid files of running brokers, or of ``zookeepers``; entries of ended ones are removed."""
    found = []
    with contextlib.suppress(OSError):
        directory = _directory()
        for entry in sorted(directory.iterdir()) if _is_ours(directory) else ():
            path = Path(entry.read_text())
            holder = pid_file.holder_of(path)
            if holder is None:
                entry.unlink(missing_ok=True)
                continue
            holder.close()
            if str(holder.process) != entry.name:
                entry.unlink(missing_ok=True)
            elif (path.name == pid_file.ZOOKEEPER_NAME) == zookeepers:
                found.append(path)
    return found


def _directory() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"headrace-{os.getuid()}"


def _is_ours(directory: Path) -> bool:
    status = directory.lstat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022 and directory.is_dir()
