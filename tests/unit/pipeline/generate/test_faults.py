"""Late, doubled and broken records, and what is counted."""

import numpy as np

from headrace.pipeline.generate import faults
from headrace.pipeline.generate.faults import Count, counted, with_faults

SENT = np.arange(0, 86_400_000, 432)  # 200,000 events
END = 86_400_000


def records(**more):
    settings = {"doubled": 2_000, "broken": True, "first_at_ms": 0, "end_ms": END}
    return with_faults(SENT, np.random.default_rng(7), **(settings | more))


def test_records_are_sorted_and_counted():
    found = records()
    assert len(found.row) == len(SENT) + 2_000
    assert (np.diff(found.sent_ms) >= 0).all() and found.sent_ms.max() < END
    count = counted(found)
    assert count.sent == len(found.row)
    assert count.sent == count.unique + count.doubled + count.broken + count.out_of_time
    assert count.doubled == 2_000
    assert 1_200 < count.late < 1_800
    assert 250 < count.too_late < 500
    assert 50 < count.broken < 200 and 50 < count.out_of_time < 200


def test_events_are_sent_after_they_happened():
    found = records()
    good = found.state == faults.GOOD
    delay = (found.sent_ms - found.at_ms)[good & ~found.is_double]
    assert delay.min() >= 0 and found.at_ms[good].min() >= 0
    assert np.median(delay) < 1_500
    assert not ((delay > 540_000) & (delay < 660_000)).any(), "far from the border of ten minutes"


def test_a_double_repeats_a_good_event_soon():
    found = records()
    doubles = found.taken(np.flatnonzero(found.is_double))
    assert (doubles.state == faults.GOOD).all()
    assert len(set(doubles.row.tolist())) == 2_000
    first = found.taken(np.flatnonzero(~found.is_double))
    first = first.taken(np.argsort(first.row))
    assert (doubles.at_ms == first.at_ms[doubles.row]).all()
    after = doubles.sent_ms - first.sent_ms[doubles.row]
    assert after.min() >= 0 and after.max() <= 300_000


def test_broken_times_and_no_broken_ones():
    found = records()
    years = found.at_ms.astype("datetime64[ms]").astype("datetime64[Y]").astype(int) + 1970
    assert (years[found.state == faults.IN_2100] == 2100).all()
    assert (years[found.state == faults.IN_1970] == 1970).all()
    clean = counted(records(broken=False))
    assert (clean.broken, clean.out_of_time) == (0, 0)


def test_without_a_first_time_every_late_event_may_be_early():
    assert records(first_at_ms=None).at_ms.min() < 0


def test_counts_add_up():
    one = Count(*range(1, 8))
    assert one.plus(one) == Count(*range(2, 16, 2))
