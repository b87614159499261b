"""The producer snapshots of one log: taken when a segment is closed, dropped with it.

A start restores the newest snapshot and replays only the batches after it.
"""

import logging
from collections.abc import Iterable

from headrace.core.producer_state import Producers
from headrace.model.errors import Corrupt
from headrace.model.ids import Millis, Offset
from headrace.storage import snapshots
from headrace.storage.files import read_file, unlink_if_exists, write_atomically
from headrace.storage.producer_replay import headers_before, replay
from headrace.storage.segment import Segment
from headrace.world.files import SystemFiles

_log = logging.getLogger("headrace.storage")


class ProducerSnapshots:
    __slots__ = ("_files", "_directory", "offsets")

    def __init__(self, files: SystemFiles, directory: str, offsets: list[Offset]) -> None:
        self._files = files
        self._directory = directory
        self.offsets = offsets  # rising; each snapshot holds the state before its offset

    def relocate(self, directory: str) -> None:
        """The partition directory was copied or renamed."""
        self._directory = directory

    @property
    def newest(self) -> Offset:
        return self.offsets[-1] if self.offsets else Offset(0)

    def take(self, producers: Producers, offset: Offset, *, sync: bool = False) -> None:
        """Save the producers, which are as of ``offset``, unless that has been done."""
        if not self.offsets or self.offsets[-1] < offset:
            content = snapshots.encode(producers.snapshot())
            write_atomically(self._files, self._path(offset), content, sync=sync)
            self.offsets.append(offset)

    def drop(self, offsets: Iterable[Offset]) -> None:
        for offset in offsets:
            self.offsets.remove(offset)
            unlink_if_exists(self._files, self._path(offset))

    def drop_below(self, end: Offset) -> None:
        self.drop([offset for offset in self.offsets if offset < end])

    def drop_from(self, start: Offset) -> None:
        self.drop([offset for offset in self.offsets if offset >= start])

    def drop_strays(self, log_end: Offset, bases: set[Offset]) -> None:
        """Remove snapshots beyond the log end, and those that are not at the base of a segment.

        The newest one always stays: the next start begins there.
        """
        newest = max((offset for offset in self.offsets if offset <= log_end), default=None)
        self.drop(
            [
                offset
                for offset in self.offsets
                if offset > log_end or (offset not in bases and offset != newest)
            ]
        )

    def load(
        self,
        producers: Producers,
        segments: list[Segment],
        end_offset: Offset,
        now: Millis,
        *,
        clean: bool,
    ) -> None:
        """Load the state as of ``end_offset``: the newest good snapshot, then later batches."""
        start = self._restore(producers, end_offset, now)
        if start is None:
            if clean:
                return  # a clean shutdown leaves a snapshot unless there are no producers
            start = segments[0].base_offset
        elif producers.entries:
            producers.recall(headers_before(segments, start))
        if start < end_offset:
            replay(segments, start, end_offset, producers)

    def _restore(self, producers: Producers, limit: Offset, now: Millis) -> Offset | None:
        """Restore the newest good snapshot at or below ``limit``; its offset, or None."""
        for offset in reversed([offset for offset in self.offsets if offset <= limit]):
            path = self._path(offset)
            try:
                entries = snapshots.decode(read_file(self._files, path))
            except Corrupt as problem:
                _log.warning("Removing %s and using an older snapshot: %s", path, problem)
                self._files.unlink(path)
                self.offsets.remove(offset)
                continue
            producers.restore(entries, now)
            return offset
        return None

    def _path(self, offset: Offset) -> str:
        return f"{self._directory}/{offset:020d}.snapshot"
