"""What an error in an AlterPartition answer means to the leader."""

import pytest

from headrace.core.isr import FollowerProgress, IsrRefusal, refusal_of
from headrace.model.errors import ErrorCode


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        (107, IsrRefusal.NOT_APPLIED),
        (55, IsrRefusal.NOT_APPLIED),
        (74, IsrRefusal.AWAIT_CONTROLLER),
        (95, IsrRefusal.AWAIT_CONTROLLER),
        (100, IsrRefusal.AWAIT_CONTROLLER),
        (3, IsrRefusal.AWAIT_CONTROLLER),
        (42, IsrRefusal.AWAIT_CONTROLLER),
        (108, IsrRefusal.AWAIT_CONTROLLER),
        (41, IsrRefusal.OUTCOME_UNKNOWN),
        (77, IsrRefusal.OUTCOME_UNKNOWN),
        (7, IsrRefusal.OUTCOME_UNKNOWN),
        (-1, IsrRefusal.OUTCOME_UNKNOWN),
    ],
)
def test_each_error_of_alter_partition_has_its_meaning(code, refusal):
    assert refusal_of(ErrorCode(code)) is refusal


def test_a_follower_lags_after_the_lag_time_and_not_before():
    progress = FollowerProgress(caught_up_at=100)
    assert progress.is_caught_up(5, 130, 30)
    assert not progress.is_caught_up(5, 130.5, 30)


def test_a_follower_that_was_never_caught_up_lags_whatever_the_clock_shows():
    assert not FollowerProgress(caught_up_at=None).is_caught_up(0, 1, 30)


def test_a_fetch_without_broker_epoch_is_taken_and_keeps_the_known_one():
    progress = FollowerProgress(caught_up_at=None)
    assert progress.fetched(1, 0, 50, 5, 0)
    assert progress.fetched(2, 0, -1, 5, 1)
    assert (progress.log_end, progress.broker_epoch, progress.fetched_at) == (2, 50, 1)
