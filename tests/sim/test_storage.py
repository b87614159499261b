"""Storage on a simulated disk: what a killed process and a power cut leave, and jobs inline."""

import asyncio
import random

import pytest

from headrace.core.cleaning import measure
from headrace.model.ids import Millis, TopicPartition
from headrace.records.record import Record, build_batch
from headrace.storage.compaction.log_cleaner import CleanerSettings, clean, summarize
from headrace.storage.files import read_file
from headrace.storage.log import Log
from headrace.storage.log_manager import LogManager
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

SEEDS = (*range(40), 1544, 1799, 2656)


class SimulatedWorld(World):
    """One process: its files, its jobs, its random numbers, and the clock of the loop."""

    def __init__(self, disk: SimulatedDisk, dice: random.Random) -> None:
        self.random = dice
        self.files = SimulatedFiles(disk)
        self.jobs = SimulatedJobs(self.files)
        self._loop = asyncio.get_running_loop()

    def now(self) -> Millis:
        return Millis(NOW + int(self._loop.time() * 1000))


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


class Story:
    """Appends, rolls, flushes, checkpoints and restarts of all kinds, drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.machine = Machine(
            self.dice,
            segment_bytes=self.dice.choice([300, 1000, 4000]),
            index_interval_bytes=self.dice.choice([50, 300]),
            preallocate=self.dice.random() < 0.2,
            retention_ms=-1,
        )
        self.values: dict[int, bytes] = {}  # by offset
        self.log = self.machine.log()

    async def tell(self) -> None:
        steps = [self.append, self.roll, self.flush, self.wait, self.checkpoint]
        steps += [self.kill, self.cut_power, self.stop]
        for _ in range(60):
            (step,) = self.dice.choices(steps, [10, 2, 2, 4, 2, 1, 2, 1])
            await step()

    async def append(self) -> None:
        for _ in range(self.dice.randrange(1, 4)):
            value = b"%d " % self.dice.getrandbits(32) + bytes(self.dice.choice([1, 50, 150]))
            offset = append(self.log, batch(value), now=self.machine.world.now()).base_offset
            assert offset not in self.values
            self.values[offset] = value

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
        self.machine.start()
        self.log = self.machine.log()
        kept = dict(read_all(self.log))
        assert {offset for offset in self.values if offset < kept_end} <= kept.keys()
        assert kept.items() <= self.values.items()
        assert list(kept) == list(range(len(kept)))  # and no gap: later records went with lost ones
        assert self.log.log_end == len(kept)
        self.values = kept


@pytest.mark.parametrize("seed", SEEDS)
def test_flushed_records_survive_power_cuts_and_written_ones_kills(seed):
    async def story() -> int:
        told = Story(seed)
        await told.tell()  # checks after every step
        return len(told.values)

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
