"""The segment that a compaction writes, batch by batch, beside those it replaces."""

import os

from headrace.core.producer_state import AbortedTransaction
from headrace.records.batch import BatchHeader
from headrace.storage import aborted_transactions
from headrace.storage.compaction.swap import CLEANED
from headrace.storage.files import write_all
from headrace.storage.index import OffsetIndex, TimeIndex

_WRITE_SIZE = 1 << 20


class CleanedSegment:
    """Writes the ``.cleaned`` files that are to replace a group of segments."""

    def __init__(self, directory: str, base_offset: int, index_interval_size: int) -> None:
        self.base_offset = base_offset
        self._stem = f"{directory}/{base_offset:020d}."
        self._index_interval_size = index_interval_size
        self._fd = self._create("log")
        self._waiting: list[bytes] = []
        self._waiting_size = 0
        self.size = 0
        self._index = OffsetIndex()
        self._time_index = TimeIndex()
        self._unindexed_size = 0
        self._max_timestamp = -1
        self._max_timestamp_offset = base_offset

    def append(self, header: BatchHeader, batch: bytes) -> None:
        position = self.size + self._waiting_size
        last_relative = header.last_offset - self.base_offset
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp
            self._max_timestamp_offset = header.last_offset
        if self._unindexed_size > self._index_interval_size:
            self._index.append(header.base_offset - self.base_offset, last_relative, position)
            self._add_time()
            self._unindexed_size = 0
        self._unindexed_size += len(batch)
        self._waiting.append(batch)
        self._waiting_size += len(batch)

    def maybe_write(self, size_min: int = _WRITE_SIZE) -> int:
        """Write the waiting batches if they have ``size_min`` bytes; returns how many it wrote."""
        size = self._waiting_size
        if size < size_min or not size:
            return 0
        write_all(self._fd, self._waiting, self.size, size)
        self.size += size
        self._waiting, self._waiting_size = [], 0
        return size

    def finish(self, aborted: list[AbortedTransaction], modified_at_ns: int) -> None:
        """Write the indexes and make all files durable; the broker renames them afterwards.

        ``modified_at_ns`` comes from the last replaced segment: records without timestamps expire
        by it.
        """
        self._add_time()
        contents = {"index": self._index.encode(), "timeindex": self._time_index.encode()}
        if aborted:
            contents["txnindex"] = aborted_transactions.encode(aborted)
        for kind, content in contents.items():
            fd = self._create(kind)
            try:
                if content:
                    write_all(fd, [content], 0, len(content))
                os.fsync(fd)
            finally:
                os.close(fd)
        os.fsync(self._fd)
        self.close()
        os.utime(f"{self._stem}log{CLEANED}", ns=(modified_at_ns, modified_at_ns))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _add_time(self) -> None:
        if self._max_timestamp >= 0:
            self._time_index.maybe_append(
                self._max_timestamp, self._max_timestamp_offset - self.base_offset
            )

    def _create(self, kind: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return os.open(f"{self._stem}{kind}{CLEANED}", flags, 0o644)
