"""The file system as storage sees it: POSIX calls on descriptors and paths, and nothing else.

``SystemFiles`` is the real one. Its methods are the functions of ``os`` themselves where that is
possible, so the hot path pays for one attribute and no call. A simulation passes another object
with the same methods, which keeps unsynced writes and renames apart.

Directory listings are sorted: the order of a directory must not decide anything.
"""

import errno
import fcntl
import os
import resource
from collections.abc import Sequence
from typing import Any, NamedTuple

StrPath = str | os.PathLike[str]

O_RDONLY = os.O_RDONLY | os.O_CLOEXEC
O_RDWR = os.O_RDWR | os.O_CLOEXEC
# Open for reading and writing, and create the file if it is missing.
O_CREATE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
# The same, and empty it.
O_TRUNCATE = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC

IOV_MAX = 1024  # views in one call. POSIX guarantees 16; Linux and macOS accept 1024
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
# Errors of a file system or kernel that does not support RWF_NOWAIT.
_CANNOT_SAY = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class FileStat(NamedTuple):
    """What the file system knows about a path."""

    size: int
    modified_at_ns: int
    is_directory: bool


def pwritev_by_seek(fd: int, views: Sequence[Any], position: int) -> int:
    """For systems without pwritev."""
    os.lseek(fd, position, os.SEEK_SET)
    return os.writev(fd, views)


class SystemFiles:
    """The real file system."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    # Writes the views one after the other, at most IOV_MAX of them.
    pwritev = staticmethod(getattr(os, "pwritev", pwritev_by_seek))
    ftruncate = staticmethod(os.ftruncate)
    fsync = staticmethod(os.fsync)
    rename = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)

    def __init__(self) -> None:
        self._can_read_now = hasattr(os, "preadv") and _NOWAIT != 0

    # --- descriptors

    @staticmethod
    def pread_into(fd: int, view: memoryview, position: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(fd, [view], position)
        piece = os.pread(fd, len(view), position)
        view[: len(piece)] = piece
        return len(piece)

    def read_now(self, fd: int, into: bytearray, position: int) -> bool | None:
        """Fill ``into`` from the page cache. False: that would block; None: cannot tell."""
        if not self._can_read_now:
            return None
        try:
            return os.preadv(fd, (into,), position, _NOWAIT) == len(into)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _CANNOT_SAY:
                self._can_read_now = False
                return None
            # A thread reads it next, and meets the error where blocking is allowed.
            return False

    @staticmethod
    def will_need(fd: int, position: int, size: int) -> None:
        """Ask the kernel to read ahead."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, position, size, os.POSIX_FADV_WILLNEED)

    @staticmethod
    def preallocate(fd: int, size: int) -> None:
        """Give the file its size, with blocks on the disk where the system supports it."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            os.ftruncate(fd, size)

    @staticmethod
    def size_of(fd: int) -> int:
        return os.fstat(fd).st_size

    @staticmethod
    def descriptors_max() -> int | None:
        """How many descriptors this process may open; None without a limit."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return None if soft == resource.RLIM_INFINITY else soft

    # --- locks

    @staticmethod
    def lock(path: StrPath) -> int:
        """Create and lock a file; returns the descriptor for ``unlock``.

        Raises BlockingIOError if another process, or another caller in this one, holds the lock.
        """
        # fcntl locks belong to the process: it would get the lock twice, and lose it with the
        # first descriptor of the file that it closes. So check this process first.
        real_path = os.path.realpath(path)
        if real_path in _LOCKED.values():
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        fd = os.open(path, O_CREATE, 0o644)
        try:
            # The POSIX lock of Java's FileChannel.tryLock, so that Kafka respects it.
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno == errno.EACCES:  # what some systems answer instead of EAGAIN
                raise BlockingIOError(errno.EAGAIN, error.strerror, str(path)) from error
            raise
        _LOCKED[fd] = real_path
        return fd

    @staticmethod
    def unlock(fd: int) -> None:
        os.close(fd)  # the lock goes with the descriptor
        _LOCKED.pop(fd, None)

    # --- paths

    @staticmethod
    def stat(path: StrPath) -> FileStat:
        """Raises FileNotFoundError if nothing is there."""
        found = os.stat(path)  # noqa: PTH116 - a Path per file would be felt at start
        return FileStat(found.st_size, found.st_mtime_ns, (found.st_mode & 0o170000) == 0o040000)

    @staticmethod
    def exists(path: StrPath) -> bool:
        return os.path.exists(path)  # noqa: PTH110

    @staticmethod
    def names_in(path: StrPath) -> list[str]:
        return sorted(os.listdir(path))  # noqa: PTH208 - names, not paths

    @staticmethod
    def directories_in(path: StrPath) -> list[str]:
        """The names of the directories among them; cheaper than asking for the facts of each."""
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    @staticmethod
    def make_directory(path: StrPath) -> None:
        """Raises FileExistsError."""
        os.mkdir(path, 0o755)  # noqa: PTH102

    @staticmethod
    def make_directories(path: StrPath) -> None:
        """With all its parents; does nothing if it exists."""
        os.makedirs(path, 0o755, exist_ok=True)  # noqa: PTH103

    @staticmethod
    def remove_tree(path: StrPath) -> None:
        """Remove a directory with its content; errors are ignored. May take a while."""
        import shutil  # late: it imports three compression modules, which slows down a start

        shutil.rmtree(path, ignore_errors=True)

    @staticmethod
    def sync_directory(path: StrPath) -> None:
        """Make creations, renames and deletions in a directory survive a power failure."""
        fd = os.open(path, O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @staticmethod
    def sync_all() -> None:
        os.sync()

    @staticmethod
    def set_modified(path: StrPath, modified_at_ns: int) -> None:
        os.utime(path, ns=(modified_at_ns, modified_at_ns))

    @staticmethod
    def truncate(path: StrPath, size: int) -> None:
        os.truncate(path, size)

    @staticmethod
    def disk_usage(path: StrPath) -> tuple[int, int]:
        """Total and free bytes of the file system."""
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


_LOCKED: dict[int, str] = {}  # files locked by this process, by descriptor
