"""Searches by timestamp, in a thread, while the loop changes files.

A test can run a step of the loop between the preparation of a search and its run.
"""

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest

from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.storage.log_retention import (
    apply_retention,
    delete_records_before,
    learn_times,
    segment_facts,
)
from headrace.storage.segment import Segment
from headrace.storage.segment_indexes import SegmentIndexes
from headrace.storage.time_lookup import (
    first_at,
    largest,
    look_up,
    offset_for_time,
    offset_of_max_timestamp,
)
from tests.fakes.compacted_disk import compact, compacted_disk, fill
from tests.fakes.logs import NOW, Disk, append, batch
from tests.fakes.standin import in_loop


@pytest.fixture
def disk(tmp_path) -> Iterator[Disk]:
    disk = compacted_disk(tmp_path / "data")
    yield disk
    disk.crash()


def with_a_step_before_the_search(log, prepare, step):
    """A ``prepare`` for ``look_up``: the loop runs ``step`` before the first search."""
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
async def test_a_search_is_repeated_if_compaction_replaces_segments(disk):
    log = disk.log()
    fill(log)
    prepare = with_a_step_before_the_search(
        log, lambda: first_at(log, NOW + 120), lambda: compact(log)
    )
    found = await look_up(log, prepare)
    assert found == first_at(log, NOW + 120)()
    assert found.offset > 120, "compaction took that record"


@in_loop
async def test_compaction_between_index_and_log_does_not_mislead_a_search(disk, monkeypatch):
    log = disk.log()
    fill(log)
    loop = asyncio.get_running_loop()
    position_of = Segment.position_of
    loop_thread = threading.get_ident()
    steps = [compact]

    def position_and_step(segment, offset):
        found = position_of(segment, offset)
        if steps and threading.get_ident() != loop_thread:
            asyncio.run_coroutine_threadsafe(steps.pop()(log), loop).result(30)
        return found

    monkeypatch.setattr(Segment, "position_of", position_and_step)
    found = await offset_for_time(log, NOW + 120)
    assert not steps
    assert found == first_at(log, NOW + 120)()


@in_loop
async def test_a_search_finds_what_remains_when_retention_deletes_its_file(disk):
    log = disk.log()
    fill(log)

    async def take():
        delete_records_before(log, 300)
        apply_retention(log, log.log_end, NOW + 400)
        disk.worker.run()  # unlinks

    prepare = with_a_step_before_the_search(log, lambda: first_at(log, NOW + 10), take)
    assert (await look_up(log, prepare)).offset == 300


@in_loop
async def test_a_search_does_not_touch_the_files_and_indexes_of_the_loop(disk):
    log = disk.log()
    fill(log)
    log = disk.restarted()
    _, files, indexes = disk.logs.resources
    before = len(files), len(indexes)
    assert (await offset_for_time(log, NOW + 77)).offset == 77
    assert (await offset_of_max_timestamp(log)).offset == 399
    assert (len(files), len(indexes)) == before


@in_loop
async def test_a_record_that_is_damaged_within_a_whole_batch_is_named(disk):
    log = disk.log()
    fill(log, 10)
    log.roll(NOW)
    with (log.path / f"{0:020d}.log").open("r+b") as file:
        file.seek(-40, os.SEEK_END)
        file.write(b"\xff" * 40)
    with pytest.raises(Corrupt, match="at byte"):
        await offset_for_time(log, NOW + 9)


@in_loop
async def test_a_search_in_files_that_keep_changing_is_rejected(disk):
    log = disk.log()
    fill(log, 10)

    def prepare():
        search = first_at(log, NOW)

        def run():
            log.segments.layout_count += 1
            return search()

        return run

    with pytest.raises(Rejected) as refused:
        await look_up(log, prepare)
    assert refused.value.code == ErrorCode.LEADER_NOT_AVAILABLE


# --- the times of many segments


@in_loop
async def test_times_are_read_once_in_a_thread(disk, monkeypatch):
    log = disk.log()
    fill(log)
    before = segment_facts(log)
    log = disk.restarted()
    threads = []
    read = SegmentIndexes.read_last_time

    def read_last_time(indexes):
        threads.append(threading.current_thread())
        return read(indexes)

    monkeypatch.setattr(SegmentIndexes, "read_last_time", read_last_time)
    for _ in range(2):
        await learn_times(log, segments_per_step=2)
        assert segment_facts(log) == before
    assert len(threads) == len(log.segments) - 1 > 2
    assert threading.current_thread() not in threads


@in_loop
async def test_an_unreadable_time_index_is_rebuilt_when_it_is_needed(disk):
    log = disk.log()
    fill(log)
    before = segment_facts(log)
    log = disk.restarted()
    (log.path / f"{0:020d}.timeindex").write_bytes(b"no index")
    await learn_times(log)
    assert [segment.base_offset for segment in log.segments.without_times()] == [0]
    assert segment_facts(log) == before, "small: rebuilt at once"


# --- without a thread


def test_a_timestamp_is_found_record_by_record(log):
    for i in range(0, 100, 2):
        append(log, batch(b"a" * 300, timestamp=NOW + i), leader_epoch=6)
    log.roll(NOW)
    append(log, batch(b"last", timestamp=NOW + 500))
    assert first_at(log, NOW - 5)()[:2] == (0, NOW)
    assert first_at(log, NOW + 40)() == (20, NOW + 40, 6)
    assert first_at(log, NOW + 41)()[:2] == (21, NOW + 42)
    assert first_at(log, NOW + 99)()[:2] == (50, NOW + 500)
    assert first_at(log, NOW + 501)() is None


def test_timestamps_below_the_log_start_are_not_found(log):
    for i in range(5):
        append(log, batch(b"a", b"b", timestamp=NOW + i))
    delete_records_before(log, 5)
    assert first_at(log, NOW)()[:2] == (5, NOW + 2)


def test_the_largest_timestamp_is_found_though_later_records_are_older(log):
    assert largest(log)() is None
    for timestamp in (3, 9, 4):
        append(log, batch(b"x", b"y", timestamp=NOW + timestamp))
    log.roll(NOW)
    append(log, batch(b"z", timestamp=NOW + 5))
    assert largest(log)()[:2] == (2, NOW + 9)
