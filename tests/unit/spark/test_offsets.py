"""Starting and ending offsets from options, and how ranges are split into tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.ids import TopicPartition
from headrace.spark.cluster import EARLIEST, LATEST
from headrace.spark.failures import BadOption
from headrace.spark.offsets import (
    Range,
    check_limits,
    join,
    limited,
    limited_by_time,
    offsets_from_json,
    offsets_to_json,
    parse_ending,
    parse_starting,
    split,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
PLACES = st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 3))
OFFSETS = st.dictionaries(PLACES, st.integers(0, 2**60))


@given(OFFSETS)
def test_offsets_survive_their_json(offsets):
    assert offsets_from_json(offsets_to_json(offsets)) == offsets


def test_a_timestamp_for_all_precedes_timestamps_by_partition_and_offsets():
    options = {
        "startingoffsets": "earliest",
        "startingoffsetsbytimestamp": '{"a":{"0":5}}',
        "startingtimestamp": "9",
    }

    assert parse_starting(options, streaming=True).all_since_ms == 9
    del options["startingtimestamp"]
    assert parse_starting(options, streaming=True).since_ms_by_partition == ((A0, 5),)
    del options["startingoffsetsbytimestamp"]
    assert parse_starting(options, streaming=True).all_at == EARLIEST


def test_streams_start_at_latest_and_batches_read_everything():
    assert parse_starting({}, streaming=True).all_at == LATEST
    assert parse_starting({}, streaming=False).all_at == EARLIEST
    assert parse_ending({}).all_at == LATEST


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"startingoffsets": "latest"}, "cannot be latest in a batch"),
        ({"startingoffsets": '{"a":{"0":-1}}'}, "a-0 cannot be latest"),
        ({"startingoffsets": '{"a":{"0":-3}}'}, "-2 is earliest"),
        ({"startingoffsets": "first"}, "'first'"),
        ({"startingoffsets": '{"a":5}'}, "startingOffsets takes JSON"),
        ({"startingoffsets": '{"a":{"0":"5"}}'}, "startingOffsets takes JSON"),
        ({"startingoffsetsbytimestamp": "{"}, "startingOffsetsByTimestamp takes JSON"),
        ({"startingtimestamp": "soon"}, "startingTimestamp takes milliseconds"),
        ({"startingoffsetsbytimestampstrategy": "guess"}, "use error or latest"),
    ],
)
def test_a_wrong_start_is_refused_by_name(options, reason):
    with pytest.raises(BadOption, match=reason):
        parse_starting(options, streaming=False)


@pytest.mark.parametrize(
    "options", [{"endingoffsets": "earliest"}, {"endingoffsets": '{"a":{"0":-2}}'}]
)
def test_an_end_cannot_be_earliest(options):
    with pytest.raises(BadOption, match="cannot be earliest"):
        parse_ending(options)


def test_start_and_end_must_name_the_same_partitions_in_order():
    start = parse_starting({"startingoffsets": '{"a":{"0":9,"1":0}}'}, streaming=False)

    check_limits(start, parse_ending({"endingoffsets": '{"a":{"0":9,"1":-1}}'}))
    with pytest.raises(BadOption, match="a-0 is 9, which is after"):
        check_limits(start, parse_ending({"endingoffsets": '{"a":{"0":8,"1":-1}}'}))
    with pytest.raises(BadOption, match="only one of them names a-1"):
        check_limits(start, parse_ending({"endingoffsets": '{"a":{"0":8}}'}))


def test_a_limit_is_divided_by_backlog_and_starves_no_partition():
    starts = {A0: 0, A1: 100, B0: 50}
    ends = {A0: 900, A1: 200, B0: 51}

    assert limited(starts, ends, 100) == {A0: 89, A1: 109, B0: 51}
    assert limited(starts, ends, 5000) == ends


@given(
    st.dictionaries(PLACES, st.lists(st.integers(0, 50), max_size=60), min_size=1),
    st.integers(1, 99),
)
def test_a_batch_limited_by_time_leaves_no_older_record_behind(logs, rows_max):
    logs = {place: sorted(timestamps) for place, timestamps in logs.items()}
    starts = dict.fromkeys(logs, 0)
    ends = {place: len(timestamps) for place, timestamps in logs.items()}

    def offsets_at(timestamp_ms):
        return {
            place: next((n for n, one in enumerate(log) if one >= timestamp_ms), -1)
            for place, log in logs.items()
        }

    found = limited_by_time(starts, ends, rows_max, offsets_at)

    assert sum(found.values()) <= rows_max + len(logs)
    assert any(found.values()) or not any(ends.values())
    taken = [one for place, log in logs.items() for one in log[: found[place]]]
    left = [one for place, log in logs.items() for one in log[found[place] :]]
    assert not taken or not left or max(taken) <= min(left)


@given(
    st.dictionaries(PLACES, st.tuples(st.integers(0, 100), st.integers(0, 500))), st.integers(1, 99)
)
def test_a_limited_batch_moves_forward_and_never_past_the_end(backlogs, rows_max):
    starts = {place: start for place, (start, _) in backlogs.items()}
    ends = {place: start + size for place, (start, size) in backlogs.items()}

    found = limited(starts, ends, rows_max)

    assert found.keys() == ends.keys()
    assert all(starts[p] <= found[p] <= ends[p] for p in ends)
    assert sum(found[p] - starts[p] for p in ends) <= max(rows_max, 0) + len(ends)
    if any(size for _, size in backlogs.values()):
        assert found != starts


RANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 300)), max_size=6).map(
    lambda sizes: [
        Range(TopicPartition("t", n), first, first + size) for n, (first, size) in enumerate(sizes)
    ]
)


@given(RANGES, st.none() | st.integers(1, 20), st.none() | st.integers(1, 100))
def test_pieces_cover_every_range_once_in_order(ranges, partitions_min, rows_max):
    pieces = split(ranges, partitions_min=partitions_min, rows_max=rows_max)

    assert all(piece.size > 0 for piece in pieces)
    if rows_max is not None:
        assert all(piece.size <= rows_max for piece in pieces)
    for range_ in ranges:
        own = [piece for piece in pieces if piece.place == range_.place]
        covered = [offset for p in own for offset in range(p.first_offset, p.offset_end)]
        assert covered == list(range(range_.first_offset, range_.offset_end))


def test_large_partitions_are_cut_and_small_ones_are_not():
    ranges = [Range(A0, 0, 10), Range(A1, 0, 990)]

    pieces = split(ranges, partitions_min=10)

    assert len([p for p in pieces if p.place == A0]) == 1
    assert len(pieces) == 10
    assert split(ranges) == ranges
    assert split(ranges, partitions_min=2) == ranges


def test_more_partitions_than_rows_gives_a_row_each():
    assert len(split([Range(A0, 5, 8)], partitions_min=10)) == 3


def test_small_ranges_share_a_task_and_large_ones_have_their_own():
    small, large, last = Range(A0, 0, 3), Range(A1, 0, 100), Range(B0, 7, 9)
    assert join([small, last, large, small], 5) == [(small, last), (large,), (small,)]
    assert join([small, large], None) == [(small,), (large,)]
    assert join([], 5) == []
