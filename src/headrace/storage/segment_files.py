"""The files of one segment: their names, the descriptor of the ``.log``, and access to both.

00000000000000000042.log         batches; the file name is the offset of the first record
00000000000000000042.index       offset index
00000000000000000042.timeindex   time index
00000000000000000042.txnindex    aborted transactions; absent if there are none
"""

from contextlib import suppress

from headrace.model.errors import Corrupt
from headrace.model.ids import Offset, Position
from headrace.records.batch import HEADER_SIZE, LOG_OVERHEAD, BadBatch, BatchHeader, read_header
from headrace.storage.files import (
    OpenFile,
    OpenFiles,
    read_file,
    unlink_if_exists,
    write_all,
)
from headrace.storage.scan import Scan
from headrace.world.files import O_CREATE, O_TRUNCATE, SystemFiles

SUFFIXES = ("log", "index", "timeindex", "txnindex")  # the batches first


class SegmentDamaged(Corrupt):
    """The files of this segment contradict each other, or do not hold batches."""

    def __init__(self, base_offset: Offset, problem: str) -> None:
        super().__init__(problem)
        self.base_offset = base_offset


class SegmentFiles:
    """Holds the descriptor of the ``.log`` only as long as ``OpenFiles`` allows."""

    __slots__ = (
        "_open_files",
        "are_absent",
        "base_offset",
        "directory",
        "file",
        "size",
        "system",
        "touched",
    )

    def __init__(
        self,
        directory: str,
        base_offset: Offset,
        size: int,
        system: SystemFiles,
        open_files: OpenFiles,
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.size = size  # bytes of whole batches; the file may be longer during a write
        self.file: OpenFile | None = None
        self.touched = False
        self.system = system
        self._open_files = open_files
        self.are_absent = False  # ``create_at_first_use``

    def path(self, suffix: str) -> str:
        return f"{self.directory}/{self.base_offset:020d}.{suffix}"

    def create(self, preallocated_size: int) -> None:
        """Create empty files; ``trim`` gives back preallocated space that was not used.

        They are closed again: most of thousands of new partitions get no record for a while.
        """
        system = self.system
        for suffix in ("log", "index", "timeindex"):
            created = OpenFile(system, self.path(suffix), O_TRUNCATE)
            if preallocated_size and suffix == "log":
                system.preallocate(created.fd, preallocated_size)

    def create_at_first_use(self) -> None:
        """Let ``open`` create the files.

        A file system creates some thousand files per second, and most of thousands of new
        partitions get no record for a while. Only for a segment that begins at offset 0: any other
        base offset is recorded by nothing but the name of the file.
        """
        assert self.base_offset == 0, "the log would begin at 0 after a restart"
        self.are_absent = True

    def open(self) -> OpenFile:
        file = self.file
        if file is None:
            if self.are_absent:
                self.create(preallocated_size=0)
                self.are_absent = False
            file = OpenFile(self.system, self.path("log"))
            self.file = file
            self._open_files.opened(self)
        else:
            self.touched = True
        return file

    def release(self) -> None:
        """Drop the descriptor; slices that are still being sent keep it open."""
        self._open_files.forget(self)

    def relocate(self, directory: str) -> None:
        """Continue with files of the same content in another directory."""
        self.release()
        self.directory = directory

    def remove(self) -> None:
        """Delete all files now."""
        self.release()
        with suppress(OSError):  # if it cannot be unlinked, it is at least empty
            self.system.truncate(self.path("log"), 0)
        for suffix in SUFFIXES:
            self.unlink(suffix)

    def mark_deleted(self) -> list[str]:
        """Rename all files to ``.deleted``; returns their new paths."""
        renamed = []
        for suffix in SUFFIXES:
            path = self.path(suffix)
            with suppress(FileNotFoundError):
                self.system.rename(path, f"{path}.deleted")
                renamed.append(f"{path}.deleted")
        return renamed

    def trim(self) -> bool:
        """Cut the file after its last batch; returns whether there was something to cut."""
        file = self.open()
        if self.system.size_of(file.fd) <= self.size:
            return False
        self.system.ftruncate(file.fd, self.size)
        return True

    def cut(self, position: Position) -> None:
        self.system.ftruncate(self.open().fd, position)
        self.size = position

    @property
    def is_blank(self) -> bool:
        """Whether the file was never written to, though it may be preallocated."""
        return self.size == 0 or not any(self.system.pread(self.open().fd, LOG_OVERHEAD, 0))

    def header_at(self, position: int) -> BatchHeader:
        try:
            return read_header(self.system.pread(self.open().fd, HEADER_SIZE, position))
        except BadBatch as bad:
            raise self.damaged("log", f"{bad.reason} at byte {position}") from None

    def scan(self, start: Position) -> Scan:
        """Walk the batches from ``start``, without checking their CRCs."""
        return Scan(self.open(), start, Position(self.size), self.base_offset, check_crc=False)

    def damaged(self, suffix: str, problem: str) -> SegmentDamaged:
        return SegmentDamaged(self.base_offset, f"{self.path(suffix)}: {problem}")

    # -- the files beside the batches -----------------------------------------------------

    def read(self, suffix: str) -> bytes:
        return read_file(self.system, self.path(suffix))

    def save(self, suffix: str, content: bytes, position: int) -> None:
        """Write ``content`` at ``position`` and cut the file after it; without fsync.

        Bytes after it are preallocation, or belong to batches that were truncated.
        """
        system = self.system
        fd = system.open(self.path(suffix), O_CREATE, 0o644)
        try:
            if content:
                write_all(system, fd, [content], position, len(content))
            system.ftruncate(fd, position + len(content))
        finally:
            system.close(fd)

    def unlink(self, suffix: str) -> None:
        unlink_if_exists(self.system, self.path(suffix))
