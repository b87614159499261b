"""Opening a partition's folder: what is there, what is missing, what is torn.

After a clean stop the folder is believed: a snapshot of the producers, the
indexes, and the few batches behind the last index entry are read. After any
other stop the batches from the recovery point on (what was not fsynced) are
read and checked one by one; the log is cut at the first byte that is not part
of a good batch, and indexes, transaction index, leader epochs and producers
are made anew from what is left. Nothing below the recovery point is read,
except headers from the last snapshot of the producers on.
"""

import logging
import os
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from headrace.core.leader_epochs import LeaderEpochs
from headrace.core.producer_state import (
    BATCHES_KEPT,
    AbortedTransaction,
    EndMarker,
    Origin,
    Producers,
)
from headrace.core.retention import RELATIVE_OFFSET_MAX
from headrace.model.errors import Corrupt
from headrace.model.ids import LeaderEpoch, Millis, Offset, Position
from headrace.records.batch import CONTROL, TRANSACTIONAL, BadBatch, BatchHeader
from headrace.records.record import ABORT, COMMIT, iter_records, marker_type
from headrace.storage import snapshots
from headrace.storage.compaction.swap import settle_leftovers
from headrace.storage.files import read_file, write_atomically
from headrace.storage.segment import Resources, Scan, Segment, StagedBatch

log = logging.getLogger(__name__)

_MARKER_VALUE = Struct(">hi")
_CHUNK = 4096  # batches taken into the indexes at a time
_SUFFIXES = ("log", "index", "timeindex", "txnindex", "snapshot")


class Listing(NamedTuple):
    """One look at a folder; nothing in it is opened."""

    log_sizes: dict[Offset, int]
    modified_at: dict[Offset, Millis]
    with_aborted: set[Offset]
    snapshot_offsets: list[Offset]  # rising
    names: set[str]


class Loaded(NamedTuple):
    segments: list[Segment]
    log_end: Offset
    snapshot_offsets: list[Offset]
    recovered_size: int  # bytes that had to be checked


