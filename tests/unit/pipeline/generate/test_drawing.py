"""Times and bursts stay within their span."""

import numpy as np

from headrace.pipeline.generate.drawing import Burst, Drawing, Span
from headrace.pipeline.generate.site import make_site

SITE = make_site(1, 100)


def drawing(length_ms, has_rhythm=False):
    return Drawing(SITE, Span(5_000, length_ms, has_rhythm), np.random.default_rng(1))


def test_bursts_have_their_rate():
    of_event, time, start, length = drawing(3_600_000).bursts(Burst(0.1, 2.0, 100), 250)
    assert len(start) == 3 and set(of_event.tolist()) == {0, 1, 2}
    for burst in range(3):
        mine = time[of_event == burst]
        assert 80 <= len(mine) <= 100
        assert mine.min() >= start[burst] and mine.max() < start[burst] + length[burst]
        assert 35_000 < length[burst] < 50_000


def test_no_burst():
    of_event, time, start, length = drawing(60_000).bursts(Burst(0.1, 2.0, 100), 0)
    assert len(of_event) == len(time) == len(start) == len(length) == 0


def test_times_wrap_at_the_end_of_the_span():
    short = drawing(1_000)
    assert short.bursts(Burst(0.1, 1.0, 1_000), 500)[1].max() < 1_000
    assert short.soon_after(np.full(100, 999), 60_000).max() < 1_000
    assert short.times(100).max() < 1_000
    assert drawing(86_400_000, has_rhythm=True).times(1_000).max() < 86_400_000


def test_events_are_sorted():
    found = drawing(1_000).events(np.array([3, 1, 2]))
    assert found.sent_ms.tolist() == [5_001, 5_002, 5_003]
