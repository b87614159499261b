"""The course of a rebalance: who is waited for, who leads, which protocol wins."""

from headrace.model.errors import ErrorCode
from tests.fakes.groups import RANGE, REBALANCE_MS, ROUND_ROBIN, SESSION_MS, STICKY, Groups


def test_the_common_protocol_with_the_most_votes_wins():
    groups = Groups()
    tickets = [
        groups.join(protocols=(ROUND_ROBIN, RANGE, STICKY)),
        groups.join(protocols=(STICKY, RANGE)),
        groups.join(protocols=(("mine", b""), STICKY, RANGE)),
    ]
    groups.pass_time(0)
    assert {groups.answer(ticket).protocol_name for ticket in tickets} == {"sticky"}


def test_a_tie_between_protocols_goes_by_name():
    groups = Groups()
    tickets = [groups.join(protocols=(STICKY, RANGE)), groups.join(protocols=(RANGE, STICKY))]
    groups.pass_time(0)
    assert {groups.answer(ticket).protocol_name for ticket in tickets} == {"range"}


def test_a_new_group_waits_for_more_members_and_longer_while_they_come():
    groups = Groups(group_initial_rebalance_delay_ms=3000)
    first = groups.join()
    groups.pass_time(2_999)
    second = groups.join()
    groups.pass_time(1)
    assert groups.answers == {}, "a new member restarts the delay"
    groups.pass_time(2_999)
    assert groups.answers == {}
    groups.pass_time(1)
    assert groups.answer(first).generation_id == groups.answer(second).generation_id == 1


def test_a_new_group_waits_no_longer_than_the_rebalance_time():
    groups = Groups(group_initial_rebalance_delay_ms=3000)
    first = groups.join(rebalance_ms=5_000)
    for _ in range(5):
        groups.pass_time(999)
        groups.join(rebalance_ms=5_000)
    assert groups.answers == {}
    groups.pass_time(5)
    assert groups.answer(first).error_code == ErrorCode.NONE


def test_a_member_that_joins_makes_the_others_join_again():
    groups = Groups()
    (member,), generation = groups.stable()
    newcomer = groups.join()
    assert groups.group.state_name == "PreparingRebalance"
    assert groups.heartbeat(member, generation).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    again = groups.join(member)
    assert groups.answer(again).generation_id == generation + 1
    assert groups.answer(again).leader == member, "the leader stays"
    assert len(groups.answer(again).members) == 2
    assert groups.answer(newcomer).generation_id == generation + 1


def test_members_that_do_not_join_within_the_rebalance_timeout_are_removed():
    groups = Groups()
    (first, second), generation = groups.stable(2)
    newcomer = groups.join()
    again = groups.join(first)
    for _ in range(REBALANCE_MS // 5000 - 1):
        groups.pass_time(5_000)
        groups.heartbeat(second, generation)  # alive, but does not rejoin
    groups.pass_time(4_999)
    assert groups.waits(again)
    groups.pass_time(1)
    assert groups.answer(again).generation_id == generation + 1
    assert [x.member_id for x in groups.answer(again).members] == [
        first,
        groups.answer(newcomer).member_id,
    ]
    assert groups.heartbeat(second, generation).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_another_member_leads_if_the_leader_does_not_rejoin():
    groups = Groups()
    (leader, follower), generation = groups.stable(2)
    groups.join()
    again = groups.join(follower)
    groups.pass_time(REBALANCE_MS)
    assert groups.answer(again).leader == follower
    assert leader not in groups.group.members


def test_a_pending_member_delays_the_rebalance_for_its_session_timeout():
    groups = Groups()
    (member,), _ = groups.stable()
    groups.join(requires_known_member=True)  # gets an id and does not join with it
    groups.join()
    again = groups.join(member)
    assert groups.waits(again)
    groups.pass_time(SESSION_MS)
    assert groups.answer(again).error_code == ErrorCode.NONE


def test_the_member_that_joined_last_leads_if_the_leader_is_gone():
    """A member that joined earlier may be gone as well, though its join is still parked."""
    groups = Groups()
    groups.stable()
    older, newer = groups.join(), groups.join()
    groups.pass_time(SESSION_MS)
    assert groups.answer(older).leader == groups.answer(newer).member_id
    assert groups.answer(newer).leader == groups.answer(newer).member_id


def test_a_static_member_that_is_away_keeps_its_place_through_a_rebalance():
    groups = Groups()
    (one, two), generation = groups.stable_static_pair()
    newcomer = groups.join()
    again = groups.join(one, instance="one")
    for _ in range(REBALANCE_MS // 5000):
        groups.pass_time(5_000)
        groups.heartbeat(two, generation, instance="two")
    assert groups.answer(again).generation_id == generation + 1
    assert {x.member_id for x in groups.answer(again).members} == {
        one,
        two,
        groups.answer(newcomer).member_id,
    }


def test_a_group_without_its_static_members_waits_for_their_sessions():
    groups = Groups()
    (one, two), generation = groups.stable_static_pair()
    newcomer = groups.join(requires_known_member=True).member_id
    ticket = groups.join(newcomer, requires_known_member=True)
    groups.leave(newcomer)
    assert groups.answer(ticket).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    for _ in range(2 * REBALANCE_MS // 5000):
        groups.pass_time(5_000)
        for member, instance in ((one, "one"), (two, "two")):
            code = groups.heartbeat(member, generation, instance=instance).error_code
            assert code == ErrorCode.REBALANCE_IN_PROGRESS
    assert groups.group.state_name == "PreparingRebalance"
    groups.pass_time(SESSION_MS)
    assert groups.group.members == {}
