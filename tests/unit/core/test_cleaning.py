"""The decisions of compaction: which log, how far, what is cleaned together, what survives."""

import pytest

from headrace.core.cleaning import (
    DirtyRange,
    LastOfProducer,
    LogSummary,
    SegmentSummary,
    TransactionTrail,
    dirtiest,
    grouped,
    loses_all_records,
    measure,
    new_horizon,
    stays_without_records,
    surviving,
)
from headrace.core.producer_state import AbortedTransaction
from headrace.model.ids import Offset, ProducerId
from headrace.records.batch import CONTROL, DELETE_HORIZON, TRANSACTIONAL, BatchHeader
from headrace.records.record import ABORT, COMMIT, Span

NOW = 1_000_000


def segments(*bases_and_sizes: tuple[int, int], times: int = 0) -> list[SegmentSummary]:
    return [
        SegmentSummary(base, size, first_timestamp=times, largest_timestamp=times)
        for base, size in bases_and_sizes
    ]


def a_log(**changes: object) -> LogSummary:
    log = LogSummary(
        segments((0, 100), (10, 100), (20, 100), (30, 50)),
        log_start=0,
        log_end=35,
        stable_end=35,
        cleaned_end=None,
    )
    return log._replace(**changes)


def a_header(offset: int = 0, producer_id: int = -1, attributes: int = 0, horizon: int = -1):
    if horizon >= 0:
        attributes |= DELETE_HORIZON
    return BatchHeader(offset, 80, 0, 2, 0, attributes, 0, horizon, 5, producer_id, 0, 0, 1)


# -- which log, and how far -----------------------------------------------------------------


def test_a_log_never_cleaned_is_dirty_up_to_its_active_segment() -> None:
    assert measure(a_log(), NOW) == DirtyRange(0, 30, 0, 300, False)
    assert measure(a_log(), NOW).ratio == 1.0


def test_what_was_cleaned_counts_as_clean() -> None:
    dirt = measure(a_log(cleaned_end=20), NOW)
    assert dirt == DirtyRange(20, 30, 200, 100, False)
    assert dirt.ratio == pytest.approx(1 / 3)


@pytest.mark.parametrize("cleaned_end", [3, 36])
def test_a_checkpoint_outside_of_the_log_says_nothing(cleaned_end: int) -> None:
    log = a_log(log_start=5, cleaned_end=cleaned_end)
    assert measure(log, NOW).first_dirty == 5


def test_nothing_at_or_after_the_stable_end_is_cleaned() -> None:
    assert measure(a_log(stable_end=20), NOW).clean_end == 20
    assert measure(a_log(stable_end=19), NOW).clean_end == 10
    assert measure(a_log(stable_end=3), NOW).dirty_size == 0


def test_a_stable_end_below_the_first_dirty_offset_leaves_nothing_to_do() -> None:
    dirt = measure(a_log(cleaned_end=20, stable_end=12), NOW)
    assert (dirt.clean_end, dirt.dirty_size) == (20, 0)


def test_segments_younger_than_the_lag_stop_the_cleaning() -> None:
    young = [*segments((0, 100), (10, 100), times=NOW - 500), *segments((20, 100), (30, 50))]
    assert measure(a_log(segments=young, min_lag_ms=501), NOW).dirty_size == 0
    assert measure(a_log(segments=young, min_lag_ms=500), NOW).clean_end == 30


def test_a_log_is_overdue_once_its_oldest_dirty_batch_has_waited_too_long() -> None:
    old = segments((0, 100), (10, 100), (20, 100), (30, 50), times=NOW - 500)
    assert measure(a_log(segments=old, max_lag_ms=500), NOW).overdue is False
    assert measure(a_log(segments=old, max_lag_ms=499), NOW).overdue is True
    assert measure(a_log(segments=old, max_lag_ms=499, cleaned_end=30), NOW).overdue is False


def test_a_log_of_one_segment_has_nothing_to_clean() -> None:
    log = a_log(segments=segments((0, 100)), cleaned_end=None)
    assert measure(log, NOW).dirty_size == 0


def test_the_dirtiest_log_above_its_own_ratio_is_chosen() -> None:
    half, third = DirtyRange(0, 9, 50, 50, False), DirtyRange(0, 9, 200, 100, False)
    assert dirtiest({"a": (third, 0.1), "b": (half, 0.1)}) == "b"
    assert dirtiest({"a": (third, 0.1), "b": (half, 0.5)}) == "a"
    assert dirtiest({"a": (third, 0.5), "b": (half, 0.5)}) is None
    assert dirtiest({"a": (third._replace(overdue=True), 0.5), "b": (half, 0.5)}) == "a"
    assert dirtiest({"a": (DirtyRange(0, 0, 10, 0, True), 0.0)}) is None
    assert dirtiest({}) is None


def bases(groups: list[list[SegmentSummary]]) -> list[list[int]]:
    return [[segment.base_offset for segment in group] for group in groups]


def test_neighbours_are_grouped_up_to_the_size_of_one_segment() -> None:
    all_four = segments((0, 40), (10, 60), (20, 1), (30, 99))
    groups = grouped(all_four, segment_size_max=100, index_size_max=10, end=40)
    assert bases(groups) == [[0, 10], [20, 30]]


def test_a_group_ends_where_its_indexes_would_be_full() -> None:
    three = [SegmentSummary(base, 1, index_size=6) for base in (0, 10, 20)]
    assert bases(grouped(three, segment_size_max=100, index_size_max=12, end=30)) == [[0, 10], [20]]


