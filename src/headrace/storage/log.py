"""One partition's log on disk.

Appending has two steps. ``append_as_leader`` checks and stamps a batch where it
lies in the receive buffer and *stages* it; ``write_staged`` writes all staged
batches with one system call. Three ends follow:

    recovery_point  <=  log_end     <=  staged_end
    fsynced             written         accepted

Invariant: staged batches all go into the active segment. A batch that does not
fit makes the log write what is staged and roll before it is staged itself.

Everything runs on the event loop's thread, except where a docstring says that
it may run in another one.
"""

import asyncio
import errno
import logging
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.core.leader_epochs import EpochEntry, LeaderEpochs
from headrace.core.producer_state import AbortedTransaction, Origin, Producers
from headrace.core.retention import (
    RELATIVE_OFFSET_MAX,
    Expiry,
    SegmentFacts,
    expired,
    roll_reason,
)
from headrace.model.config import TopicConfig
from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.model.ids import (
    NO_TOPIC_ID,
    LeaderEpoch,
    Millis,
    Offset,
    ProducerId,
    TopicId,
    TopicPartition,
)
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
from headrace.storage import checkpoint, recovery, time_lookup
from headrace.storage.compaction.swap import swap_in
from headrace.storage.files import (
    ONE_FILE_ERRNOS,
    FileSlice,
    OpenFile,
    remove_folder,
    sync_folder,
    write_all,
)
from headrace.storage.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from headrace.storage.log_directory import LogDirectory
from headrace.storage.segment import IndexDamaged, Segment, SegmentDamaged, StagedBatch
from headrace.storage.segments import Segments
from headrace.storage.time_lookup import Search, TimedOffset

if TYPE_CHECKING:
    from headrace.storage.index_rebuild import IndexRebuild

log = logging.getLogger(__name__)

CLIENT, COORDINATOR, INTERNAL = Origin.CLIENT, Origin.COORDINATOR, Origin.INTERNAL

# A named tuple's own constructor is a Python function; this one is called per batch.
_new = tuple.__new__
_TIGHT_COUNT = 4096  # more batches than are staged between two writes
_NEVER = Millis(2**63 - 1)
_NO_EPOCH = LeaderEpoch(-2)  # not -1, which batches of an unknown reign carry
_FOLDER_NAME_MAX = 255
DELETE = "-delete"
_LOOK_UPS_MAX = 5
_TIMES_PER_STEP = 500  # small files that a thread reads before the loop takes note of them
# Segments that one round of retention deletes: each costs some renames, on the loop.
DELETED_AT_ONCE_MAX = 50
_base_offset = attrgetter("base_offset")
_SEGMENT_SUFFIXES = ("log", "index", "timeindex", "txnindex")


class Appended(NamedTuple):
    """Where a batch lies. For a duplicate: where it lay the first time."""

    base_offset: Offset
    last_offset: Offset
    append_time: Millis  # -1 unless the topic stamps LogAppendTime
    first_of_duplicate: bool
    log_start: Offset


