"""Check whether a file range is in the page cache, and read it there in a thread if not.

The page cache is the only cache. A range that is not in it would block the loop inside
``sendfile`` (14 ms for a cold megabyte, measured), so a thread reads it first. A range that is
small enough to copy needs no check: it is read, unless that would block.
"""

import errno
import os
from collections.abc import Callable

from headrace.storage.files import FileSlice

_preadv: Callable[..., int] | None = getattr(os, "preadv", None)
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_CHUNK = 1 << 20
# Errors of a file system or kernel that does not support RWF_NOWAIT.
_CANNOT_SAY = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class _Probe:
    """One byte to read into, and whether this kernel supports the probe."""

    can_ask = _preadv is not None and _NOWAIT != 0
    byte = bytearray(1)


def is_resident(file_slice: FileSlice) -> bool:
    """Whether both ends are in the page cache, which stands for everything between them.

    Pages are loaded and evicted in long runs, so two probes of 1.3 µs detect nearly every cold
    range.
    """
    fd, position = file_slice.file.fd, file_slice.position
    # Without support, every range counts as warm.
    return not _Probe.can_ask or (
        _read_now(fd, _Probe.byte, position)
        and _read_now(fd, _Probe.byte, position + file_slice.size - 1)
    )


def read_resident(file_slice: FileSlice) -> bytes | bytearray | None:
    """The bytes; None if reading would block, or the file is shorter."""
    if not _Probe.can_ask:
        try:
            data = read(file_slice)
        except OSError:
            return None  # as in _read_now
        return data if len(data) == file_slice.size else None
    into = bytearray(file_slice.size)
    return into if _read_now(file_slice.file.fd, into, file_slice.position) else None


def _read_now(fd: int, into: bytearray, position: int) -> bool:
    """Fill ``into`` from the page cache; False if that would block."""
    assert _preadv is not None  # else can_ask is False
    try:
        return _preadv(fd, (into,), position, _NOWAIT) == len(into)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _CANNOT_SAY:
            _Probe.can_ask = False
        # A thread reads it next, and meets the error where blocking is allowed.
        return False


def read(file_slice: FileSlice) -> bytes:
    """The bytes, fewer if the log was truncated meanwhile. May block; for a thread."""
    return os.pread(file_slice.file.fd, file_slice.size, file_slice.position)


def warm(file_slice: FileSlice) -> None:
    """Read the range into the page cache. Blocks; for a thread."""
    fd, position = file_slice.file.fd, file_slice.position
    end = position + file_slice.size
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, position, file_slice.size, os.POSIX_FADV_WILLNEED)
    while position < end:
        count = len(os.pread(fd, min(_CHUNK, end - position), position))
        if not count:
            return
        position += count
