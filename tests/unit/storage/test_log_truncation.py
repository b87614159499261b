"""Truncation of a log: what goes with the batches."""

from headrace.storage.log_truncation import truncate_fully, truncate_to
from tests.fakes.logs import (
    NOW,
    append,
    batch,
    marker,
    read_all,
    segment_names,
    settings,
    three_segments,
)


def test_truncation_drops_everything_after_the_offset(disk):
    log = disk.log()
    log.update_config(settings(index_interval_bytes=1))
    for i in range(10):
        append(log, batch(b"%d" % i, producer_id=1, base_sequence=i), leader_epoch=i // 4)
        if i in (3, 6):
            log.roll(NOW)
    truncate_to(log, 5)
    assert (log.log_end, log.staged_end) == (5, 5)
    assert segment_names(log) == [0, 4]
    assert log.leader_epochs.entries == [(0, 0), (1, 4)]
    assert log.producers.entries[1].last_sequence == 4
    append(log, batch(b"new", producer_id=1, base_sequence=5))
    assert [value for _, value in read_all(log)] == [b"0", b"1", b"2", b"3", b"4", b"new"]


def test_truncation_inside_a_batch_drops_the_whole_batch(log):
    append(log, batch(b"a"), batch(b"b", b"c", b"d"))
    truncate_to(log, 3)
    assert log.log_end == 1
    assert read_all(log) == [(0, b"a")]


def test_truncation_at_or_after_the_end_changes_nothing(log):
    append(log, batch(b"a"))
    truncate_to(log, 1)
    truncate_to(log, 7)
    assert log.log_end == 1


def test_truncation_drops_aborted_transactions(log):
    append(log, batch(b"a", producer_id=1, transactional=True), marker(commit=False, producer_id=1))
    append(log, batch(b"b", producer_id=2, transactional=True), marker(commit=False, producer_id=2))
    assert log.aborted_transactions(0, 4) == [(1, 0), (2, 2)]
    truncate_to(log, 3)
    assert log.aborted_transactions(0, 4) == [(1, 0)]
    assert log.last_stable_offset(3) == 2


def test_full_truncation_starts_over_at_the_given_offset(log):
    three_segments(log)
    truncate_fully(log, 100)
    assert (log.log_start, log.log_end, log.segments.size) == (100, 100, 0)
    assert segment_names(log) == [100]
    assert log.producers.entries == {} and log.leader_epochs.entries == []
    assert append(log, batch(b"a")).base_offset == 100


def test_truncation_below_the_first_segment_starts_over(log):
    truncate_fully(log, 100)
    append(log, batch(b"a"))
    truncate_to(log, 50)
    assert (log.log_start, log.log_end) == (50, 50)
