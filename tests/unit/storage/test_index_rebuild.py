"""Damaged indexes of segments that are too large to rebuild on the loop."""

import asyncio
import errno
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from headrace.model.errors import Corrupt, ErrorCode, Rejected
from headrace.storage.log_retention import segment_facts
from headrace.storage.segment_indexes import SegmentIndexes
from headrace.storage.time_lookup import first_at, offset_for_time, offset_of_max_timestamp
from tests.fakes.compacted_disk import compact, compacted_disk, fill
from tests.fakes.logs import NOW, Disk, append, batch, read_all, read_bytes, settings
from tests.fakes.waiting import wait_until


@pytest.fixture
def disk(tmp_path) -> Iterator[Disk]:
    disk = compacted_disk(tmp_path / "data")
    yield disk
    disk.crash()


@pytest.fixture
def damaged(disk):
    """A log whose first segment has garbage for indexes; everything counts as large."""
    log = disk.log()
    fill(log)
    log = disk.restarted()
    disk.logs.resources.indexes.rebuildable_size_max = 1_000
    for suffix in ("index", "timeindex"):
        (log.path / f"{0:020d}.{suffix}").write_bytes(b"no index")
    return log


def wait_for_the_child(log):
    wait_until(lambda: not log.rebuilds.is_running)


@pytest.mark.parametrize(
    "use",
    [
        lambda log: log.read(20, 1 << 20, log.log_end),
        lambda log: segment_facts(log),
        lambda log: asyncio.run(offset_for_time(log, NOW + 20)),
        lambda log: asyncio.run(offset_of_max_timestamp(log)),
    ],
)
def test_a_child_rebuilds_the_indexes_and_clients_retry(damaged, use):
    for _ in range(2):
        with pytest.raises(Rejected) as refused:
            use(damaged)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    wait_for_the_child(damaged)
    assert use(damaged)
    assert [offset for offset, *_ in read_all(damaged)] == list(range(400))
    assert first_at(damaged, NOW + 20)().offset == 20
    assert not list(damaged.path.glob("*.tmp"))


def test_other_segments_are_served_meanwhile(damaged):
    with pytest.raises(Rejected):
        damaged.read(20, 1 << 20, damaged.log_end)
    assert damaged.read(399, 1 << 20, damaged.log_end) is not None
    append(damaged, batch(b"new", timestamp=NOW))


def test_a_damaged_log_is_reported_after_the_rebuild(damaged):
    with (damaged.path / f"{0:020d}.log").open("r+b") as file:
        file.seek(2_000)
        file.write(os.urandom(2_000))
    with pytest.raises(Rejected):
        damaged.read(80, 1 << 20, damaged.log_end)
    wait_for_the_child(damaged)
    with pytest.raises(Corrupt):
        damaged.read(80, 1 << 20, damaged.log_end)


def test_a_child_that_cannot_be_started_does_not_take_the_disk_offline(damaged, monkeypatch):
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


def test_a_segment_that_compaction_replaced_is_rebuilt_again(disk):
    log = disk.log()
    fill(log, keys=390)
    log = disk.restarted()
    disk.logs.resources.indexes.rebuildable_size_max = 1_000
    for _ in range(2):
        (log.path / f"{0:020d}.index").write_bytes(b"no index")
        with pytest.raises(Rejected):
            log.read(20, 1 << 20, log.log_end)
        wait_for_the_child(log)
        assert log.read(20, 1 << 20, log.log_end)
        asyncio.run(compact(log))


def test_a_killed_child_is_replaced_after_a_pause(disk, damaged):
    def ask():
        with pytest.raises(Rejected) as refused:
            damaged.read(20, 1 << 20, damaged.log_end)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR

    ask()
    rebuild = damaged.rebuilds.by_base[0]
    os.kill(rebuild.child.pid, signal.SIGKILL)
    wait_for_the_child(damaged)
    disk.world.time += 999
    for _ in range(2):
        ask()
        assert not rebuild.is_running
    disk.world.time += 1
    ask()
    assert rebuild.is_running
    wait_for_the_child(damaged)
    assert damaged.read(20, 1 << 20, damaged.log_end)


# --- the active segment


@pytest.fixture
def damaged_active(tmp_path, monkeypatch):
    """A log with one large segment; its index is wrong in the middle, which no start reads."""
    disk = Disk(tmp_path / "data", config=settings(index_interval_bytes=500))
    log = disk.log()
    fill(log)
    disk.stop()
    path = log.path / f"{0:020d}.index"
    entries = bytearray(path.read_bytes())
    for at in range(len(entries) // 4 // 8 * 8, len(entries) // 2, 8):
        entries[at + 7] ^= 1
    path.write_bytes(entries)
    disk.start()
    disk.logs.resources.indexes.rebuildable_size_max = 1_000

    def read_here(indexes):
        raise AssertionError("the loop reads the whole segment")

    monkeypatch.setattr(SegmentIndexes, "read_from_log", read_here)
    yield disk.log()
    disk.crash()


def test_a_child_rebuilds_the_indexes_of_the_active_segment_too(damaged_active):
    log = damaged_active
    for n in range(2):
        with pytest.raises(Rejected) as refused:
            log.read(150, 1 << 20, log.log_end)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        append(log, batch(b"written meanwhile", timestamp=NOW + 400 + n))
    wait_for_the_child(log)
    assert log.read(150, 1 << 20, log.log_end)
    assert [offset for offset, _ in read_all(log, max_bytes=2_000)] == list(range(402))
    assert log.segments.bases == [0, 400]


def test_a_rebuild_does_not_roll_away_from_staged_batches(damaged_active):
    log = damaged_active
    log.append_as_leader(batch(b"staged"), 0, NOW)
    with pytest.raises(Rejected):
        log.read(150, 1 << 20, log.log_end)
    log.write_staged()
    assert log.segments.bases == [0]
    assert read_bytes(log, 400)
