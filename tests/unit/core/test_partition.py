"""One replica through its roles: what a controller's decision changes, and what it keeps."""

import pytest

from headrace.core.leader_epochs import EpochEnd, EpochEntry, LeaderEpochs
from headrace.core.leadership import ReplicationSettings
from headrace.core.partition import EPOCH_DURING_DELETE, Partition
from headrace.core.partition_effects import (
    FollowLeader,
    HighWatermarkAdvanced,
    LeaderEpochBumped,
    LeadershipGained,
    LeadershipLost,
    StaleLeaderEpoch,
    StopFollowing,
)
from headrace.model.cluster_metadata import NO_LEADER
from headrace.model.errors import ErrorCode, Rejected
from tests.fakes.partition_states import a_state

ME, OTHER, THIRD = 1, 2, 3
EPOCHS = LeaderEpochs([EpochEntry(0, 0), EpochEntry(3, 5)])


def a_partition(high_watermark=0, **settings):
    return Partition(ME, ReplicationSettings(**settings), high_watermark)


def led(leader=ME, leader_epoch=3, isr=(ME, OTHER), **state):
    return a_state(leader, leader_epoch, isr, **state)


def leading(log_end=5, **settings):
    partition = a_partition(**settings)
    partition.apply(led(), 0, log_end, 0)
    return partition


def following():
    partition = a_partition()
    partition.apply(led(leader=OTHER), 0, 5, 0)
    return partition


# --- roles -------------------------------------------------------------------


def test_a_replica_that_no_controller_has_told_anything_follows_no_leader():
    partition = a_partition(high_watermark=4)
    assert partition.leadership is None
    assert (partition.following.leader, partition.leader_epoch) == (NO_LEADER, -1)
    assert partition.high_watermark == 4


def test_a_lone_replica_gains_leadership_with_all_of_its_log():
    partition = a_partition()
    gained = partition.apply(led(isr=(ME,), replicas=(ME,)), 0, 7, 0)
    assert gained == [LeadershipGained(3, 7), HighWatermarkAdvanced(7)]
    assert partition.leadership.high_watermark == partition.high_watermark == 7


@pytest.mark.parametrize(
    ("checkpointed", "restored"), [(5, 5), (0, 2), (99, 9)], ids=["known", "below", "above"]
)
def test_a_leader_starts_with_the_checkpointed_high_watermark_within_its_log(
    checkpointed, restored
):
    partition = a_partition(high_watermark=checkpointed)
    assert partition.apply(led(), 2, 9, 0) == [LeadershipGained(3, 9)]
    assert partition.high_watermark == restored


def test_a_leader_that_becomes_a_follower_says_so_and_truncates_nothing():
    """Rule 3 in its first half: no record is dropped before leader epochs are compared."""
    partition = leading()
    term = partition.leadership
    term.follower_fetched(OTHER, 4, 0, -1, 0)
    assert partition.apply(led(leader=OTHER, leader_epoch=4), 0, 5, 1) == [
        LeadershipLost(OTHER, 4),
        FollowLeader(OTHER, 4),
    ]
    assert partition.leadership is None
    assert partition.high_watermark == 4
    partition.following.fetched(9, 0, 0, 9)
    assert partition.high_watermark == 9
    assert term.high_watermark == 4, "a finished term commits nothing more"


def test_a_follower_keeps_its_high_watermark_when_it_becomes_leader():
    partition = following()
    partition.following.fetched(4, 0, 0, 6)
    assert partition.apply(led(leader_epoch=4), 0, 6, 1) == [
        StopFollowing(),
        LeadershipGained(4, 6),
    ]
    assert partition.high_watermark == 4
    assert not partition.leadership.is_high_watermark_current


def test_a_follower_follows_again_in_a_new_leader_epoch():
    partition = following()
    before = partition.following
    assert partition.apply(led(leader=OTHER, leader_epoch=4), 0, 5, 1) == [FollowLeader(OTHER, 4)]
    assert partition.following is not before


def test_a_follower_of_a_partition_that_lost_its_leader_stops_fetching():
    partition = following()
    no_leader = led(leader=NO_LEADER, leader_epoch=4)
    assert partition.apply(no_leader, 0, 5, 1) == [StopFollowing()]
    assert partition.following.leader == NO_LEADER


def test_a_leader_that_is_removed_without_successor_loses_its_leadership():
    partition = leading()
    no_leader = led(leader=NO_LEADER, leader_epoch=4)
    assert partition.apply(no_leader, 0, 5, 1) == [LeadershipLost(NO_LEADER, 4)]


