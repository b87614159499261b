"""One partition's log on disk: appending, reading and rolling.

An append has two steps. ``append_as_leader`` checks and stamps a batch in the receive buffer and
*stages* it; ``write_staged`` writes all staged batches with one system call. Three ends follow:

    recovery_point  <=  log_end     <=  staged_end
    fsynced             written         accepted

Invariant: staged batches all go into the active segment. If a batch does not fit, the log writes
the staged batches and rolls before it stages the new one.

Other subjects have their own modules: ``log_loader`` opens a log, ``log_flush`` makes it durable,
``log_truncation``, ``log_retention``, ``log_move`` and ``time_lookup`` work on it from outside,
``append_refusals`` and ``index_repair`` have its errors and repairs. Everything runs
on the event loop's thread, except where a docstring names another one.
"""

import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.core.leader_epochs import EpochEntry, LeaderEpochs
from headrace.core.producer_state import Origin, Producers
from headrace.model.config import TopicConfig
from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import LeaderEpoch, Millis, Offset, ProducerId, TopicId, TopicPartition
from headrace.records.batch import (
    CONTROL,
    MAX_SEQUENCE,
    BadBatch,
    BatchHeader,
    check_produced,
    crc_holds,
    headers,
    read_header,
    stamp,
    stamp_append_time,
)
from headrace.storage import checkpoint, recovery
from headrace.storage.append_refusals import refuse_size, refuse_timestamp
from headrace.storage.files import FileSlice, write_all
from headrace.storage.index_repair import give_up_rebuilds, repair_indexes
from headrace.storage.leader_epoch_file import LeaderEpochFile
from headrace.storage.log_directory import LogDirectory
from headrace.storage.log_flush import LogFlusher
from headrace.storage.producer_replay import read_marker
from headrace.storage.roll_limits import RollLimits
from headrace.storage.segment import Segment
from headrace.storage.segment_files import SegmentDamaged
from headrace.storage.segment_indexes import StagedBatch
from headrace.storage.segments import Segments
from headrace.storage.unfinished_copies import UnfinishedCopies

if TYPE_CHECKING:
    from headrace.storage.index_rebuild import IndexRebuilds

_log = logging.getLogger("headrace.storage")

CLIENT, COORDINATOR, INTERNAL = Origin.CLIENT, Origin.COORDINATOR, Origin.INTERNAL

# A named tuple's own constructor is a Python function; this one is called per batch.
_new = tuple.__new__
_NO_EPOCH = LeaderEpoch(-2)  # not -1, which batches of an unknown leader epoch carry


class Appended(NamedTuple):
    """Where a batch is stored. For a duplicate: where it was stored the first time."""

    base_offset: Offset
    last_offset: Offset
    append_time: Millis  # -1 unless the topic stamps LogAppendTime
    first_of_duplicate: bool
    log_start: Offset


