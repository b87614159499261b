"""The background brokers of this user on this machine, so that ``stop`` finds them.

    headrace-UID/PID    the path of that process's pid file

The directory is in the system's runtime or temporary directory, and only this user may write to
it: anyone else could make ``stop`` signal any process. An entry is only a hint; the lock on the pid
file tells whether the broker still runs.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from headrace.cli import pid_file


def remember(process: int, pid_path: Path) -> None:
    """Register a broker. If this fails, the user must name the broker to ``stop``."""
    with contextlib.suppress(OSError):
        directory = _directory()
        directory.mkdir(mode=0o700, exist_ok=True)
        if _is_ours(directory):
            (directory / str(process)).write_text(str(pid_path.absolute()))


def running() -> list[Path]:
    """The pid files of running brokers; entries of others are removed."""
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
            if str(holder.process) == entry.name:
                found.append(path)
            else:
                entry.unlink(missing_ok=True)
    return found


def _directory() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"headrace-{os.getuid()}"


def _is_ours(directory: Path) -> bool:
    status = directory.lstat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022 and directory.is_dir()
