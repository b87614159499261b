"""Searches by time, in a thread, while the loop changes files; and damaged indexes of large files.

A step of the loop comes where a test wants it: between the preparation of a search and its run.
"""

import asyncio
import errno
import os
import subprocess
import threading
from collections.abc import Iterator

import pytest

from headrace.core.cleaning import measure
from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.records.record import Record, build_batch
from headrace.storage import log as log_module
from headrace.storage import index_rebuild, time_lookup
from headrace.storage.compaction.log_cleaner import CleanerSettings, clean, summarize
from headrace.storage.segment import Segment
from tests.fakes.logs import NOW, Disk, append, batch, read_all, read_bytes, settings
from tests.fakes.standin import in_loop


@pytest.fixture
def disk(tmp_path) -> Iterator[Disk]:
    compacted = settings(
        cleanup_policy=frozenset({"compact", "delete"}),
        segment_bytes=20_000,
        index_interval_bytes=500,
        min_cleanable_dirty_ratio=0.0,
    )
    disk = Disk(tmp_path / "data", config=compacted)
    yield disk
    disk.crash()


def fill(log, count=400, keys=50):
    """Record n has the time NOW + n; a key comes back every ``keys`` records."""
    for n in range(count):
        record = Record(0, NOW + n, b"%d" % (n % keys), b"v" * 100)
        append(log, memoryview(bytearray(build_batch([record]))))


async def compact(log):
    dirt = measure(summarize(log, log.log_end), NOW)
    await clean(log, dirt, CleanerSettings(buffer_size=1 << 20), NOW)


def with_a_step_before_the_search(log, prepare, step):
    """``prepare`` for ``look_up``: before the first search runs, in its thread, the loop acts."""
    loop = asyncio.get_running_loop()
    steps = [step]

    def prepared():
        search = prepare()

        def run():
            if steps:
                asyncio.run_coroutine_threadsafe(steps.pop()(), loop).result(30)
            return search()

        return run

    return prepared


@in_loop
async def test_a_swap_under_a_search_does_not_change_what_it_finds(disk):
    log = disk.log()
    fill(log)
    prepare = with_a_step_before_the_search(
        log, lambda: log.offset_for_time(NOW + 120), lambda: compact(log)
    )
    found = await log.look_up(prepare)
    assert found == log.offset_for_time(NOW + 120)()
    assert found.offset > 120, "compaction took that record"


@in_loop
async def test_a_swap_between_index_and_log_does_not_lead_it_astray(disk, monkeypatch):
    log = disk.log()
    fill(log)
    loop = asyncio.get_running_loop()
    where = time_lookup._position
    steps = [compact]

    def position(segment, start):
        found = where(segment, start)
        if steps:
            asyncio.run_coroutine_threadsafe(steps.pop()(log), loop).result(30)
        return found

    monkeypatch.setattr(time_lookup, "_position", position)
    found = await log.look_up(lambda: log.offset_for_time(NOW + 120))
    assert not steps
    assert found == log.offset_for_time(NOW + 120)()


@in_loop
async def test_a_search_finds_what_is_left_when_retention_takes_its_file(disk):
    log = disk.log()
    fill(log)

    async def take():
        log.move_start_to(300)
        log.apply_retention(log.log_end, NOW + 400)
        disk.worker.run()  # unlinks

    prepare = with_a_step_before_the_search(log, lambda: log.offset_for_time(NOW + 10), take)
    assert (await log.look_up(prepare)).offset == 300


@in_loop
async def test_a_search_leaves_the_loops_files_and_indexes_alone(disk):
    log = disk.log()
    fill(log)
    log = disk.restarted()
    files, indexes = disk.logs._resources
    before = len(files), dict(indexes._held)
    assert (await log.look_up(lambda: log.offset_for_time(NOW + 77))).offset == 77
    assert (await log.look_up(log.max_timestamp)).offset == 399
    assert (len(files), indexes._held) == before


