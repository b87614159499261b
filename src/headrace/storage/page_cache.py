"""Check whether a file range is in the page cache, and read it there in a thread if not.

The page cache is the only cache. A range that is not in it would block the loop inside
``sendfile`` (14 ms for a cold megabyte, measured), so a thread reads it first. A range that is
small enough to copy needs no check: it is read, unless that would block.
"""

from headrace.storage.files import FileSlice

_CHUNK = 1 << 20
_PROBE = bytearray(1)  # to read into


def is_resident(file_slice: FileSlice) -> bool:
    """Whether both ends are in the page cache, which is taken as true of everything between them.

    Pages are loaded and evicted in long runs, so two probes of 1.3 µs detect nearly every cold
    range.
    """
    file, position, size = file_slice
    read_now = file.files.read_now
    first_is = read_now(file.fd, _PROBE, position)
    if first_is is None:
        return True  # the system cannot tell: every range counts as warm
    return first_is and read_now(file.fd, _PROBE, position + size - 1) is not False


def read_resident(file_slice: FileSlice) -> bytes | bytearray | None:
    """The bytes; None if reading would block, or the file is shorter."""
    file, position, size = file_slice
    into = bytearray(size)
    was_read = file.files.read_now(file.fd, into, position)
    if was_read is None:
        try:
            data = read(file_slice)
        except OSError:
            return None  # a thread reads it next, and meets the error where blocking is allowed
        return data if len(data) == size else None
    return into if was_read else None


def read(file_slice: FileSlice) -> bytes:
    """The bytes, fewer if the log was truncated meanwhile. May block; for a thread."""
    file, position, size = file_slice
    return file.files.pread(file.fd, size, position)


def warm(file_slice: FileSlice) -> None:
    """Read the range into the page cache. Blocks; for a thread."""
    file, position, size = file_slice
    end = position + size
    file.files.will_need(file.fd, position, size)
    while position < end:
        count = len(file.files.pread(file.fd, min(_CHUNK, end - position), position))
        if not count:
            return
        position += count
