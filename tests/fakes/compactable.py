"""A log of plain files to run compaction on, without a broker.

Appends go straight to the file of the active segment; there are no indexes until compaction writes
them. The object also remembers every record ever appended, which is all that a model of compaction
needs.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from headrace.core.cleaning import DirtyRange, LastOfProducer, LogSummary, SegmentSummary, measure
from headrace.core.producer_state import EndMarker, Origin, Producers
from headrace.model.ids import Millis, Offset
from headrace.records.batch import BatchHeader, crc_holds, headers, read_header
from headrace.records.record import Record, build_batch, build_marker, iter_records
from headrace.storage import aborted_transactions
from headrace.storage.compaction.cleaner import Cleaner
from headrace.storage.compaction.job import Job
from headrace.storage.compaction.swap import swap_in
from headrace.world.job_host import Host
from tests.fakes.faulty_files import FaultyFiles

PLAIN = -1


class CompactableLog:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = FaultyFiles()
        self.log_end = 0
        self.cleaned_end: int | None = None
        self.producers = Producers()
        self.records: list[tuple[Record, int, int]] = []  # record, producer, base offset of batch
        self.outcomes: dict[int, bool] = {}  # first offset of a transaction -> whether committed
        self.transaction_of: dict[int, int] = {}  # offset -> first offset of its transaction
        self._sequences: dict[int, int] = {}
        self.roll()

    # -- writing --------------------------------------------------------------------------

    def path(self, base_offset: int, kind: str = "log") -> Path:
        return self.directory / f"{base_offset:020d}.{kind}"

    def bases(self) -> list[int]:
        return sorted(int(path.stem) for path in self.directory.glob("*.log"))

    def roll(self) -> None:
        self.path(self.log_end).touch()

    def append(
        self,
        pairs: Iterable[tuple[bytes | None, bytes | None]],
        *,
        producer_id: int = PLAIN,
        codec: int = 0,
        timestamp: int = 1_000,
    ) -> None:
        records = [
            Record(self.log_end + i, timestamp + i, key, value)
            for i, (key, value) in enumerate(pairs)
        ]
        base_sequence = self._sequences.get(producer_id, 0) if producer_id >= 0 else -1
        self._sequences[producer_id] = base_sequence + len(records)
        batch = build_batch(
            records,
            base_offset=self.log_end,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=base_sequence,
            transactional=producer_id >= 0,
            leader_epoch=3,
        )
        self._write(batch)
        entry = self.producers.entries.get(producer_id)  # type: ignore[call-overload]
        for record in records:
            self.records.append((record, producer_id, records[0].offset))
            if entry is not None:
                self.transaction_of[record.offset] = entry.transaction_start

    def end_transaction(self, producer_id: int, *, commit: bool, timestamp: int = 1_000) -> None:
        entry = self.producers.entries.get(producer_id)  # type: ignore[call-overload]
        if entry is None or entry.transaction_start < 0:
            return
        self.outcomes[entry.transaction_start] = commit
        batch = build_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=timestamp,
            base_offset=self.log_end,
            leader_epoch=3,
        )
        self._write(batch, EndMarker(commit, 0, Millis(timestamp)))

    def _write(self, batch: bytes, marker: EndMarker | None = None) -> None:
        header = read_header(batch)
        if header.producer_id >= 0:
            self.producers.append(
                header, Offset(self.log_end), Millis(1_000), Origin.REPLICATION, marker
            )
            if self.producers.aborted:
                with self.path(self.bases()[-1], "txnindex").open("ab") as file:
                    file.write(aborted_transactions.encode(self.producers.aborted))
            self.producers.written()
        with self.path(self.bases()[-1]).open("ab") as file:
            file.write(batch)
        self.log_end = header.next_offset

    # -- cleaning -------------------------------------------------------------------------

    @property
    def stable_end(self) -> int:
        return min(self.producers.ongoing, default=self.log_end)

    def summary(self) -> LogSummary:
        segments = [SegmentSummary(base, self.path(base).stat().st_size) for base in self.bases()]
        return LogSummary(segments, 0, self.log_end, self.stable_end, self.cleaned_end)

    def job(self, now: int, **changes: Any) -> Job:
        summary = self.summary()
        dirt: DirtyRange = measure(summary, now)
        job = Job(
            directory=str(self.directory),
            segments=list(summary.segments),
            first_dirty=dirt.first_dirty,
            clean_end=dirt.clean_end,
            now=now,
            segment_size_max=4_000,
            index_size_max=10_000,
            index_interval_size=200,
            delete_retention_ms=1_000,
            producers={
                producer_id: LastOfProducer(
                    entry.batches[-1].last_offset if entry.batches else None, entry.producer_epoch
                )
                for producer_id, entry in self.producers.entries.items()
            },
            buffer_size=1 << 16,
            load_factor=0.9,
            bytes_per_second=1e18,
        )
        return job._replace(**changes)

    def clean(
        self, now: int, swap: Callable[..., object] = swap_in, **changes: Any
    ) -> dict[str, Any]:
        """Run one cleaning in this process; each group is swapped in at once."""
        directory = str(self.directory)

        def handle(event: dict[str, Any]) -> None:
            if "cleaned" in event:
                swap(self.files, directory, event["replaces"], event["cleaned"])

        host = Host(self.files, lambda response: None, lambda: 0.0, lambda seconds: None)
        done = Cleaner(Job.from_json(self.job(now, **changes).to_json()), host, handle).run()
        self.cleaned_end = done["cleaned_end"]
        return done

    # -- reading --------------------------------------------------------------------------

    def batches(self) -> list[tuple[BatchHeader, bytes]]:
        """Every batch on disk, in order; asserts what every reader relies on."""
        found = []
        next_offset = 0
        for base in self.bases():
            data = self.path(base).read_bytes()
            position = 0
            assert base >= next_offset or not data
            for position, header in headers(data):
                batch = data[position : position + header.size]
                assert crc_holds(memoryview(batch), header)
                assert header.base_offset >= max(next_offset, base)
                next_offset = header.next_offset
                found.append((header, batch))
                position += header.size
            assert position == len(data), "bytes after the last batch"
        return found

    def stored(self) -> list[Record]:
        """The records on disk, without markers."""
        return [
            record
            for header, batch in self.batches()
            if not header.is_control
            for record in iter_records(batch)
        ]

    def is_committed(self, offset: int) -> bool:
        transaction = self.transaction_of.get(offset)
        return transaction is None or self.outcomes.get(transaction, False)
