"""A log against a list: after any sequence of operations it reads like the list."""

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from headrace.core.producer_state import Origin, Producers
from headrace.records.batch import headers, read_header
from headrace.storage.log import COORDINATOR
from headrace.storage.log_retention import apply_retention, delete_records_before
from headrace.storage.log_truncation import truncate_to
from headrace.storage.producer_replay import read_marker
from headrace.storage.time_lookup import first_at
from tests.fakes.logs import NOW, Disk, batch, marker, read_all, settings


class Batch(NamedTuple):
    base_offset: int
    next_offset: int
    content: bytes
    segment: int  # base offset of its segment


PRODUCERS = (1, 2, 3)


class LogAgainstList(RuleBasedStateMachine):
    """``batches`` is the expected log; segments are small, so that it often rolls."""

    @initialize(
        segment_bytes=st.sampled_from([300, 700, 5000]),
        index_interval_bytes=st.sampled_from([0, 150, 4096]),
        segment_index_bytes=st.sampled_from([60, 10_000]),
    )
    def begin(self, segment_bytes, index_interval_bytes, segment_index_bytes):
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-"))
        config = settings(
            segment_bytes=segment_bytes,
            index_interval_bytes=index_interval_bytes,
            segment_index_bytes=segment_index_bytes,
            retention_ms=-1,
            file_delete_delay_ms=0,
        )
        self.disk = Disk(self.directory / "data", config=config)
        self.log = self.disk.log()
        self.batches: list[Batch] = []
        self.log_start = self.log_end = 0
        self.durable_end = 0  # checkpointed: survives a crash
        self.leader_epoch = 0
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.in_transaction = dict.fromkeys(PRODUCERS, False)
        self.clock = itertools.count(NOW)

    def teardown(self):
        if hasattr(self, "disk"):
            self.disk.crash()
            shutil.rmtree(self.directory)

    # -- what happens to a log ------------------------------------------------------------

    @rule(
        groups=st.lists(
            st.tuples(
                st.integers(1, 4),
                st.sampled_from([-1, *PRODUCERS]),
                st.booleans(),
                st.binary(max_size=40),
                st.integers(-20, 20),
            ),
            min_size=1,
            max_size=6,
        )
    )
    def append(self, groups):
        staged = []
        for count, producer_id, transactional, value, skew in groups:
            if producer_id >= 0 and self.in_transaction[producer_id]:
                transactional = True
            records = batch(
                *[value] * count,
                timestamp=next(self.clock) + skew,
                producer_id=producer_id,
                base_sequence=self.sequences.get(producer_id, 0),
                transactional=transactional and producer_id >= 0,
            )
            self.stage(records, staged)
            if producer_id >= 0:
                self.sequences[producer_id] += count
                self.in_transaction[producer_id] = transactional
        self.write(staged)

    @rule(producer_id=st.sampled_from(PRODUCERS), commit=st.booleans())
    def end_transaction(self, producer_id, commit):
        staged = []
        self.stage(marker(commit=commit, producer_id=producer_id), staged, origin=COORDINATOR)
        self.in_transaction[producer_id] = False
        self.write(staged)

    def stage(self, records, staged, **options):
        appended = self.log.append_as_leader(records, self.leader_epoch, NOW, **options)
        assert appended.base_offset == self.log_end
        self.log_end = appended.last_offset + 1
        staged.append((appended, records, self.log.segments.active.base_offset))

    def write(self, staged):
        self.log.write_staged()
        for appended, records, segment in staged:
            self.batches.append(
                Batch(appended.base_offset, appended.last_offset + 1, records.tobytes(), segment)
            )

    @rule()
    def roll(self):
        self.log.roll(NOW)

    @rule()
    def new_leader_epoch(self):
        self.leader_epoch += 1

    @rule(share=st.floats(0, 1))
    def truncate(self, share):
        target = self.log_start + round((self.log_end - self.log_start) * share)
        truncate_to(self.log, target)
        self.keep(lambda each: each.next_offset <= target)
        self.log_end = self.batches[-1].next_offset if self.batches else min(target, self.log_end)
        if not self.batches:
            self.log_end = self.log.log_end
            assert self.log_end <= target
        self.log_start = min(self.log_start, self.log_end)
        self.durable_end = min(self.durable_end, self.log_end)

    def keep(self, wanted):
        self.batches = [each for each in self.batches if wanted(each)]
        twin = self.producers_twin()
        for producer_id in PRODUCERS:
            entry = twin.entries.get(producer_id)
            self.sequences[producer_id] = entry.last_sequence + 1 if entry else 0
            self.in_transaction[producer_id] = bool(entry and entry.transaction_start >= 0)

    @rule(share=st.floats(0, 1))
    def delete_records(self, share):
        self.log_start += round((self.log_end - self.log_start) * share)
        delete_records_before(self.log, self.log_start)

    @rule()
    def retain(self):
        apply_retention(self.log, self.log.log_end, NOW)
        assert self.log.segments.first_base_offset <= self.log_start

    @rule()
    def flush(self):
        self.log.flusher.flush_now()
        self.disk.logs.checkpoint()
        self.durable_end = self.log_end

    @rule()
    def restart(self):
        self.log = self.disk.restarted()
        self.durable_end = self.log_end

    @rule(lost=st.integers(0, 400), garbage=st.binary(max_size=100))
    def crash(self, lost, garbage):
        """Any unsynced suffix may be lost, and the file system may add garbage."""
        self.disk.logs.checkpoint()
        self.durable_end = max(self.durable_end, self.log.flusher.recovery_point)
        segment = self.log.segments.active.base_offset
        path = self.log.path / f"{segment:020d}.log"
        self.disk.crash()
        here = [each for each in self.batches if each.segment == segment]
        durable_size = sum(
            len(each.content) for each in here if each.next_offset <= self.durable_end
        )
        size = max(sum(len(each.content) for each in here) - lost, durable_size)
        if path.exists():  # not before the first batch
            with path.open("r+b") as file:
                file.truncate(size)
                file.seek(size)
                file.write(garbage)
        survived, position = set(), 0
        for each in here:
            position += len(each.content)
            if position <= size:
                survived.add(each)
        self.keep(lambda each: each.segment != segment or each in survived)
        self.log_end = self.batches[-1].next_offset if self.batches else segment
        self.log_end = max(self.log_end, segment)
        if self.log_end < self.log_start:  # DeleteRecords had deleted all that survived
            self.keep(lambda each: False)
            self.log_end = self.log_start
        self.disk.start()
        self.log = self.disk.log()

    # -- what must hold ---------------------------------------------------------------------

    @precondition(lambda self: hasattr(self, "log"))
    @invariant()
    def the_ends_agree(self):
        assert (self.log.log_start, self.log.log_end) == (self.log_start, self.log_end)
        assert self.log.flusher.recovery_point <= self.log.log_end == self.log.staged_end

    @rule(max_bytes=st.sampled_from([1, 150, 1000, 1 << 20]))
    def everything_can_be_read(self, max_bytes):
        assert [offset for offset, _ in read_all(self.log, max_bytes)] == [
            offset
            for each in self.batches
            for offset in range(each.base_offset, each.next_offset)
            if offset >= self.log_start
        ]

    @rule(share=st.floats(0, 1), end_share=st.floats(0, 1), max_bytes=st.integers(1, 3000))
    def any_offset_can_be_read(self, share, end_share, max_bytes):
        offset = self.log_start + round((self.log_end - self.log_start) * share)
        ends = sorted({each.next_offset for each in self.batches} | {self.log_start, self.log_end})
        end_offset = ends[round((len(ends) - 1) * end_share)]
        found = self.log.read(offset, max_bytes, end_offset)
        expected = [
            each
            for each in self.batches
            if each.next_offset > offset and each.next_offset <= end_offset
        ]
        if found is None:
            assert not expected or offset >= end_offset
            return
        content = _bytes_of(found)
        assert content == b"".join(each.content for each in expected)[: len(content)]
        first = read_header(content)
        assert first.base_offset <= offset or offset < expected[0].base_offset
        assert len(content) <= max(max_bytes, first.size)
        assert sum(header.size for _, header in headers(content)) == len(content)

    @rule(skew=st.integers(-30, 200))
    def times_are_found(self, skew):
        wanted = NOW + skew
        found = first_at(self.log, wanted)()
        expected = None
        for each in self.batches:
            header = read_header(each.content)
            if header.max_timestamp >= wanted and each.next_offset > self.log_start:
                expected = max(each.base_offset, self.log_start)
                break
        assert (found.offset if found else None) == expected

    @rule()
    def producers_are_what_the_batches_say(self):
        twin = self.producers_twin()
        assert list(self.log.producers.snapshot()) == list(twin.snapshot())
        assert self.log.producers.ongoing == twin.ongoing

    def producers_twin(self):
        twin = Producers()
        for each in self.batches:
            header = read_header(each.content)
            if header.producer_id >= 0:
                ended = read_marker(each.content) if header.is_control else None
                twin.append(
                    header, each.base_offset, header.max_timestamp, Origin.REPLICATION, ended
                )
        return twin


def _bytes_of(found):
    import os

    return os.pread(found.file.fd, found.size, found.position)


TestLogAgainstList = LogAgainstList.TestCase
TestLogAgainstList.settings = hypothesis_settings(
    max_examples=25, stateful_step_count=30, deadline=None
)
