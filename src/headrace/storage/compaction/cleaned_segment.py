"""The segment that a compaction writes, batch by batch, beside those it replaces."""

from headrace.core.producer_state import AbortedTransaction
from headrace.records.batch import BatchHeader
from headrace.storage import aborted_transactions
from headrace.storage.compaction.swap import CLEANED
from headrace.storage.files import write_all
from headrace.storage.index import OffsetIndex, TimeIndex
from headrace.world.files import O_TRUNCATE, SystemFiles

_WRITE_SIZE = 1 << 20


class CleanedSegment:
    """Writes the ``.cleaned`` files that are to replace a group of segments."""

    def __init__(
        self, files: SystemFiles, directory: str, base_offset: int, index_interval_size: int
    ) -> None:
        self._files = files
        self.base_offset = base_offset
        self._stem = f"{directory}/{base_offset:020d}."
        self._index_interval_size = index_interval_size
        self._fd = self._create("log")
        self._buffered: list[bytes] = []
        self._buffered_size = 0
        self.size = 0
        self._index = OffsetIndex()
        self._time_index = TimeIndex()
        self._unindexed_size = 0
        self._max_timestamp = -1
        self._max_timestamp_offset = base_offset

    def append(self, header: BatchHeader, batch: bytes) -> None:
        position = self.size + self._buffered_size
        last_relative = header.last_offset - self.base_offset
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp
            self._max_timestamp_offset = header.last_offset
        if self._unindexed_size > self._index_interval_size:
            self._index.append(header.base_offset - self.base_offset, last_relative, position)
            self._add_time()
            self._unindexed_size = 0
        self._unindexed_size += len(batch)
        self._buffered.append(batch)
        self._buffered_size += len(batch)

    def maybe_write(self, size_min: int = _WRITE_SIZE) -> int:
        """Write the buffered batches if they have ``size_min`` bytes; returns the bytes written."""
        size = self._buffered_size
        if size < size_min or not size:
            return 0
        write_all(self._files, self._fd, self._buffered, self.size, size)
        self.size += size
        self._buffered, self._buffered_size = [], 0
        return size

    def finish(self, aborted: list[AbortedTransaction], modified_at_ns: int) -> None:
        """Write the indexes and make all files durable; the broker renames them afterwards.

        ``modified_at_ns`` comes from the last replaced segment: records without timestamps expire
        by it.
        """
        files = self._files
        self._add_time()
        contents = {"index": self._index.encode(), "timeindex": self._time_index.encode()}
        if aborted:
            contents["txnindex"] = aborted_transactions.encode(aborted)
        for kind, content in contents.items():
            fd = self._create(kind)
            try:
                if content:
                    write_all(files, fd, [content], 0, len(content))
                files.fsync(fd)
            finally:
                files.close(fd)
        files.fsync(self._fd)
        self.close()
        files.set_modified(f"{self._stem}log{CLEANED}", modified_at_ns)

    def close(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1

    def _add_time(self) -> None:
        if self._max_timestamp >= 0:
            self._time_index.maybe_append(
                self._max_timestamp, self._max_timestamp_offset - self.base_offset
            )

    def _create(self, kind: str) -> int:
        return self._files.open(f"{self._stem}{kind}{CLEANED}", O_TRUNCATE, 0o644)
