"""Which fetches a leader serves, and what it answers to the others."""

import pytest

from headrace.core.fetch_rules import check_follower, check_leader_epoch, find_divergence
from headrace.core.leader_epochs import EpochEnd, EpochEntry, LeaderEpochs
from headrace.model.errors import ErrorCode, Rejected

LOG_START, LOG_END = 10, 30
EPOCHS = LeaderEpochs(EpochEntry(*entry) for entry in [(2, 10), (5, 20)])


def divergence(fetch_offset, last_fetched_epoch):
    return find_divergence(fetch_offset, last_fetched_epoch, EPOCHS, LOG_START, LOG_END)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (-1, None),
        (3, ErrorCode.FENCED_LEADER_EPOCH),
        (4, None),
        (5, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_a_fetch_in_another_leader_epoch_is_refused(asked, code):
    if code is None:
        check_leader_epoch(asked, 4)
        return
    with pytest.raises(Rejected) as refused:
        check_leader_epoch(asked, 4)
    assert refused.value.code is code


def test_a_broker_that_is_no_replica_is_told_of_an_unknown_epoch():
    check_follower(2, {2, 3})
    with pytest.raises(Rejected) as refused:
        check_follower(4, {2, 3})
    assert refused.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize(
    ("fetch_offset", "last_fetched_epoch"),
    [(10, -1), (30, -1), (25, 5), (30, 5), (20, 2), (10, 2)],
)
def test_a_position_in_the_log_does_not_diverge(fetch_offset, last_fetched_epoch):
    assert divergence(fetch_offset, last_fetched_epoch) is None


@pytest.mark.parametrize(
    ("fetch_offset", "last_fetched_epoch", "end"),
    [
        (21, 2, EpochEnd(2, 20)),  # epoch 2 ended earlier here
        (31, 5, EpochEnd(5, 30)),  # the current epoch did
        (15, 3, EpochEnd(2, 20)),  # epoch 3 is unknown here
        (11, 1, EpochEnd(1, 10)),  # older than all that is known here
    ],
)
def test_records_that_the_log_does_not_have_are_answered_with_the_diverging_epoch(
    fetch_offset, last_fetched_epoch, end
):
    assert divergence(fetch_offset, last_fetched_epoch) == end


@pytest.mark.parametrize(
    ("fetch_offset", "last_fetched_epoch"),
    [
        (9, -1),
        (31, -1),
        (9, 1),  # below the log start, whatever the epochs say
        (25, 6),  # an epoch above all that is known here
    ],
)
def test_a_position_outside_the_log_is_out_of_range(fetch_offset, last_fetched_epoch):
    with pytest.raises(Rejected) as refused:
        divergence(fetch_offset, last_fetched_epoch)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_rule_2_a_position_above_the_high_watermark_is_in_range_up_to_the_log_end():
    """Rule 2: a new leader's high watermark may be below what a consumer has read already.

    No high watermark decides about the range, so such a fetch is empty and waits.
    """
    assert divergence(LOG_END, 5) is None
