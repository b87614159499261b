"""Spans of touched windows."""

from headrace.pipeline.runner.windows import Touched, spans


def test_windows_that_touch_are_one_span():
    assert spans([0, 10, 30], 10) == [(0, 20), (30, 40)]


def test_of_many_spans_the_closest_are_joined():
    starts = [100 * n for n in range(49)] + [20_000, 20_020, 50_000]
    found = spans(starts, 10)
    assert len(found) == 50
    assert (20_000, 20_030) in found and found[-1] == (50_000, 50_010)


def test_a_producer_whose_clock_is_ahead_has_sent_before_the_window():
    assert Touched("minute", 60_000, (1_200_000, 1_800_000)).arrived_since_ms == 600_000
