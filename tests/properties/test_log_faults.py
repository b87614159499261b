"""A log whose disk fails at any system call: acknowledged records survive.

A seed determines a story of appends, transactions, rolls, flushes, compactions, clean shutdowns
and kills. In about every second step one system call (or all from it on) fails. A failing test
prints the seed; ``story(seed)`` repeats it.
"""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.model.errors import Rejected
from headrace.storage.compaction.swap import replace_segments
from tests.fakes.logs import NOW, Disk, append, batch, marker, read_all, settings

SEEDS = range(60)
TRANSACTIONAL = 9
_CALLS = ("open", "pwrite", "pwritev", "rename", "unlink", "fsync", "sync_directory")
_ERRORS = (errno.ENOSPC, errno.EMFILE, errno.ENOMEM, errno.EIO)


class Faults:
    """Makes the n-th call from now on fail, or that one and all later ones."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.calls_left: int | None = None
        self._lasting = False
        self.happened = False

    def draw(self) -> None:
        self.happened = False
        self._lasting = self._rng.random() < 0.3
        self.calls_left = self._rng.randrange(1, 12) if self._rng.random() < 0.5 else None

    def end(self) -> None:
        self.calls_left = None

    def before(self, call: str, arguments: tuple) -> None:
        if self.calls_left is None:
            return
        self.calls_left -= 1
        if self.calls_left == 0 or (self.happened and self._lasting):
            self.happened = True
            if call in ("pwrite", "pwritev"):
                self._write_in_part(*arguments)
            code = self._rng.choice(_ERRORS)
            raise OSError(code, os.strerror(code), str(arguments[0]))

    def _write_in_part(self, fd, data, position) -> None:
        whole = b"".join(data) if isinstance(data, list) else bytes(data)
        os.pwrite(fd, whole[: self._rng.randrange(len(whole) + 1)], position)


class Story:
    def __init__(self, seed: int, directory: Path) -> None:
        self.rng = random.Random(seed)
        self.faults = Faults(self.rng)
        config = settings(
            segment_bytes=self.rng.choice([600, 1500, 4000]),
            index_interval_bytes=self.rng.choice([50, 300]),
            segment_index_bytes=self.rng.choice([80, 10 << 20]),
            preallocate=self.rng.random() < 0.2,
            retention_ms=-1,
        )
        self.disk = Disk(directory, config=config)
        self.log = self.disk.log()
        self.records: dict[int, bytes] = {}  # acknowledged, by offset
        self.leader_epochs: dict[int, int] = {}  # by offset
        self.sequences: dict[int, int] = {}
        self.aborted: list[tuple[int, int]] = []
        self.open_since: int | None = None  # first offset of the one transaction
        self.leader_epoch = 0
        for call in _CALLS:
            self.disk.files.before(call, self._may_fail(call))

    def _may_fail(self, call: str) -> Callable[..., None]:
        return lambda *arguments: self.faults.before(call, arguments)

    def tell(self) -> None:
        steps = [self.append, self.transact, self.roll, self.flush, self.work, self.checkpoint]
        steps += [self.compact, self.begin_leader_epoch, self.stop, self.kill]
        for _ in range(self.rng.randrange(5, 40)):
            (step,) = self.rng.choices(steps, [12, 5, 2, 2, 2, 2, 2, 1, 2, 3])
            self.faults.draw()
            try:
                step()
            except (OSError, Rejected):
                assert self.faults.happened
            self.faults.end()
            if self.log.offline is not None:
                self.kill()
            self.check()
        self.disk.crash()

    # -- steps ----------------------------------------------------------------------------

    def append(self) -> None:
        """One batch, or several that are written together."""
        staged, sequences = [], dict(self.sequences)
        try:
            for _ in range(self.rng.choice([1, 1, 3])):
                producer_id = self.rng.choice([-1, 1, 2])
                value = b"v" * self.rng.choice([1, 50, 400])
                sequence = sequences.get(producer_id, -1) + 1
                appended = self.log.append_as_leader(
                    batch(value, producer_id=producer_id, base_sequence=sequence),
                    self.leader_epoch,
                    NOW,
                )
                staged.append((appended.base_offset, value))
                if producer_id >= 0:
                    sequences[producer_id] = sequence
        except Rejected:
            assert self.faults.happened
        try:
            self.log.write_staged()
        except Rejected:
            # Batches before a roll among them may be stored, though they were not acknowledged.
            staged = [(offset, value) for offset, value in staged if offset < self.log.log_end]
            entries = self.log.producers.entries
            sequences = {each: entries[each].last_sequence for each in entries}
        self.sequences = sequences
        for offset, value in staged:
            self._acknowledged(offset, value)

    def transact(self) -> None:
        """Begin a transaction, or end it."""
        log = self.log
        try:
            if self.open_since is None:
                sequence = self.sequences.get(TRANSACTIONAL, -1) + 1
                records = batch(
                    b"t", producer_id=TRANSACTIONAL, base_sequence=sequence, transactional=True
                )
                offset = append(log, records, leader_epoch=self.leader_epoch).base_offset
                self._acknowledged(offset, b"t")
                self.sequences[TRANSACTIONAL] = sequence
                self.open_since = offset
            else:
                commit = self.rng.random() < 0.5
                end = marker(commit=commit, producer_id=TRANSACTIONAL)
                append(log, end, leader_epoch=self.leader_epoch)
                if not commit:
                    self.aborted.append((TRANSACTIONAL, self.open_since))
                self.open_since = None
        except Rejected:
            assert self.faults.happened
            log.write_staged()

    def _acknowledged(self, offset: int, value: bytes) -> None:
        self.records[offset] = value
        self.leader_epochs[offset] = self.leader_epoch

    def roll(self) -> None:
        self.log.roll(NOW)

    def flush(self) -> None:
        self.log.flusher.flush_now()

    def work(self) -> None:
        while self.disk.worker.jobs:
            self.disk.worker.jobs.pop(0)[1]()

    def checkpoint(self) -> None:
        self.disk.logs.checkpoint({self.log.topic_partition: self.log.log_end})

    def begin_leader_epoch(self) -> None:
        self.leader_epoch += self.rng.randrange(1, 3)

    def compact(self) -> None:
        """Replace up to two segments by one, as if each record had another key."""
        bases = list(self.log.segments.bases[:-1])
        first = self.rng.randrange(len(bases)) if bases else 0
        replaced = bases[first : first + self.rng.choice([1, 2])]
        if not replaced:
            return
        faults, self.faults.calls_left = self.faults.calls_left, None
        for kind in ("log", "index", "timeindex", "txnindex"):
            paths = [self.log.path / f"{base:020d}.{kind}" for base in replaced]
            content = b"".join(path.read_bytes() for path in paths if path.exists())
            if kind in ("index", "timeindex"):
                content = b""  # rebuilt when it is needed
            if content or kind != "txnindex":
                Path(f"{paths[0]}.cleaned").write_bytes(content)
        self.faults.calls_left = faults
        replace_segments(self.log, replaced, replaced[0])

    def stop(self) -> None:
        try:
            self.disk.logs.close_clean({self.log.topic_partition: self.log.log_end})
        finally:
            self._start()

    def kill(self) -> None:
        self.disk.crash()
        self._start()

    def _start(self) -> None:
        self.faults.end()
        log_end = self.log.log_end
        self.disk.start()
        self.log = self.disk.log()
        assert self.log.log_end == log_end

    # -- what must hold -------------------------------------------------------------------

    def check(self) -> None:
        log = self.log
        found = read_all(log, max_bytes=self.rng.choice([200, 1 << 20]))
        ends = {offset for offset, value in found if value and value[0] == 0}  # markers
        assert {offset: value for offset, value in found if offset not in ends} == self.records
        for offset, leader_epoch in self.leader_epochs.items():
            assert log.leader_epochs.epoch_at(offset) == leader_epoch
        entries = log.producers.entries
        assert {each: entries[each].last_sequence for each in self.sequences} == self.sequences
        assert log.aborted_transactions(0, log.log_end) == self.aborted
        assert bool(log.producers.ongoing) == (self.open_since is not None)


@pytest.mark.parametrize("seed", SEEDS)
def test_acknowledged_records_survive_any_refusal_of_the_disk(seed, tmp_path):
    Story(seed, tmp_path).tell()
