"""Moving a partition's log from one of ``log.dirs`` to another, while it is written to.

Files of a log only grow, so a thread brings what they have more than their copies into
``topic-N.<32 hex digits>-future`` beside the other partitions of the target, again and again.
Each round finds less than the one before; if it does not, because the disk is hardly faster than
the load, the next one does not wait for the disk. Once little is missing all of it is fsynced;
then come such rounds once more, until the loop can copy the rest between two requests. A target
that is slower than the load would never get there: after some rounds the loop takes part, which
leaves the load less room.

The log itself goes on in the copy, so that nobody has to look for another one:

    1. the old folder gets the name of a deleted one, and the log writes to the copy
    2. when that is durable, the copy gets the plain name

A start that finds a ``-future`` folder looks for the partition elsewhere. If it is there, the
copy was not finished: it goes, and the move begins anew. If not, the end came between 1 and 2,
and the copy is the log. It has the small files then, which come with the fsync: a copy without
them is less than half of a log, whose own folder somebody has taken away.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Offset, Position, TopicPartition
from headrace.storage import checkpoint
from headrace.storage.directory_names import NAME_SIZE_MAX, future_name, pending_deletion_path
from headrace.storage.files import (
    OpenFile,
    read_file,
    read_into,
    remove_directory,
    sync_directory,
    write_all,
    write_atomically,
)
from headrace.storage.log import Log
from headrace.storage.log_directory import LogDirectory
from headrace.storage.segment import Segment

log = logging.getLogger(__name__)

AT_ONCE_SIZE_MAX = 1 << 20  # what the loop copies between two requests: about a millisecond
AT_ONCE_COUNT_MAX = 16  # segments in it
# Rounds of a thread alone that found more than half of what the round before did. Then the loop
# takes part: each further round might take twice as long as the last.
VAIN_ROUNDS_MAX = 5
STEP_SIZE_MIN = 4 << 20  # what the loop then copies at a time, at least
_PIECE_SIZE = 1 << 20
# What a thread leaves to the kernel to write to the disk later. Of a copy of gigabytes, that
# would be so much that the kernel holds back whoever writes: the loop, for a second and more.
_UNWRITTEN_SIZE_MAX = 16 << 20
_INDEXES = ("index", "timeindex", "txnindex")
_SMALL_FILES = (checkpoint.LEADER_EPOCHS, checkpoint.PARTITION_METADATA)


class _Part(NamedTuple):
    """A segment of which the copy lacks something."""

    segment: Segment
    size: int  # up to where its batches are to be copied
    end_offset: Offset  # which follows them
    ends_it: bool  # the segment is closed and these are its last


class _Missing(NamedTuple):
    """What the copy lacked when the loop looked."""

    parts: list[_Part]
    snapshots: list[str]
    stale: list[str]  # files of segments that are no more, or have been compacted
    size: int  # bytes of batches
    log_end: Offset


def check_name(topic_partition: TopicPartition) -> None:
    """Raises Rejected where Kafka does: if the name of a copy would be too long."""
    if len(future_name(topic_partition)) > NAME_SIZE_MAX:
        raise Rejected(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"the name of {topic_partition} is too long for a copy beside it",
        )


def was_nearly_complete(path: Path) -> bool:
    """Whether a copy had come so far that the log might go on in it."""
    return (path / checkpoint.PARTITION_METADATA).exists()


class LogMove:
    """One move of one log: how far the copy is, and the switch.

    Everything runs on the loop unless a docstring says otherwise; while a thread is at the
    copy, the loop only reads ``size`` and ``copied_end``.
    """

    def __init__(self, moving: Log, target: LogDirectory) -> None:
        """Makes the folder of the copy. Raises Rejected if that cannot be."""
        self.log = moving
        self.target = target
        self.source = moving.directory
        self.path = target.path / future_name(moving.topic_partition)
        self.size = 0  # bytes of batches in the copy
        self.copied_end = moving.log_start
        self.is_switched = False  # the log lies in the target
        self._old_path = moving.path
        self._cut_count = moving.flusher.cut_count
        self._segments: dict[Offset, Segment] = {}  # those of which something was copied
        self._whole: set[Offset] = set()  # closed ones, copied to their end
        self._absent: list[Segment] = []  # a thread did not find them as they should be
        self._copied: dict[str, int] = {}  # bytes, by file name
        self._small_files: dict[str, bytes] = {}
        self._unsynced: set[str] = set()
        self._synced_end: Offset | None = None  # all below is fsynced in the copy
        self._given_up = False
        self._buffer = memoryview(b"")
        try:
            self.path.mkdir()
        except OSError as error:
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.path} could not be made: {error}"
            ) from error
        moving.copies.add(self.path)

    @property
    def topic_partition(self) -> TopicPartition:
        return self.log.topic_partition

    @property
    def lag(self) -> int:
        """How many offsets the copy is behind."""
        return max(self.log.log_end - self.copied_end, 0)

    async def run(self) -> None:
        """Copy and switch. Raises Rejected or OSError; then, and cancelled, see ``is_switched``.

        A copy that is not the log by then is left for ``discard`` or ``empty``.
        """
        await self._take_plain_name()  # a move before this one may have failed at that
        # Now, not when it was asked for: a move before this one may have ended since.
        self.source, self._old_path = self.log.directory, self.log.path
        self._cut_count = self.log.flusher.cut_count
        missing = await self._copy_until_little_is_missing()
        # What is fsynced in the old folder must be so in the new one before the log goes on
        # there; so the old one should not get further. flush.messages cannot be put off for
        # long, but for the little that comes after the first and longest fsync.
        self.log.flusher.postpone(True)
        try:
            await self._copy_and_sync(missing)
            async with self.log.flusher.turn:
                await self._catch_up()
                self._switch()
        finally:
            self.log.flusher.postpone(False)
        await self._settle()

    def discard(self) -> None:
        """Give the copy up: its files go in the background."""
        self.log.copies.discard(self.path)
        # The files that hold them follow. Until then nobody goes by these: whoever makes or
        # moves a log of that name there begins with offsets of its own.
        self.target.drop_offsets(self.topic_partition)
        with suppress(OSError):
            deleted = self.path.rename(pending_deletion_path(self.path, self.topic_partition))
            self.target.later(0, lambda: remove_directory(deleted))

    def empty(self) -> None:
        """Leave but the folder, which tells the next start of the request. For a thread."""
        with suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                os.unlink(entry.path)  # noqa: PTH108

    # -- copying --------------------------------------------------------------------------

    async def _catch_up(self) -> None:
        """Copy everything; on return, until the next ``await``, nothing is missing.

        Meanwhile nothing is flushed, except by a worker that had begun.
        """
        while True:
            missing = await self._copy_until_little_is_missing()
            if self._synced_end is None or self._synced_end < self.log.flusher.recovery_point:
                await self._copy_and_sync(missing)
                continue
            self._copy(missing)
            if not self._absent:
                self._copy_small_files()
                return

    async def _copy_until_little_is_missing(self) -> _Missing:
        """Returns what is missing then; until the next ``await`` it is all."""
        vain_count = 0
        size_before: int | None = None
        left_size: int | None = None  # by the last step that the loop did itself
        while True:
            missing = self._look()
            if vain_count < VAIN_ROUNDS_MAX:
                is_much = (
                    missing.size > AT_ONCE_SIZE_MAX
                    or len(missing.parts) > AT_ONCE_COUNT_MAX
                    or bool(missing.stale)
                )
                if not is_much:
                    return missing
                is_vain = size_before is not None and not 0 < missing.size <= size_before // 2
                vain_count += is_vain
                size_before = missing.size
                # A disk that is hardly faster than the load would not bring the end nearer.
                await self._in_thread(partial(self._copy, missing, paced=not is_vain))
            else:
                # More than came since the last step: so each brings the end nearer.
                came = 0 if left_size is None else missing.size - left_size
                step_size = max(STEP_SIZE_MIN, 2 * came)
                if missing.size <= step_size:
                    return missing
                self._copy(_cut(missing, step_size, self._copied))
                left_size = missing.size - step_size
                await asyncio.sleep(0)

    def _look(self) -> _Missing:
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
        moving.flusher.begin()  # brings the index files up to date
        segments = moving.segments.items
        stale = self._forget_changed({each.base_offset: each for each in segments})
        parts = []
        ends = [*moving.segments.bases[1:], moving.log_end]
        for segment, end_offset in zip(segments, ends, strict=True):
            if segment.base_offset not in self._whole:
                self._segments[segment.base_offset] = segment
                is_closed = segment is not segments[-1]
                parts.append(_Part(segment, segment.size, end_offset, is_closed))
        snapshots = dict.fromkeys(f"{offset:020d}.snapshot" for offset in moving.snapshots.offsets)
        for name in [name for name in self._copied if name.endswith(".snapshot")]:
            if name not in snapshots:
                del self._copied[name]
                stale.append(name)
        return _Missing(
            parts,
            [name for name in snapshots if name not in self._copied],
            stale,
            sum(part.size - self._copied.get(_name(part.segment, "log"), 0) for part in parts),
            moving.log_end,
        )

    def _forget_changed(self, segments: dict[Offset, Segment]) -> list[str]:
        """Forget copies of segments that are no more what they were; their files."""
        was_cut = self._cut_count != self.log.flusher.cut_count
        self._cut_count = self.log.flusher.cut_count
        stale = []
        for base, segment in list(self._segments.items()):
            if segments.get(base) is segment and not was_cut:
                if segment in self._absent:
                    raise Rejected(
                        ErrorCode.KAFKA_STORAGE_ERROR,
                        f"{segment.path('log')} is not there with the {segment.size} bytes "
                        "that it should have",
                    )
                continue
            del self._segments[base]
            self._whole.discard(base)
            self.size -= self._copied.get(_name(segment, "log"), 0)
            stale += [_name(segment, kind) for kind in ("log", *_INDEXES)]
            if base in segments:
                self._synced_end = None  # what comes in its place is not fsynced
        self._absent.clear()
        for name in stale:
            self._copied.pop(name, None)
        return stale

    def _copy(self, missing: _Missing, *, paced: bool = False) -> None:
        """Bring what is missing; for a thread, or for the loop if it is little.

        ``paced``, it waits for the disk now and then.
        """
        for name in missing.stale:
            (self.path / name).unlink(missing_ok=True)
            self._unsynced.discard(name)
        for name in missing.snapshots:
            with suppress(FileNotFoundError):  # no longer needed
                self._append(name, None)
        for part in missing.parts:
            try:
                self._append(_name(part.segment, "log"), part.size, paced=paced)
            except FileNotFoundError:
                self._absent.append(part.segment)  # retention was quicker, or somebody else
                continue
            for kind in _INDEXES:
                with suppress(FileNotFoundError):
                    self._append(_name(part.segment, kind), None)
            if self._is_over:
                return
            if part.ends_it:
                self._whole.add(part.segment.base_offset)
            self.copied_end = max(self.copied_end, part.end_offset)

    @property
    def _is_over(self) -> bool:
        return self._given_up or self.log.closed

    def _append(self, name: str, size: int | None, *, paced: bool = False) -> None:
        """Copy what a file has more than its copy, up to ``size`` bytes of it, or to its end.

        Raises FileNotFoundError if it has not as much.
        """
        source = OpenFile(f"{self._old_path}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        end = os.fstat(source.fd).st_size if size is None else size
        position = self._copied.get(name, 0)
        if name in self._copied and position == end:
            return
        copy = OpenFile(f"{self.path}/{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        self._unsynced.add(name)
        if position > end:  # damaged indexes were made anew
            os.ftruncate(copy.fd, 0)
            position = 0
        self._copied[name] = position
        if not self._buffer:
            self._buffer = memoryview(bytearray(_PIECE_SIZE))
        while position < end and not self._is_over:
            count = read_into(source.fd, self._buffer[: end - position], Position(position))
            if count == 0:
                raise FileNotFoundError(f"{self._old_path}/{name} ends at byte {position}")
            write_all(copy.fd, [self._buffer[:count]], position, count)
            position += count
            self._copied[name] = position
            if size is not None:
                self.size += count
            if (
                paced
                and position // _UNWRITTEN_SIZE_MAX > (position - count) // _UNWRITTEN_SIZE_MAX
            ):
                os.fsync(copy.fd)

    def _copy_small_files(self) -> None:
        for name in _SMALL_FILES:
            with suppress(FileNotFoundError):
                content = read_file(f"{self._old_path}/{name}")
                if content != self._small_files.get(name):
                    write_atomically(f"{self.path}/{name}", content, sync=False)
                    self._small_files[name] = content
                    self._unsynced.add(name)

    async def _copy_and_sync(self, missing: _Missing) -> None:
        def copy_and_sync() -> None:
            self._copy(missing)
            self._copy_small_files()
            self._sync()

        await self._in_thread(copy_and_sync)
        if self._absent:
            return
        self._synced_end = missing.log_end
        # From the switch on a start believes these. Lower than they will be then, or equal.
        name, source, target = self.topic_partition, self.source, self.target
        target.recovery_points[name] = missing.log_end
        target.log_starts[name] = self.log.log_start
        for offsets, others in (
            (source.cleaner_offsets, target.cleaner_offsets),
            (source.high_watermarks, target.high_watermarks),
        ):
            if name in offsets:
                others[name] = offsets[name]
        await self._in_thread(target.checkpoint_job())

    def _sync(self) -> None:
        """fsync what was copied since the last time; batches first. For a thread."""
        for name in sorted(self._unsynced, key=lambda name: not name.endswith(".log")):
            if self._is_over:
                return
            os.fsync(OpenFile(f"{self.path}/{name}"))
        sync_directory(str(self.path))
        self._unsynced.clear()

    async def _in_thread(self, work: Callable[[], object]) -> None:
        """Cancelled, this waits until the thread has noticed: then nobody writes any more."""
        job = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            await asyncio.shield(job)
        except asyncio.CancelledError:
            self._given_up = True
            while not job.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([job])
            job.exception()  # of no interest any more
            raise

    # -- the switch -----------------------------------------------------------------------

    def _switch(self) -> None:
        """The log goes on in the copy; no ``await`` since nothing was missing."""
        moving, source = self.log, self.source
        assert self._synced_end is not None
        deleted = self._old_path.rename(pending_deletion_path(self._old_path, self.topic_partition))
        self.is_switched = True
        moving.copies.discard(self.path)
        # What is flushed from now on would be lost in a power cut that brings the old name back.
        moving.flusher.renamed_in = (source, self.target)
        moving.relocate(self.target, self.path, self._synced_end)
        source.later(moving.config.file_delete_delay_ms, lambda: remove_directory(deleted))
        source.drop_offsets(self.topic_partition)

    async def _settle(self) -> None:
        try:
            await self._in_thread(partial(self.source.remove_log_start, self.topic_partition))
            # Not before: else a power cut could leave two folders of the plain name.
            await self._in_thread(partial(sync_directory, str(self.source.path)))
        except OSError as error:
            self.source.failed(error)  # it is the disk to be rid of; the copy is whole
        await self._take_plain_name()
        log.info(
            "%s: moved from %s to %s", self.topic_partition, self.source.path, self.target.path
        )

    async def _take_plain_name(self) -> None:
        moving = self.log
        plain = moving.directory.path / str(self.topic_partition)
        if not moving.closed and moving.path != plain:
            moving.relocate(
                moving.directory, moving.path.rename(plain), moving.flusher.recovery_point
            )
            await self._in_thread(partial(sync_directory, str(moving.directory.path)))
            moving.flusher.renamed_in = ()


def _name(segment: Segment, kind: str) -> str:
    return f"{segment.base_offset:020d}.{kind}"


def _cut(missing: _Missing, size_max: int, copied: dict[str, int]) -> _Missing:
    """The first ``size_max`` bytes of it."""
    parts = []
    for part in missing.parts:
        start = copied.get(_name(part.segment, "log"), 0)
        if part.size - start > size_max:
            cut = part._replace(
                size=start + size_max, end_offset=part.segment.base_offset, ends_it=False
            )
            parts.append(cut)
            break
        size_max -= part.size - start
        parts.append(part)
    return missing._replace(parts=parts)
