"""A follower: where it fetches, what it truncates (rule 3), and its high watermark."""

import pytest

from headrace.core.following import FetchPosition, Following
from headrace.core.leader_epochs import EpochEnd, EpochEntry, LeaderEpochs
from headrace.core.leadership import ReplicationSettings
from headrace.core.partition_effects import (
    AdvanceLogStart,
    HighWatermarkAdvanced,
    RestartLog,
    Truncate,
)

LEADER = 2


def a_following(high_watermark=0, **settings):
    return Following(LEADER, 6, ReplicationSettings(**settings), high_watermark)


def a_history(*entries):
    return LeaderEpochs(EpochEntry(*entry) for entry in entries)


# --- where it fetches --------------------------------------------------------


def test_it_fetches_at_its_log_end_with_the_epoch_of_its_last_record():
    position = a_following().fetch_position(10, 10, a_history((0, 0), (4, 7)))
    assert position == FetchPosition(10, 4, current_leader_epoch=6)


def test_an_epoch_in_which_it_wrote_nothing_is_not_its_last_fetched_epoch():
    position = a_following().fetch_position(10, 10, a_history((0, 0), (4, 7), (5, 10)))
    assert position.last_fetched_epoch == 4


def test_an_empty_log_has_no_last_fetched_epoch():
    assert a_following().fetch_position(0, 0, a_history()) == FetchPosition(0, -1, 6)


def test_it_flushes_before_it_fetches_where_flush_messages_is_reached():
    following = a_following(flush_messages=3)
    assert following.fetch_position(2, 0, a_history()) is not None
    assert following.fetch_position(3, 0, a_history()) is None
    assert following.fetch_position(3, 1, a_history()) is not None
    following.settings_changed(ReplicationSettings(flush_messages=1), 0)
    assert following.fetch_position(3, 2, a_history()) is None


# --- high watermark and log start --------------------------------------------


def test_its_high_watermark_is_the_leaders_but_not_above_its_own_log_end():
    following = a_following()
    assert following.fetched(8, 0, log_start=0, log_end=5) == [HighWatermarkAdvanced(5)]
    assert following.fetched(8, 0, log_start=0, log_end=9) == [HighWatermarkAdvanced(8)]
    assert following.fetched(8, 0, log_start=0, log_end=9) == []


def test_its_high_watermark_does_not_go_back_with_the_stale_one_of_a_new_leader():
    following = a_following(high_watermark=8)
    assert following.fetched(5, 0, log_start=0, log_end=9) == []
    assert following.high_watermark == 8


def test_it_deletes_what_the_leader_deleted_but_not_beyond_its_own_log_end():
    following = a_following(high_watermark=9)
    assert following.fetched(9, 4, log_start=0, log_end=9) == [AdvanceLogStart(4)]
    assert following.fetched(9, 4, log_start=4, log_end=9) == []
    assert following.fetched(20, 15, log_start=4, log_end=12) == [
        HighWatermarkAdvanced(12),
        AdvanceLogStart(12),
    ]


# --- truncation --------------------------------------------------------------


def test_rule_3_it_truncates_to_the_divergence_and_not_to_its_high_watermark():
    """Rule 3: records 2 to 7 may be committed, though this follower has not heard of it."""
    following = a_following(high_watermark=2)
    truncated = following.diverged(EpochEnd(0, 8), a_history((0, 0), (1, 10)), 0, 12)
    assert truncated == [Truncate(8)]
    assert following.high_watermark == 2


@pytest.mark.parametrize(
    ("leader_end", "own_epochs", "truncated_to"),
    [
        # Both know epoch 0; it ends earlier on the leader.
        (EpochEnd(0, 4), [(0, 0), (2, 9)], 4),
        # Both know epoch 0; it ends earlier here.
        (EpochEnd(0, 11), [(0, 0), (2, 9)], 9),
        # The leader's epoch 1 is unknown here: back to the end of epoch 0, and another round.
        (EpochEnd(1, 7), [(0, 0), (2, 5)], 5),
        # No epoch here is as old as the leader's: nothing in common.
        (EpochEnd(0, 3), [(2, 2)], 2),
        (EpochEnd(0, 1), [(2, 2)], 1),
        # No epochs are known here: the leader's answer is all there is.
        (EpochEnd(3, 6), [], 6),
        # Never beyond the log end.
        (EpochEnd(2, 99), [(0, 0), (2, 9)], 12),
    ],
)
def test_rule_3_the_divergence_is_found_by_leader_epoch(leader_end, own_epochs, truncated_to):
    """Rule 3, case by case: the log here ends at 12."""
    following = a_following()
    assert following.diverged(leader_end, a_history(*own_epochs), 0, 12) == [Truncate(truncated_to)]


def test_a_divergence_below_the_log_start_restarts_the_log():
    following = a_following(high_watermark=9)
    assert following.diverged(EpochEnd(1, 3), a_history((1, 5)), 5, 12) == [RestartLog(3)]
    assert following.high_watermark == 3


def test_truncation_below_the_high_watermark_takes_it_along():
    """After an unclean election: committed records are lost, and the replica does not deny it."""
    following = a_following(high_watermark=9)
    following.diverged(EpochEnd(0, 4), a_history((0, 0)), 0, 12)
    assert following.high_watermark == 4


# --- out of range ------------------------------------------------------------


def test_a_leader_that_deleted_all_that_this_log_holds_makes_it_start_over():
    following = a_following(high_watermark=5)
    assert following.out_of_range(20, 30, log_start=0, log_end=8) == [RestartLog(20)]
    assert following.high_watermark == 20


def test_a_leader_that_ends_earlier_makes_it_truncate_there():
    following = a_following(high_watermark=5)
    assert following.out_of_range(0, 6, log_start=0, log_end=8) == [Truncate(6)]
    assert following.out_of_range(0, 1, log_start=2, log_end=8) == [RestartLog(1)]


@pytest.mark.parametrize("leader_log_start", [0, 8])
def test_a_leader_that_grew_meanwhile_is_asked_again(leader_log_start):
    assert a_following().out_of_range(leader_log_start, 9, log_start=0, log_end=8) == []
