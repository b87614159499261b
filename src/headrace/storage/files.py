"""File descriptors and the reads and writes on them.

A descriptor stays open as long as its ``OpenFile`` is referenced. A slice that is being sent
therefore survives a roll, an eviction and even the deletion of the file: the kernel keeps an
unlinked file until its last descriptor closes.
"""

import errno
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from headrace.model.ids import Position
from headrace.world.files import IOV_MAX, O_RDONLY, O_RDWR, O_TRUNCATE, StrPath, SystemFiles

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

    __slots__ = ("__weakref__", "fd", "files", "path")

    def __init__(self, files: SystemFiles, path: str, flags: int = O_RDWR) -> None:
        self.files = files
        self.path = path  # at the time of opening: deletion renames files
        self.fd = -1  # so that __del__ is safe if open fails
        self.fd = files.open(path, flags, 0o644)

    def fileno(self) -> int:
        return self.fd

    def __del__(self) -> None:
        if self.fd >= 0:
            self.files.close(self.fd)


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


def write_all(
    files: SystemFiles, fd: int, views: Sequence[memoryview | bytes], position: int, size: int
) -> None:
    """Write ``views`` (``size`` bytes together) at ``position``; all of them or OSError."""
    if len(views) == 1:
        written = files.pwrite(fd, views[0], position)
    else:
        written = files.pwritev(fd, views[:IOV_MAX], position)
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
        written = files.pwritev(fd, left[:IOV_MAX], position)
        if written == 0:
            raise OSError(errno.EIO, "the file accepts no more bytes")


def read_into(file: OpenFile, view: memoryview, position: Position) -> int:
    """Fill ``view`` from ``position``; fewer bytes only at the end of the file."""
    filled = 0
    while filled < len(view):
        count = file.files.pread_into(file.fd, view[filled:], position + filled)
        if count == 0:
            break
        filled += count
    return filled


def read_exactly(file: OpenFile, size: int, position: int) -> bytes:
    """Fewer bytes only at the end of the file."""
    pread = file.files.pread
    data = pread(file.fd, size, position)
    while len(data) < size:
        more = pread(file.fd, size - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def read_file(files: SystemFiles, path: StrPath) -> bytes:
    """Read a small file; several times cheaper than pathlib, which matters at start."""
    fd = files.open(path, O_RDONLY)
    try:
        data = files.pread(fd, 4096, 0)
        if len(data) == 4096:
            size = files.size_of(fd)
            while len(data) < size and (more := files.pread(fd, size - len(data), len(data))):
                data += more
        return data
    finally:
        files.close(fd)


def write_atomically(
    files: SystemFiles, path: StrPath, content: bytes, *, sync: bool = True, mode: int = 0o644
) -> None:
    """Replace the file: a reader, even after a crash, sees the old content or the new.

    Without ``sync`` this holds for a killed process but not for a power failure.
    """
    temporary = f"{path}.tmp"
    fd = files.open(temporary, O_TRUNCATE, mode)
    try:
        write_all(files, fd, [content], 0, len(content))
        if sync:
            files.fsync(fd)
    finally:
        files.close(fd)
    files.rename(temporary, path)
    if sync:
        files.sync_directory(str(path).rpartition("/")[0] or ".")


def unlink_if_exists(files: SystemFiles, path: StrPath) -> None:
    with suppress(FileNotFoundError):
        files.unlink(path)
