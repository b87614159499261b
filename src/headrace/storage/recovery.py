"""Opening a partition directory: what exists, what is missing, what is incomplete.

After a clean shutdown the files are trusted: a start reads a snapshot of the producers, the
indexes, and the few batches after the last index entry. After any other shutdown it reads and
checks every batch from the recovery point on (the rest was not fsynced), truncates the log at the
first byte that is not part of a good batch, and rebuilds indexes, transaction index, leader epochs
and producers from the remaining batches. A batch that a newer version may have written is no
damage: the partition stays offline. Nothing below the recovery point is read, except batch
headers after the last producer snapshot.
"""

import logging
from typing import NamedTuple

from headrace.core.leader_epochs import LeaderEpochs
from headrace.core.producer_state import AbortedTransaction, Producers
from headrace.core.retention import RELATIVE_OFFSET_MAX
from headrace.model.errors import Corrupt
from headrace.model.ids import LeaderEpoch, Millis, Offset, Position
from headrace.records.batch import MAGIC_MAX
from headrace.storage.compaction.swap import settle_leftovers
from headrace.storage.producer_replay import ProducerStateReplay
from headrace.storage.producer_snapshots import ProducerSnapshots
from headrace.storage.scan import Scan
from headrace.storage.segment import Resources, Segment
from headrace.storage.segment_files import SUFFIXES
from headrace.storage.segment_indexes import StagedBatch
from headrace.world.files import SystemFiles

_log = logging.getLogger("headrace.storage")

_CHUNK = 4096  # batches added to the indexes at a time
_BASE_DIGITS = 20


class Listing(NamedTuple):
    """The content of a partition directory; no file has been opened."""

    log_sizes: dict[Offset, int]
    modified_at: dict[Offset, Millis]
    with_aborted: set[Offset]
    snapshot_offsets: list[Offset]  # rising
    names: set[str]

    @classmethod
    def empty(cls) -> "Listing":
        return cls({}, {}, set(), [], set())


class Loaded(NamedTuple):
    segments: list[Segment]
    log_end: Offset
    snapshots: ProducerSnapshots
    recovered_size: int  # bytes that had to be checked


