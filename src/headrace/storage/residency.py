"""Is a range of a file in the page cache? And if not, bring it there, in a thread.

The page cache is the only cache. A range that is not in it would block the loop inside
``sendfile`` (14 ms for a cold megabyte, measured), so it is read once by a thread first.
"""

import errno
import os

from headrace.storage.files import FileSlice

_preadv = getattr(os, "preadv", None)
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_CHUNK = 1 << 20
# What a file system or a kernel answers that does not know the question.
_CANNOT_SAY = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class _Probe:
    """One byte to read into, and whether this kernel can be asked at all."""

    can_ask = _preadv is not None and _NOWAIT != 0
    byte = [bytearray(1)]


def is_resident(file_slice: FileSlice) -> bool:
    """Whether both ends lie in the page cache, which stands for all between them.

    Pages come and go in long runs, so two probes of 1.3 µs see nearly every cold range.
    """
    if not _Probe.can_ask:
        return True
    fd, position = file_slice.file.fd, file_slice.position
    try:
        _preadv(fd, _Probe.byte, position, _NOWAIT)  # type: ignore[misc]
        _preadv(fd, _Probe.byte, position + file_slice.size - 1, _NOWAIT)  # type: ignore[misc]
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _CANNOT_SAY:
            return False  # whoever warms it meets the error where it can be waited for
        _Probe.can_ask = False  # go on as if everything were warm
    return True


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