@in_loop
async def test_a_record_that_is_damaged_within_a_whole_batch_is_named(disk):
    log = disk.log()
    fill(log, 10)
    log.roll(NOW)
    with (log.folder / f"{0:020d}.log").open("r+b") as file:
        file.seek(-40, os.SEEK_END)
        file.write(b"\xff" * 40)
    with pytest.raises(Corrupt, match="at byte"):
        await log.look_up(lambda: log.offset_for_time(NOW + 9))


@in_loop
async def test_a_file_that_always_changes_is_given_up_in_words(disk):
    log = disk.log()
    fill(log, 10)

    def prepare():
        log._layout_count += 1
        search = log.offset_for_time(NOW)
        return lambda: (setattr(log, "_layout_count", log._layout_count + 1), search())[1]

    with pytest.raises(Rejected) as refused:
        await log.look_up(prepare)
    assert refused.value.code == ErrorCode.LEADER_NOT_AVAILABLE


# --- the times of many segments


@in_loop
async def test_times_are_read_in_a_thread_and_once(disk, monkeypatch):
    log = disk.log()
    fill(log)
    before = log.segment_facts()
    log = disk.restarted()
    threads = []
    read = Segment.read_last_time

    def read_last_time(segment):
        threads.append(threading.current_thread())
        return read(segment)

    monkeypatch.setattr(Segment, "read_last_time", read_last_time)
    monkeypatch.setattr(log_module, "_TIMES_PER_STEP", 2)
    for _ in range(2):
        await log.learn_times()
        assert log.segment_facts() == before
    assert len(threads) == log.segment_count - 1 > 2
    assert threading.current_thread() not in threads


@in_loop
async def test_a_time_that_cannot_be_read_is_left_to_whoever_needs_it(disk):
    log = disk.log()
    fill(log)
    before = log.segment_facts()
    log = disk.restarted()
    (log.folder / f"{0:020d}.timeindex").write_bytes(b"no index")
    await log.learn_times()
    assert [segment.base_offset for segment in log._segments.without_times()] == [0]
    assert log.segment_facts() == before, "small: made anew on the spot"


# --- damaged indexes of segments that are too large to be read on the loop


@pytest.fixture
def damaged(disk):
    """A log whose first segment has garbage for indexes; everything counts as large."""
    log = disk.log()
    fill(log)
    log = disk.restarted()
    disk.logs._resources.indexes.renewable_size_max = 1_000
    for suffix in ("index", "timeindex"):
        (log.folder / f"{0:020d}.{suffix}").write_bytes(b"no index")
    return log


def wait_for_the_child(log):
    while any(renewal.is_running for renewal in log._renewals.values()):
        threading.Event().wait(0.01)


@pytest.mark.parametrize(
    "use",
    [
        lambda log: log.read(20, 1 << 20, log.log_end),
        lambda log: log.segment_facts(),
        lambda log: asyncio.run(log.look_up(lambda: log.offset_for_time(NOW + 20))),
        lambda log: asyncio.run(log.look_up(log.max_timestamp)),
    ],
)
def test_a_child_makes_them_anew_and_clients_ask_again(damaged, use):
    for _ in range(2):
        with pytest.raises(Rejected) as refused:
            use(damaged)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    wait_for_the_child(damaged)
    assert use(damaged)
    assert [offset for offset, *_ in read_all(damaged)] == list(range(400))
    assert damaged.offset_for_time(NOW + 20)().offset == 20
    assert not list(damaged.folder.glob("*.tmp"))


def test_the_others_are_served_meanwhile(damaged):
    with pytest.raises(Rejected):
        damaged.read(20, 1 << 20, damaged.log_end)
    assert damaged.read(399, 1 << 20, damaged.log_end) is not None
    append(damaged, batch(b"new", timestamp=NOW))


