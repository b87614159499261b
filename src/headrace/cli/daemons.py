"""Which nodes this user runs in the background on this machine, so that ``stop`` finds them.

    headrace-UID/PID    the path of that process's pid file

The folder lies below the system's runtime or temporary folder and belongs to
the user alone: whoever could write there could make us signal any process. An
entry is a hint only; the lock on the pid file says whether it is still true.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from headrace.cli import pid_file


def remember(process: int, pid_path: Path) -> None:
    """Without the folder ``stop`` has to be told where the node is; nothing else is lost."""
    with contextlib.suppress(OSError):
        folder = _folder()
        folder.mkdir(mode=0o700, exist_ok=True)
        if _is_ours(folder):
            (folder / str(process)).write_text(str(pid_path.absolute()))


def running() -> list[Path]:
    """The pid files of those that still run; entries of the others are removed."""
    found = []
    with contextlib.suppress(OSError):
        folder = _folder()
        for entry in sorted(folder.iterdir()) if _is_ours(folder) else ():
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


def _folder() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"headrace-{os.getuid()}"


def _is_ours(folder: Path) -> bool:
    status = folder.lstat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022 and folder.is_dir()
