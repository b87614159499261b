"""A leader: high watermark, ISR changes, acks=all; the clock is moved by hand.

Broker 1 leads; brokers 2 and 3 follow. Rules are those of the design: 1 (maximal ISR), 2 (stale
high watermark), 7 (acks=all), 8 (KIP-966).
"""

import pytest

from headrace.core.isr import IsrRefusal
from headrace.core.leadership import Leadership, ReplicationSettings
from headrace.core.partition_effects import (
    FlushToShrinkIsr,
    FollowerLogStartAdvanced,
    HighWatermarkAdvanced,
    IsrChanged,
    IsrMember,
    LeaderEpochBumped,
    ProposeIsr,
)
from headrace.model.errors import ErrorCode
from tests.fakes.partition_states import a_state

LEADER, FOLLOWER, OTHER = 1, 2, 3
LAG_MS = 10_000


def a_leadership(
    isr=(LEADER, FOLLOWER),
    replicas=(LEADER, FOLLOWER, OTHER),
    log_end=0,
    high_watermark=0,
    now=0,
    **settings,
):
    return Leadership(
        LEADER,
        a_state(isr=isr, replicas=replicas),
        ReplicationSettings(lag_time_ms_max=LAG_MS, **settings),
        log_end,
        high_watermark,
        now,
    )


def append(leadership, log_end):
    return leadership.appended(log_end, log_end)


def fetch(leadership, follower, offset, now=0, log_start=0, broker_epoch=-1):
    """Effects of a follower's fetch, without those about its log start."""
    effects = leadership.follower_fetched(follower, offset, log_start, broker_epoch, now)
    return [effect for effect in effects if not isinstance(effect, FollowerLogStartAdvanced)]


def proposal_for(*isr, partition_epoch=7, leader_epoch=3):
    return ProposeIsr(
        tuple(IsrMember(broker_id, -1) for broker_id in isr), leader_epoch, partition_epoch
    )


# --- high watermark ----------------------------------------------------------


def test_a_lone_replica_commits_what_it_has_written():
    leadership = a_leadership(isr=(LEADER,), replicas=(LEADER,))
    assert append(leadership, 5) == [HighWatermarkAdvanced(5)]
    assert leadership.high_watermark == 5
    assert append(leadership, 5) == []


def test_a_term_starts_with_all_that_a_lone_replica_holds():
    leadership = a_leadership(isr=(LEADER,), replicas=(LEADER,), log_end=7)
    assert leadership.started() == [HighWatermarkAdvanced(7)]


def test_records_are_committed_once_every_in_sync_replica_holds_them():
    leadership = a_leadership()
    assert append(leadership, 5) == []
    assert fetch(leadership, FOLLOWER, 3) == [HighWatermarkAdvanced(3)]
    assert fetch(leadership, FOLLOWER, 5) == [HighWatermarkAdvanced(5)]


def test_a_member_of_the_isr_that_has_not_fetched_yet_holds_nothing():
    leadership = a_leadership(log_end=5, high_watermark=5)
    assert append(leadership, 6) == []


def test_a_lagging_follower_outside_the_isr_does_not_count():
    leadership = a_leadership(isr=(LEADER,), log_end=5)
    assert leadership.started() == [HighWatermarkAdvanced(5)]
    assert fetch(leadership, OTHER, 1) == []
    assert append(leadership, 6) == [HighWatermarkAdvanced(6)]


def test_a_follower_that_keeps_up_is_waited_for_before_it_joins():
    """Otherwise a leader under load would move its high watermark away from it forever."""
    leadership = a_leadership(isr=(LEADER,))
    leadership.isr_refused(fetch(leadership, OTHER, 0)[0], IsrRefusal.NOT_APPLIED, 0)
    fetch(leadership, OTHER, 0, now=1)
    leadership.tick(2)
    assert append(leadership, 1) == []
    assert leadership.tick(LAG_MS + 2) == []
    assert leadership.tick(LAG_MS + 3) == [HighWatermarkAdvanced(1)]


def test_a_follower_that_may_not_join_is_not_waited_for():
    """It shuts down: it stops fetching, and holds up acknowledgements until it lags."""
    leadership = a_leadership(isr=(LEADER,))
    (proposal,) = fetch(leadership, OTHER, 0)
    assert append(leadership, 1) == []
    refused = leadership.isr_refused(proposal, IsrRefusal.NOT_APPLIED, 0)
    assert refused == [HighWatermarkAdvanced(1)]
    leadership.tick(1)
    assert append(leadership, 2) == [HighWatermarkAdvanced(2)]