def test_new_indexes_do_not_help_a_damaged_log(damaged):
    with (damaged.folder / f"{0:020d}.log").open("r+b") as file:
        file.seek(2_000)
        file.write(os.urandom(2_000))
    with pytest.raises(Rejected):
        damaged.read(80, 1 << 20, damaged.log_end)
    wait_for_the_child(damaged)
    with pytest.raises(Corrupt):
        damaged.read(80, 1 << 20, damaged.log_end)


def test_a_process_that_cannot_be_started_is_no_fault_of_the_disk(damaged, monkeypatch):
    def no_process(*arguments, **keywords):
        raise BlockingIOError(errno.EAGAIN, "too many processes")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", no_process)
        with pytest.raises(Rejected) as refused:
            damaged.read(20, 1 << 20, damaged.log_end)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(Rejected):
        damaged.read(20, 1 << 20, damaged.log_end)
    wait_for_the_child(damaged)
    assert damaged.read(20, 1 << 20, damaged.log_end)


def test_a_segment_that_compaction_put_there_is_renewed_as_the_one_before_was(disk):
    log = disk.log()
    fill(log, keys=390)
    log = disk.restarted()
    disk.logs._resources.indexes.renewable_size_max = 1_000
    for _ in range(2):
        (log.folder / f"{0:020d}.index").write_bytes(b"no index")
        with pytest.raises(Rejected):
            log.read(20, 1 << 20, log.log_end)
        wait_for_the_child(log)
        assert log.read(20, 1 << 20, log.log_end)
        asyncio.run(compact(log))


def test_a_child_that_was_killed_gets_a_successor_after_a_pause(damaged, monkeypatch):
    def ask():
        with pytest.raises(Rejected) as refused:
            damaged.read(20, 1 << 20, damaged.log_end)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR

    monkeypatch.setattr(index_rebuild, "_FIRST_PAUSE_S", 3600)
    ask()
    (underway,) = damaged._renewals.values()
    underway._child.kill()
    underway._child.wait()
    for _ in range(2):
        ask()
        assert not underway.is_running
    underway._retry_at = 0  # the pause is over
    ask()
    assert underway.is_running
    wait_for_the_child(damaged)
    assert damaged.read(20, 1 << 20, damaged.log_end)


# --- and of the one that is being written to


@pytest.fixture
def damaged_active(tmp_path, monkeypatch):
    """A log with one large segment, whose index is wrong in its middle, where no start looks."""
    disk = Disk(tmp_path / "data", config=settings(index_interval_bytes=500))
    log = disk.log()
    fill(log)
    disk.stop()
    path = log.folder / f"{0:020d}.index"
    entries = bytearray(path.read_bytes())
    for at in range(len(entries) // 4 // 8 * 8, len(entries) // 2, 8):
        entries[at + 7] ^= 1
    path.write_bytes(entries)
    disk.start()
    disk.logs._resources.indexes.renewable_size_max = 1_000

    def read_here(segment):
        raise AssertionError("the whole segment is read on the loop")

    monkeypatch.setattr(Segment, "read_indexes_from_log", read_here)
    yield disk.log()
    disk.crash()


def test_a_child_makes_the_indexes_of_the_active_segment_anew_too(damaged_active):
    log = damaged_active
    for n in range(2):
        with pytest.raises(Rejected) as refused:
            log.read(150, 1 << 20, log.log_end)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        append(log, batch(b"written meanwhile", timestamp=NOW + 400 + n))
    wait_for_the_child(log)
    assert log.read(150, 1 << 20, log.log_end)
    assert [offset for offset, _ in read_all(log, max_bytes=2_000)] == list(range(402))
    assert log.segment_bases == [0, 400]


def test_what_is_staged_is_not_torn_from_its_segment(damaged_active):
    log = damaged_active
    log.append_as_leader(batch(b"staged"), 0, NOW)
    with pytest.raises(Rejected):
        log.read(150, 1 << 20, log.log_end)
    log.write_staged()
    assert log.segment_bases == [0]
    assert read_bytes(log, 400)