class Log:
    __slots__ = (
        "_after_max_ms",
        "_before_max_ms",
        "_clean_at",
        "_cut_count",
        "_epoch_saved",
        "_failure",
        "_flush_is_due",
        "_flush_is_put_off",
        "_flush_lock",
        "_leader_epochs_saved",
        "_index_count_max",
        "_index_interval_size",
        "_is_tight",
        "_jitter_ms",
        "_last_offset_max",
        "_layout_count",
        "_message_size_max",
        "_renewals",
        "_roll_at",
        "_roll_timestamp",
        "_segment_size_max",
        "_size_max",
        "_segments",
        "_snapshot_offsets",
        "_staged",
        "_staged_epochs",
        "_staged_position",
        "_stamps_append_time",
        "_tight_from",
        "_time_index_count_max",
        "_views",
        "closed",
        "config",
        "copies",
        "directory",
        "flush_turn",
        "folder",
        "leader_epochs",
        "log_end",
        "log_start",
        "producers",
        "recovery_point",
        "renamed_in",
        "staged_end",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        directory: LogDirectory,
        folder: Path,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: TopicConfig,
        *,
        log_start: Offset,
        recovery_point: Offset,
        producers: Producers,
        history: LeaderEpochs,
        loaded: recovery.Loaded,
        now: Millis,
    ) -> None:
        self.directory = directory
        self.folder = folder
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.producers = producers
        self.leader_epochs = history
        self.closed = False
        # Where this log's folder got another name that a power cut might still take back.
        self.renamed_in: tuple[LogDirectory, ...] = ()
        self._segments = Segments(loaded.segments)
        self._snapshot_offsets = loaded.snapshot_offsets
        self.log_start = max(log_start, self.first_base_offset)
        self.log_end = self.staged_end = loaded.log_end
        self.recovery_point = min(recovery_point, loaded.log_end)
        self._leader_epochs_saved: tuple[EpochEntry, ...] | None = (
            None  # None: the file was not written yet
        )
        self._epoch_saved = _NO_EPOCH  # the latest in the file; a batch of another is noted first
        self._views: list[memoryview] = []
        self._staged: list[StagedBatch] = []
        self._staged_epochs: list[EpochEntry] = []
        self._failure: Rejected | None = None
        self._clean_at = now
        self._cut_count = 0
        self._layout_count = 0  # grows when closed segments go, or others come in their place
        self._renewals: dict[Offset, IndexRebuild] = {}
        self._flush_is_due = False  # the worker has been asked to, and has not begun
        self._flush_is_put_off = False
        self._flush_lock = threading.Lock()
        self.flush_turn = asyncio.Lock()  # whoever has it is the only one to flush
        self.copies: set[Path] = set()  # folders of those that moves are making
        self._jitter_ms = 0
        self.update_config(config)

    @classmethod
    def open(
        cls,
        directory: LogDirectory,
        folder: Path,
        topic_partition: TopicPartition,
        config: TopicConfig,
        now: Millis,
        *,
        topic_id: TopicId = NO_TOPIC_ID,
        producer_expiration_ms: int = 86_400_000,
    ) -> "Log":
        """Open a folder, made anew if it is absent; recover it unless the last stop was clean."""
        path = str(folder)
        log_start = directory.log_starts.get(topic_partition, Offset(0))
        recovery_point = directory.recovery_points.get(topic_partition, Offset(0))
        producers = Producers(producer_expiration_ms)
        try:
            listing = recovery.list_folder(path)
        except FileNotFoundError:
            folder.mkdir(parents=True)
            listing = recovery.Listing({}, {}, set(), [], set())
        fresh = not listing.log_sizes
        known_id, history = _read_small_files(path)
        damaged = history is None
        history = history or LeaderEpochs()
        loaded = recovery.load(
            path,
            listing,
            log_start=log_start,
            recovery_point=Offset(0) if damaged else recovery_point,
            clean=directory.clean_start and not damaged,
            now=now,
            resources=directory.resources,
            producers=producers,
            history=history,
            index_interval_size=config.index_interval_bytes,
            preallocated_size=_preallocated_size(config),
        )
        if directory.clean_start and loaded.recovered_size == 0:
            recovery_point = loaded.log_end
        if known_id is None and topic_id != NO_TOPIC_ID:
            checkpoint.write_topic_id(
                f"{path}/{checkpoint.PARTITION_METADATA}", topic_id, sync=False
            )
            known_id = topic_id
        opened = cls(
            directory,
            folder,
            topic_partition,
            known_id or NO_TOPIC_ID,
            config,
            log_start=log_start,
            recovery_point=recovery_point,
            producers=producers,
            history=history,
            loaded=loaded,
            now=now,
        )
        if fresh:
            opened._save_history(sync=False)
        if loaded.recovered_size:
            log.info(
                "%s: checked %d bytes after an unclean stop; the log ends at offset %d",
                topic_partition,
                loaded.recovered_size,
                loaded.log_end,
            )
        return opened

    def __repr__(self) -> str:
        return f"Log({self.topic_partition}, {self.log_start}..{self.log_end})"

    # -- settings and facts ---------------------------------------------------------------

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        self._message_size_max = config.max_message_bytes
        self._segment_size_max = config.segment_bytes
        self._size_max = min(config.max_message_bytes, config.segment_bytes)
        self._index_interval_size = config.index_interval_bytes
        self._index_count_max = config.segment_index_bytes // OFFSET_ENTRY_SIZE
        # One place is kept for the entry that closes the segment.
        self._time_index_count_max = config.segment_index_bytes // TIME_ENTRY_SIZE - 1
        self._stamps_append_time = config.message_timestamp_type == "LogAppendTime"
        self._before_max_ms = config.message_timestamp_before_max_ms
        self._after_max_ms = config.message_timestamp_after_max_ms
        jitter_ms_max = min(config.segment_jitter_ms, config.segment_ms)
        self._jitter_ms = 0
        if jitter_ms_max > 0:
            import random

            self._jitter_ms = random.randrange(jitter_ms_max)
        self._active_changed()

    def adopt_topic_id(self, topic_id: TopicId) -> None:
        """Write down whose partition this is, where the folder does not say."""
        try:
            checkpoint.write_topic_id(
                f"{self.folder}/{checkpoint.PARTITION_METADATA}", topic_id, sync=False
            )
        except OSError as error:
            raise self._storage_failed(error) from error
        self.topic_id = topic_id

    def _active_changed(self) -> None:
        """Work out, once per segment, beyond what a batch no longer belongs into it."""
        active = self._segments.active
        self._last_offset_max = active.base_offset + RELATIVE_OFFSET_MAX
        self._staged_position = active.size + sum(batch[2] for batch in self._staged)
        self._segments.forget_recent()
        self._roll_timestamp = self._roll_at = _NEVER
        # Both indexes grow by at most an entry per batch. Close to the limit
        # every append asks whether they are full; before, none has to.
        self._tight_from = min(self._index_count_max, self._time_index_count_max) - _TIGHT_COUNT
        self._is_tight = len(active.index) > self._tight_from
        if active.size > 0:
            self._age_from(active.first_timestamp)
        elif self._staged:
            self._age_from(Millis(self._staged[0][3]))

    def _age_from(self, first_timestamp: Millis) -> None:
        age_ms_max = self.config.segment_ms - self._jitter_ms
        if first_timestamp >= 0:
            self._roll_timestamp = Millis(first_timestamp + age_ms_max)
        else:
            self._roll_at = Millis(self._segments.active.created_at + age_ms_max)

    @property
    def offline(self) -> str | None:
        """Why the disk under this log is offline, or None."""
        return self.directory.offline

    @property
    def size(self) -> int:
        return self._segments.size

    @property
    def first_base_offset(self) -> Offset:
        return self._segments.bases[0]

    @property
    def segment_bases(self) -> Sequence[Offset]:
        return self._segments.bases

    @property
    def segments(self) -> Sequence[Segment]:
        return self._segments.items

    @property
    def snapshot_offsets(self) -> Sequence[Offset]:
        return self._snapshot_offsets

    @property
    def is_settled(self) -> bool:
        """Whether closing has nothing to write: all is flushed, the producers are saved."""
        return (
            self.recovery_point == self.log_end
            and (self._snapshot_offsets[-1] if self._snapshot_offsets else 0) == self.log_end
        )

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def active_base_offset(self) -> Offset:
        """Compaction and retention leave what begins here alone."""
        return self._segments.active.base_offset

    @property
    def cut_count(self) -> int:
        """Grows with every truncation or move: who reads closed segments must begin anew then."""
        return self._cut_count

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
        """Check, stamp and stage one batch, which must stay untouched until it is written."""
        size = len(records)
        if size > self._size_max:
            self._refuse_size(records, origin, produce_version)
        client = origin is CLIENT
        header = check_produced(records, produce_version) if client else _trusted(records)
        base_offset = self.staged_end
        last_offset = base_offset + header[6]  # last_offset_delta, which is slower by name
        append_time = -1
        if self._stamps_append_time:
            append_time = timestamp = now
        else:
            timestamp = header[8]  # type: ignore[assignment]  # max_timestamp
            if (
                timestamp > now + self._after_max_ms or 0 <= timestamp < now - self._before_max_ms
            ) and client:
                self._refuse_timestamp(timestamp, now)
        end = self._staged_position + size
        if (
            end > self._segment_size_max
            or timestamp > self._roll_timestamp
            or now > self._roll_at
            or last_offset > self._last_offset_max
            or self._is_tight
        ):
            self._make_room(size, Offset(last_offset), timestamp, now)
            end = self._staged_position + size
        elif self._failure is not None:
            raise self._failure

        if header[9] >= 0:  # producer_id
            marker = recovery.read_marker(records) if header[5] & CONTROL else None
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
            self._age_from(timestamp)
        self._views.append(records)
        self._staged.append((base_offset, last_offset, size, timestamp))
        self._staged_position = end
        self.staged_end = last_offset + 1  # type: ignore[assignment]
        return _new(Appended, (base_offset, last_offset, append_time, False, self.log_start))

    def append_as_follower(self, batches: memoryview) -> None:
        """Write batches as the leader has them; offsets and leader epochs stay.

        A cut batch at the end (a fetch may bring one) is left out. Raises
        Corrupt for a batch whose CRC is wrong or that does not continue the log.
        """
        assert not self._views, "a follower has nothing staged of its own"
        try:
            for position, header in headers(batches):
                batch = batches[position : position + header.size]
                self._follow(batch, header)
        except BadBatch as bad:
            self._undo_staged()
            raise Corrupt(f"{self.topic_partition}: the leader sent {bad.reason}") from None
        except (Corrupt, Rejected):
            self._failure = None  # nobody else has staged anything
            self._undo_staged()
            raise
        self.write_staged()

    def _follow(self, batch: memoryview, header: BatchHeader) -> None:
        base_offset, last_offset = Offset(header.base_offset), Offset(header.last_offset)
        if base_offset < self.staged_end:
            raise Corrupt(
                f"{self.topic_partition}: the leader sent offset {base_offset}, "
                f"but the log already reaches to {self.staged_end}"
            )
        if not crc_holds(batch, header):
            raise Corrupt(
                f"{self.topic_partition}: the batch at offset {base_offset} that the leader sent "
                "does not have the CRC it carries"
            )
        timestamp = Millis(header.max_timestamp)
        size = header.size
        if (
            self._staged_position + size > self._segment_size_max
            or timestamp > self._roll_timestamp
            or last_offset > self._last_offset_max
            or self._is_tight
        ):
            self._make_room(size, last_offset, timestamp, timestamp)
        if header.producer_id >= 0:
            marker = recovery.read_marker(batch) if header.attributes & CONTROL else None
            self.producers.append(header, base_offset, timestamp, Origin.REPLICATION, marker)
        if header.leader_epoch > self._epoch_saved:
            self._staged_epochs.append(EpochEntry(LeaderEpoch(header.leader_epoch), base_offset))
        if self._staged_position == 0:
            self._age_from(timestamp)
        self._views.append(batch)
        self._staged.append((base_offset, last_offset, size, timestamp))
        self._staged_position += size
        self.staged_end = Offset(last_offset + 1)

    def _make_room(self, size: int, last_offset: Offset, timestamp: Millis, now: Millis) -> None:
        """Roll if the batch does not belong into the active segment."""
        active = self._segments.active
        first = active.first_timestamp
        if self._staged and active.size == 0:
            first = Millis(self._staged[0][3])
        staged_count = len(self._staged)
        reason = roll_reason(
            size=self._staged_position,
            batch_size=size,
            segment_bytes=self._segment_size_max,
            waited_ms=timestamp - first if first >= 0 else now - active.created_at,
            segment_ms=self.config.segment_ms,
            jitter_ms=self._jitter_ms,
            index_is_full=(
                len(active.index) + staged_count >= self._index_count_max
                or len(active.time_index) + staged_count >= self._time_index_count_max
            ),
            relative_last_offset=last_offset - active.base_offset,
        )
        if self._failure is not None:
            raise self._failure
        if reason is None or self._staged_position == 0:
            return
        try:
            self.write_staged()
        except Rejected as failure:
            # The batches staged before were accepted already. Whoever asks to
            # have them written learns that they are gone.
            self._failure = failure
            raise
        try:
            self._roll(self.staged_end, now)
        except OSError as error:
            raise self._storage_failed(error) from error

    def _refuse_size(self, records: memoryview, origin: Origin, produce_version: int) -> None:
        size = len(records)
        if origin == CLIENT and len(records) >= 12:
            length = int.from_bytes(records[8:12], "big", signed=True)
            if length + 12 != size:
                check_produced(records, produce_version)  # two batches: that is the worse fault
        if size > self._message_size_max:
            raise Rejected(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch for {self.topic_partition} has {size} bytes; max.message.bytes "
                f"is {self._message_size_max}",
            )
        raise Rejected(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batch for {self.topic_partition} has {size} bytes; segment.bytes "
            f"is {self._segment_size_max}",
        )

    def _refuse_timestamp(self, timestamp: Millis, now: Millis) -> None:
        raise Rejected(
            ErrorCode.INVALID_TIMESTAMP,
            f"the timestamp {timestamp} is out of range: {self.topic_partition} takes "
            f"{now - self._before_max_ms} to {now + self._after_max_ms}",
        )

    def write_staged(self) -> None:
        """Write what is staged, with one system call; all of it or nothing.

        Raises Rejected(KAFKA_STORAGE_ERROR) if the disk does not take it; then
        every batch staged since the last call is undone.
        """
        views = self._views
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._undo_staged()
            raise failure
        if not views:
            return
        active = self._segments.active
        try:
            if self._staged_epochs:
                self._note_leader_epochs()
            write_all(active.open().fd, views, active.size, self._staged_position - active.size)
            if self.producers.aborted:
                active.add_aborted(self.producers.aborted)
        except OSError as error:
            with suppress(OSError):  # the batches may lie there in part; recovery would cut them
                os.ftruncate(active.open().fd, active.size)
            self._undo_staged()
            raise self._storage_failed(error) from error
        self._segments.written_at(self.log_end, active.size)  # type: ignore[arg-type]
        active.extend(self._staged, self._index_interval_size)
        self.log_end = self.staged_end
        self.producers.written()
        if self._staged_epochs:
            for leader_epoch, start_offset in self._staged_epochs:
                self.leader_epochs.assign(leader_epoch, start_offset)
            self._epoch_saved = self.leader_epochs.latest
            self._staged_epochs.clear()
        views.clear()
        self._staged.clear()
        if len(active.index) > self._tight_from:
            self._is_tight = True

    def _note_leader_epochs(self) -> None:
        """Write down which entries begin with what is staged, before their first batch is written.

        After a crash only batches above the recovery point are read again, and it moves without
        regard to entries: one that is not in the file by then would be forgotten.
        """
        history = LeaderEpochs(self.leader_epochs.entries)
        for leader_epoch, start_offset in self._staged_epochs:
            history.assign(leader_epoch, start_offset)
        self._write_leader_epochs(tuple(history.entries), sync=False)

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

        At most ``max_bytes``, except that the first batch comes whole in any
        case if ``at_least_one``. None if there is nothing. Raises Corrupt or
        OSError if the files do not yield it.
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
        segments = self._segments
        try:
            return segments.read(fetch_offset, max_bytes, end_offset, log_end, at_least_one)
        except SegmentDamaged as problem:
            # An index may be wrong about where a batch begins; the log never is.
            self._renew_indexes(segments.at(problem.base_offset), problem)
            segments.forget_recent()
            return segments.read(fetch_offset, max_bytes, end_offset, log_end, at_least_one)

    def end_of(self, found: FileSlice, fetch_offset: Offset, end_offset: Offset) -> Offset:
        """Where the records end that have just been read from ``fetch_offset`` on.

        An offset that none of them reaches, ``end_offset`` at most; theirs, if the log tells it.
        """
        try:
            return self._segments.end_of(found, fetch_offset, end_offset)
        except Corrupt:
            return end_offset  # whoever reads on is told what is wrong there

    def bytes_between(self, fetch_offset: Offset, end_offset: Offset) -> int:
        """About how many bytes [fetch_offset, end_offset) has; for deciding whether to wait."""
        if fetch_offset >= end_offset:
            return 0
        try:
            return self._segments.bytes_between(fetch_offset, end_offset, self.log_end)
        except (Corrupt, OSError):
            return 1  # the read that follows finds out and says so

    def _renew_indexes(self, segment: Segment, problem: Corrupt) -> None:
        """Have the indexes of a segment made anew: at once, or by a child if it is large.

        Raises Rejected while the child is at it, and ``problem`` if new ones do not help.
        """
        if segment.size <= segment.renewable_size_max:
            log.warning("%s; the indexes of that segment are made anew", problem)
            segment.rebuild_indexes()
            return
        if segment.active:
            self._close_active(segment)
        from headrace.storage.index_rebuild import IndexRebuild  # what is hardly ever needed

        renewal = self._renewals.get(segment.base_offset)
        if renewal is None or renewal.segment is not segment:
            if renewal is not None:
                renewal.give_up()  # compaction has put another in the place of that one
            log.warning("%s; a process makes the indexes of that segment anew", problem)
            renewal = self._renewals[segment.base_offset] = IndexRebuild(segment)
        try:
            under_way = renewal.is_under_way()
        except OSError as error:  # too many processes: no fault of this disk
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"no process to make the indexes of {segment.path('log')} anew: {error}",
            ) from error
        if under_way:
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the indexes of {segment.path('log')} are being made anew; ask again",
            )
        if not renewal.take_over():
            raise problem

    def _close_active(self, segment: Segment) -> None:
        """Begin a new segment, so that a child reads one that does not grow."""
        if self._views:
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the indexes of {segment.path('log')} cannot be made anew just now; ask again",
            )
        self.roll(Millis(time.time_ns() // 1_000_000))

    def offset_for_time(self, timestamp: Millis) -> Search:
        """How to find the first record at or after ``timestamp``; for ``look_up``."""
        return time_lookup.first_at(self._segments.items, self.log_start, timestamp)

    def max_timestamp(self) -> Search:
        """How to find the first record with the largest timestamp (KIP-734); for ``look_up``."""
        return time_lookup.largest(self._segments.items)

    async def look_up(self, prepare: Callable[[], Search]) -> TimedOffset | None:
        """Search in a thread, again if compaction or retention changed the files meanwhile."""
        for _ in range(_LOOK_UPS_MAX):
            layout_count = self._layout_count
            try:
                found = await asyncio.to_thread(prepare())
            except IndexDamaged as damaged:
                self._renew_indexes(self._segments.at(damaged.base_offset), damaged)
            except (Corrupt, FileNotFoundError):
                if self._layout_count == layout_count:
                    raise
            else:
                if self._layout_count == layout_count:
                    return found
        raise Rejected(
            ErrorCode.LEADER_NOT_AVAILABLE,
            f"the files of {self.topic_partition} keep changing; ask again",
        )

    def aborted_transactions(
        self, start: Offset, end_offset: Offset
    ) -> list[tuple[ProducerId, Offset]]:
        """Producer and first offset of each aborted transaction with records in the range."""
        try:
            return self._segments.aborted_between(start, end_offset)
        except Corrupt:
            for slot in range(self._segments.slot_of(start), len(self._segments)):
                self._sound_aborted(slot)
            return self._segments.aborted_between(start, end_offset)

    def _sound_aborted(self, slot: int) -> list[AbortedTransaction]:
        return recovery.sound_aborted(
            str(self.folder), self._segments.items, slot, self._snapshot_offsets, self._clean_at
        )

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """Up to where (exclusive) every transaction is decided and replicated."""
        producers = self.producers
        if not producers.ongoing and not producers.unreplicated:
            return high_watermark
        producers.high_watermark_advanced(high_watermark)
        unstable = producers.first_unstable_offset
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return max(unstable, self.log_start)

    # -- segments -------------------------------------------------------------------------

    def roll(self, now: Millis) -> bool:
        """Begin a new segment; False if the active one is still empty."""
        assert not self._views, "what is staged belongs into the active segment"
        return self._roll(self.log_end, now)

    def _roll(self, base_offset: Offset, now: Millis) -> bool:
        old = self._segments.active
        if old.base_offset == base_offset:
            return False
        new = Segment.create(
            str(self.folder),
            base_offset,
            self.directory.resources,
            now,
            _preallocated_size(self.config),
        )
        try:
            old.trim()
            old.close_time_index()
            old.save_indexes()
            self._take_snapshot(sync=False)
        except OSError:
            # The old segment goes on and grows beyond this base; an empty
            # segment in its middle would hide what is written from here on.
            new.remove()
            raise
        old.modified_at = now
        old.retire()
        self._segments.append(new)
        self._active_changed()
        # As Kafka: a closed segment is fsynced soon, without anyone waiting for it.
        self._ask_for_flush()
        return True

    def _ask_for_flush(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self.directory.later(0, self._flush_closed)

    def put_off_flushes(self, put_off: bool) -> None:
        """Leave closed segments unfsynced for a while, unless flush.messages or flush.ms asks."""
        self._flush_is_put_off = put_off
        if not put_off and not self.closed:
            self._ask_for_flush()

    def _take_snapshot(self, *, sync: bool) -> None:
        """Producers as of ``log_end``, so that a later start need not read what lies below."""
        recovery.take_snapshot(
            str(self.folder), self._snapshot_offsets, self.producers, self.log_end, sync=sync
        )

    async def learn_times(self) -> None:
        """Have a thread read what ``segment_facts`` would read of files on the loop."""
        unknown = self._segments.without_times()
        for start in range(0, len(unknown), _TIMES_PER_STEP):
            piece = unknown[start : start + _TIMES_PER_STEP]
            times = await asyncio.to_thread(time_lookup.last_times, piece)
            for segment, found in zip(piece, times, strict=True):
                if found is not None and not segment.knows_time:
                    segment.learn_time(found)

    def segment_facts(self) -> list[SegmentFacts]:
        """What retention goes by; ``learn_times`` first, else many files are read here.

        Raises Rejected while an index of one is being made anew.
        """
        try:
            return self._segments.facts(self.log_end)
        except IndexDamaged as damaged:
            self._renew_indexes(self._segments.at(damaged.base_offset), damaged)
            return self._segments.facts(self.log_end)

    def apply_retention(self, high_watermark: Offset, now: Millis) -> Expiry:
        """Delete the oldest segments of those that ``core.retention`` says may go.

        At most ``DELETED_AT_ONCE_MAX``: if more may go, call it again.
        """
        config = self.config
        expiry = expired(
            self.segment_facts(),
            deletes="delete" in config.cleanup_policy,
            retention_bytes=config.retention_bytes,
            retention_ms=config.retention_ms,
            log_start=self.log_start,
            high_watermark=high_watermark,
            now=now,
        )
        count = min(expiry.segment_count, DELETED_AT_ONCE_MAX)
        if count:
            if count == len(self._segments):
                self.roll(now)  # a log always has an active segment
            log.info(
                "%s: deleting %d of %d segments that may go (%d below the log start, %d by size, "
                "%d by time)",
                self.topic_partition,
                count,
                *expiry,
            )
            deleted = self._segments.take_first(count)
            self._raise_log_start(max(self.log_start, self.first_base_offset))
            self._delete_segments(deleted, config.file_delete_delay_ms)
            self._delete_snapshots_below(self.first_base_offset)
        return expiry

    def replace_segments(self, replaced: Sequence[Offset], base_offset: Offset) -> None:
        """Put the compacted segment ``base_offset`` (``.cleaned`` files) in the place of others.

        ``replaced`` are the base offsets of neighbours, none of them active;
        ``base_offset`` is the first. Raises Rejected if one of them is gone, by
        retention or truncation, since the cleaner read it: its work is then void.
        """
        run = self._segments.find_run(list(replaced))
        if run is None:
            raise Rejected(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.topic_partition}: the segments {list(replaced)} have changed meanwhile",
            )
        for segment in self._segments.items[run]:
            segment.release()
        folder = str(self.folder)
        try:
            deleted = swap_in(folder, replaced, base_offset)
        except OSError as error:
            # Some files have their new names and others not, which only a start sorts out.
            self.directory.take_offline(f"a compacted segment was not put in place: {error}")
            raise
        facts = os.stat(f"{folder}/{base_offset:020d}.log")  # noqa: PTH116
        new = Segment(
            folder,
            base_offset,
            facts.st_size,
            self.directory.resources,
            created_at=Millis(facts.st_mtime_ns // 1_000_000),
        )
        self._segments.replace(run, new)
        self._layout_count += 1
        # Snapshots of bases that are no more would be strays at the next start.
        self._forget_snapshots(
            [
                known
                for known in self._snapshot_offsets
                if known in replaced and known != base_offset
            ]
        )
        self._unlink(deleted, self.config.file_delete_delay_ms)

    def move_start_to(self, offset: Offset) -> None:
        """DeleteRecords: what lies below ``offset`` is gone for readers at once.

        Its segments go with the next retention pass. The caller has checked
        that ``offset`` is not beyond the high watermark.
        """
        if offset > self.log_end:
            raise Rejected(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition} ends at {self.log_end}; it cannot start at {offset}",
            )
        if offset > self.log_start:
            self._raise_log_start(offset)

    def _raise_log_start(self, offset: Offset) -> None:
        self.log_start = offset
        self.leader_epochs.truncate_start(offset)
        self.producers.log_start_advanced(offset)

    def truncate_to(self, offset: Offset) -> None:
        """Drop every batch that holds ``offset`` or more; ``log_end`` is then at most that."""
        assert not self._views, "write or undo what is staged first"
        if offset >= self.log_end:
            return
        if offset < self.first_base_offset:
            self.truncate_fully(offset)
            return
        self._delete_segments(self._segments.take_after(self._segments.slot_of(offset)), 0)
        active = self._segments.active
        active.activate()
        position = active.position_of(offset)
        end_offset = offset
        if position < active.size:
            end_offset = min(offset, Offset(active.header_at(position).base_offset))
        aborted = self._sound_aborted(len(self._segments) - 1)
        active.cut(position, end_offset)
        active.set_aborted([known for known in aborted if known.last_offset < end_offset])
        self._ended_at(end_offset)

    def truncate_fully(self, new_start: Offset) -> None:
        """Drop everything and begin anew at ``new_start``."""
        assert not self._views, "write or undo what is staged first"
        now = self._segments.active.created_at
        self._delete_segments(self._segments.take_all(), 0)
        folder, resources = str(self.folder), self.directory.resources
        size = _preallocated_size(self.config)
        self._segments.append(Segment.create(folder, new_start, resources, now, size))
        self.log_start = new_start
        self.leader_epochs.clear()
        self.producers.clear()
        self._drop_snapshots_from(Offset(0))
        self._ended_at(new_start)

    def _ended_at(self, end_offset: Offset) -> None:
        with self._flush_lock:
            # A flush that is under way saw other bytes: it must not vouch for these.
            self._cut_count += 1
            self.recovery_point = min(self.recovery_point, end_offset)
        cleaned = self.directory.cleaner_offsets
        if cleaned.get(self.topic_partition, end_offset) > end_offset:
            cleaned[self.topic_partition] = end_offset  # what comes instead was never cleaned
        self.log_end = self.staged_end = end_offset
        self.log_start = min(self.log_start, end_offset)
        self.leader_epochs.truncate_end(end_offset)
        self._drop_snapshots_from(Offset(end_offset + 1))
        self.producers.clear()
        recovery.load_producers(
            str(self.folder),
            self._segments.items,
            self._snapshot_offsets,
            self.producers,
            end_offset,
            self._clean_at,
            clean=False,
        )
        self._save_history(sync=False)
        self._active_changed()

    def _delete_segments(self, deleted: list[Segment], delay_ms: int) -> None:
        """Rename to ``.deleted`` now, so that a crash leaves no half segment; unlink later."""
        self._layout_count += 1
        paths = []
        for segment in deleted:
            segment.release()
            for suffix in _SEGMENT_SUFFIXES:
                path = segment.path(suffix)
                with suppress(FileNotFoundError):
                    os.rename(path, f"{path}.deleted")  # noqa: PTH104
                    paths.append(f"{path}.deleted")
        if paths:
            self._unlink(paths, delay_ms)

    def _unlink(self, paths: list[str], delay_ms: int) -> None:
        def unlink() -> None:
            for path in paths:
                with suppress(FileNotFoundError):  # the whole folder may be gone by now
                    os.unlink(path)  # noqa: PTH108

        # Never here: freeing a gigabyte takes the file system its time.
        self.directory.later(delay_ms, unlink)

    def _delete_snapshots_below(self, offset: Offset) -> None:
        self._forget_snapshots([known for known in self._snapshot_offsets if known < offset])

    def _drop_snapshots_from(self, offset: Offset) -> None:
        self._forget_snapshots([known for known in self._snapshot_offsets if known >= offset])

    def _forget_snapshots(self, offsets: list[Offset]) -> None:
        recovery.drop_snapshots(str(self.folder), self._snapshot_offsets, offsets)

    # -- durability -----------------------------------------------------------------------

    def needs_flush(self, now: Millis) -> bool:
        """Whether ``flush.messages`` or ``flush.ms`` asks for a flush."""
        unflushed_count = self.log_end - self.recovery_point
        if unflushed_count <= 0:
            self._clean_at = now
            return False
        config = self.config
        return unflushed_count >= config.flush_messages or now - self._clean_at >= config.flush_ms

    async def flush(self) -> None:
        """fsync, in a thread, everything written so far; then the recovery point moves.

        Those who ask while one is under way share the next: each on its own would fill all
        threads with fsyncs, and whoever else needs one would wait without end.
        """
        end_offset = self.log_end
        async with self.flush_turn:
            folder = None
            # Again if the log has moved meanwhile: then other files count.
            while folder != self.folder and self.recovery_point < end_offset:
                folder = self.folder
                await asyncio.get_running_loop().run_in_executor(None, self.begin_flush())

    def flush_now(self) -> None:
        self.begin_flush()()

    def begin_flush(self) -> Callable[[], None]:
        """Bring all files up to ``log_end``; the function returned makes that durable.

        It may run in another thread, at any later time.
        """
        end_offset, cut_count = self.log_end, self._cut_count
        segments = self._segments.items[self._segments.slot_of(self.recovery_point) :]
        self._segments.active.save_indexes()  # the others' were saved when they were closed
        self._save_history(sync=False)
        return lambda: self._make_durable(segments, end_offset, cut_count)

    def _flush_closed(self) -> None:
        """Make durable what lies below the active segment. Runs in the worker thread."""
        self._flush_is_due = False  # first: who rolls from here on asks again
        if self._flush_is_put_off:
            return
        cut_count = self._cut_count
        segments = list(self._segments)
        slot = max(bisect_right(segments, self.recovery_point, key=_base_offset) - 1, 0)
        self._make_durable(segments[slot:-1], segments[-1].base_offset, cut_count)

    @property
    def unflushed_segment_count(self) -> int:
        return len(self._segments) - self._segments.slot_of(self.recovery_point)

    def _make_durable(self, segments: list[Segment], end_offset: Offset, cut_count: int) -> None:
        """fsync ``segments``, which hold all from the recovery point to ``end_offset``.

        Data first, then indexes, then the recovery point: after a crash in
        between more is checked than needed, never less. One file at a time is
        open, since there may be thousands. A file that is gone was deleted by
        retention or with its topic, and needs nothing.
        """
        directory = self.directory
        try:
            self._sync_renames()
            for suffix in _SEGMENT_SUFFIXES:
                for segment in segments:
                    if self.closed:
                        return  # whoever closed it has seen to its files
                    with suppress(FileNotFoundError):
                        os.fsync(OpenFile(segment.path(suffix)))
            with suppress(FileNotFoundError):
                os.fsync(OpenFile(f"{self.folder}/{checkpoint.LEADER_EPOCHS}"))
                sync_folder(str(self.folder))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                log.warning("%s was not flushed: %s", self.topic_partition, error)
            elif error.errno in ONE_FILE_ERRNOS:
                directory.partition_failed(error)  # it could not be opened
            else:
                # The kernel may have dropped the pages: a second fsync proves nothing. A disk
                # that is full says so here only where it took the pages without having room.
                directory.take_offline(f"fsync failed: {error}")
            return
        with self._flush_lock:
            if (
                self._cut_count == cut_count
                and end_offset > self.recovery_point
                and directory.offline is None  # by the one before, which told of pages lost
            ):
                self.recovery_point = end_offset

    def _sync_renames(self) -> None:
        for parent in self.renamed_in:
            try:
                sync_folder(str(parent.path))
            except OSError as error:
                if parent is self.directory:
                    raise
                # The disk that the log has left is dying: it takes along only what lies there.
                parent.failed(error)

    def _save_history(self, *, sync: bool) -> None:
        self._write_leader_epochs(tuple(self.leader_epochs.entries), sync=sync)
        self._epoch_saved = self.leader_epochs.latest

    def _write_leader_epochs(self, entries: tuple[EpochEntry, ...], *, sync: bool) -> None:
        if entries != self._leader_epochs_saved:
            checkpoint.write_leader_epochs(
                f"{self.folder}/{checkpoint.LEADER_EPOCHS}", entries, sync=sync
            )
            self._leader_epochs_saved = entries

    def relocate(self, directory: LogDirectory, folder: Path, recovery_point: Offset) -> None:
        """Go on in another folder. It holds the same bytes, fsynced up to ``recovery_point``."""
        self._give_renewals_up()
        self.directory, self.folder = directory, folder
        for segment in self._segments:
            segment.relocate(str(folder))
        self._layout_count += 1
        with self._flush_lock:
            self.recovery_point = recovery_point
            # Last: a flush that began before saw files of the old folder, and vouches for none.
            self._cut_count += 1

    # -- the end --------------------------------------------------------------------------

    def close(self, *, sync: bool = True) -> None:
        """Leave the folder so that the next start need not check it.

        Without ``sync`` the caller makes the files durable afterwards.
        """
        if self.closed:
            return
        assert not self._views, "write or undo what is staged first"
        if self.offline is None and self.config.preallocate:
            self._segments.active.trim()
        if self.offline is None and not self.is_settled:
            self._segments.active.close_time_index()
            self._take_snapshot(sync=sync)
            make_durable = self.begin_flush()
            if sync:
                make_durable()
            else:
                self.recovery_point = self.log_end
        self.abandon()

    def abandon(self) -> None:
        """Let go of the files as they are."""
        self.closed = True
        self._give_renewals_up()
        for segment in self._segments:
            segment.release()

    def _give_renewals_up(self) -> None:
        for renewal in self._renewals.values():
            renewal.give_up()
        self._renewals.clear()

    def delete(self) -> None:
        """Give the folder the name of a deleted one; its files go after a while."""
        self.abandon()
        # First: a start that finds nothing but a copy takes it for the log.
        for copy in self.copies:
            with suppress(OSError):
                deleted = copy.rename(pending_deletion_path(copy, self.topic_partition))
                self.directory.later(0, partial(remove_folder, deleted))
        folder = self.folder.rename(pending_deletion_path(self.folder, self.topic_partition))
        self.folder = folder
        self.directory.later(self.config.file_delete_delay_ms, lambda: remove_folder(folder))


def _read_small_files(folder: str) -> tuple[TopicId | None, LeaderEpochs | None]:
    """Topic id and leader epochs; None for one that is absent, or epochs that are damaged."""
    topic_id = checkpoint.read_topic_id(f"{folder}/{checkpoint.PARTITION_METADATA}")
    try:
        return topic_id, checkpoint.read_leader_epochs(f"{folder}/{checkpoint.LEADER_EPOCHS}")
    except Corrupt as problem:
        log.warning("%s; the leader epochs are taken from the batches", problem)
        return topic_id, None


def _preallocated_size(config: TopicConfig) -> int:
    return config.segment_bytes if config.preallocate else 0


def pending_deletion_path(folder: Path, topic_partition: TopicPartition) -> Path:
    """``topic-0.<32 hex digits>-delete``, the topic cut so that the name stays legal."""
    suffix = f"-{topic_partition.partition}.{os.urandom(16).hex()}{DELETE}"
    return folder.with_name(topic_partition.topic[: _FOLDER_NAME_MAX - len(suffix)] + suffix)


def _trusted(records: memoryview) -> BatchHeader:
    try:
        header = read_header(records)
    except BadBatch as bad:
        raise Rejected(bad.code, bad.reason) from None
    assert header.size == len(records), "one batch at a time"
    return header


__all__ = [
    "CLIENT",
    "COORDINATOR",
    "INTERNAL",
    "Appended",
    "Log",
    "Origin",
    "TimedOffset",
    "pending_deletion_path",
]
