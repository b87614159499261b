"""Storage on a simulated disk: what a killed process and a power cut leave, and jobs inline."""

import asyncio
import random
from contextlib import suppress

import pytest

from headrace.core.cleaning import measure
from headrace.model.errors import Rejected
from headrace.model.ids import LeaderEpoch, Millis, Offset, TopicPartition
from headrace.records.record import Record, build_batch
from headrace.storage.compaction.log_cleaner import CleanerSettings, clean, summarize
from headrace.storage.files import read_file
from headrace.storage.log import Log
from headrace.storage.log_manager import LogManager
from headrace.storage.log_truncation import truncate_to
from headrace.storage.validation.record_validator import RecordValidator
from headrace.world.world import World
from tests.fakes.logs import (
    NOW,
    ORDERS,
    ORDERS_ID,
    Disk,
    append,
    batch,
    fill,
    marker,
    read_all,
    settings,
)
from tests.sim.files import SimulatedDisk, SimulatedFiles
from tests.sim.jobs import SimulatedJobs
from tests.sim.loop import in_virtual_time, run_simulated

SEEDS = (*range(40), 1544, 1799, 2383, 2656)


class SimulatedWorld(World):
    """One process: its files, its jobs, its random numbers, and the clock of the loop."""

    def __init__(self, disk: SimulatedDisk, dice: random.Random) -> None:
        self.random = dice
        self.files = SimulatedFiles(disk)
        self.jobs = SimulatedJobs(self.files)
        self._loop = asyncio.get_running_loop()

    def now(self) -> Millis:
        return Millis(NOW + int(self._loop.time() * 1000))

    def boot_id(self) -> str:
        return self.files.boot_id


class Machine:
    """A disk, and the logs of the process that runs on it."""

    def __init__(self, dice: random.Random, **overrides) -> None:
        loop = asyncio.get_running_loop()
        self.dice = dice
        self.config = settings(**overrides)
        self.disk = SimulatedDisk(lambda: NOW * 1_000_000 + int(loop.time() * 1e9))
        self.start()

    def start(self) -> None:
        self.world = SimulatedWorld(self.disk, self.dice)
        self.logs = LogManager(
            ["/data"], world=self.world, node_id=1, config_of=lambda topic: self.config
        )
        self.logs.open_all(self.world.now())
        self.logs.directories.losses_reported()

    def log(self, topic_partition: TopicPartition = ORDERS) -> Log:
        found = self.logs.get(topic_partition)
        return found or self.logs.create(topic_partition, ORDERS_ID, self.config)

    def kill(self) -> None:
        self.world.files.kill()

    def cut_power(self) -> None:
        self.kill()
        self.disk.lose_power()

    def content(self, log: Log) -> dict[str, bytes]:
        files, found = self.world.files, {}
        for name in files.names_in(log.path):
            found[name] = read_file(files, f"{log.path}/{name}")
        return found


@in_virtual_time
async def test_after_a_kill_everything_written_is_there():
    machine = Machine(random.Random(1), segment_bytes=300)
    fill(machine.log(), [b"%d" % n for n in range(20)])
    machine.kill()
    machine.start()
    assert read_all(machine.log()) == [(n, b"%d" % n) for n in range(20)]


@in_virtual_time
async def test_after_a_power_cut_everything_flushed_is_there():
    machine = Machine(random.Random(1))
    log = machine.log()
    fill(log, [b"a", b"b"])
    await log.flusher.flush()
    machine.logs.checkpoint()
    fill(log, [b"lost"])
    machine.cut_power()
    machine.start()
    assert read_all(machine.log()) == [(0, b"a"), (1, b"b")]
    assert append(machine.log(), batch(b"c")).base_offset == 2


@in_virtual_time
async def test_a_power_cut_that_takes_the_end_of_a_segment_takes_the_next_segment_too():
    """Of a compacted log; there, gaps between segments are usual below the recovery point."""
    machine = Machine(random.Random(1), **COMPACTED)
    log = machine.log()
    put_keys(log)
    await compact(log)
    log.roll(machine.world.now())
    await asyncio.sleep(1)
    machine.logs.checkpoint()
    kept, flushed_end = read_all(log), log.flusher.recovery_point
    assert log.log_end == flushed_end > len(kept), "compaction left gaps"
    flush_nothing(log)
    fill(log, [b"lost"])
    log.roll(machine.world.now())
    fill(log, [b"written"])
    machine.disk.write_back(log.segments.active.path("log"))
    machine.cut_power()
    machine.start()
    assert read_all(machine.log()) == kept
    assert machine.log().log_end == flushed_end


