"""The files of a copy that a move writes: how much of each exists, and what is not fsynced yet.

The methods run in a thread, one at a time; the loop may read ``size`` meanwhile.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from headrace.model.ids import Position
from headrace.storage import checkpoint
from headrace.storage.files import (
    OpenFile,
    read_exactly,
    read_file,
    read_into,
    unlink_if_exists,
    write_all,
    write_atomically,
)
from headrace.world.files import O_CREATE, O_RDONLY, SystemFiles

PIECE_SIZE = 1 << 20
# Bytes that a paced copy may leave unwritten in the page cache. If gigabytes were unwritten, the
# kernel would block every writer, and so the event loop, for a second or more.
UNWRITTEN_SIZE_MAX = 16 << 20
# The last file that a copy gets, with the first fsync of the whole copy: only a copy that has it
# can have become the log.
_COMPLETE = checkpoint.LEADER_EPOCHS
_SMALL_FILES = (checkpoint.PARTITION_METADATA, _COMPLETE)


def was_nearly_complete(files: SystemFiles, path: Path) -> bool:
    """Whether a copy had progressed so far that the log might continue in it."""
    return files.exists(path / _COMPLETE)


def mark_incomplete(files: SystemFiles, path: Path) -> None:
    """The log does not continue in this copy: a start must not take it for the log."""
    unlink_if_exists(files, path / _COMPLETE)


class LogCopy:
    def __init__(self, files: SystemFiles, path: Path, is_over: Callable[[], bool]) -> None:
        """``is_over`` tells a running copy to stop between two pieces."""
        self._files = files
        self.path = path
        self.size = 0  # bytes of batches
        self.is_over = is_over
        self._copied: dict[str, int] = {}  # bytes, by file name
        self._small_files: dict[str, bytes] = {}
        self._unsynced: set[str] = set()
        self._buffer = memoryview(b"")

    def copied(self, name: str) -> int:
        """Bytes of this file in the copy."""
        return self._copied.get(name, 0)

    def names(self) -> Iterable[str]:
        """The files of which something was copied, without the small ones."""
        return self._copied

    def keep_equal(self, source: Path, log_sizes: Mapping[str, int]) -> set[str]:
        """Resume an earlier copy: keep the bytes that equal the log's, and remove the rest.

        Comparing makes this sound whatever happened in between: truncation, compaction, a power
        failure that took unsynced pages of the copy. Indexes and snapshots are small and are
        copied again. Returns the names that were kept.
        """
        kept: set[str] = set()
        for name in self._files.names_in(self.path):
            if self.is_over():
                return kept
            size = self._equal_size(source / name, name, log_sizes.get(name, 0))
            if size:
                self._files.truncate(self.path / name, size)
                self._copied[name] = size
                self._unsynced.add(name)
                self.size += size
                kept.add(name)
            elif name != checkpoint.PARTITION_METADATA:
                self._files.unlink(self.path / name)
        return kept

    def _equal_size(self, source_path: Path, name: str, size: int) -> int:
        """Bytes at the start of both files that are equal, in whole pieces."""
        if not size:
            return 0
        try:
            source = OpenFile(self._files, str(source_path), O_RDONLY)
        except FileNotFoundError:
            return 0  # retention deleted it
        copy = OpenFile(self._files, f"{self.path}/{name}", O_RDONLY)
        size = min(size, self._files.size_of(copy.fd))
        position = 0
        while position < size and not self.is_over():
            count = min(PIECE_SIZE, size - position)
            ours = read_exactly(copy, count, position)
            if len(ours) < count or ours != read_exactly(source, count, position):
                break
            position += count
        return position

    def append(self, source: Path, name: str, size: int | None, *, paced: bool = False) -> None:
        """Copy the missing bytes of a file, up to ``size`` or to its end.

        With ``paced`` it waits for the disk at intervals. Raises FileNotFoundError if the file is
        shorter than ``size``.
        """
        files = self._files
        file = OpenFile(files, f"{source}/{name}", O_RDONLY)
        end = files.size_of(file.fd) if size is None else size
        position = self._copied.get(name, 0)
        if name in self._copied and position == end:
            return
        copy = OpenFile(files, f"{self.path}/{name}", O_CREATE)
        self._unsynced.add(name)
        if position > end:  # damaged indexes were rebuilt
            files.ftruncate(copy.fd, 0)
            position = 0
        self._copied[name] = position
        if not self._buffer:
            self._buffer = memoryview(bytearray(PIECE_SIZE))
        while position < end and not self.is_over():
            count = read_into(file, self._buffer[: end - position], Position(position))
            if count == 0:
                raise FileNotFoundError(f"{source}/{name} ends at byte {position}")
            write_all(files, copy.fd, [self._buffer[:count]], position, count)
            position += count
            self._copied[name] = position
            if size is not None:
                self.size += count
            if paced and position // UNWRITTEN_SIZE_MAX > (position - count) // UNWRITTEN_SIZE_MAX:
                files.fsync(copy.fd)

    def forget(self, name: str) -> None:
        """This file changed: it is to be removed and copied again. Runs on the loop."""
        size = self._copied.pop(name, 0)
        if name.endswith(".log"):
            self.size -= size

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            unlink_if_exists(self._files, self.path / name)
            self._unsynced.discard(name)

    def copy_small_files(self, source: Path) -> None:
        for name in _SMALL_FILES:
            with suppress(FileNotFoundError):
                content = read_file(self._files, f"{source}/{name}")
                if content != self._small_files.get(name):
                    write_atomically(self._files, f"{self.path}/{name}", content, sync=False)
                    self._small_files[name] = content
                    self._unsynced.add(name)

    def sync(self) -> None:
        """fsync the files that changed since the last call; batches first."""
        for name in sorted(self._unsynced, key=lambda name: (not name.endswith(".log"), name)):
            if self.is_over():
                return
            file = OpenFile(self._files, f"{self.path}/{name}")
            self._files.fsync(file.fd)
        self._files.sync_directory(self.path)
        self._unsynced.clear()