def list_directory(files: SystemFiles, directory: str) -> Listing:
    """List a partition directory, and finish an interrupted deletion or compaction."""
    listing = Listing.empty()
    leftovers = []
    for name in files.names_in(directory):
        listing.names.add(name)
        stem, _, suffix = name.partition(".")
        if len(stem) == _BASE_DIGITS and stem.isdigit():
            base = Offset(int(stem))
            if suffix == "log":
                found = files.stat(f"{directory}/{name}")
                listing.log_sizes[base] = found.size
                listing.modified_at[base] = Millis(found.modified_at_ns // 1_000_000)
            elif suffix == "txnindex":
                listing.with_aborted.add(base)
            elif suffix == "snapshot":
                listing.snapshot_offsets.append(base)
        if name.endswith((".deleted", ".cleaned", ".swap", ".tmp")):
            leftovers.append(name)
    if leftovers:
        for name in leftovers:
            if name.endswith((".snapshot.deleted", ".tmp")):
                files.unlink(f"{directory}/{name}")
        settle_leftovers(files, directory)
        return list_directory(files, directory)
    for name in sorted(listing.names):
        stem, _, suffix = name.partition(".")
        if suffix in SUFFIXES[1:] and stem.isdigit() and int(stem) not in listing.log_sizes:
            _log.warning("Removing %s/%s, which has no log file", directory, name)
            files.unlink(f"{directory}/{name}")
    return listing


def load(
    directory: str,
    listing: Listing,
    *,
    log_start: Offset,
    recovery_point: Offset,
    clean: bool,
    now: Millis,
    resources: Resources,
    producers: Producers,
    epochs: LeaderEpochs,
    index_interval_size: int,
    contiguous_from: Offset | None,
    preallocated_size: int = 0,
) -> Loaded:
    """Open every segment of ``listing``, the last one as the active one.

    A new segment begins where the last batch before it ends, so a gap between two segments shows
    that a power failure took the end of the first. Only compaction leaves gaps too: no segment
    that begins after ``contiguous_from`` follows one that was compacted. None if that is unknown.
    """
    bases = sorted(listing.log_sizes)
    segments = [
        Segment(
            directory,
            base,
            listing.log_sizes[base],
            resources,
            created_at=listing.modified_at[base],
            aborted=None if base in listing.with_aborted else [],
        )
        for base in bases
    ]
    _drop_leftovers(segments)
    snapshots = ProducerSnapshots(resources.files, directory, list(listing.snapshot_offsets))
    recovered_size = 0
    log_end = log_start
    if not segments:
        segments = [_first_segment(directory, log_start, resources, now, preallocated_size)]
    elif clean:
        try:
            log_end = _open_active(segments[-1])
            snapshots.load(producers, segments, log_end, now, clean=clean)
        except Corrupt as problem:
            _log.warning("%s. Checking all of that segment, despite a clean shutdown", problem)
            clean = False
            recovery_point = segments[-1].base_offset
    if bases and not clean:
        recovery = _Recovery(
            segments, snapshots, producers, epochs, now, index_interval_size, contiguous_from
        )
        log_end, recovered_size = recovery.run(recovery_point)
    if log_end < log_start:
        # DeleteRecords had deleted all remaining records before the crash.
        _log.warning(
            "%s ends at offset %d, before its log start %d: starting over at the log start",
            directory,
            log_end,
            log_start,
        )
        for segment in segments:
            segment.remove()
        segments = [Segment.create(directory, log_start, resources, now, preallocated_size)]
        log_end = log_start
        producers.clear()
        snapshots.drop_from(Offset(0))
    snapshots.drop_strays(log_end, {segment.base_offset for segment in segments})
    epochs.truncate_end(log_end)
    epochs.truncate_start(max(log_start, segments[0].base_offset))
    return Loaded(segments, log_end, snapshots, recovered_size)


def _first_segment(
    directory: str, log_start: Offset, resources: Resources, now: Millis, preallocated_size: int
) -> Segment:
    if log_start == 0 and not preallocated_size:
        return Segment.first(directory, resources, now)
    return Segment.create(directory, log_start, resources, now, preallocated_size)


def _drop_leftovers(segments: list[Segment]) -> None:
    """Remove empty segments inside the range of the previous one, left by a failed roll.

    They would hide everything written after their base.
    """
    slot = 1
    while slot < len(segments):
        segment, before = segments[slot], segments[slot - 1]
        slot += 1
        if segment.size > 0 or before.size == 0:
            continue
        try:
            end_offset = before.indexes.read_tail()
        except Corrupt:
            continue  # recovery checks it batch by batch, and the empty segment with it
        if end_offset > segment.base_offset:
            _log.warning(
                "Removing %s, which is empty and inside the range of the previous segment",
                segment.path("log"),
            )
            segment.remove()
            slot -= 1
            del segments[slot]


def _open_active(segment: Segment) -> Offset:
    indexes = segment.indexes
    indexes.active = True
    if segment.size == 0:
        indexes.start()
        return segment.base_offset
    # Read now, because a write that adds to them must not discover that they are damaged.
    assert segment.aborted is not None
    try:
        return indexes.read_tail()
    except Corrupt as problem:
        # Perhaps only the index is wrong about where a batch begins.
        _log.warning("%s; rebuilding its indexes", problem)
        indexes.rebuild()
        return indexes.read_tail()


def readable_aborted(
    segments: list[Segment], slot: int, snapshots: ProducerSnapshots, now: Millis
) -> list[AbortedTransaction]:
    """The aborted transactions of a segment, rebuilt from the log if their file is damaged."""
    segment = segments[slot]
    try:
        return segment.aborted
    except Corrupt as problem:
        _log.warning("%s; rebuilding it from the log", problem)
    producers = Producers()
    snapshots.load(producers, segments, segment.base_offset, now, clean=False)
    replay = ProducerStateReplay(producers)
    scan = segment.files.scan(Position(0))
    for _, header in scan:
        if header.producer_id >= 0:
            replay.add(header, scan)
    segment.set_aborted(replay.finish())
    return segment.aborted


class _Recovery:
    """Checks everything from the recovery point on, and truncates the log at the first damage."""

    def __init__(
        self,
        segments: list[Segment],
        snapshots: ProducerSnapshots,
        producers: Producers,
        epochs: LeaderEpochs,
        now: Millis,
        index_interval_size: int,
        contiguous_from: Offset | None,
    ) -> None:
        self._segments = segments
        self._snapshots = snapshots
        self._producers = producers
        self._epochs = epochs
        self._now = now
        self._index_interval_size = index_interval_size
        self._contiguous_from = contiguous_from

    def run(self, recovery_point: Offset) -> tuple[Offset, int]:
        """Returns the log end and the number of bytes checked."""
        segments, snapshots, producers = self._segments, self._snapshots, self._producers
        slot = len(segments) - 1
        while slot > 0 and (
            segments[slot].base_offset > recovery_point or segments[slot].files.is_blank
        ):
            slot -= 1  # a failed roll may have left a blank segment
        position, log_end = _resume(segments[slot], recovery_point)
        # The process that crashed made the snapshots above; they may include batches that did
        # not reach the disk.
        snapshots.drop_from(Offset(log_end + 1))
        producers.clear()
        snapshots.load(producers, segments, log_end, self._now, clean=False)
        checked_size = 0
        while slot < len(segments):
            segment = segments[slot]
            file_size = segment.size
            if segment.base_offset < log_end and segment.files.is_blank:
                segment.remove()  # left by a failed roll
                del segments[slot]
                continue
            log_end, problem = self._check(segment, position, max(log_end, segment.base_offset))
            checked_size += segment.size - position
            position = Position(0)
            slot += 1
            if problem is None and slot < len(segments):
                problem = self._lost_end(segments[slot], log_end)
            if problem is not None:
                self._truncate_after(segment, file_size, log_end, problem)
            if slot < len(segments):
                snapshots.take(producers, segments[slot].base_offset)
        self._retire_closed()
        return log_end, checked_size

    def _lost_end(self, following: Segment, log_end: Offset) -> str | None:
        """The damage, if a power failure took the end of the segment before ``following``."""
        base_offset, known_from = following.base_offset, self._contiguous_from
        if base_offset <= log_end or known_from is None or base_offset <= known_from:
            return None
        return f"the next segment begins at offset {base_offset}"

    def _truncate_after(
        self, segment: Segment, file_size: int, log_end: Offset, problem: str
    ) -> None:
        """Cut the file after the last good batch, and drop all later segments."""
        slot = self._segments.index(segment) + 1
        dropped = self._segments[slot:]
        _log.warning(
            "%s: truncated at byte %d (offset %d): %s; dropped %d bytes%s after the recovery point",
            segment.path("log"),
            segment.size,
            log_end,
            problem,
            file_size - segment.size + sum(later.size for later in dropped),
            f" and {len(dropped)} later segments" if dropped else "",
        )
        segment.files.cut(Position(segment.size))
        for later in dropped:
            later.remove()
        del self._segments[slot:]

    def _retire_closed(self) -> None:
        active = self._segments[-1].indexes
        for segment in self._segments[:-1]:
            indexes = segment.indexes
            if indexes.active:
                indexes.close_times()
                indexes.save()
                indexes.retire()
        active.active = True  # the next flush saves its indexes

    def _check(
        self, segment: Segment, start: Position, start_offset: Offset
    ) -> tuple[Offset, str | None]:
        """Check the batches from ``start`` on; returns the end offset and the problem after it."""
        files, indexes = segment.files, segment.indexes
        file_size = files.size
        kept_aborted = []
        indexes.active = True
        if start == 0:
            indexes.start()
        else:
            kept_aborted = [known for known in segment.aborted if known.last_offset < start_offset]
            indexes.truncate(start + 1, start_offset)  # the entry of this very batch stays
            indexes.resume_times()
        files.size = start
        end_offset = start_offset
        scan = Scan(files.open(), start, Position(file_size), start_offset, check_crc=True)
        staged: list[StagedBatch] = []
        replay = ProducerStateReplay(self._producers, kept_aborted)
        last_offset_max = segment.base_offset + RELATIVE_OFFSET_MAX
        latest_epoch: int = self._epochs.latest
        problem = None
        for _, header in scan:
            base_offset = header.base_offset
            last_offset = base_offset + header.last_offset_delta
            if last_offset > last_offset_max:
                problem = (
                    f"offset {last_offset} does not fit into a segment that begins at "
                    f"{segment.base_offset}"
                )
                break
            staged.append((base_offset, last_offset, header.size, header.max_timestamp))
            if header.leader_epoch > latest_epoch:
                latest_epoch = header.leader_epoch
                self._epochs.assign(LeaderEpoch(latest_epoch), Offset(base_offset))
            if header.producer_id >= 0:
                replay.add(header, scan)
            if len(staged) == _CHUNK:
                end_offset = Offset(last_offset + 1)
                files.size = indexes.extend(staged, files.size, self._index_interval_size)
                staged.clear()
        if staged:
            _, last_offset, _, _ = staged[-1]
            end_offset = Offset(last_offset + 1)
            files.size = indexes.extend(staged, files.size, self._index_interval_size)
        if problem is None and scan.newer is not None:
            for each in self._segments:
                each.release()
            # Never truncated: an older version that starts by mistake would lose the records.
            raise Corrupt(
                f"{files.path('log')}: the batch at byte {scan.valid_end} (offset "
                f"{scan.newer.base_offset}) has magic {scan.newer.magic}; this version of Headrace "
                f"reads 0 to {MAGIC_MAX}. Start the newer version that wrote it. If none did, the "
                "file is damaged: move the directory away, and the broker copies the partition "
                "from its leader"
            )
        segment.set_aborted(replay.finish())
        return end_offset, problem or scan.problem


def _resume(segment: Segment, recovery_point: Offset) -> tuple[Position, Offset]:
    """Where checking begins: at the recovery point if the index below it can be trusted."""
    base = segment.base_offset
    if recovery_point <= base:
        return Position(0), base
    try:
        offsets = segment.indexes.offsets
        below = recovery_point - base - 1
        slot = len(offsets) - 1
        while slot >= 0 and offsets.last_offsets[slot] > below:
            slot -= 1
        if slot < 0:
            return Position(0), base
        position = Position(offsets.positions[slot])
        header = segment.files.header_at(position)
        if header.last_offset != base + offsets.last_offsets[slot]:
            return Position(0), base
        assert segment.aborted is not None  # read now, because those below stay as they are
    except (Corrupt, OSError):
        return Position(0), base
    return position, Offset(header.base_offset)