@in_virtual_time
async def test_a_kill_leaves_gaps_that_a_follower_of_a_compacted_leader_has():
    machine = Machine(random.Random(1), **COMPACTED)
    log = machine.log()
    for base_offset in (0, 5, 9):
        log.append_as_follower(batch(b"v", base_offset=base_offset, leader_epoch=0))
    truncate_to(log, 7)  # between two batches
    assert log.log_end == 7
    log.roll(machine.world.now())
    log.append_as_follower(batch(b"new", base_offset=12, leader_epoch=1))
    for end in (machine.kill, machine.cut_power):
        for name in machine.world.files.names_in(log.path):
            machine.disk.write_back(f"{log.path}/{name}")
        machine.logs.checkpoint()
        end()
        machine.start()
        log = machine.log()
        assert [offset for offset, _ in read_all(log)] == [0, 5, 12]


@in_virtual_time
async def test_what_was_truncated_does_not_come_back_after_a_flush():
    machine = Machine(random.Random(1))
    log = machine.log()
    fill(log, [b"a", b"dropped"])
    await log.flusher.flush()
    truncate_to(log, Offset(1))
    log.roll(machine.world.now())
    fill(log, [b"b"])
    await log.flusher.flush()
    machine.cut_power()
    machine.start()
    assert read_all(machine.log()) == [(0, b"a"), (1, b"b")]


def flush_nothing(log: Log) -> None:
    """Let the disk be too slow for the background flush after a roll."""
    log.flusher.postpone(True)