def test_a_follower_that_is_not_registered_is_not_waited_for():
    leadership = a_leadership(isr=(LEADER, FOLLOWER), min_insync_replicas=2)
    leadership.isr_refused(fetch(leadership, OTHER, 0)[0], IsrRefusal.NOT_APPLIED, 0)
    fetch(leadership, OTHER, 0, now=1)
    leadership.tick(2)
    append(leadership, 1)
    assert fetch(leadership, FOLLOWER, 1, now=2) == []
    assert leadership.brokers_left([OTHER], 3) == [HighWatermarkAdvanced(1)]


def test_rule_1_the_high_watermark_counts_a_proposed_member_of_the_isr():
    """Rule 1: the controller may have taken the proposal, and elect the joiner at any moment."""
    leadership = a_leadership(isr=(LEADER, FOLLOWER))
    (proposal,) = fetch(leadership, OTHER, 0)
    assert proposal == proposal_for(LEADER, FOLLOWER, OTHER)
    append(leadership, 2)
    # Long after, so that broker 3 counts as a proposed member and not because it keeps up.
    leadership.tick(LAG_MS + 1)
    assert fetch(leadership, FOLLOWER, 2, now=LAG_MS + 1) == []
    assert leadership.high_watermark == 0
    assert fetch(leadership, OTHER, 2, now=LAG_MS + 1) == [HighWatermarkAdvanced(2)]


def test_rule_1_a_proposed_removal_does_not_commit_without_the_removed_one():
    """Rule 1: until the controller confirms, the old ISR may be the true one."""
    leadership = a_leadership(log_end=1)
    (proposal,) = leadership.tick(LAG_MS + 1)
    assert proposal == proposal_for(LEADER)
    assert leadership.high_watermark == 0
    confirmed = leadership.isr_confirmed(proposal, frozenset({LEADER}), 8, LAG_MS + 1)
    assert confirmed == [IsrChanged(frozenset({LEADER}), 8), HighWatermarkAdvanced(1)]


def test_rule_8_below_the_minimum_the_high_watermark_does_not_advance():
    """Rule 8 (KIP-966): an unclean restart of the last replica must lose nothing that was seen."""
    leadership = a_leadership(isr=(LEADER,), min_insync_replicas=2)
    assert append(leadership, 5) == []
    assert leadership.high_watermark == 0
    (proposal,) = fetch(leadership, FOLLOWER, 5)
    assert leadership.isr_confirmed(proposal, frozenset({LEADER, FOLLOWER}), 8, 0) == [
        IsrChanged(frozenset({LEADER, FOLLOWER}), 8),
        HighWatermarkAdvanced(5),
    ]


def test_rule_8_a_proposed_isr_below_the_minimum_holds_the_high_watermark_too():
    """Rule 8: the smaller ISR may be the true one already."""
    leadership = a_leadership(log_end=1, min_insync_replicas=2)
    append(leadership, 2)  # and flush
    assert leadership.tick(LAG_MS + 1) == [proposal_for(LEADER)]
    assert fetch(leadership, FOLLOWER, 2, now=LAG_MS + 1) == []
    assert leadership.high_watermark == 0 and not leadership.enough_replicas


def test_a_lower_minimum_commits_what_waited_for_it():
    leadership = a_leadership(isr=(LEADER,), min_insync_replicas=2)
    append(leadership, 5)
    changed = leadership.settings_changed(ReplicationSettings(min_insync_replicas=1), 0)
    assert changed == [HighWatermarkAdvanced(5)]


# --- flush.messages ----------------------------------------------------------


def test_records_count_once_an_fsync_covers_them_where_flush_messages_is_reached():
    leadership = a_leadership(isr=(LEADER,), replicas=(LEADER,), flush_messages=3)
    assert leadership.appended(2, 0) == [HighWatermarkAdvanced(2)]
    assert leadership.appended(3, 0) == []
    assert leadership.log_end == 2
    assert leadership.appended(4, 3) == [HighWatermarkAdvanced(4)]


