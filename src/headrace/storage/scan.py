"""A walk over the batches of a segment file, in large reads."""

from collections.abc import Iterator

from headrace.model.ids import Offset, Position
from headrace.records.batch import (
    CRC_FROM,
    HEADER_SIZE,
    MAGIC_AT,
    MAGIC_MAX,
    BadBatch,
    BatchHeader,
    UnknownMagic,
    crc_holds,
    read_header,
)
from headrace.records.checksum import crc32c
from headrace.storage.files import OpenFile, read_into

SCAN_SIZE = 1 << 20
_SIGNED_BYTE_MAX = 127


class Scan:
    """Yields position and header of each batch, and stops at the first incomplete one.

    After the walk, ``valid_end`` is the position after the last good batch. ``problem`` describes
    what follows it, and is None at the end of the range. ``batch()`` returns the bytes of the
    current batch; they stay valid until the next step. ``newer`` is the batch that follows, if a
    newer version may have written it: it has a higher magic, and all else fits.
    """

    __slots__ = (
        "_at",
        "_buffer",
        "_check_crc",
        "_end",
        "_file",
        "_memory",
        "_next_offset",
        "_size",
        "newer",
        "problem",
        "valid_end",
    )

    def __init__(
        self,
        file: OpenFile,
        start: Position,
        end: Position,
        next_offset: Offset,
        *,
        check_crc: bool,
    ) -> None:
        self._file = file
        self._end = end
        self._check_crc = check_crc
        self._next_offset = next_offset
        self._memory = self._buffer = memoryview(b"")
        self._at = 0
        self._size = 0
        self.valid_end: Position = start
        self.problem: str | None = None
        self.newer: UnknownMagic | None = None

    def batch(self) -> memoryview:
        """All bytes of the current batch; reads the rest if the buffer holds only a part."""
        if self._at + self._size > len(self._buffer):
            self._fill(Position(self.valid_end - self._size), self._size)
        return self._buffer[self._at : self._at + self._size]

    def _fill(self, position: Position, least: int) -> memoryview:
        size = min(max(SCAN_SIZE, least), max(self._end - position, least))
        if size > len(self._memory):
            # Reused, because fresh memory would cost a page fault per 4 KiB read.
            self._memory = memoryview(bytearray(size))
        count = read_into(self._file, self._memory[:size], position)
        self._buffer, self._at = self._memory[:count], 0
        return self._buffer

    def _is_newer(self, batch: UnknownMagic, next_offset: Offset, position: int) -> bool:
        return (
            MAGIC_MAX < batch.magic <= _SIGNED_BYTE_MAX
            and batch.base_offset >= next_offset
            and MAGIC_AT < batch.size <= self._end - position
        )

    def __iter__(self) -> Iterator[tuple[Position, BatchHeader]]:
        position: int = self.valid_end
        end, next_offset, check_crc = self._end, self._next_offset, self._check_crc
        buffer, at, available = self._buffer, 0, 0
        while position < end:
            if available - at < HEADER_SIZE and available - at < end - position:
                buffer, at = self._fill(Position(position), HEADER_SIZE), 0
                available = len(buffer)
            try:
                header = read_header(buffer, at)
            except BadBatch as bad:
                self.problem = bad.reason
                if isinstance(bad, UnknownMagic) and self._is_newer(bad, next_offset, position):
                    self.newer = bad
                return
            size = header.size
            if size > end - position:
                self.problem = f"only {end - position} bytes of a batch of {size} were written"
                return
            if check_crc:
                if at + size > available:
                    buffer, at = self._fill(Position(position), size), 0
                    available = len(buffer)
                    if size > available:
                        self.problem = f"a batch of {size} bytes is incomplete"
                        return
                if header.magic == 2:  # as in crc_holds, without a call per batch
                    good = crc32c(buffer[at + CRC_FROM : at + size]) == header.crc
                else:
                    good = crc_holds(buffer[at : at + size], header)
                if not good:
                    self.problem = "the CRC of a batch does not match its bytes"
                    return
            base_offset, delta = header.base_offset, header.last_offset_delta
            if base_offset < next_offset or delta < 0:
                self.problem = f"found offset {base_offset}, expected {next_offset} or more"
                return
            next_offset = Offset(base_offset + delta + 1)
            self._at, self._size = at, size
            self.valid_end = Position(position + size)
            yield Position(position), header
            if self._buffer is not buffer:  # ``batch`` had to read
                buffer, at = self._buffer, self._at
                available = len(buffer)
            at += size
            position += size
