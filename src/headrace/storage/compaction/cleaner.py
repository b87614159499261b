"""The job that compacts one log (``world.jobs``): ``handle`` runs it in a child process.

A loop over records in Python would block the broker's event loop, so the child runs it, at low
priority and throttled. It only reads segments and writes ``.cleaned`` files beside them. Readers
see nothing of it until the broker swaps the files in (``log_cleaner``). If it is killed, the next
start deletes its files.

    request     the job, in JSON
    responses   one for each event, in JSON:
                {"cleaned": base offset, "replaces": [base offset, …], "size": bytes}
                {"progress": bytes read so far}
                {"done": {…}}  or  {"failed": {…}}, the last one
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace.core.cleaning import (
    SegmentSummary,
    TransactionTrail,
    grouped,
    horizon_passed,
    loses_all_records,
    new_horizon,
    stays_without_records,
    surviving,
)
from headrace.core.producer_state import AbortedTransaction
from headrace.model.errors import Corrupt
from headrace.model.ids import Offset, Position
from headrace.records.alike import AlikeSections, Spans
from headrace.records.batch import BadBatch, BatchHeader, read_header
from headrace.records.record import (
    Record,
    Span,
    build_batch,
    build_survivors,
    iter_records,
    marker_type,
    open_records,
    spans,
)
from headrace.storage import aborted_transactions
from headrace.storage.compaction.cleaned_segment import CleanedSegment
from headrace.storage.compaction.job import Job
from headrace.storage.compaction.key_offsets import KeyOffsets
from headrace.storage.files import OpenFile, read_file
from headrace.storage.scan import Scan
from headrace.world.files import O_RDONLY
from headrace.world.job_host import Host

_PROGRESS_SIZE = 64 << 20
_NO_MARKER = -1  # a type that ends no transaction


class Tally:
    """Counts bytes and records, reports progress, and keeps within the allowed rate."""

    def __init__(
        self, bytes_per_second: float, host: Host, emit: Callable[[dict[str, Any]], None]
    ) -> None:
        self._pace = max(bytes_per_second, 1.0)
        self._host = host
        self._started_at = host.time()
        self._emit = emit
        self._next_report = _PROGRESS_SIZE
        self.read_size = 0
        self.written_size = 0
        self.records_read = 0
        self.records_kept = 0
        self.batches_unreadable = 0

    def read(self, size: int) -> None:
        self.read_size += size
        if self.read_size >= self._next_report:
            self._next_report += _PROGRESS_SIZE
            self._emit({"progress": self.read_size})
        self._throttle()

    def written(self, size: int) -> None:
        self.written_size += size
        self._throttle()

    def _throttle(self) -> None:
        due_at = self._started_at + (self.read_size + self.written_size) / self._pace
        ahead = due_at - self._host.time()
        if ahead > 0.01:  # shorter sleeps would cost more than they smooth
            self._host.sleep(ahead)


class Cleaner:
    """Runs one job: collects the newest offset of each key, then rewrites the segments."""

    def __init__(self, job: Job, host: Host, emit: Callable[[dict[str, Any]], None]) -> None:
        self.job = job
        self._files = host.files
        self._emit = emit
        self.tally = Tally(job.bytes_per_second, host, emit)
        self._closed = [s for s in job.segments if s.base_offset < job.clean_end]
        self._aborted = [
            transaction
            for segment in job.segments
            for transaction in self._read_aborted(segment.base_offset)
        ]
        self.keys = KeyOffsets(job.buffer_size, job.load_factor, job.clean_end - job.first_dirty)
        self._alike = AlikeSections()
        # Batches often repeat the same record section. For each such section: the base offset of
        # its last batch, and, once all keys are collected, the newest offset of each of its keys
        # with the base offset below which all of its records are superseded.
        self._last_bases: dict[Spans, int] = {}
        self._newest: dict[Spans, tuple[list[int], float]] = {}

    def run(self) -> dict[str, Any]:
        job = self.job
        mapped_end = self.collect_keys()
        segments = [s for s in self._closed if s.base_offset < mapped_end]
        if segments:
            trail = self._trail_from(segments[0].base_offset)
            groups = grouped(
                segments,
                segment_size_max=job.segment_size_max,
                index_size_max=job.index_size_max,
                end=self._end_of(segments[-1]),
            )
            for group in groups:
                self._clean_group(group, trail, mapped_end)
        return {
            "cleaned_end": mapped_end,
            "keys": self.keys.count,
            "read_size": self.tally.read_size,
            "written_size": self.tally.written_size,
            "records_read": self.tally.records_read,
            "records_kept": self.tally.records_kept,
            "batches_unreadable": self.tally.batches_unreadable,
        }

    def collect_keys(self) -> int:
        """Fill the table from the dirty part; returns the end offset it reached."""
        mapped_end = self._collect_keys()
        for spans_found, base_offset in self._last_bases.items():
            self.keys.put_all(_keyed(spans_found.found, base_offset))
        self._last_bases.clear()
        return mapped_end

    def _collect_keys(self) -> int:
        first_dirty = self.job.first_dirty
        trail = self._trail_from(first_dirty)
        mapped_end = first_dirty
        for segment in self._closed:
            segment_end = self._end_of(segment)
            if segment_end <= first_dirty:
                continue
            for header, batch in self._batches(segment):
                if header.next_offset <= first_dirty:
                    continue
                if header.is_control:
                    trail.control_batch(header, _marker(header, batch))
                elif not trail.data_batch(header):
                    full_at = self._put_keys(header, batch)
                    if full_at is not None:
                        # The table is full: the next round begins with this record.
                        return full_at
                mapped_end = header.next_offset
            mapped_end = segment_end  # even if compaction removed its last batches
        return mapped_end

    def _clean_group(
        self, group: list[SegmentSummary], trail: TransactionTrail, mapped_end: int
    ) -> None:
        job, tally = self.job, self.tally
        cleaned = CleanedSegment(
            self._files, job.directory, group[0].base_offset, job.index_interval_size
        )
        try:
            for segment in group:
                for header, batch in self._batches(segment):
                    try:
                        kept = self._survivors(header, batch, trail, mapped_end)
                    except BadBatch:
                        # The batch was stored without validation and its records are unreadable.
                        # Keep it: compaction must not delete what it cannot judge.
                        kept = header, bytes(batch)
                    if kept is not None:
                        cleaned.append(kept[0], kept[1])
                        tally.written(cleaned.maybe_write())
            tally.written(cleaned.maybe_write(0))
            last_log = f"{job.directory}/{group[-1].base_offset:020d}.log"
            modified_at_ns = self._files.stat(last_log).modified_at_ns
            cleaned.finish(trail.take_kept(), modified_at_ns)
        finally:
            cleaned.close()
        self._emit(
            {
                "cleaned": cleaned.base_offset,
                "replaces": [segment.base_offset for segment in group],
                "size": cleaned.size,
            }
        )

    def _survivors(
        self, header: BatchHeader, batch: memoryview, trail: TransactionTrail, mapped_end: int
    ) -> tuple[BatchHeader, bytes] | None:
        """The batch for the cleaned segment: the same one, a smaller one, or None."""
        if header.magic < 2:
            return self._legacy_survivors(header, batch, mapped_end)
        job, now = self.job, self.job.now
        is_control = header.is_control
        if is_control:
            discardable = trail.control_batch(header, _marker(header, batch))
        else:
            discardable = trail.data_batch(header)
        stays = stays_without_records(
            header, last=job.producers.get(header.producer_id), clean_end=job.clean_end
        )
        self.tally.records_read += header.record_count
        if loses_all_records(header, discardable=discardable, now=now):
            return _rebuilt(build_survivors(header, b"", ())) if stays else None
        if not is_control and header.base_offset >= mapped_end:
            self.tally.records_kept += header.record_count
            return header, bytes(batch)
        data = open_records(batch, header)
        known = self._alike.spans(data, header.record_count)
        kept = found = known.found
        if not is_control:
            newest, superseded_below = self._newest_of(known)
            if header.base_offset < superseded_below and header.next_offset <= mapped_end:
                kept = []
            else:
                kept = surviving(
                    found,
                    newest,
                    header.base_offset,
                    mapped_end=mapped_end,
                    keep_tombstones=not horizon_passed(header, now),
                )
        self.tally.records_kept += len(kept)
        if not kept:
            return _rebuilt(build_survivors(header, data, kept)) if stays else None
        horizon = new_horizon(
            header,
            has_tombstones=not is_control and not all(span.has_value for span in kept),
            empty_transaction=is_control and discardable,
            delete_retention_ms=job.delete_retention_ms,
            now=now,
        )
        if horizon is None and len(kept) == len(found):
            return header, bytes(batch)
        return _rebuilt(build_survivors(header, data, kept, horizon))

    def _newest_of(self, known: Spans) -> tuple[list[int], float]:
        """The newest offset of each key, and the base offset below which no record is the newest.

        Records without a key are always removed.
        """
        answer = self._newest.get(known)
        if answer is None:
            newest = self.keys.newest([span.key for span in known.found])
            superseded_below = min(
                (
                    newest_offset - span.offset_delta
                    for span, newest_offset in zip(known.found, newest, strict=True)
                    if span.key is not None
                ),
                default=float("inf"),
            )
            answer = newest, superseded_below
            if known.is_kept:
                self._newest[known] = answer
        return answer

    def _legacy_survivors(
        self, header: BatchHeader, batch: memoryview, mapped_end: int
    ) -> tuple[BatchHeader, bytes] | None:
        """Old messages have no delete horizon: a batch that changes is written as magic 2."""
        records = list(iter_records(batch))
        newest = self.keys.newest([record.key for record in records])
        kept = [
            record
            for record, newest_offset in zip(records, newest, strict=True)
            if record.offset >= mapped_end
            or (record.key is not None and record.offset >= newest_offset)
        ]
        self.tally.records_read += len(records)
        self.tally.records_kept += len(kept)
        has_tombstones = any(record.value is None for record in kept)
        if len(kept) == len(records) and not has_tombstones:
            return header, bytes(batch)
        if not kept:
            if header.next_offset != self.job.clean_end:
                return None
            last = records[-1].offset
            return _rebuilt(build_batch([], base_offset=last, last_offset_delta=0))
        return _rebuilt(
            build_batch(
                [Record(*record) for record in kept],
                base_offset=kept[0].offset,
                codec=header.codec,
                timestamp_type=int(header.log_append_time),
                delete_horizon=self.job.now + self.job.delete_retention_ms
                if has_tombstones
                else None,
            )
        )

    def _batches(self, segment: SegmentSummary) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The batches of a segment, with CRCs checked. The bytes are valid until the next one."""
        path = f"{self.job.directory}/{segment.base_offset:020d}.log"
        scan = Scan(
            OpenFile(self._files, path, O_RDONLY),
            Position(0),
            Position(segment.size),
            Offset(segment.base_offset),
            check_crc=True,
        )
        for _, header in scan:
            self.tally.read(header.size)
            yield header, scan.batch()
        if scan.problem is not None:
            raise Corrupt(f"{path}: {scan.problem} at byte {scan.valid_end}")

    def _put_keys(self, header: BatchHeader, batch: memoryview) -> int | None:
        """Add the keys of dirty records; returns the first offset without room, or None."""
        first_dirty, base_offset = self.job.first_dirty, header.base_offset
        try:
            if header.magic < 2:
                return self.keys.put_all(
                    (record.offset, record.key)
                    for record in list(iter_records(batch))
                    if record.key is not None and record.offset >= first_dirty
                )
            known = self._alike.spans(open_records(batch, header), header.record_count)
        except BadBatch:
            self.tally.batches_unreadable += 1
            return None
        if base_offset < first_dirty:
            keyed = _keyed(known.found, base_offset)
            return self.keys.put_all(one for one in keyed if one[0] >= first_dirty)
        if known in self._last_bases:
            # Its keys are in the table. Their offsets follow at the end, when the last batch
            # with this section is known.
            self._last_bases[known] = base_offset
            return None
        full_at = self.keys.put_all(_keyed(known.found, base_offset))
        if full_at is None and known.is_kept:
            self._last_bases[known] = base_offset
        return full_at

    def _read_aborted(self, base_offset: int) -> list[AbortedTransaction]:
        path = f"{self.job.directory}/{base_offset:020d}.txnindex"
        try:
            data = read_file(self._files, path)
        except FileNotFoundError:
            return []
        try:
            # The index of the active segment may be growing: ignore an incomplete entry.
            return aborted_transactions.decode(
                data[: len(data) - len(data) % aborted_transactions.ENTRY_SIZE]
            )
        except ValueError as problem:
            raise Corrupt(f"{path}: {problem}") from None

    def _trail_from(self, start: int) -> TransactionTrail:
        # Leave out transactions that ended before ``start``: their markers are not read, so
        # nothing would close them.
        return TransactionTrail(t for t in self._aborted if t.last_offset >= start)

    def _end_of(self, segment: SegmentSummary) -> int:
        following = self.job.segments[self.job.segments.index(segment) + 1]
        return following.base_offset


def _keyed(found: Iterable[Span], base_offset: int) -> list[tuple[int, bytes]]:
    """Offset and key of the records that have a key."""
    return [(base_offset + span.offset_delta, span.key) for span in found if span.key is not None]


def _marker(header: BatchHeader, batch: memoryview) -> int | None:
    """The type of a control batch's record; None if compaction removed the record."""
    if header.record_count == 0:
        return None
    try:
        return marker_type(spans(open_records(batch, header), header.record_count)[0].key)
    except BadBatch:
        return _NO_MARKER


def _rebuilt(batch: bytes) -> tuple[BatchHeader, bytes]:
    return read_header(batch), batch


def handle(request: bytes, host: Host) -> None:
    """Run one job."""

    def emit(event: dict[str, Any]) -> None:
        host.respond(json.dumps(event).encode())

    try:
        done = Cleaner(Job.from_json(request), host, emit).run()
    except Corrupt as damage:
        emit({"failed": {"corrupt": str(damage)}})
    except OSError as error:
        emit({"failed": {"errno": error.errno, "message": str(error)}})
    else:
        emit({"done": done})
