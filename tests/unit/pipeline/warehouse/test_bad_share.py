"""The stop rule: a broken producer stops the load, one bad record of three does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.warehouse.bad_share import JUDGED_MIN, BadShare

MAX = 0.05


def test_a_batch_of_enough_records_is_judged_alone():
    share = BadShare(MAX)
    assert share.too_many(5, 100) is None
    assert share.too_many(6, 100) == (6, 100)
    share.add(0, 1_000_000)
    assert share.too_many(6, 100) == (6, 100)


def test_one_bad_record_in_a_small_batch_does_not_stop_a_load():
    assert BadShare(MAX).too_many(1, 3) is None


def test_small_batches_are_judged_together():
    share = BadShare(MAX)
    for _ in range(33):
        assert share.too_many(1, 3) is None
        share.add(1, 3)
    assert share.too_many(1, 3) == (34, 102)


def test_old_batches_are_forgotten():
    share = BadShare(MAX)
    share.add(99, 99)
    share.add(0, 100)
    assert share.too_many(0, 1) is None  # judged with the hundred good records only


@pytest.mark.parametrize(("share_max", "stops"), [(0.0, True), (1.0, False)])
def test_all_or_nothing(share_max, stops):
    assert (BadShare(share_max).too_many(100, 100) is not None) == stops


@given(st.lists(st.integers(0, 20).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))))
def test_a_load_stops_for_more_than_its_share_of_at_least_a_hundred(batches):
    share = BadShare(MAX)
    for bad, total in batches:
        stopped = share.too_many(bad, total)
        if stopped is not None:
            assert stopped.total >= JUDGED_MIN and stopped.bad > MAX * stopped.total
            break
        share.add(bad, total)
