"""The bounds that filters give."""

import datetime

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from headrace.model.ids import TopicPartition
from headrace.spark.pushdown import Bounds, bounds_of, narrow

OFFSET, TIME, PARTITION, TOPIC = ("offset",), ("timestamp",), ("partition",), ("topic",)
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def moment(ms):
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)


@pytest.mark.parametrize(
    ("one", "first", "end"),
    [
        (EqualTo(OFFSET, 7), 7, 8),
        (GreaterThan(OFFSET, 7), 8, None),
        (GreaterThanOrEqual(OFFSET, 7), 7, None),
        (LessThan(OFFSET, 7), 0, 7),
        (LessThanOrEqual(OFFSET, 7), 0, 8),
        (In(OFFSET, (9, 3, 5)), 3, 10),
        (In(OFFSET, (9, None)), 9, 10),
        (Not(EqualTo(OFFSET, 7)), 0, None),
        (IsNotNull(OFFSET), 0, None),
    ],
)
def test_comparisons_of_offsets(one, first, end):
    bounds = bounds_of([one])

    assert (bounds.offset_first, bounds.offset_end) == (first, end)


def test_filters_are_joined_by_and():
    bounds = bounds_of([GreaterThan(OFFSET, 3), GreaterThan(OFFSET, 1), LessThan(OFFSET, 9)])

    assert (bounds.offset_first, bounds.offset_end) == (4, 9)


@pytest.mark.parametrize(
    ("one", "since", "until"),
    [
        (GreaterThanOrEqual(TIME, moment(1000)), 1000, None),
        (GreaterThan(TIME, moment(1000)), 1001, None),
        (LessThan(TIME, moment(1000)), None, 1000),
        (LessThanOrEqual(TIME, moment(1000)), None, 1001),
        (EqualTo(TIME, moment(1000)), 1000, 1001),
        (GreaterThan(TIME, moment(1000.5)), 1001, None),
        (LessThan(TIME, moment(1000.5)), None, 1001),
        (LessThan(TIME, datetime.datetime(2026, 1, 1)), None, None),  # noqa: DTZ001
    ],
)
def test_comparisons_of_times(one, since, until):
    bounds = bounds_of([one])

    assert (bounds.since_ms, bounds.until_ms_end) == (since, until)


def test_partitions_that_the_filters_exclude_are_left_out():
    assert bounds_of([EqualTo(TOPIC, "a")]).admits(A0)
    assert not bounds_of([EqualTo(TOPIC, "a")]).admits(B0)
    assert not bounds_of([StringStartsWith(TOPIC, "ab")]).admits(A0)
    assert not bounds_of([In(PARTITION, (1, 2))]).admits(A0)
    assert bounds_of([In(PARTITION, (1, 2))]).admits(A1)
    assert not bounds_of([LessThan(PARTITION, 1)]).admits(A1)
    assert not bounds_of([EqualTo(TOPIC, "a"), EqualTo(TOPIC, "b")]).admits(A0)
    assert bounds_of([EqualTo(("value", "topic"), "b")]).admits(A0)


class Brokers:
    """Lists offsets like a log with one record per 10 ms."""

    def __init__(self, timestamp_type):
        self.timestamp_type = timestamp_type

    def list_offsets(self, wanted, *, read_committed):
        return {p: -(-ms // 10) if ms <= 10_000_000 else -1 for p, ms in wanted.items()}

    def topic_setting(self, names, setting):
        return dict.fromkeys(names, self.timestamp_type)


def narrowed(bounds, timestamp_type="CreateTime", disorder_ms=None):
    return narrow(
        bounds,
        {A0: 0, B0: 5},
        {A0: 1000, B0: 5},
        Brokers(timestamp_type),
        read_committed=False,
        disorder_ms=disorder_ms,
    )


def test_a_lower_bound_in_time_is_exact():
    assert narrowed(Bounds(since_ms=500)) == ({A0: 50, B0: 50}, {A0: 1000, B0: 50})


def test_a_lower_bound_before_1970_lets_records_without_a_time_pass():
    class Timeless(Brokers):
        def list_offsets(self, wanted, *, read_committed):
            return dict.fromkeys(wanted, 7)  # the first record that has a time

    bounds = Bounds(since_ms=-500)
    starts, _ = narrow(
        bounds, {A0: 0}, {A0: 9}, Timeless("CreateTime"), read_committed=False, disorder_ms=None
    )

    assert starts == {A0: 0}


def test_a_time_after_all_records_leaves_no_rows():
    starts, ends = narrowed(Bounds(since_ms=10_000_001))

    assert starts == ends


def test_an_upper_bound_in_time_needs_order():
    bounds = Bounds(until_ms_end=500)

    assert narrowed(bounds)[1][A0] == 1000
    assert narrowed(bounds, disorder_ms=200)[1][A0] == 70
    assert narrowed(bounds, disorder_ms=0)[1][A0] == 50
    assert narrowed(bounds._replace(until_ms_end=-59_500), "LogAppendTime")[1][A0] == 50
