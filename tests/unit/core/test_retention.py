"""When segments are closed and when they go."""

import pytest

from headrace.core.retention import Expiry, RollReason, SegmentFacts, expired, roll_reason

ROOM = {
    "size": 100,
    "batch_size": 50,
    "segment_bytes": 1000,
    "waited_ms": 10,
    "segment_ms": 100,
    "jitter_ms": 0,
    "index_is_full": False,
    "relative_last_offset": 7,
}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, None),
        ({"size": 950}, None),
        ({"size": 951}, RollReason.SIZE),
        ({"waited_ms": 100}, None),
        ({"waited_ms": 101}, RollReason.AGE),
        ({"waited_ms": 81, "jitter_ms": 20}, RollReason.AGE),
        ({"waited_ms": 101, "size": 0}, None),
        ({"index_is_full": True}, RollReason.INDEX),
        ({"relative_last_offset": 2**31 - 1}, None),
        ({"relative_last_offset": 2**31}, RollReason.OFFSETS),
    ],
)
def test_a_segment_is_closed_when_a_limit_is_passed_and_not_before(changed, reason):
    assert roll_reason(**{**ROOM, **changed}) is reason


# Three full segments of 100 bytes and an active one of 40, one time unit apart.
LOG = [
    SegmentFacts(0, 10, 100, 1000),
    SegmentFacts(10, 20, 100, 2000),
    SegmentFacts(20, 30, 100, 3000),
    SegmentFacts(30, 34, 40, 4000),
]
KEEP = {
    "deletes": True,
    "retention_bytes": -1,
    "retention_ms": -1,
    "log_start": 0,
    "high_watermark": 34,
    "now": 5000,
}


def gone(segments=LOG, **changed):
    return expired(segments, **{**KEEP, **changed})


def test_without_limits_nothing_goes():
    assert gone() == Expiry(0, 0, 0, 0)


def test_by_time_the_newest_record_of_a_segment_counts():
    assert gone(retention_ms=3000).by_time == 1
    assert gone(retention_ms=2999).by_time == 2


def test_by_time_even_the_active_segment_goes():
    assert gone(retention_ms=0).segment_count == 4


def test_a_newer_segment_in_between_protects_those_behind_it():
    segments = [LOG[0], LOG[1]._replace(largest_timestamp=9000), LOG[2]]
    assert gone(segments, retention_ms=100, high_watermark=30).segment_count == 1


def test_by_size_only_whole_segments_beyond_the_limit_go():
    assert gone(retention_bytes=340).by_size == 0
    assert gone(retention_bytes=241).by_size == 0
    assert gone(retention_bytes=240).by_size == 1
    assert gone(retention_bytes=0).by_size == 4


def test_what_is_below_the_log_start_goes_whole_segments_at_a_time():
    assert gone(log_start=19).before_log_start == 1
    assert gone(log_start=20).before_log_start == 2
    assert gone(log_start=34).before_log_start == 3  # the active one has no successor


def test_nothing_goes_that_is_not_replicated():
    assert gone(retention_ms=0, high_watermark=29).segment_count == 2
    assert gone(retention_bytes=0, high_watermark=9).segment_count == 0


def test_an_empty_active_segment_stays():
    segments = [LOG[0], SegmentFacts(10, 10, 0, 100)]
    assert gone(segments, retention_ms=0, high_watermark=10).segment_count == 1


def test_a_topic_that_only_compacts_loses_nothing_but_what_was_deleted():
    assert gone(deletes=False, retention_ms=0, retention_bytes=0) == Expiry(0, 0, 0, 0)
    assert gone(deletes=False, retention_ms=0, log_start=10) == Expiry(1, 1, 0, 0)


def test_the_rules_add_up_without_leaving_a_hole():
    expiry = gone(log_start=10, retention_bytes=140, retention_ms=1500)
    assert expiry == Expiry(3, 1, 1, 1)