class Log:
    __slots__ = (
        "_after_max_ms",
        "_batches_end",
        "_before_max_ms",
        "_epoch_saved",
        "_failure",
        "_index_interval_size",
        "_roll_limits",
        "_size_max",
        "_staged",
        "_staged_epochs",
        "_staged_position",
        "_stamps_append_time",
        "_views",
        "closed",
        "config",
        "copies",
        "directory",
        "epoch_file",
        "flusher",
        "leader_epochs",
        "log_end",
        "log_start",
        "path",
        "producers",
        "rebuilds",
        "segments",
        "snapshots",
        "staged_end",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        directory: LogDirectory,
        path: Path,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: TopicConfig,
        *,
        log_start: Offset,
        recovery_point: Offset,
        producers: Producers,
        epochs: LeaderEpochs,
        loaded: recovery.Loaded,
        now: Millis,
    ) -> None:
        self.directory = directory
        self.path = path  # of the partition directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.producers = producers
        self.leader_epochs = epochs
        self.epoch_file = LeaderEpochFile(directory.files, path)
        self.segments = Segments(loaded.segments)
        self.snapshots = loaded.snapshots
        self.closed = False
        self.log_start = max(log_start, self.segments.first_base_offset)
        self.log_end = self.staged_end = loaded.log_end
        self.flusher = LogFlusher(self, min(recovery_point, loaded.log_end), now)
        self.copies = UnfinishedCopies()
        self._epoch_saved = _NO_EPOCH  # the latest in the file; a new one is saved before its batch
        # End of the last batch, if truncation left the log end behind it: between two batches
        # that compaction had parted.
        self._batches_end: Offset | None = None
        self._views: list[memoryview] = []
        self._staged: list[StagedBatch] = []
        self._staged_epochs: list[EpochEntry] = []
        self._failure: Rejected | None = None
        self.rebuilds: IndexRebuilds | None = None
        self._staged_position = 0  # where the next batch goes in the active segment
        self._roll_limits = RollLimits(directory.world.random.randrange)
        self.update_config(config)

    def __repr__(self) -> str:
        return f"Log({self.topic_partition}, {self.log_start}..{self.log_end})"

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        self._size_max = min(config.max_message_bytes, config.segment_bytes)
        self._index_interval_size = config.index_interval_bytes
        self._stamps_append_time = config.message_timestamp_type == "LogAppendTime"
        self._before_max_ms = config.message_timestamp_before_max_ms
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._roll_limits.update_config(config)
        self._active_changed()

    def adopt_topic_id(self, topic_id: TopicId) -> None:
        """Write the topic id into a partition directory that has none."""
        try:
            path = self.path / checkpoint.PARTITION_METADATA
            checkpoint.write_topic_id(self.directory.files, path, topic_id, sync=False)
        except OSError as error:
            raise self._storage_failed(error) from error
        self.topic_id = topic_id
        self.flusher.created()

    @property
    def offline(self) -> str | None:
        """Why the disk of this log is offline, or None."""
        return self.directory.offline

    @property
    def has_staged(self) -> bool:
        return bool(self._views)

    @property
    def is_settled(self) -> bool:
        """Whether closing has nothing to write: all is flushed, the producers are saved."""
        return self.flusher.recovery_point == self.log_end == self.snapshots.newest

    # -- appending ------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: memoryview,
        leader_epoch: LeaderEpoch,
        now: Millis,
        *,
        origin: Origin = CLIENT,
        produce_version: int = MAX_SEQUENCE,
        transaction_version: int = 0,
    ) -> Appended:
        """Check, stamp and stage one batch, which must not change until it is written."""
        size = len(records)
        client = origin is CLIENT
        if size > self._size_max:
            raise refuse_size(records, self.config, produce_version if client else None)
        header = (
            check_produced(records, produce_version) if client else _header_of_one_batch(records)
        )
        base_offset = self.staged_end
        last_offset = base_offset + header.last_offset_delta
        append_time = -1
        if self._stamps_append_time:
            append_time = timestamp = now
        else:
            timestamp = header.max_timestamp  # type: ignore[assignment]
            if (
                timestamp > now + self._after_max_ms or 0 <= timestamp < now - self._before_max_ms
            ) and client:
                raise refuse_timestamp(timestamp, now, self.config)
        end = self._staged_position + size
        limits = self._roll_limits
        if (
            end > limits.segment_size_max
            or timestamp > limits.timestamp_max
            or now > limits.time_max
            or last_offset > limits.last_offset_max
            or limits.is_tight
        ):
            self._make_room(size, Offset(last_offset), timestamp, now)
            end = self._staged_position + size
        elif self._failure is not None:
            raise self._failure

        if header.producer_id >= 0:
            marker = read_marker(records) if header.attributes & CONTROL else None
            seen = self.producers.append(
                header, base_offset, timestamp, origin, marker, transaction_version
            )
            if seen is not None:
                return Appended(
                    seen.base_offset,
                    seen.last_offset,
                    seen.timestamp if self._stamps_append_time else Millis(-1),
                    True,
                    self.log_start,
                )
        if append_time >= 0:
            stamp_append_time(records, append_time)
        stamp(records, base_offset, leader_epoch)
        if leader_epoch != self._epoch_saved:
            self._staged_epochs.append(EpochEntry(leader_epoch, base_offset))
        if end == size:
            limits.age_from(timestamp, self.segments.active)
        self._views.append(records)
        self._staged.append((base_offset, last_offset, size, timestamp))
        self._staged_position = end
        self.staged_end = last_offset + 1  # type: ignore[assignment]
        return _new(Appended, (base_offset, last_offset, append_time, False, self.log_start))

    def append_as_follower(self, batches: memoryview) -> None:
        """Write batches as the leader stored them; offsets and leader epochs stay.

        An incomplete batch at the end (a fetch may bring one) is left out. Raises Corrupt for a
        batch whose CRC is wrong or that does not continue the log.
        """
        assert not self._views, "a follower stages no batches of its own"
        try:
            for position, header in headers(batches):
                batch = batches[position : position + header.size]
                self._stage_as_follower(batch, header)
        except BadBatch as bad:
            self._undo_staged()
            raise Corrupt(f"{self.topic_partition}: the leader sent {bad.reason}") from None
        except (Corrupt, Rejected):
            self._failure = None  # no other append has staged anything
            self._undo_staged()
            raise
        self.write_staged()

    def _stage_as_follower(self, batch: memoryview, header: BatchHeader) -> None:
        base_offset, last_offset = Offset(header.base_offset), Offset(header.last_offset)
        if base_offset < self.staged_end:
            raise Corrupt(
                f"{self.topic_partition}: the leader sent offset {base_offset}, "
                f"but the log already ends at {self.staged_end}"
            )
        if not crc_holds(batch, header):
            raise Corrupt(
                f"{self.topic_partition}: the leader sent a batch at offset {base_offset} "
                "whose CRC does not match its bytes"
            )
        timestamp = Millis(header.max_timestamp)
        size = header.size
        limits = self._roll_limits
        if (
            self._staged_position + size > limits.segment_size_max
            or timestamp > limits.timestamp_max
            or last_offset > limits.last_offset_max
            or limits.is_tight
        ):
            self._make_room(size, last_offset, timestamp, timestamp)
        if header.producer_id >= 0:
            marker = read_marker(batch) if header.attributes & CONTROL else None
            self.producers.append(header, base_offset, timestamp, Origin.REPLICATION, marker)
        if header.leader_epoch > self._epoch_saved:
            self._staged_epochs.append(EpochEntry(LeaderEpoch(header.leader_epoch), base_offset))
        if self._staged_position == 0:
            limits.age_from(timestamp, self.segments.active)
        self._views.append(batch)
        self._staged.append((base_offset, last_offset, size, timestamp))
        self._staged_position += size
        self.staged_end = Offset(last_offset + 1)

    def _make_room(self, size: int, last_offset: Offset, timestamp: Millis, now: Millis) -> None:
        """Roll if the batch does not fit into the active segment."""
        reason = self._roll_limits.reason(
            self.segments.active,
            self._staged,
            self._staged_position,
            size=size,
            last_offset=last_offset,
            timestamp=timestamp,
            now=now,
        )
        if self._failure is not None:
            raise self._failure
        if reason is None or self._staged_position == 0:
            return
        try:
            self.write_staged()
        except Rejected as failure:
            # The batches staged before were already accepted. The next ``write_staged`` reports
            # that they are lost.
            self._failure = failure
            raise
        try:
            self._roll(self.staged_end, now)
        except OSError as error:
            raise self._storage_failed(error) from error

    def write_staged(self) -> None:
        """Write the staged batches with one system call; all of them or none.

        Raises Rejected(KAFKA_STORAGE_ERROR) if the write fails; then every batch staged since the
        last call is undone.
        """
        views = self._views
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._undo_staged()
            raise failure
        if not views:
            return
        segments = self.segments
        active = segments.active
        files = active.files
        position = files.size
        try:
            if self._staged_epochs:
                self.epoch_file.save(self.leader_epochs, self._staged_epochs)
            file = files.open()
            write_all(files.system, file.fd, views, position, self._staged_position - position)
            if self.producers.aborted:
                active.add_aborted(self.producers.aborted)
        except OSError as error:
            with suppress(OSError):  # parts of the batches may be written; recovery would cut them
                files.system.ftruncate(files.open().fd, position)
            self._undo_staged()
            raise self._storage_failed(error) from error
        segments.written_at(self.log_end, position)
        indexes = active.indexes
        files.size = indexes.extend(self._staged, position, self._index_interval_size)
        self.log_end = self.staged_end
        self._batches_end = None
        self.producers.written()
        if self._staged_epochs:
            for leader_epoch, start_offset in self._staged_epochs:
                self.leader_epochs.assign(leader_epoch, start_offset)
            self._epoch_saved = self.leader_epochs.latest
            self._staged_epochs.clear()
        views.clear()
        self._staged.clear()
        if len(indexes.offsets) > self._roll_limits.tight_from:
            self._roll_limits.is_tight = True

    def _undo_staged(self) -> None:
        self._views.clear()
        self._staged.clear()
        self._staged_epochs.clear()
        self.producers.undo()
        self.staged_end = self.log_end
        self._active_changed()

    def _storage_failed(self, error: OSError) -> Rejected:
        self.directory.partition_failed(error)
        return Rejected(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{self.topic_partition} could not be written: {error.strerror or error}",
        )

    # -- reading --------------------------------------------------------------------------

    def read(
        self,
        fetch_offset: Offset,
        max_bytes: int,
        end_offset: Offset,
        *,
        at_least_one: bool = True,
    ) -> FileSlice | None:
        """Whole batches from the one that holds ``fetch_offset``, up to ``end_offset`` (exclusive).

        At most ``max_bytes``; with ``at_least_one`` the first batch is returned whole in any case.
        None if there is nothing. Raises Corrupt or OSError if the files cannot be read.
        """
        log_end = self.log_end
        if not self.log_start <= fetch_offset <= log_end:
            raise Rejected(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition} holds the offsets {self.log_start} to {log_end} "
                f"(exclusive), not {fetch_offset}",
            )
        if end_offset > log_end:
            end_offset = log_end
        if fetch_offset >= end_offset:
            return None
        segments = self.segments
        try:
            return segments.read(fetch_offset, max_bytes, end_offset, log_end, at_least_one)
        except SegmentDamaged as problem:
            # An index may be wrong about where a batch begins; the log never is.
            repair_indexes(self, segments.at(problem.base_offset), problem)
            segments.forget_recent()
            return segments.read(fetch_offset, max_bytes, end_offset, log_end, at_least_one)

    def end_of(self, found: FileSlice, fetch_offset: Offset, end_offset: Offset) -> Offset:
        """The end offset of the batches that were just read from ``fetch_offset`` on.

        No batch reaches it; it is at most ``end_offset``, and exact if the log is undamaged.
        """
        try:
            return self.segments.end_of(found, fetch_offset, end_offset)
        except Corrupt:
            return end_offset  # the next read reports the damage

    def bytes_between(self, fetch_offset: Offset, end_offset: Offset) -> int:
        """Approximate size of [fetch_offset, end_offset): decides whether a fetch waits."""
        if fetch_offset >= end_offset:
            return 0
        try:
            return self.segments.bytes_between(fetch_offset, end_offset, self.log_end)
        except (Corrupt, OSError):
            return 1  # the read that follows reports the error

    def aborted_transactions(
        self, start: Offset, end_offset: Offset
    ) -> list[tuple[ProducerId, Offset]]:
        """Producer and first offset of each aborted transaction with records in the range."""
        segments = self.segments
        try:
            return segments.aborted_between(start, end_offset)
        except Corrupt:
            for slot in range(segments.slot_of(start), len(segments)):
                recovery.readable_aborted(
                    segments.items, slot, self.snapshots, self.flusher.clean_at
                )
            return segments.aborted_between(start, end_offset)

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """The offset up to which (exclusive) every transaction is decided and replicated."""
        producers = self.producers
        if not producers.ongoing and not producers.unreplicated:
            return high_watermark
        producers.high_watermark_advanced(high_watermark)
        unstable = producers.first_unstable_offset
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return max(unstable, self.log_start)

    # -- segments -------------------------------------------------------------------------

    def _active_changed(self) -> None:
        segments = self.segments
        active = segments.active
        self._staged_position = active.size + sum(map(len, self._views))
        segments.forget_recent()
        self._roll_limits.segment_changed(active, self._staged)

    def roll(self, now: Millis) -> bool:
        """Begin a new segment; False if the active one is still empty."""
        assert not self._views, "staged batches belong to the active segment"
        return self._roll(self.log_end, now)

    def _roll(self, base_offset: Offset, now: Millis) -> bool:
        old = self.segments.active
        if self._batches_end is not None:
            base_offset = self._batches_end  # recovery takes a gap between segments for a loss
        if old.base_offset == base_offset:
            return False
        new = Segment.create(
            str(self.path), base_offset, self.directory.resources, now,
            preallocated_size(self.config),
        )  # fmt: skip
        try:
            if old.files.trim():
                self.flusher.trimmed(old)
            old.indexes.close_times()
            old.indexes.save()
            self.snapshots.take(self.producers, base_offset)
        except OSError:
            # The old segment continues and grows beyond this base; an empty segment in its
            # middle would hide everything written from here on.
            new.remove()
            raise
        old.modified_at = now
        old.indexes.retire()
        self.segments.append(new)
        self._active_changed()
        self.flusher.request()
        return True

    def move_end_back(self, end_offset: Offset, batches_end: Offset) -> None:
        """The segments were truncated and end here now; their last batch, at ``batches_end``."""
        self.log_end = self.staged_end = end_offset
        self._batches_end = batches_end if batches_end < end_offset else None
        self.log_start = min(self.log_start, end_offset)
        self.save_leader_epochs()
        self._active_changed()

    def save_leader_epochs(self) -> None:
        self.epoch_file.save(self.leader_epochs)
        self._epoch_saved = self.leader_epochs.latest

    # -- the end --------------------------------------------------------------------------

    def close(self, *, sync: bool = True) -> None:
        """Leave the files so that the next start need not check them.

        Without ``sync`` the caller makes the files durable afterwards.
        """
        if self.closed:
            return
        assert not self._views, "write or undo the staged batches first"
        active = self.segments.active
        if self.offline is None and self.config.preallocate:
            active.files.trim()
        if self.offline is None and not self.is_settled:
            active.indexes.close_times()
            self.snapshots.take(self.producers, self.log_end, sync=sync)
            make_durable = self.flusher.begin()
            if sync:
                make_durable()
            else:
                self.flusher.flushed_by_caller()
        self.abandon()

    def abandon(self) -> None:
        """Release the files as they are."""
        self.closed = True
        give_up_rebuilds(self)
        for segment in self.segments:
            segment.release()


def preallocated_size(config: TopicConfig) -> int:
    """The size that a new segment file gets."""
    return config.segment_bytes if config.preallocate else 0


def _header_of_one_batch(records: memoryview) -> BatchHeader:
    try:
        header = read_header(records)
    except BadBatch as bad:
        raise Rejected(bad.code, bad.reason) from None
    assert header.size == len(records), "one batch at a time"
    return header


__all__ = ["CLIENT", "COORDINATOR", "INTERNAL", "Appended", "Log", "Origin", "preallocated_size"]