def list_folder(folder: str) -> Listing:
    """List the folder once, and clear away what an interrupted deletion or compaction left."""
    listing = Listing({}, {}, set(), [], set())
    leftovers = []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            listing.names.add(name)
            stem, _, suffix = name.partition(".")
            if suffix in _SUFFIXES and len(stem) == 20 and stem.isdigit():
                base = Offset(int(stem))
                if suffix == "log":
                    facts = entry.stat()
                    listing.log_sizes[base] = facts.st_size
                    listing.modified_at[base] = Millis(facts.st_mtime_ns // 1_000_000)
                elif suffix == "txnindex":
                    listing.with_aborted.add(base)
                elif suffix == "snapshot":
                    listing.snapshot_offsets.append(base)
            elif name.endswith((".deleted", ".cleaned", ".swap", ".tmp")):
                leftovers.append(name)
    if leftovers:
        for name in leftovers:
            if name.endswith((".snapshot.deleted", ".tmp")):
                os.unlink(f"{folder}/{name}")  # noqa: PTH108
        settle_leftovers(folder)
        return list_folder(folder)
    for name in sorted(listing.names):
        stem, _, suffix = name.partition(".")
        if suffix in _SUFFIXES[1:4] and stem.isdigit() and int(stem) not in listing.log_sizes:
            log.warning("%s/%s has no log beside it and is removed", folder, name)
            os.unlink(f"{folder}/{name}")  # noqa: PTH108
    listing.snapshot_offsets.sort()
    return listing


def load(
    folder: str,
    listing: Listing,
    *,
    log_start: Offset,
    recovery_point: Offset,
    clean: bool,
    now: Millis,
    resources: Resources,
    producers: Producers,
    history: LeaderEpochs,
    index_interval_size: int,
    preallocated_size: int = 0,
) -> Loaded:
    """Open every segment that ``listing`` shows, the last one as the active one."""
    bases = sorted(listing.log_sizes)
    segments = [
        Segment(
            folder,
            base,
            listing.log_sizes[base],
            resources,
            created_at=listing.modified_at[base],
            aborted=None if base in listing.with_aborted else [],
        )
        for base in bases
    ]
    _drop_leftovers(segments)
    snapshot_offsets = list(listing.snapshot_offsets)
    recovered_size = 0
    log_end = log_start
    if not segments:
        segments = [Segment.create(folder, log_start, resources, now, preallocated_size)]
    elif clean:
        try:
            log_end = _open_active(segments[-1])
            load_producers(folder, segments, snapshot_offsets, producers, log_end, now, clean)
        except Corrupt as problem:
            log.warning("%s; after a clean stop, so all of that segment is checked", problem)
            clean = False
            recovery_point = segments[-1].base_offset
    if bases and not clean:
        log_end, recovered_size = _recover(
            folder, segments, snapshot_offsets, producers, history, recovery_point, now,
            index_interval_size,
        )  # fmt: skip
    if log_end < log_start:
        # Everything that is left was deleted by DeleteRecords before the crash.
        log.warning(
            "%s ends at offset %d, before its log start %d: it begins anew there",
            folder, log_end, log_start,
        )  # fmt: skip
        for segment in segments:
            segment.remove()
        segments = [Segment.create(folder, log_start, resources, now, preallocated_size)]
        log_end = log_start
        producers.clear()
        drop_snapshots(folder, snapshot_offsets, list(snapshot_offsets))
    _drop_stray_snapshots(
        folder, snapshot_offsets, log_end, {segment.base_offset for segment in segments}
    )
    history.truncate_end(log_end)
    history.truncate_start(max(log_start, segments[0].base_offset))
    return Loaded(segments, log_end, snapshot_offsets, recovered_size)


def _drop_leftovers(segments: list[Segment]) -> None:
    """Remove empty segments that lie within the one before them, which a failed roll has left.

    They would hide what was written behind their base.
    """
    slot = 1
    while slot < len(segments):
        segment, before = segments[slot], segments[slot - 1]
        slot += 1
        if segment.size > 0 or before.size == 0:
            continue
        try:
            end_offset = before.read_tail()
        except Corrupt:
            continue  # then it is checked batch by batch, from before here on
        if end_offset > segment.base_offset:
            log.warning(
                "%s is empty and lies within the segment before it; it is removed",
                segment.path("log"),
            )
            segment.remove()
            slot -= 1
            del segments[slot]


def _open_active(segment: Segment) -> Offset:
    segment.active = True
    if segment.size == 0:
        segment.start_indexes()
        return segment.base_offset
    # Now, because a write that adds to them must not find out that they are damaged.
    assert segment.aborted is not None
    try:
        return segment.read_tail()
    except Corrupt as problem:
        # Perhaps only the index lies about where a batch begins.
        log.warning("%s; its indexes are made anew", problem)
        segment.rebuild_indexes()
        return segment.read_tail()


def load_producers(
    folder: str,
    segments: list[Segment],
    snapshot_offsets: list[Offset],
    producers: Producers,
    end_offset: Offset,
    now: Millis,
    clean: bool,
) -> None:
    """Producers as of ``end_offset``: the newest good snapshot, and the batches since."""
    start = _restore(folder, snapshot_offsets, producers, end_offset, now)
    if start is None:
        if clean:
            return  # a clean stop leaves a snapshot unless there are no producers
        start = segments[0].base_offset
    if start < end_offset:
        replay(segments, start, end_offset, producers)


def _restore(
    folder: str,
    snapshot_offsets: list[Offset],
    producers: Producers,
    limit: Offset,
    now: Millis,
) -> Offset | None:
    """Restore the newest good snapshot at or below ``limit``; its offset, or None."""
    for offset in reversed([offset for offset in snapshot_offsets if offset <= limit]):
        path = f"{folder}/{offset:020d}.snapshot"
        try:
            entries = snapshots.decode(read_file(path))
        except Corrupt as problem:
            log.warning("%s: %s; it is removed and an older one used", path, problem)
            os.unlink(path)  # noqa: PTH108
            snapshot_offsets.remove(offset)
            continue
        producers.restore(entries, now)
        return offset
    return None


def replay(
    segments: list[Segment], start: Offset, end_offset: Offset, producers: Producers
) -> None:
    """Show ``producers`` the batches of [start, end_offset), by their headers."""
    for slot, segment in enumerate(segments):
        next_base = segments[slot + 1].base_offset if slot + 1 < len(segments) else end_offset
        if next_base <= start and slot + 1 < len(segments):
            continue
        if segment.base_offset >= end_offset:
            break
        scan = segment.batches_from(segment.position_of(start))
        replay = ProducerStateReplay(producers)
        for _, header in scan:
            if header.base_offset >= end_offset:
                break
            if header.producer_id >= 0 and header.base_offset >= start:
                replay.show(header, scan)
        replay.finish()


def sound_aborted(
    folder: str,
    segments: list[Segment],
    slot: int,
    snapshot_offsets: list[Offset],
    now: Millis,
) -> list[AbortedTransaction]:
    """The aborted transactions of a segment, worked out anew if their file is damaged."""
    segment = segments[slot]
    try:
        return segment.aborted
    except Corrupt as problem:
        log.warning("%s; it is made anew from the log", problem)
    base = segment.base_offset
    producers = Producers()
    load_producers(folder, segments, snapshot_offsets, producers, base, now, clean=False)
    replay = ProducerStateReplay(producers)
    scan = segment.batches_from(Position(0))
    for _, header in scan:
        if header.producer_id >= 0:
            replay.show(header, scan)
    segment.set_aborted(replay.finish())
    return segment.aborted


class ProducerStateReplay:
    """Shows producers what the log holds, and no more of it than they would remember.

    A long run of plain batches of one producer leaves only its last five
    behind, so only those are passed on, when the run ends.
    """

    def __init__(self, producers: Producers, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._producers = producers
        self._aborted = list(aborted)
        self._runs: dict[int, deque[BatchHeader]] = {}

    def show(self, header: BatchHeader, scan: Scan) -> None:
        producer_id, producer_epoch = header[9:11]
        run = self._runs.get(producer_id)
        if run is None:
            run = self._runs[producer_id] = deque(maxlen=BATCHES_KEPT)
        if header[5] & (CONTROL | TRANSACTIONAL):
            self._pass_on(run)
            self._learn(header, read_marker(scan.batch()) if header[5] & CONTROL else None)
            return
        if run and run[-1][10] != producer_epoch:
            self._pass_on(run)
        run.append(header)

    def finish(self) -> list[AbortedTransaction]:
        """All that was aborted, in the order of the markers."""
        for run in self._runs.values():
            self._pass_on(run)
        return self._aborted

    def _pass_on(self, run: deque[BatchHeader]) -> None:
        for header in run:
            self._learn(header, None)
        run.clear()

    def _learn(self, header: BatchHeader, marker: EndMarker | None) -> None:
        producers = self._producers
        producers.append(
            header,
            Offset(header.base_offset),
            Millis(header.max_timestamp),
            Origin.REPLICATION,
            marker,
        )
        if producers.aborted:
            self._aborted += producers.aborted
        producers.written()


def read_marker(batch: memoryview | bytes) -> EndMarker | None:
    """What a control batch says; None if compaction emptied it or it ends no transaction."""
    try:
        record = next(iter_records(batch), None)
        if record is None:
            return None
        kind = marker_type(record.key)
        if kind not in (ABORT, COMMIT):
            return None
        coordinator_epoch = _MARKER_VALUE.unpack_from(record.value or b"")[1]
    except (BadBatch, StructError):
        return None
    return EndMarker(kind == COMMIT, coordinator_epoch, Millis(record.timestamp))


def _recover(
    folder: str,
    segments: list[Segment],
    snapshot_offsets: list[Offset],
    producers: Producers,
    history: LeaderEpochs,
    recovery_point: Offset,
    now: Millis,
    index_interval_size: int,
) -> tuple[Offset, int]:
    """Check everything from the recovery point on; cut the log where it goes bad."""
    slot = len(segments) - 1
    while slot > 0 and (segments[slot].base_offset > recovery_point or segments[slot].is_blank):
        slot -= 1  # a blank one may have been left by a roll that failed
    first = segments[slot]
    position, start_offset = _resume(first, recovery_point)
    # Snapshots above were made by the process that crashed; they may know batches
    # that did not reach the disk.
    drop_snapshots(folder, snapshot_offsets, [o for o in snapshot_offsets if o > start_offset])
    producers.clear()
    load_producers(folder, segments, snapshot_offsets, producers, start_offset, now, clean=False)

    log_end = start_offset
    checked_size = 0
    while slot < len(segments):
        segment = segments[slot]
        file_size = segment.size
        if segment.base_offset < log_end and segment.is_blank:
            segment.remove()  # left by a roll that failed
            del segments[slot]
            continue
        log_end, problem = _check_segment(
            segment, position, max(log_end, segment.base_offset), producers, history,
            index_interval_size,
        )  # fmt: skip
        checked_size += segment.size - position
        position = Position(0)
        slot += 1
        if problem is not None:
            dropped = segments[slot:]
            log.warning(
                "%s: cut at byte %d, offset %d: %s. %d bytes%s are dropped, none of them fsynced",
                segment.path("log"),
                segment.size,
                log_end,
                problem,
                file_size - segment.size + sum(later.size for later in dropped),
                f" and {len(dropped)} later segments" if dropped else "",
            )
            os.ftruncate(segment.open().fd, segment.size)
            for later in dropped:
                later.remove()
            del segments[slot:]
        if slot < len(segments):
            take_snapshot(folder, snapshot_offsets, producers, segments[slot].base_offset)
    active = segments[-1]
    for segment in segments:
        if segment is not active and segment.active:
            segment.close_time_index()
            segment.save_indexes()
            segment.active = False
    active.active = True  # its indexes reach their files with the next flush, as always
    return log_end, checked_size


def _resume(segment: Segment, recovery_point: Offset) -> tuple[Position, Offset]:
    """Where checking begins: at the recovery point if the index below it can be trusted."""
    base = segment.base_offset
    if recovery_point <= base:
        return Position(0), base
    try:
        index = segment.index
        below = recovery_point - base - 1
        slot = len(index) - 1
        while slot >= 0 and index.last_offsets[slot] > below:
            slot -= 1
        if slot < 0:
            return Position(0), base
        position = Position(index.positions[slot])
        header = segment.header_at(position)
        if header.last_offset != base + index.last_offsets[slot]:
            return Position(0), base
        assert segment.aborted is not None  # read, because those below stay as they are
    except (Corrupt, OSError):
        return Position(0), base
    return position, Offset(header.base_offset)


def _check_segment(
    segment: Segment,
    start: Position,
    start_offset: Offset,
    producers: Producers,
    history: LeaderEpochs,
    index_interval_size: int,
) -> tuple[Offset, str | None]:
    """Check the batches from ``start`` on; returns the end offset and what follows it, if bad."""
    file_size = segment.size
    base = segment.base_offset
    kept_aborted = []
    segment.active = True
    if start == 0:
        segment.start_indexes()
    else:
        kept_aborted = [known for known in segment.aborted if known.last_offset < start_offset]
        segment.index.truncate(start + 1)  # the entry that names this very batch stays
        segment.time_index.truncate(start_offset - base)
        segment.size = start
        segment.resume_times()
    segment.size = start
    end_offset = start_offset
    scan = Scan(segment.open(), start, Position(file_size), start_offset, check_crc=True)
    staged: list[StagedBatch] = []
    replay = ProducerStateReplay(producers, kept_aborted)
    last_offset_max = base + RELATIVE_OFFSET_MAX
    latest_epoch: int = history.latest
    problem = None
    for _, header in scan:
        (base_offset, size, leader_epoch, _, _, _, delta, _, timestamp, producer_id, _, _,
         _) = header  # fmt: skip
        last_offset = base_offset + delta
        if last_offset > last_offset_max:
            problem = f"offset {last_offset} does not fit into a segment that begins at {base}"
            scan.valid_end = Position(scan.valid_end - size)
            break
        staged.append((base_offset, last_offset, size, timestamp))
        if leader_epoch > latest_epoch:
            history.assign(LeaderEpoch(leader_epoch), Offset(base_offset))
            latest_epoch = leader_epoch
        if producer_id >= 0:
            replay.show(header, scan)
        if len(staged) == _CHUNK:
            end_offset = Offset(last_offset + 1)
            segment.extend(staged, index_interval_size)
            staged.clear()
    if staged:
        end_offset = Offset(staged[-1][1] + 1)
        segment.extend(staged, index_interval_size)
    segment.set_aborted(replay.finish())
    return end_offset, problem or scan.problem


def _drop_stray_snapshots(
    folder: str, snapshot_offsets: list[Offset], log_end: Offset, bases: set[Offset]
) -> None:
    """Remove snapshots beyond the log's end, and those that no segment begins with.

    The newest one stays in any case: it is where the next start begins.
    """
    newest = max((offset for offset in snapshot_offsets if offset <= log_end), default=None)
    strays = [
        offset
        for offset in snapshot_offsets
        if offset > log_end or (offset not in bases and offset != newest)
    ]
    drop_snapshots(folder, snapshot_offsets, strays)


def drop_snapshots(folder: str, snapshot_offsets: list[Offset], deleted: Iterable[Offset]) -> None:
    for offset in deleted:
        snapshot_offsets.remove(offset)
        with suppress(FileNotFoundError):
            os.unlink(f"{folder}/{offset:020d}.snapshot")  # noqa: PTH108


def take_snapshot(
    folder: str,
    snapshot_offsets: list[Offset],
    producers: Producers,
    offset: Offset,
    *,
    sync: bool = False,
) -> None:
    """Save the producers, which are as of ``offset``, unless that has been done."""
    if not snapshot_offsets or snapshot_offsets[-1] < offset:
        content = snapshots.encode(producers.snapshot())
        write_atomically(f"{folder}/{offset:020d}.snapshot", content, sync=sync)
        snapshot_offsets.append(offset)
