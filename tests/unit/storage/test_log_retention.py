"""Retention of a log by time and size, and DeleteRecords."""

import pytest

from headrace.model.errors import ErrorCode, Rejected
from headrace.storage import log_retention
from headrace.storage.log_retention import apply_retention, delete_records_before
from tests.fakes.logs import (
    NOW,
    append,
    batch,
    fill,
    read_all,
    segment_names,
    settings,
    three_segments,
)

DAY_MS = 86_400_000


def test_old_segments_are_renamed_at_once_and_unlinked_later(disk):
    log = disk.log()
    three_segments(log)
    disk.worker.run()
    log.update_config(settings(retention_ms=500, file_delete_delay_ms=60_000))
    assert apply_retention(log, log.log_end, NOW + 2000).by_time == 2
    assert segment_names(log) == [4, 6]
    assert (log.log_start, log.log_end) == (4, 6)
    deleted = list(log.path.glob("*.deleted"))
    assert len(deleted) == 6
    assert [delay for delay, _ in disk.worker.jobs] == [60_000]
    disk.worker.run()
    assert not list(log.path.glob("*.deleted"))
    assert not (log.path / f"{2:020d}.snapshot").exists()


def test_if_all_records_expire_a_new_empty_segment_remains(log):
    append(log, batch(b"a"))
    log.update_config(settings(retention_ms=0))
    apply_retention(log, log.log_end, NOW + DAY_MS)
    assert segment_names(log) == [1]
    assert (log.log_start, log.log_end) == (1, 1)
    assert append(log, batch(b"b")).base_offset == 1


def test_a_round_deletes_a_limited_number_of_segments(log, monkeypatch):
    for _ in range(5):
        append(log, batch(b"a"))
        log.roll(NOW)
    monkeypatch.setattr(log_retention, "DELETED_AT_ONCE_MAX", 2)
    log.update_config(settings(retention_ms=0))
    may_go = []
    while not may_go or may_go[-1] > 2:
        may_go.append(apply_retention(log, log.log_end, NOW + DAY_MS).segment_count)
    assert may_go == [5, 3, 1]
    assert (log.log_start, segment_names(log)) == (5, [5])


def test_retention_bytes_applies_per_partition(log):
    three_segments(log)
    log.update_config(settings(retention_bytes=log.segments.size // 2, retention_ms=-1))
    assert apply_retention(log, log.log_end, NOW).by_size == 1
    assert log.log_start == 2


def test_deleted_records_are_hidden_now_and_their_segments_deleted_later(log):
    three_segments(log)
    delete_records_before(log, 3)
    with pytest.raises(Rejected):
        log.read(2, 100, 6)
    assert read_all(log)[0][0] == 3
    assert segment_names(log) == [0, 2, 4, 6]
    apply_retention(log, log.log_end, NOW)
    assert segment_names(log) == [2, 4, 6]
    assert log.log_start == 3


def test_records_cannot_be_deleted_beyond_the_end(log):
    append(log, batch(b"a"))
    with pytest.raises(Rejected) as caught:
        delete_records_before(log, 2)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_log_start_does_not_move_back(log):
    fill(log, [b"a"] * 5)
    delete_records_before(log, 4)
    delete_records_before(log, 2)
    assert log.log_start == 4
