"""Making a log durable: fsync, in the order that recovery needs, and the recovery point."""

import asyncio
import errno
import logging
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING

from headrace.model.ids import Millis, Offset
from headrace.storage import checkpoint
from headrace.storage.files import ONE_FILE_ERRNOS, OpenFile
from headrace.storage.log_directory import LogDirectory
from headrace.storage.segment import Segment
from headrace.storage.segment_files import SUFFIXES
from headrace.world.locks import Lock

if TYPE_CHECKING:
    from headrace.storage.log import Log

_log = logging.getLogger("headrace.storage")

_base_offset = attrgetter("base_offset")


class LogFlusher:
    """Flushes one log. Runs on the event loop, except where a docstring names another thread."""

    __slots__ = (
        "_is_postponed",
        "_is_requested",
        "_lock",
        "_log",
        "_trimmed",
        "clean_at",
        "cut_count",
        "is_new",
        "recovery_point",
        "renamed_in",
        "turn",
    )

    def __init__(self, owner: "Log", recovery_point: Offset, now: Millis) -> None:
        self._log = owner
        self.recovery_point = recovery_point  # all offsets below it are fsynced
        # Grows with every truncation and move. A flush, a compaction or a copy that began before
        # saw other files, and must start over.
        self.cut_count = 0
        self.clean_at = now  # all records written before this time are fsynced
        self.turn = asyncio.Lock()  # one flush at a time
        # Log directories in which this log was renamed, not fsynced since: a power failure could
        # bring the old name back.
        self.renamed_in: tuple[LogDirectory, ...] = ()
        # partition.metadata and the name of the partition directory may not be fsynced: a power
        # failure could take the whole partition.
        self.is_new = False
        self._is_requested = False  # a background job was requested, and has not begun
        self._is_postponed = False
        # Segments whose file was cut after its last batch, without an fsync. Recovery or an earlier
        # process may have cut the segment that ends at the recovery point.
        self._trimmed: list[Segment] = []
        if recovery_point > 0:
            self._trimmed.append(owner.segments.at(Offset(recovery_point - 1)))
        self._lock = Lock()  # guards recovery_point, cut_count and _trimmed

    def needs_flush(self, now: Millis) -> bool:
        """Whether ``flush.messages`` or ``flush.ms`` requires a flush."""
        owner = self._log
        unflushed_count = owner.log_end - self.recovery_point
        if unflushed_count <= 0:
            self.clean_at = now
            return False
        config = owner.config
        return unflushed_count >= config.flush_messages or now - self.clean_at >= config.flush_ms

    @property
    def unflushed_segment_count(self) -> int:
        segments = self._log.segments
        return len(segments) - segments.slot_of(self.recovery_point)

    async def flush(self) -> None:
        """fsync, in a thread, everything written so far; then the recovery point moves.

        Callers that arrive during a flush share the next one. A thread for each would occupy the
        whole pool with fsyncs and starve everything else that needs a thread.
        """
        owner = self._log
        end_offset = owner.log_end
        async with self.turn:
            path = None
            # Again if the log has moved to another directory meanwhile: its files are others.
            while path != owner.path and self.recovery_point < end_offset:
                path = owner.path
                await asyncio.get_running_loop().run_in_executor(None, self.begin())

    def flush_now(self) -> None:
        self.begin()()

    def begin(self) -> Callable[[], None]:
        """Bring all files up to ``log_end``; the returned function makes them durable.

        That function may run in another thread, at any later time.
        """
        owner = self._log
        end_offset, cut_count = owner.log_end, self.cut_count
        segments = owner.segments
        unflushed = segments.items[segments.slot_of(self.recovery_point) :]
        segments.active.indexes.save()  # closed segments saved theirs when they were closed
        owner.save_leader_epochs()
        began_at = owner.directory.world.now()

        def make_durable() -> None:
            if self._make_durable(unflushed, end_offset, cut_count):
                self.clean_at = began_at

        return make_durable

    def request(self) -> None:
        """Have a background job fsync the closed segments soon, as Kafka does after a roll."""
        if not self._is_requested:
            self._is_requested = True
            self._log.directory.later(0, self.flush_closed)

    def postpone(self, postponed: bool) -> None:
        """Leave closed segments unfsynced, unless flush.messages or flush.ms requires it."""
        self._is_postponed = postponed
        if not postponed and not self._log.closed:
            self.request()

    def cut_to(self, end_offset: Offset) -> None:
        """The log was truncated: a flush in progress must not count for the new bytes."""
        with self._lock:
            self.cut_count += 1
            self.recovery_point = min(self.recovery_point, end_offset)

    def relocated(self, recovery_point: Offset) -> None:
        """The log continues in other files, fsynced up to ``recovery_point``."""
        with self._lock:
            self.recovery_point = recovery_point
            # A flush that began before fsyncs files of the old directory: it must not count.
            self.cut_count += 1

    def created(self) -> None:
        """The partition directory or its topic id is new; the next flush syncs it too."""
        self.is_new = True

    def renamed(self, directories: tuple[LogDirectory, ...]) -> None:
        """The log was renamed in these log directories; none if the renames are fsynced."""
        self.renamed_in = directories

    def flushed_by_caller(self) -> None:
        """All files are, or will be, made durable by the caller of ``begin``."""
        self.recovery_point = self._log.log_end

    def trimmed(self, segment: Segment) -> None:
        """The end of a segment was cut off, perhaps after its batches were fsynced.

        A closed segment gives back preallocated space, and truncation drops batches. A power
        failure must not bring them back: recovery would not look there.
        """
        with self._lock:
            self._trimmed.append(segment)

    def flush_closed(self) -> None:
        """Make everything below the active segment durable. Runs in a thread."""
        self._is_requested = False  # first: a roll from here on requests another flush
        if self._is_postponed:
            return
        cut_count = self.cut_count
        segments = list(self._log.segments)
        slot = max(bisect_right(segments, self.recovery_point, key=_base_offset) - 1, 0)
        self._make_durable(segments[slot:-1], segments[-1].base_offset, cut_count)

    def _make_durable(self, segments: list[Segment], end_offset: Offset, cut_count: int) -> bool:
        """fsync ``segments``, which hold everything from the recovery point to ``end_offset``.

        Returns whether the recovery point has moved there.

        Data first, then indexes, then the recovery point: after a crash in between, recovery
        checks more than needed, never less. One file at a time is open, since there may be
        thousands. A missing file was deleted by retention or with its topic. Runs in a thread.
        """
        owner = self._log
        directory, files = owner.directory, owner.directory.files
        try:
            self._sync_creation()
            self._sync_renames()
            self._sync_trimmed()
            for suffix in SUFFIXES:
                for segment in segments:
                    if owner.closed:
                        return False  # closing has flushed the files already
                    with suppress(FileNotFoundError):
                        _sync(OpenFile(files, segment.path(suffix)))
            with suppress(FileNotFoundError):
                _sync(OpenFile(files, owner.epoch_file.path))
                files.sync_directory(owner.path)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                _log.warning("Could not flush %s: %s", owner.topic_partition, error)
            elif error.errno in ONE_FILE_ERRNOS:
                directory.partition_failed(error)  # the file could not be opened
            else:
                # The kernel may have dropped the pages: a second fsync proves nothing. A full
                # disk fails here only if it accepted pages without having room for them.
                directory.take_offline(f"fsync failed: {error}")
            return False
        with self._lock:
            moves = (
                self.cut_count == cut_count
                and end_offset > self.recovery_point
                and directory.offline is None  # an earlier flush may have lost pages
            )
            if moves:
                self.recovery_point = end_offset
        return moves

    def _sync_creation(self) -> None:
        if not self.is_new:
            return
        self.is_new = False  # first: the loop may set it again
        directory, path = self._log.directory, self._log.path
        try:
            with suppress(FileNotFoundError):
                _sync(OpenFile(directory.files, f"{path}/{checkpoint.PARTITION_METADATA}"))
            directory.files.sync_directory(directory.path)
        except OSError:
            self.is_new = True
            raise

    def _sync_renames(self) -> None:
        for parent in self.renamed_in:
            try:
                parent.files.sync_directory(parent.path)
            except OSError as error:
                if parent is self._log.directory:
                    raise
                # The disk that the log has left is failing: that affects only what is still there.
                parent.failed(error)

    def _sync_trimmed(self) -> None:
        with self._lock:
            trimmed, self._trimmed = self._trimmed, []
        try:
            for segment in trimmed:
                with suppress(FileNotFoundError):
                    _sync(OpenFile(segment.files.system, segment.path("log")))
        except OSError:
            with self._lock:
                self._trimmed += trimmed
            raise


def _sync(file: OpenFile) -> None:
    file.files.fsync(file.fd)
