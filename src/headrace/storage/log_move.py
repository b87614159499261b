"""Moving a partition's log from one log directory to another while it is written to.

The files of a log only grow, so a thread repeatedly copies what is missing to
``topic-N.<32 hex digits>-future`` in the target. Each round finds less than the one before. If it
does not, because the disk is hardly faster than the load, the next round does not wait for the
disk. When little is missing, everything is fsynced; such rounds follow until the loop can copy the
rest between two requests. A target that is slower than the load would never get there: after some
rounds the loop takes part, which leaves less room for the load. A throttled move never does that.

The log object itself continues in the copy, so that its users keep it:

    1. the old directory is marked for deletion, and the log writes to the copy
    2. when that is durable, the copy gets the plain name

A start that finds a ``-future`` directory looks for the partition elsewhere. If it exists, the
copy was not finished: the move resumes with it. If not, the shutdown came between 1 and 2, and the
copy is the log. It then has all small files, which come with the first fsync (``log_copy``).
A copy without them is a part of a log whose own directory was removed.

The old directory holds a note of the target's ``directory.id`` as long as the copy exists: a topic
can be deleted while the target's disk is not mounted, and its copy must be deleted later.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import NO_TOPIC_ID, Offset, TopicPartition
from headrace.storage import checkpoint
from headrace.storage.directory_names import MARK_SIZE, NAME_SIZE_MAX, future_name
from headrace.storage.index_repair import give_up_rebuilds
from headrace.storage.log import Log
from headrace.storage.log_copy import LogCopy, mark_incomplete
from headrace.storage.log_directory import LogDirectory
from headrace.storage.move_throttle import MoveThrottle, unlimited
from headrace.storage.segment import Segment
from headrace.storage.segment_files import SUFFIXES

_log = logging.getLogger("headrace.storage")

AT_ONCE_SIZE_MAX = 1 << 20  # what the loop copies between two requests: about a millisecond
AT_ONCE_COUNT_MAX = 16  # segments in it
# A round is slow if it finds more than half of what the round before found. After this many the
# loop takes part, because each further round might take twice as long as the last.
SLOW_ROUNDS_MAX = 5
STEP_SIZE_MIN = 4 << 20  # what the loop then copies at a time, at least


class Part(NamedTuple):
    """A segment of which the copy lacks something."""

    segment: Segment
    size: int  # up to where its batches are to be copied
    end_offset: Offset  # of these batches
    ends_it: bool  # the segment is closed and these are its last


class Missing(NamedTuple):
    """What the copy lacked when the loop looked."""

    parts: list[Part]
    snapshots: list[str]
    stale: list[str]  # files of segments that were removed or replaced
    size: int  # bytes of batches
    log_end: Offset


def check_name(topic_partition: TopicPartition) -> None:
    """Raises Rejected where Kafka does: if the name of a copy would be too long."""
    if len(future_name(topic_partition, "0" * MARK_SIZE)) > NAME_SIZE_MAX:
        raise Rejected(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"the name of {topic_partition} is too long for the directory of a copy",
        )


class LogMove:
    """One move of one log: the progress of the copy, and the switch.

    Everything runs on the loop unless a docstring says otherwise; while a thread is at work, the
    loop only reads ``size`` and ``copied_end``.
    """

    def __init__(
        self,
        moving: Log,
        target: LogDirectory,
        *,
        copy: Path | None = None,
        throttle: MoveThrottle | None = None,
    ) -> None:
        """Creates the directory of the copy, or resumes ``copy``. Raises Rejected."""
        self.log = moving
        self.target = target
        self.source = moving.directory
        self._files = target.files
        name = future_name(moving.topic_partition, target.draw_mark())
        self.path = copy or target.path / name
        self.copied_end = moving.log_start
        self.is_switched = False  # the log is in the target
        self._resumes = copy is not None
        self._throttle = throttle or unlimited()
        self._old_path = moving.path
        self._cut_count = moving.flusher.cut_count
        self._segments: dict[Offset, Segment] = {}  # those of which something was copied
        self._whole: set[Offset] = set()  # closed ones, copied to their end
        self._absent: list[Segment] = []  # their files are missing or too short
        self._synced_end: Offset | None = None  # all below is fsynced in the copy
        self._given_up = False
        self._copy = LogCopy(self._files, self.path, lambda: self.is_over)
        if copy is None:
            self._create()
        moving.copies.add(self.path, target.directory_id)
        _write_note(moving, sync=False)

    def _create(self) -> None:
        try:
            self._files.make_directory(self.path)
            if self.log.topic_id != NO_TOPIC_ID:
                # First, so that a start recognizes the copy of a deleted topic.
                metadata = self.path / checkpoint.PARTITION_METADATA
                checkpoint.write_topic_id(self._files, metadata, self.log.topic_id, sync=False)
        except OSError as error:
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.path} could not be created: {error}"
            ) from error

    @property
    def topic_partition(self) -> TopicPartition:
        return self.log.topic_partition

    @property
    def size(self) -> int:
        """Bytes of batches in the copy."""
        return self._copy.size

    @property
    def lag(self) -> int:
        """How many offsets the copy is behind."""
        return max(self.log.log_end - self.copied_end, 0)

    @property
    def is_over(self) -> bool:
        """The move was given up, or the log deleted: the thread stops."""
        return self._given_up or self.log.closed

    async def run(self) -> None:
        """Copy and switch. Raises Rejected or OSError; then, and if cancelled, see ``is_switched``.

        If the log has not switched by then, the caller must ``discard`` or ``suspend`` the copy.
        """
        await self._take_plain_name()  # an earlier move may have failed to do so
        # Now, not when the move was requested: an earlier move may have ended since.
        self.source, self._old_path = self.log.directory, self.log.path
        self._cut_count = self.log.flusher.cut_count
        if self._resumes:
            await self._keep_equal()
        missing = await self.copy_until_little_is_missing()
        # What is fsynced in the old directory must be fsynced in the new one before the log
        # continues there, so the old one should not get further. flush.messages cannot be
        # postponed for long, only for what comes after the first and longest fsync.
        self.log.flusher.postpone(True)
        try:
            await self._copy_and_sync(missing)
            async with self.log.flusher.turn:
                await self.catch_up()
                self.switch()
        finally:
            self.log.flusher.postpone(False)
        await self.settle()

    def discard(self) -> None:
        """Give the copy up: its files are removed in the background."""
        self._forget_copy()
        # The checkpoint files follow later. Until then a log that is created in or moved to the
        # target starts with offsets of its own.
        self.target.offsets.drop(self.topic_partition)
        with suppress(OSError):
            self.target.delete_partition(self.path, self.topic_partition)
        if not self.log.closed:
            self.log.directory.later(0, partial(_write_note, self.log, sync=False))

    def _forget_copy(self) -> None:
        self.log.copies.remove(self.path, self.target.directory_id)

    def suspend(self) -> None:
        """Leave the copy for the next start, which resumes the move. For a thread."""
        with suppress(OSError):
            mark_incomplete(self._files, self.path)

    # -- copying --------------------------------------------------------------------------

    async def _keep_equal(self) -> None:
        """Start with what an earlier process copied."""
        segments = {_name(segment, "log"): segment for segment in self.log.segments}
        sizes = {name: segment.size for name, segment in segments.items()}
        kept: set[str] = set()

        def keep() -> None:
            kept.update(self._copy.keep_equal(self._old_path, sizes))

        await self._in_thread(keep)
        for name in kept:
            self._segments[segments[name].base_offset] = segments[name]
        _log.info("%s: resuming a move with %d copied bytes", self.topic_partition, self.size)

    async def catch_up(self) -> None:
        """Copy everything; on return, until the next ``await``, nothing is missing.

        Meanwhile nothing is flushed, except by a background job that had begun.
        """
        while True:
            missing = await self.copy_until_little_is_missing()
            if self._synced_end is None or self._synced_end < self.log.flusher.recovery_point:
                await self._copy_and_sync(missing)
                continue
            self._copy_missing(missing)
            if not self._absent:
                self._copy.copy_small_files(self._old_path)
                return

    async def copy_until_little_is_missing(self) -> Missing:
        """Returns what is missing then; it is complete until the next ``await``."""
        slow_count = 0
        size_before: int | None = None
        left_size: int | None = None  # by the last step that the loop did itself
        while True:
            missing = self._find_missing()
            is_little = (
                missing.size <= AT_ONCE_SIZE_MAX
                and len(missing.parts) <= AT_ONCE_COUNT_MAX
                and not missing.stale
            )
            limit = self._throttle.step_size()
            if is_little and slow_count < SLOW_ROUNDS_MAX and limit != 0:
                return missing
            if limit is not None:
                await self._copy_throttled(missing, limit)
            elif slow_count < SLOW_ROUNDS_MAX:
                is_slow = size_before is not None and not 0 < missing.size <= size_before // 2
                slow_count += is_slow
                size_before = missing.size
                # A disk that is hardly faster than the load would not bring the end nearer.
                await self._in_thread(partial(self._copy_missing, missing, paced=not is_slow))
            else:
                # More than came since the last step, so that each brings the end nearer.
                came = 0 if left_size is None else missing.size - left_size
                step_size = max(STEP_SIZE_MIN, 2 * came)
                if missing.size <= step_size:
                    return missing
                self._copy_missing(self._cut(missing, step_size))
                left_size = missing.size - step_size
                await asyncio.sleep(0)

    async def _copy_throttled(self, missing: Missing, limit: int) -> None:
        started_at, before = asyncio.get_running_loop().time(), self.size
        await self._in_thread(partial(self._copy_missing, self._cut(missing, limit), paced=True))
        await self._throttle.spread(self.size - before, started_at)

    def _find_missing(self) -> Missing:
        """What the copy lacks. Raises Rejected if the move must end."""
        moving = self.log
        if moving.closed:
            raise Rejected(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.topic_partition} was deleted"
            )
        for directory in (self.source, self.target):
            if directory.offline is not None:
                raise Rejected(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{directory.path} went offline: {directory.offline}",
                )
        if moving.segments.active.files.are_absent:
            moving.segments.active.files.open()  # creates them
        moving.flusher.begin()  # brings the index files up to date
        segments = moving.segments.items
        stale = self._forget_changed({each.base_offset: each for each in segments})
        parts = []
        ends = [*moving.segments.bases[1:], moving.log_end]
        for segment, end_offset in zip(segments, ends, strict=True):
            if segment.base_offset not in self._whole:
                self._segments[segment.base_offset] = segment
                is_closed = segment is not segments[-1]
                parts.append(Part(segment, segment.size, end_offset, is_closed))
        snapshots = dict.fromkeys(f"{offset:020d}.snapshot" for offset in moving.snapshots.offsets)
        copied = set(self._copy.names())
        for name in copied:
            if name.endswith(".snapshot") and name not in snapshots:
                self._copy.forget(name)
                stale.append(name)
        return Missing(
            parts,
            [name for name in snapshots if name not in copied],
            stale,
            sum(part.size - self._copied(part.segment) for part in parts),
            moving.log_end,
        )

    def _copied(self, segment: Segment) -> int:
        return self._copy.copied(_name(segment, "log"))

    def _forget_changed(self, segments: dict[Offset, Segment]) -> list[str]:
        """Forget the copies of segments that were removed, replaced or truncated; their files."""
        was_cut = self._cut_count != self.log.flusher.cut_count
        self._cut_count = self.log.flusher.cut_count
        stale = []
        for base, segment in list(self._segments.items()):
            if segments.get(base) is segment and not was_cut:
                if segment in self._absent:
                    raise Rejected(
                        ErrorCode.KAFKA_STORAGE_ERROR,
                        f"{segment.path('log')} is missing or shorter than {segment.size} bytes",
                    )
                continue
            del self._segments[base]
            self._whole.discard(base)
            stale += [_name(segment, suffix) for suffix in SUFFIXES]
            if base in segments:
                self._synced_end = None  # the segment in its place is not fsynced
        self._absent.clear()
        for name in stale:
            self._copy.forget(name)
        return stale

    def _copy_missing(self, missing: Missing, *, paced: bool = False) -> None:
        """For a thread, or for the loop if it is little. ``paced``: wait for the disk at times."""
        source, copy = self._old_path, self._copy
        copy.remove(missing.stale)
        for name in missing.snapshots:
            with suppress(FileNotFoundError):  # no longer needed
                copy.append(source, name, None)
        for part in missing.parts:
            try:
                copy.append(source, _name(part.segment, "log"), part.size, paced=paced)
            except FileNotFoundError:
                self._absent.append(part.segment)  # perhaps retention deleted it
                continue
            for suffix in SUFFIXES[1:]:
                with suppress(FileNotFoundError):
                    copy.append(source, _name(part.segment, suffix), None)
            if self.is_over:
                return
            if part.ends_it:
                self._whole.add(part.segment.base_offset)
            self.copied_end = max(self.copied_end, part.end_offset)

    def _cut(self, missing: Missing, size_max: int) -> Missing:
        """The first ``size_max`` bytes of it."""
        parts = []
        for part in missing.parts:
            start = self._copied(part.segment)
            if part.size - start > size_max:
                cut = part._replace(
                    size=start + size_max, end_offset=part.segment.base_offset, ends_it=False
                )
                parts.append(cut)
                break
            size_max -= part.size - start
            parts.append(part)
        return missing._replace(parts=parts)

    async def _copy_and_sync(self, missing: Missing) -> None:
        def copy_and_sync() -> None:
            # Durable before the copy is so complete that it could be taken for the log.
            _write_note(self.log, sync=True)
            self._copy_missing(missing)
            self._copy.copy_small_files(self._old_path)
            self._copy.sync()

        await self._in_thread(copy_and_sync)
        if self._absent:
            return
        self._synced_end = missing.log_end
        # From the switch on a start trusts these offsets. They may be too low, never too high.
        name, known, copied = self.topic_partition, self.source.offsets, self.target.offsets
        copied.set_log(name, missing.log_end, self.log.log_start)
        if (cleaned_end := known.cleaned_end(name)) is not None:
            copied.set_cleaned_end(name, cleaned_end)
        if (high_watermark := known.high_watermark(name)) is not None:
            copied.set_high_watermark(name, high_watermark)
        await self._in_thread(copied.write_job())

    async def _in_thread(self, work: Callable[[], object]) -> None:
        """If cancelled, wait until the thread has stopped writing."""
        job = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            await asyncio.shield(job)
        except asyncio.CancelledError:
            self._given_up = True
            while not job.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([job])
            job.exception()  # retrieved, because it no longer matters
            raise

    # -- the switch -----------------------------------------------------------------------

    def switch(self) -> None:
        """Continue in the copy; no ``await`` since nothing was missing."""
        moving, source = self.log, self.source
        assert self._synced_end is not None
        delay_ms = moving.config.file_delete_delay_ms
        source.delete_partition(self._old_path, self.topic_partition, delay_ms)
        self.is_switched = True
        self._forget_copy()
        # A power failure that brings the old name back would lose what is flushed from now on.
        moving.flusher.renamed((source, self.target))
        relocate(moving, self.target, self.path, self._synced_end)
        source.offsets.drop(self.topic_partition)

    async def settle(self) -> None:
        try:
            await self._in_thread(
                partial(self.source.offsets.remove_log_start, self.topic_partition)
            )
            # Before the plain name: else a power failure could leave two directories with it.
            await self._in_thread(partial(self._files.sync_directory, self.source.path))
        except OSError as error:
            self.source.failed(error)  # the log has left that disk; the copy is complete
        await self._take_plain_name()
        await self._in_thread(partial(_write_note, self.log, sync=False))
        _log.info(
            "%s: moved from %s to %s", self.topic_partition, self.source.path, self.target.path
        )

    async def _take_plain_name(self) -> None:
        moving = self.log
        directory = moving.directory
        plain = directory.path / str(self.topic_partition)
        if not moving.closed and moving.path != plain:
            self._files.rename(moving.path, plain)
            relocate(moving, directory, plain, moving.flusher.recovery_point)
            await self._in_thread(partial(self._files.sync_directory, directory.path))
            moving.flusher.renamed(())


def relocate(log: Log, directory: LogDirectory, path: Path, recovery_point: Offset) -> None:
    """Let ``log`` continue in ``path``, which has the same bytes, fsynced to ``recovery_point``."""
    give_up_rebuilds(log)
    log.directory, log.path = directory, path
    log.segments.relocate(str(path))
    log.snapshots.relocate(str(path))
    log.epoch_file.relocate(path)
    log.flusher.relocated(recovery_point)


def _name(segment: Segment, suffix: str) -> str:
    return f"{segment.base_offset:020d}.{suffix}"


def _write_note(moving: Log, *, sync: bool) -> None:
    """Note in the log's directory where its copies are. With ``sync`` for a thread."""
    try:
        checkpoint.write_future_directories(
            moving.directory.files,
            f"{moving.path}/{checkpoint.FUTURE_DIRECTORIES}",
            moving.copies.directory_ids,
            sync=sync,
        )
    except FileNotFoundError:
        pass  # the log was deleted
    except OSError as error:
        # No reason to fail the move, which may be meant to leave a full disk.
        _log.warning("%s: could not record the target of a move: %s", moving.topic_partition, error)