def test_records_written_during_an_fsync_wait_for_the_next_one():
    leadership = a_leadership(isr=(LEADER,), replicas=(LEADER,), flush_messages=1)
    assert leadership.appended(5, 0) == []
    assert leadership.appended(7, 5) == [HighWatermarkAdvanced(5)]
    assert leadership.appended(7, 7) == [HighWatermarkAdvanced(7)]


# --- stale high watermark ----------------------------------------------------


@pytest.mark.parametrize(("offset", "joins"), [(4, False), (9, False), (10, True)])
def test_rule_2_a_follower_joins_at_the_start_of_the_leader_epoch_and_not_before(offset, joins):
    """Rule 2: the high watermark (5) is the one that the leader knew as a follower.

    The last leader may have committed all that was in this log when the epoch began (10).
    """
    leadership = a_leadership(isr=(LEADER, FOLLOWER), log_end=10, high_watermark=5)
    expected = [proposal_for(LEADER, FOLLOWER, OTHER)] if joins else []
    assert fetch(leadership, OTHER, offset) == expected


def test_a_follower_joins_at_the_high_watermark_once_that_is_current():
    leadership = a_leadership(isr=(LEADER, FOLLOWER))
    append(leadership, 8)
    fetch(leadership, FOLLOWER, 6)
    assert fetch(leadership, OTHER, 5) == []
    assert fetch(leadership, OTHER, 6) == [proposal_for(LEADER, FOLLOWER, OTHER)]


def test_rule_2_latest_is_unavailable_until_the_high_watermark_reached_the_leader_epoch():
    """Rule 2: the last leader may have answered "latest" with up to 10; 5 would go back."""
    leadership = a_leadership(log_end=10, high_watermark=5)
    assert not leadership.is_high_watermark_current
    fetch(leadership, FOLLOWER, 9)
    assert leadership.high_watermark == 9 and not leadership.is_high_watermark_current
    fetch(leadership, FOLLOWER, 10)
    assert leadership.is_high_watermark_current


# --- acks=all ----------------------------------------------------------------


def test_rule_7_acks_all_is_answered_when_every_in_sync_replica_has_the_batch():
    """Rule 7, first half."""
    leadership = a_leadership(min_insync_replicas=2)
    append(leadership, 5)
    assert leadership.acknowledgement(5) is None
    fetch(leadership, FOLLOWER, 4)
    assert leadership.acknowledgement(5) is None
    fetch(leadership, FOLLOWER, 5)
    assert leadership.acknowledgement(5) is ErrorCode.NONE


def test_rule_7_acks_all_fails_if_the_isr_fell_below_the_minimum_after_the_append():
    """Rule 7, second half: NOT_ENOUGH_REPLICAS_AFTER_APPEND though the high watermark passed."""
    leadership = a_leadership(min_insync_replicas=2)
    append(leadership, 5)
    fetch(leadership, FOLLOWER, 5)
    leadership.epoch_bumped(a_state(leader_epoch=4, isr=(LEADER,)), 5, 1)
    assert leadership.high_watermark == 5
    assert leadership.acknowledgement(5) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


@pytest.mark.parametrize(
    ("isr", "minimum", "replicas", "enough"),
    [
        ((1,), 1, (1,), True),
        ((1,), 3, (1,), True),  # the effective minimum is the replica count
        ((1,), 2, (1, 2, 3), False),
        ((1, 2), 2, (1, 2, 3), True),
        ((1, 2), 3, (1, 2, 3), False),
    ],
)
def test_rule_7_acks_all_is_refused_before_the_append_with_too_few_in_sync_replicas(
    isr, minimum, replicas, enough
):
    """Rule 7: the caller answers NOT_ENOUGH_REPLICAS unless ``enough_replicas``."""
    leadership = a_leadership(isr=isr, replicas=replicas, min_insync_replicas=minimum)
    assert leadership.enough_replicas is enough
    assert leadership.insync_required == min(minimum, len(replicas))


# --- followers leave and join the ISR ----------------------------------------


def test_a_silent_follower_leaves_the_isr_after_the_lag_time_and_not_before():
    leadership = a_leadership(now=1000)
    append(leadership, 1)
    assert leadership.tick(1000 + LAG_MS) == []
    assert leadership.tick(1000 + LAG_MS + 1) == [proposal_for(LEADER)]
    assert leadership.tick(1000 + LAG_MS + 2) == []  # one proposal at a time


