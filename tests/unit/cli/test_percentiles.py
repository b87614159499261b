"""Percentiles from logarithmic buckets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.percentiles import Percentiles


@given(
    st.lists(st.floats(min_value=1e-6, max_value=100), min_size=1, max_size=300),
    st.sampled_from([1.0, 50.0, 90.0, 99.0, 99.9, 100.0]),
)
def test_a_percentile_is_within_a_percent_of_the_sorted_list(seconds, percent):
    percentiles = Percentiles()
    for value in seconds:
        percentiles.add(value)
    rank = max(1, -(-len(seconds) * percent // 100))
    exact = sorted(seconds)[int(rank) - 1]
    assert percentiles.at(percent) == pytest.approx(exact, rel=0.011)


def test_the_maximum_is_exact_and_no_percentile_exceeds_it():
    percentiles = Percentiles()
    for value in (0.001, 0.25):
        percentiles.add(value)
    named_ms = percentiles.named_ms()
    assert named_ms is not None
    assert (named_ms["max"], named_ms["p99.9"]) == (250.0, 250.0)


def test_without_durations_there_are_no_percentiles():
    assert Percentiles().named_ms() is None
