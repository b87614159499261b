"""Files: the POSIX calls on descriptors and paths that storage uses.

``SystemFiles`` is the real one. Its methods are the functions of ``os`` themselves where that is
possible, so the hot path pays for one attribute and no extra frame. A simulation passes another
object with the same methods, which tells unsynced writes and renames from durable ones.

Directory listings are sorted: the order of a directory must not decide anything.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

O_RDONLY = os.O_RDONLY | os.O_CLOEXEC
O_RDWR = os.O_RDWR | os.O_CLOEXEC
# Open for reading and writing, and create the file if it is missing.
O_CREATE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
# The same, and empty it.
O_TRUNCATE = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC

_IOV_MAX = 1024  # of Linux and macOS; POSIX requires only 16
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
# Errors of kernels and file systems that do not support RWF_NOWAIT.
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class Facts(NamedTuple):
    """Metadata of a path."""

    size: int
    modified_at_ns: int
    is_directory: bool


class SystemFiles:
    """The real file system."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    ftruncate = staticmethod(os.ftruncate)
    fsync = staticmethod(os.fsync)
    rename = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)

    def __init__(self) -> None:
        self._can_read_now = hasattr(os, "preadv") and _NOWAIT != 0

    # --- descriptors

    @staticmethod
    def pwritev(fd: int, views: Sequence[Any], position: int) -> int:
        """Write ``views`` one after the other. Too many of them give a short count."""
        if hasattr(os, "pwritev"):
            return os.pwritev(fd, views[:_IOV_MAX], position)
        os.lseek(fd, position, os.SEEK_SET)
        return os.writev(fd, views[:_IOV_MAX])

    @staticmethod
    def pread_into(fd: int, view: memoryview, position: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(fd, [view], position)
        piece = os.pread(fd, len(view), position)
        view[: len(piece)] = piece
        return len(piece)

    def read_now(self, fd: int, into: bytearray, position: int) -> bool | None:
        """Fill ``into`` from the page cache. False if that would block; None if unsupported."""
        if not self._can_read_now:
            return None
        try:
            return os.preadv(fd, (into,), position, _NOWAIT) == len(into)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                self._can_read_now = False
                return None
            # The caller reads again in a thread, and gets the error there.
            return False

    @staticmethod
    def will_need(fd: int, position: int, size: int) -> None:
        """Ask the kernel to read ahead."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, position, size, os.POSIX_FADV_WILLNEED)

    @staticmethod
    def preallocate(fd: int, size: int) -> None:
        """Give the file its size, and blocks on the disk where the system can."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            os.ftruncate(fd, size)

    @staticmethod
    def size_of(fd: int) -> int:
        return os.fstat(fd).st_size

    @staticmethod
    def lock(fd: int) -> None:
        """Lock a file for this process. Raises OSError if another process has locked it."""
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    # --- paths

    @staticmethod
    def facts(path: str) -> Facts:
        """Raises FileNotFoundError."""
        found = os.stat(path)  # noqa: PTH116 - a Path per file would slow the start
        return Facts(found.st_size, found.st_mtime_ns, (found.st_mode & 0o170000) == 0o040000)

    @staticmethod
    def exists(path: str) -> bool:
        return os.path.exists(path)  # noqa: PTH110

    @staticmethod
    def names_in(path: str) -> list[str]:
        return sorted(os.listdir(path))  # noqa: PTH208 - names, not paths

    @staticmethod
    def make_directory(path: str) -> None:
        """Raises FileExistsError."""
        os.mkdir(path, 0o755)  # noqa: PTH102

    @staticmethod
    def make_directories(path: str) -> None:
        """Create a directory with its parents. It may exist."""
        os.makedirs(path, 0o755, exist_ok=True)  # noqa: PTH103

    @staticmethod
    def remove_tree(path: str) -> None:
        """Remove a directory and its contents. Errors are ignored."""
        import shutil  # late: it imports three compression modules, which would slow the start

        shutil.rmtree(path, ignore_errors=True)

    @staticmethod
    def sync_directory(path: str) -> None:
        """Make creations, renames and deletions in a directory durable."""
        fd = os.open(path, O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @staticmethod
    def sync_all() -> None:
        os.sync()

    @staticmethod
    def set_modified(path: str, modified_at_ns: int) -> None:
        os.utime(path, ns=(modified_at_ns, modified_at_ns))

    @staticmethod
    def truncate(path: str, size: int) -> None:
        os.truncate(path, size)

    @staticmethod
    def disk_usage(path: str) -> tuple[int, int]:
        """Total and free bytes of the file system."""
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