def test_the_isr_falls_below_the_minimum_once_all_committed_records_are_flushed():
    """Else a leader that loses power would lose records that the follower still has."""
    leadership = a_leadership(log_end=3, min_insync_replicas=2)
    fetch(leadership, FOLLOWER, 3)
    leadership.appended(5, 3)
    fetch(leadership, FOLLOWER, 4)
    late = LAG_MS + 1
    assert leadership.tick(late) == [FlushToShrinkIsr()]
    assert leadership.enough_replicas and leadership.proposal is None
    leadership.appended(6, 4)  # what is above the high watermark was never committed
    assert leadership.tick(late) == [proposal_for(LEADER)]


def test_what_earlier_leaders_committed_is_flushed_before_the_isr_falls_below_the_minimum():
    """The high watermark of a new leader may be behind."""
    leadership = a_leadership(log_end=3, high_watermark=1, min_insync_replicas=2)
    leadership.appended(3, 2)
    assert leadership.tick(LAG_MS + 1) == [FlushToShrinkIsr()]
    leadership.appended(3, 3)
    assert leadership.tick(LAG_MS + 1) == [proposal_for(LEADER)]


def test_an_isr_that_stays_at_the_minimum_shrinks_without_a_flush():
    leadership = a_leadership(isr=(LEADER, FOLLOWER, OTHER), log_end=3, min_insync_replicas=2)
    leadership.appended(4, 0)
    fetch(leadership, FOLLOWER, 4, now=LAG_MS)
    assert leadership.tick(LAG_MS + 1) == [proposal_for(LEADER, FOLLOWER)]


def test_a_member_that_is_not_registered_is_not_waited_for_if_the_controller_keeps_it():
    leadership = a_leadership(isr=(LEADER, FOLLOWER, OTHER), min_insync_replicas=2)
    append(leadership, 3)
    fetch(leadership, FOLLOWER, 3)
    fetch(leadership, OTHER, 3)
    assert leadership.brokers_left([OTHER], 1) == [], "the controller removes it"
    assert leadership.brokers_left([FOLLOWER, OTHER], 1) == [proposal_for(LEADER)]


def test_a_member_that_fetches_again_has_not_left():
    leadership = a_leadership(log_end=3, min_insync_replicas=2)
    assert leadership.brokers_left([FOLLOWER], 1) == [FlushToShrinkIsr()]
    fetch(leadership, FOLLOWER, 3, now=2)
    assert leadership.tick(2) == []


def test_a_replica_that_may_have_left_the_isr_is_not_counted_as_in_sync():
    leadership = a_leadership(now=1000)
    assert leadership.insync_count == 2
    append(leadership, 1)
    leadership.tick(1000 + LAG_MS + 1)
    assert (len(leadership.isr), leadership.insync_count) == (2, 1)


def test_a_follower_that_never_fetched_leaves_the_isr_although_nothing_is_produced():
    leadership = a_leadership()
    assert leadership.tick(LAG_MS + 1) == [proposal_for(LEADER)]


def test_a_caught_up_follower_stays_in_the_isr_while_nothing_is_produced():
    leadership = a_leadership()
    append(leadership, 5)
    fetch(leadership, FOLLOWER, 5, now=100)
    assert leadership.tick(50 * LAG_MS) == []
    append(leadership, 6)
    # It names no position again in its fetch session, so it was caught up until that tick.
    assert leadership.tick(51 * LAG_MS) == []
    assert leadership.tick(51 * LAG_MS + 1) == [proposal_for(LEADER)]


def test_a_follower_that_reaches_the_log_end_of_its_last_fetch_keeps_up_under_load():
    leadership = a_leadership()
    for step in range(1, 4):
        now = step * (LAG_MS - 1)
        append(leadership, 10 * step)
        # It asks for what came after its last fetch, and so is always one fetch behind.
        fetch(leadership, FOLLOWER, 10 * (step - 1), now)
        assert leadership.tick(now) == []
    assert leadership.tick(now + 2) == [proposal_for(LEADER)]


