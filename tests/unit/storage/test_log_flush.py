"""Flushing a log: when it is due, what counts as durable, an fsync that fails."""

import asyncio
import errno
import os

import pytest

from headrace.storage.log_truncation import truncate_to
from tests.fakes.logs import (
    NOW,
    fill,
    settings,
)


def test_flushing_moves_the_recovery_point(log):
    fill(log, [b"a", b"b"])
    assert log.flusher.recovery_point == 0
    asyncio.run(log.flusher.flush())
    assert log.flusher.recovery_point == 2


def test_a_flush_that_began_before_a_truncation_does_not_count(log):
    fill(log, [b"a", b"b", b"c"])
    make_durable = log.flusher.begin()
    truncate_to(log, 1)
    fill(log, [b"x", b"y", b"z"])
    make_durable()
    assert log.flusher.recovery_point == 0


def test_flushes_are_due_by_count_and_by_time(log):
    log.update_config(settings(flush_messages=3, flush_ms=1000))
    fill(log, [b"a", b"b"])
    assert not log.flusher.needs_flush(NOW + 999)
    assert log.flusher.needs_flush(NOW + 1000)
    fill(log, [b"c"])
    assert log.flusher.needs_flush(NOW)
    log.flusher.flush_now()
    assert not log.flusher.needs_flush(NOW + 5000)


def test_flush_ms_counts_from_the_last_flush_while_records_keep_coming(disk):
    disk.config = settings(flush_ms=1000)
    log = disk.log()
    fill(log, [b"a"])
    assert log.flusher.needs_flush(NOW + 1000)
    disk.world.time = NOW + 1000
    make_durable = log.flusher.begin()
    fill(log, [b"b"])  # before the flush has ended: no check finds the log fully flushed
    make_durable()
    assert log.flusher.recovery_point == 1
    assert not log.flusher.needs_flush(NOW + 1999)
    assert log.flusher.needs_flush(NOW + 2000)


def test_a_closed_segment_is_flushed_in_the_background(disk):
    log = disk.log()
    fill(log, [b"a", b"b"])
    log.roll(NOW)
    assert log.flusher.recovery_point == 0
    disk.worker.run()
    assert log.flusher.recovery_point == 2


def test_segments_that_wait_for_fsync_hold_no_descriptors(disk):
    disk.config = settings(segment_bytes=100)
    log = disk.log()
    open_before = len(os.listdir("/dev/fd"))
    fill(log, [b"as large as a segment"] * 50)
    assert len(log.segments) >= 49
    held = len(log.segments) + 10  # the logs themselves may stay open, within the limit on files
    assert len(os.listdir("/dev/fd")) <= open_before + held
    assert len(disk.worker.jobs) == 1
    disk.worker.run()
    assert log.flusher.recovery_point == log.segments.active.base_offset
    fill(log, [b"as large as a segment"] * 2)
    disk.worker.run()
    assert log.flusher.recovery_point == log.segments.active.base_offset


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_failing_fsync_takes_the_log_directory_offline(code, disk, log):
    fill(log, [b"a"])
    disk.files.fail(code, "fsync")
    log.flusher.flush_now()
    assert log.flusher.recovery_point == 0
    assert "fsync" in log.offline