class Story:
    """Appends, rolls, flushes, checkpoints and restarts of all kinds, drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.leader_epoch = 0
        self.machine = Machine(
            self.dice,
            segment_bytes=self.dice.choice([300, 1000, 4000]),
            index_interval_bytes=self.dice.choice([50, 300]),
            preallocate=self.dice.random() < 0.2,
            retention_ms=-1,
        )
        self.values: dict[int, bytes] = {}  # by offset
        self.truncated: set[tuple[int, bytes]] = set()  # a power cut may bring these back
        self.leader_epochs: dict[bytes, int] = {}  # by value
        self.log = self.machine.log()

    async def tell(self) -> None:
        steps = [self.append, self.roll, self.flush, self.wait, self.checkpoint]
        steps += [self.kill, self.cut_power, self.stop, self.write_back, self.truncate]
        for _ in range(60):
            (step,) = self.dice.choices(steps, [10, 2, 2, 4, 2, 1, 2, 1, 3, 1])
            await step()

    async def append(self) -> None:
        for _ in range(self.dice.randrange(1, 4)):
            value = b"%d " % self.dice.getrandbits(32) + bytes(self.dice.choice([1, 50, 150]))
            self._append(batch(value), value)

    def _append(self, records: memoryview, value: bytes) -> int:
        now, leader_epoch = self.machine.world.now(), LeaderEpoch(self.leader_epoch)
        offset = append(self.log, records, now=now, leader_epoch=leader_epoch).base_offset
        assert offset not in self.values
        self.values[offset], self.leader_epochs[value] = value, leader_epoch
        return offset

    async def roll(self) -> None:
        self.log.roll(self.machine.world.now())

    async def flush(self) -> None:
        await self.log.flusher.flush()
        assert self.log.flusher.recovery_point == self.log.log_end

    async def wait(self) -> None:
        await asyncio.sleep(self.dice.uniform(0, 0.01))

    async def checkpoint(self) -> None:
        self.machine.logs.note_offsets(self.log, self.log.log_end)
        self.machine.logs.checkpoint_noted()

    async def write_back(self) -> None:
        """The kernel writes segments in any order."""
        for segment in self.log.segments:
            if self.dice.random() < 0.5 and segment.size:  # without a batch it has no file
                self.machine.disk.write_back(segment.path("log"))

    async def truncate(self) -> None:
        """A follower drops what its new leader does not have."""
        self.leader_epoch += 1
        truncate_to(self.log, Offset(self.dice.randint(0, self.log.log_end)))
        dropped = {item for item in self.values.items() if item[0] >= self.log.log_end}
        self.truncated |= dropped
        self.values = dict(self.values.items() - dropped)

    async def stop(self) -> None:
        await asyncio.to_thread(self.machine.logs.close_clean)
        self.machine.kill()
        self._start(self.log.log_end)

    async def kill(self) -> None:
        self.machine.kill()
        self._start(self.log.log_end)

    async def cut_power(self) -> None:
        flushed_end = self.log.flusher.recovery_point
        self.machine.cut_power()
        self._start(flushed_end)

    def _start(self, kept_end: int) -> None:
        """Everything below ``kept_end`` must be there, and nothing that was never written."""
        kept = self._restart()
        assert {offset for offset in self.values if offset < kept_end} <= kept.keys()
        assert list(kept) == list(range(len(kept)))  # and no gap: later records went with lost ones
        assert self.log.log_end == len(kept)
        self.values = kept

    def _restart(self) -> dict[int, bytes | None]:
        self.machine.start()
        self.log = self.machine.log()
        self.leader_epoch += 1
        kept = dict(read_all(self.log))
        assert kept.items() <= self.values.items() | self.truncated
        for offset, value in kept.items():
            assert self.log.leader_epochs.epoch_at(offset) == self.leader_epochs[value]
        return kept


@pytest.mark.parametrize("seed", SEEDS)
def test_flushed_records_survive_power_cuts_and_written_ones_kills(seed):
    async def story() -> int:
        told = Story(seed)
        await told.tell()  # checks after every step
        return len(told.leader_epochs)

    assert run_simulated(story(), random.Random(seed)) > 0


class CompactedStory(Story):
    """The same with keys and compaction: the latest value of every key is there."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.machine = Machine(
            self.dice,
            cleanup_policy=frozenset({"compact"}),
            segment_bytes=self.dice.choice([300, 1000, 4000]),
            index_interval_bytes=self.dice.choice([50, 300]),
            file_delete_delay_ms=self.dice.choice([0, 5]),
        )
        self.keys: dict[int, bytes] = {}  # by offset
        self.log = self.machine.log()
        self.compaction_count = 0

    async def append(self) -> None:
        for _ in range(self.dice.randrange(1, 4)):
            key, value = b"%d" % self.dice.randrange(8), b"%d" % self.dice.getrandbits(32)
            records = memoryview(bytearray(build_batch([Record(0, NOW, key, value)])))
            self.keys[self._append(records, value)] = key

    async def truncate(self) -> None:
        pass  # what is compacted is never truncated

    async def wait(self) -> None:
        await super().wait()
        self.log.roll(self.machine.world.now())
        cleaning = asyncio.create_task(compact(self.log))
        await asyncio.sleep(self.dice.choice([0.001, 1, 1, 1]))
        cleaning.cancel()
        with suppress(asyncio.CancelledError, Rejected):
            self.compaction_count += (await cleaning).records_read > 0

    def _start(self, kept_end: int) -> None:
        kept = self._restart()
        assert self.log.log_end >= kept_end
        self.values = {o: value for o, value in self.values.items() if o < self.log.log_end}
        latest = {self.keys[offset]: offset for offset in sorted(self.values)}
        assert kept.keys() >= set(latest.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_the_latest_value_of_every_key_survives_power_cuts_and_kills(seed):
    async def story() -> int:
        told = CompactedStory(seed)
        await told.tell()
        return told.compaction_count

    assert run_simulated(story(), random.Random(seed)) > 0


# -- jobs ----------------------------------------------------------------------------------

COMPACTED = {
    "cleanup_policy": frozenset({"compact"}),
    "segment_bytes": 2_000,
    "delete_retention_ms": 1_000,
    "file_delete_delay_ms": 0,
}


def put_keys(log: Log) -> None:
    for n in range(200):
        record = Record(0, NOW, b"k%d" % (n % 7), b"v%d" % n if n % 5 else None)
        append(log, memoryview(bytearray(build_batch([record]))))
    append(log, batch(b"aborted", producer_id=7, transactional=True))
    append(log, marker(commit=False, producer_id=7))
    append(log, batch(b"last"))


async def compact(log: Log):
    dirt = measure(summarize(log, log.log_end), NOW)
    return await clean(log, dirt, CleanerSettings(buffer_size=1 << 20), NOW)


def test_a_log_compacted_inline_has_the_same_bytes_as_one_compacted_by_a_child(tmp_path):
    disk = Disk(tmp_path / "data", config=settings(**COMPACTED))
    log = disk.log()
    put_keys(log)
    done = asyncio.run(compact(log))
    disk.worker.run()
    by_child = {path.name: path.read_bytes() for path in log.path.iterdir()}
    disk.crash()

    async def inline() -> None:
        machine = Machine(random.Random(1), **COMPACTED)
        log = machine.log()
        put_keys(log)
        assert await compact(log) == done
        await asyncio.sleep(1)  # the replaced segments are deleted
        assert machine.content(log) == by_child

    assert done.records_kept < done.records_read
    run_simulated(inline(), random.Random(1))


@in_virtual_time
async def test_records_are_validated_inline():
    validator = RecordValidator(SimulatedJobs(None))
    keyless = build_batch([Record(n, -1, None, b"value") for n in range(100)])
    for _ in range(2):
        assert len(await validator.check(keyless, compacted=True)) == 100
        assert await validator.check(keyless, compacted=False) == []
        validator.end_idle()
    await validator.close()


@in_virtual_time
async def test_indexes_are_rebuilt_inline():
    machine = Machine(random.Random(1), segment_bytes=2_000, index_interval_bytes=100)
    fill(machine.log(), [b"%d" % n for n in range(100)])
    machine.logs.close_clean()
    files, path = machine.world.files, machine.log().path
    for name in files.names_in(path):
        if name.endswith("index"):
            files.truncate(f"{path}/{name}", 5)
    machine.kill()
    machine.start()
    log = machine.log()
    machine.logs.resources.indexes.rebuildable_size_max = 100
    with pytest.raises(Exception, match="being rebuilt"):
        log.read(3, 1000, log.log_end)
    await asyncio.sleep(1)
    assert len(read_all(log)) == 100