def test_a_follower_that_fetches_but_falls_behind_leaves_the_isr():
    leadership = a_leadership()
    append(leadership, 100)
    for now in range(0, LAG_MS, 500):
        fetch(leadership, FOLLOWER, now // 500, now)
    assert leadership.tick(LAG_MS) == []
    assert leadership.tick(LAG_MS + 1) == [proposal_for(LEADER)]


def test_an_in_sync_follower_that_lost_committed_records_leaves_the_isr_at_once():
    leadership = a_leadership()
    append(leadership, 5)
    fetch(leadership, FOLLOWER, 5)
    assert fetch(leadership, FOLLOWER, 5, now=1) == []
    assert fetch(leadership, FOLLOWER, 4, now=2) == [proposal_for(LEADER)]


def test_only_one_proposal_is_in_flight():
    leadership = a_leadership(isr=(LEADER,))
    (proposal,) = fetch(leadership, FOLLOWER, 0)
    assert fetch(leadership, OTHER, 0) == []
    leadership.isr_confirmed(proposal, frozenset({LEADER, FOLLOWER}), 8, 0)
    assert fetch(leadership, OTHER, 0) == [proposal_for(LEADER, FOLLOWER, OTHER, partition_epoch=8)]


def test_a_proposal_carries_the_broker_epochs_of_the_followers():
    leadership = a_leadership()
    fetch(leadership, FOLLOWER, 0, broker_epoch=40)
    (proposal,) = fetch(leadership, OTHER, 0, broker_epoch=50)
    assert proposal.members == (IsrMember(1, -1), IsrMember(2, 40), IsrMember(3, 50))
    assert (proposal.leader_epoch, proposal.partition_epoch) == (3, 7)


def test_progress_of_an_older_broker_epoch_is_ignored():
    """KIP-903: a late fetch of the process before the restart."""
    leadership = a_leadership()
    append(leadership, 5)
    assert fetch(leadership, FOLLOWER, 2, broker_epoch=50) == [HighWatermarkAdvanced(2)]
    assert fetch(leadership, FOLLOWER, 5, broker_epoch=49) == []
    assert fetch(leadership, FOLLOWER, 5, broker_epoch=51) == [HighWatermarkAdvanced(5)]


# --- answers to proposals ----------------------------------------------------


def proposing():
    """A leadership with records 0 to 4, and its proposal to let broker 3 join."""
    leadership = a_leadership(isr=(LEADER, FOLLOWER))
    (proposal,) = fetch(leadership, OTHER, 0)
    append(leadership, 5)
    fetch(leadership, FOLLOWER, 5)
    leadership.tick(LAG_MS + 1)
    return leadership, proposal


def test_a_refusal_that_was_not_applied_restores_the_confirmed_isr():
    leadership, proposal = proposing()
    refused = leadership.isr_refused(proposal, IsrRefusal.NOT_APPLIED, LAG_MS + 1)
    assert refused == [HighWatermarkAdvanced(5)]
    assert leadership.proposal is None


def test_after_a_refusal_a_follower_is_proposed_again_only_after_a_tick():
    leadership = a_leadership()
    (proposal,) = fetch(leadership, OTHER, 0)
    leadership.isr_refused(proposal, IsrRefusal.NOT_APPLIED, 0)
    assert fetch(leadership, OTHER, 0) == []
    leadership.tick(1)
    assert fetch(leadership, OTHER, 0, now=1) == [proposal]


def test_a_proposal_of_unknown_outcome_is_sent_again_and_still_counts():
    leadership, proposal = proposing()
    unknown = leadership.isr_refused(proposal, IsrRefusal.OUTCOME_UNKNOWN, LAG_MS + 1)
    assert unknown == [proposal]
    assert leadership.maximal_isr == {LEADER, FOLLOWER, OTHER}
    assert leadership.high_watermark == 0


def test_an_outdated_leader_waits_for_the_controller_and_proposes_nothing_else():
    leadership, proposal = proposing()
    assert leadership.isr_refused(proposal, IsrRefusal.AWAIT_CONTROLLER, LAG_MS + 1) == []
    append(leadership, 6)
    assert leadership.tick(10 * LAG_MS) == []
    assert leadership.maximal_isr == {LEADER, FOLLOWER, OTHER}


def test_an_answer_may_report_a_newer_state_than_the_proposed_one():
    leadership, proposal = proposing()
    leadership.isr_confirmed(proposal, frozenset({LEADER, FOLLOWER}), 9, LAG_MS + 1)
    assert (leadership.isr, leadership.partition_epoch) == ({LEADER, FOLLOWER}, 9)
    assert leadership.proposal is None and leadership.high_watermark == 5


def test_a_late_answer_to_an_earlier_proposal_is_ignored():
    leadership, first = proposing()
    leadership.isr_confirmed(first, first.isr, 8, 0)
    append(leadership, 6)
    fetch(leadership, FOLLOWER, 6, now=3 * LAG_MS)
    (second,) = leadership.tick(3 * LAG_MS + 1)
    assert second == proposal_for(LEADER, FOLLOWER, partition_epoch=8)
    assert leadership.isr_confirmed(first, first.isr, 8, 0) == []
    assert leadership.isr_refused(first, IsrRefusal.NOT_APPLIED, 0) == []
    assert leadership.isr_refused(first, IsrRefusal.OUTCOME_UNKNOWN, 0) == []
    assert leadership.proposal == second


def test_an_answer_with_an_older_partition_epoch_is_ignored():
    leadership, proposal = proposing()
    assert leadership.isr_confirmed(proposal, proposal.isr, 6, 0) == []
    assert leadership.proposal == proposal


# --- a higher leader epoch ---------------------------------------------------


def test_a_bump_keeps_high_watermark_and_progress_of_the_surviving_isr():
    leadership = a_leadership(isr=(LEADER, FOLLOWER, OTHER))
    append(leadership, 5)
    fetch(leadership, FOLLOWER, 4)
    fetch(leadership, OTHER, 2)
    assert leadership.high_watermark == 2
    bumped = leadership.epoch_bumped(
        a_state(leader_epoch=4, isr=(LEADER, FOLLOWER), partition_epoch=8), 5, now=100
    )
    assert bumped == [LeaderEpochBumped(4, 5), HighWatermarkAdvanced(4)]
    assert (leadership.leader_epoch, leadership.partition_epoch) == (4, 8)
    assert leadership.followers[OTHER].log_end == -1
    assert leadership.is_high_watermark_current
    append(leadership, 6)
    assert leadership.tick(100 + LAG_MS) == []  # the survivor gets a whole lag time again


def test_a_bump_drops_a_proposal_of_the_old_epoch():
    leadership = a_leadership()
    (proposal,) = fetch(leadership, OTHER, 0)
    leadership.epoch_bumped(a_state(leader_epoch=4, partition_epoch=8), 0, 1)
    assert leadership.proposal is None
    assert leadership.isr_confirmed(proposal, proposal.isr, 9, 1) == []
    assert leadership.isr == {LEADER, FOLLOWER}


def test_after_skipped_leader_epochs_old_progress_does_not_count():
    """Another broker may have led in between, and the follower may have truncated to its log."""
    leadership = a_leadership(isr=(LEADER, FOLLOWER, OTHER))
    append(leadership, 5)
    fetch(leadership, FOLLOWER, 5)
    fetch(leadership, OTHER, 2)
    bumped = leadership.epoch_bumped(a_state(leader_epoch=5, isr=(LEADER, FOLLOWER)), 5, 1)
    assert bumped == [LeaderEpochBumped(5, 5)]
    assert leadership.high_watermark == 2 and not leadership.is_high_watermark_current
    fetch(leadership, FOLLOWER, 5)
    assert leadership.high_watermark == 5


def test_a_removed_replica_is_forgotten_and_an_added_one_is_unknown():
    leadership = a_leadership(replicas=(1, 2, 3), isr=(1, 2))
    leadership.epoch_bumped(a_state(leader_epoch=4, replicas=(1, 2, 4), isr=(1, 2)), 0, 1)
    assert sorted(leadership.followers) == [2, 4]
    assert leadership.followers[4].log_end == -1


# --- log starts --------------------------------------------------------------


def test_the_low_watermark_is_the_lowest_log_start_of_the_live_replicas():
    leadership = a_leadership(log_end=10, high_watermark=10)
    assert leadership.low_watermark(8, live={2, 3}) == -1
    assert FollowerLogStartAdvanced(2, 5) in leadership.follower_fetched(2, 10, 5, -1, 0)
    assert leadership.low_watermark(8, live={2}) == 5
    assert leadership.low_watermark(8, live={2, 3}) == -1
    assert FollowerLogStartAdvanced(2, 8) in leadership.follower_fetched(2, 10, 8, -1, 0)
    assert leadership.follower_fetched(2, 10, 8, -1, 0) == []
    assert leadership.low_watermark(8, live={2}) == 8
