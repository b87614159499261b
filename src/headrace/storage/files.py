"""File descriptors and the reads and writes on them.

A descriptor stays open as long as its ``OpenFile`` is referenced. A slice that is being sent
therefore survives a roll, an eviction and even the deletion of the file: the kernel keeps an
unlinked file until its last descriptor closes.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from headrace.model.ids import Position

IOV_MAX = 1024  # POSIX guarantees 16; Linux and macOS accept 1024
_pwritev = getattr(os, "pwritev", None)
_preadv = getattr(os, "preadv", None)

# Temporary conditions: the log directory stays online.
TRANSIENT_ERRNOS = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EFBIG)
)

# One file or directory is missing or not accessible; the disk itself works.
ONE_FILE_ERRNOS = frozenset(
    (errno.EISDIR, errno.ENOTDIR, errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP)
)


class OpenFile:
    """Owns one descriptor and closes it with the last reference."""

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, path: str, flags: int = os.O_RDWR | os.O_CLOEXEC) -> None:
        self.path = path  # at the time of opening: deletion renames files
        self.fd = -1  # so that __del__ is safe if open fails
        self.fd = os.open(path, flags, 0o644)

    def fileno(self) -> int:
        return self.fd

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class FileSlice(NamedTuple):
    """Bytes of a file, for sendfile or pread."""

    file: OpenFile
    position: int
    size: int


class Holder(Protocol):
    """Keeps an ``OpenFile`` only as long as ``OpenFiles`` allows."""

    file: OpenFile | None
    touched: bool


class OpenFiles:
    """Limits the number of open files; closes the least recently used.

    Second chance instead of a strict order: a use only sets ``touched`` on the holder, and the
    order is evaluated when a file has to be closed.
    """

    __slots__ = ("_holders", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = max(limit, 8)
        self._holders: dict[Holder, None] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def opened(self, holder: Holder) -> None:
        while len(self._holders) >= self.limit:
            oldest = next(iter(self._holders))
            del self._holders[oldest]
            if oldest.touched:
                oldest.touched = False
                self._holders[oldest] = None
            else:
                oldest.file = None
        self._holders[holder] = None

    def forget(self, holder: Holder) -> None:
        holder.file = None
        self._holders.pop(holder, None)


def write_all(fd: int, views: Sequence[memoryview | bytes], position: int, size: int) -> None:
    """Write ``views`` (``size`` bytes together) at ``position``; all of them or OSError."""
    if len(views) == 1:
        written = os.pwrite(fd, views[0], position)
    elif _pwritev is not None:
        written = _pwritev(fd, views[:IOV_MAX], position)
    else:
        os.lseek(fd, position, os.SEEK_SET)
        written = os.writev(fd, views[:IOV_MAX])
    if written == size:
        return
    # Short writes happen when the disk becomes full (the next write then fails) and when there
    # are more views than one call accepts.
    left = list(views)
    while True:
        position += written
        size -= written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if not left:
            return
        if written:
            left[0] = memoryview(left[0])[written:]
        if _pwritev is not None:
            written = _pwritev(fd, left[:IOV_MAX], position)
        else:
            os.lseek(fd, position, os.SEEK_SET)
            written = os.writev(fd, left[:IOV_MAX])
        if written == 0:
            raise OSError(errno.EIO, "the file accepts no more bytes")


def preallocate(fd: int, size: int) -> None:
    """Give the file its size, with blocks on the disk where the system supports it."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.ftruncate(fd, size)


def read_into(fd: int, view: memoryview, position: Position) -> int:
    """Fill ``view`` from ``position``; fewer bytes only at the end of the file."""
    filled = 0
    while filled < len(view):
        if _preadv is not None:
            count = _preadv(fd, [view[filled:]], position + filled)
        else:
            piece = os.pread(fd, len(view) - filled, position + filled)
            count = len(piece)
            view[filled : filled + count] = piece
        if count == 0:
            break
        filled += count
    return filled


def read_exactly(fd: int, size: int, position: int) -> bytes:
    data = os.pread(fd, size, position)
    while len(data) < size:
        more = os.pread(fd, size - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def read_file(path: str) -> bytes:
    """Read a small file; several times cheaper than pathlib, which matters at start."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, 4096)
        if len(data) == 4096:
            data += read_exactly(fd, os.fstat(fd).st_size - 4096, 4096)
        return data
    finally:
        os.close(fd)


def write_atomically(path: Path | str, content: bytes, *, sync: bool = True) -> None:
    """Replace the file: a reader, even after a crash, sees the old content or the new.

    Without ``sync`` this holds for a killed process but not for a power failure.
    """
    temporary = f"{path}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, [content], 0, len(content))
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)  # noqa: PTH105 - a Path per checkpoint line would be waste
    if sync:
        sync_directory(str(path).rpartition("/")[0] or ".")


def remove_directory(path: Path) -> None:
    """For a thread: freeing many files may take the file system a while."""
    import shutil  # late: it imports three compression modules, which slows down a start

    shutil.rmtree(path, ignore_errors=True)


def sync_directory(directory: str) -> None:
    """Make creations, renames and deletions in ``directory`` survive a power failure."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