# --- leader epochs -----------------------------------------------------------


@pytest.mark.parametrize("leader_epoch", [2, 3])
@pytest.mark.parametrize("leader", [ME, OTHER, NO_LEADER])
@pytest.mark.parametrize("make", [leading, following])
def test_an_equal_or_lower_leader_epoch_changes_nothing_and_says_so(make, leader, leader_epoch):
    partition = make()
    role = partition.role
    state = led(leader, leader_epoch, isr=(THIRD,), partition_epoch=99)
    assert partition.apply(state, 0, 5, 1) == [StaleLeaderEpoch(3)]
    assert partition.role is role
    if partition.leadership is not None:
        assert partition.leadership.isr == {ME, OTHER}


def test_a_higher_leader_epoch_for_the_leader_is_no_loss_of_leadership():
    partition = leading()
    term = partition.leadership
    term.follower_fetched(OTHER, 4, 0, -1, 0)
    assert partition.apply(led(leader_epoch=4), 0, 5, 1) == [LeaderEpochBumped(4, 5)]
    assert partition.leadership is term
    assert (term.leader_epoch, term.high_watermark) == (4, 4)
    assert term.followers[OTHER].log_end == 4


# --- stopping ----------------------------------------------------------------


@pytest.mark.parametrize("leader_epoch", [3, 4, EPOCH_DURING_DELETE, -1])
def test_a_stopped_leader_loses_its_leadership(leader_epoch):
    partition = leading()
    known = max(3, leader_epoch)
    assert partition.stop(leader_epoch) == [LeadershipLost(NO_LEADER, known)]
    assert (partition.leadership, partition.leader_epoch) == (None, known)


def test_a_stopped_follower_stops_fetching():
    partition = following()
    assert partition.stop(3) == [StopFollowing()]
    assert partition.stop(3) == []


def test_a_stop_of_an_older_leader_epoch_is_stale():
    partition = leading()
    assert partition.stop(2) == [StaleLeaderEpoch(3)]
    assert partition.leadership is not None


# --- settings ----------------------------------------------------------------


def test_changed_settings_reach_the_role_and_the_next_one():
    partition = a_partition(min_insync_replicas=2)
    partition.apply(led(isr=(ME,)), 0, 5, 0)
    assert not partition.leadership.enough_replicas
    changed = partition.settings_changed(ReplicationSettings(min_insync_replicas=1), 1)
    assert changed == [HighWatermarkAdvanced(5)]
    partition.apply(led(leader=OTHER, leader_epoch=4), 0, 5, 1)
    partition.apply(led(leader_epoch=5, isr=(ME,)), 0, 5, 1)
    assert partition.leadership.enough_replicas


# --- followers' fetches ------------------------------------------------------


def check(partition, follower=OTHER, current_leader_epoch=3, fetch_offset=8, last_fetched_epoch=3):
    return partition.check_follower_fetch(
        follower, current_leader_epoch, fetch_offset, last_fetched_epoch, EPOCHS, 0, 10
    )


def test_a_valid_fetch_of_a_follower_passes():
    assert check(leading()) is None


def test_a_fetch_that_diverges_is_answered_with_the_end_of_its_epoch():
    assert check(leading(), fetch_offset=8, last_fetched_epoch=0) == EpochEnd(0, 5)


@pytest.mark.parametrize(
    ("make", "fetch", "code"),
    [
        (leading, {"current_leader_epoch": 2}, ErrorCode.FENCED_LEADER_EPOCH),
        (leading, {"current_leader_epoch": 4}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (leading, {"follower": 9}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (leading, {"follower": ME}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (leading, {"fetch_offset": 11}, None),  # diverges: epoch 3 ends at 10 here
        (leading, {"fetch_offset": 11, "last_fetched_epoch": -1}, ErrorCode.OFFSET_OUT_OF_RANGE),
        (following, {}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        # A follower that knows a newer epoch than this broker is told to wait, not to look
        # for another leader.
        (following, {"current_leader_epoch": 4}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (following, {"current_leader_epoch": 2}, ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_errors_of_a_followers_fetch(make, fetch, code):
    if code is None:
        assert check(make(), **fetch) == EpochEnd(3, 10)
        return
    with pytest.raises(Rejected) as refused:
        check(make(), **fetch)
    assert refused.value.code is code