def test_a_group_spans_no_more_offsets_than_an_index_entry_can_tell_apart() -> None:
    wide = segments((0, 1), (2**31 - 10, 1), (2**31, 1))
    groups = grouped(wide, segment_size_max=100, index_size_max=10, end=2**31 + 5)
    assert bases(groups) == [[0, 2**31 - 10], [2**31]]


# -- what survives --------------------------------------------------------------------------


def an_aborted(producer_id: int, first: int, last: int) -> AbortedTransaction:
    return AbortedTransaction(
        ProducerId(producer_id), Offset(first), Offset(last), Offset(last + 1)
    )


def test_the_batches_of_an_aborted_transaction_are_known_and_its_marker_stays_with_them() -> None:
    trail = TransactionTrail([an_aborted(7, 10, 13)])
    assert trail.data_batch(a_header(5, 7, TRANSACTIONAL)) is False  # an earlier, committed one
    assert trail.control_batch(a_header(6, 7, TRANSACTIONAL | CONTROL), COMMIT) is False
    assert trail.data_batch(a_header(10, 7, TRANSACTIONAL)) is True
    assert trail.data_batch(a_header(11, 8, TRANSACTIONAL)) is False
    assert trail.data_batch(a_header(12)) is False
    assert trail.control_batch(a_header(13, 7, TRANSACTIONAL | CONTROL), ABORT) is False
    assert trail.take_kept() == [an_aborted(7, 10, 13)]
    assert trail.take_kept() == []
    assert trail.data_batch(a_header(14, 7, TRANSACTIONAL)) is False


def test_a_marker_whose_transaction_has_no_batch_left_may_go() -> None:
    trail = TransactionTrail([an_aborted(7, 10, 13)])
    assert trail.control_batch(a_header(13, 7, TRANSACTIONAL | CONTROL), ABORT) is True
    assert trail.control_batch(a_header(20, 8, TRANSACTIONAL | CONTROL), COMMIT) is True
    assert trail.control_batch(a_header(21, 9, TRANSACTIONAL | CONTROL), None) is True
    assert trail.take_kept() == []


def test_a_control_batch_that_ends_no_transaction_stays() -> None:
    assert TransactionTrail([]).control_batch(a_header(1, -1, CONTROL), 2) is False


def test_aborted_records_go_at_once_and_markers_after_their_horizon() -> None:
    data, marker = a_header(), a_header(attributes=CONTROL)
    assert loses_all_records(data, discardable=True, now=NOW)
    assert not loses_all_records(data, discardable=False, now=NOW)
    assert not loses_all_records(marker, discardable=True, now=NOW)
    waiting = a_header(attributes=CONTROL, horizon=NOW + 1)
    assert not loses_all_records(waiting, discardable=True, now=NOW)
    assert loses_all_records(waiting, discardable=True, now=NOW + 1)
    assert not loses_all_records(waiting, discardable=False, now=NOW + 1)


def test_a_producers_last_batch_and_the_last_of_the_round_stay() -> None:
    batch = a_header(10, producer_id=7)
    last, other = LastOfProducer(10, 0), LastOfProducer(11, 0)
    assert stays_without_records(batch, last=last, clean_end=99)
    assert not stays_without_records(batch, last=other, clean_end=99)
    assert not stays_without_records(batch, last=None, clean_end=99)
    assert stays_without_records(batch, last=None, clean_end=11)


def test_a_marker_stays_for_a_producer_that_has_written_nothing_else_in_its_epoch() -> None:
    marker = a_header(10, producer_id=7, attributes=CONTROL)
    assert stays_without_records(marker, last=LastOfProducer(None, 0), clean_end=99)
    assert not stays_without_records(marker, last=LastOfProducer(None, 1), clean_end=99)
    assert not stays_without_records(a_header(10, 7), last=LastOfProducer(None, 0), clean_end=99)


def test_a_record_survives_unless_a_newer_one_of_its_key_is_known() -> None:
    found = [
        Span(0, 1, 0, 0, b"old", True),
        Span(1, 2, 0, 1, b"new", True),
        Span(2, 3, 0, 2, None, True),
        Span(3, 4, 0, 3, b"tombstone", False),
        Span(4, 5, 0, 4, b"unknown", True),
        Span(5, 6, 0, 9, None, False),
    ]
    newest = [105, 101, -1, 103, -1, -1]
    kept = surviving(found, newest, 100, mapped_end=109, keep_tombstones=True)
    assert [span.offset_delta for span in kept] == [1, 3, 4, 9]
    kept = surviving(found, newest, 100, mapped_end=109, keep_tombstones=False)
    assert [span.offset_delta for span in kept] == [1, 4, 9]


def test_a_delete_horizon_is_set_once_and_only_where_something_waits_for_it() -> None:
    def horizon(header: BatchHeader, tombstones: bool = False, empty: bool = False) -> int | None:
        return new_horizon(
            header,
            has_tombstones=tombstones,
            empty_transaction=empty,
            delete_retention_ms=50,
            now=NOW,
        )

    assert horizon(a_header()) is None
    assert horizon(a_header(), tombstones=True) == NOW + 50
    assert horizon(a_header(), empty=True) == NOW + 50
    assert horizon(a_header(horizon=5), tombstones=True) is None
