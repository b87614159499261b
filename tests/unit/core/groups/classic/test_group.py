"""The classic protocol: joining, syncing, staying and going, with a clock moved by hand."""

import pytest

from headrace.core.groups.classic.join import NEW_MEMBER_JOIN_TIMEOUT_MS
from headrace.core.groups.classic.members import subscribed_topics
from headrace.model.errors import ErrorCode
from tests.fakes.groups import REBALANCE_MS, SESSION_MS, Groups, subscription

RANGE = ("range", subscription("orders"))
STICKY = ("sticky", subscription("orders"))
ROUND = ("roundrobin", subscription("orders"))


# Joining.


def test_the_first_member_leads_and_is_told_of_everybody():
    groups = Groups()
    ticket = groups.join()
    groups.pass_time(0)
    answer = groups.answer(ticket)
    assert answer.error_code == ErrorCode.NONE
    assert answer.generation_id == 1
    assert answer.protocol_name == "range" and answer.protocol_type == "consumer"
    assert answer.leader == answer.member_id == "client-#1"
    assert [(x.member_id, x.metadata) for x in answer.members] == [
        ("client-#1", subscription("orders"))
    ]


def test_a_follower_is_not_told_of_the_others():
    groups = Groups()
    tickets = [groups.join(), groups.join()]
    groups.pass_time(0)
    leader, follower = (groups.answer(ticket) for ticket in tickets)
    assert leader.leader == follower.leader == leader.member_id
    assert len(leader.members) == 2 and follower.members == []


def test_from_version_4_on_a_new_member_joins_twice_and_is_forgotten_if_it_does_not():
    groups = Groups()
    answer = groups.join(version=4)
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id == "client-#1"
    assert groups.group.state_name == "Empty"
    ticket = groups.join(answer.member_id, version=4)
    groups.pass_time(0)
    assert groups.answer(ticket).member_id == answer.member_id

    other = groups.join(version=4).member_id
    groups.pass_time(SESSION_MS - 1)
    groups.heartbeat("client-#1", 1)
    groups.pass_time(1)
    assert groups.join(other, version=4).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_needs_no_second_join():
    groups = Groups()
    ticket = groups.join(version=5, instance="one")
    groups.pass_time(0)
    assert groups.answer(ticket).member_id == "one-#1"
    assert groups.answer(ticket).members[0].group_instance_id == "one"


def test_an_id_that_was_never_given_out_is_unknown():
    groups = Groups()
    assert groups.join("stranger").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert "g" not in groups.shard.groups
    groups.stable()
    assert groups.join("stranger").error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_a_session_must_be_within_the_bounds_of_the_broker(session_ms):
    groups = Groups()
    assert groups.join(session_ms=session_ms).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert groups.shard.groups == {}


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_the_bounds_of_a_session_are_allowed(session_ms):
    groups = Groups()
    ticket = groups.join(session_ms=session_ms)
    groups.pass_time(0)
    assert groups.answer(ticket).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    "wrong", [{"protocols": ()}, {"protocol_type": ""}], ids=["no protocol", "no type"]
)
def test_a_first_member_must_name_a_type_and_a_protocol(wrong):
    groups = Groups()
    assert groups.join(**wrong).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert groups.shard.groups == {}, "nothing is left of a group that nobody entered"


@pytest.mark.parametrize(
    "wrong",
    [{"protocols": (("other", b""),)}, {"protocol_type": "connect"}],
    ids=["no common protocol", "another type"],
)
def test_a_member_that_has_nothing_in_common_with_the_others_is_refused(wrong):
    groups = Groups()
    groups.stable()
    assert groups.join(**wrong).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert groups.group.state_name == "Stable"


def test_the_protocol_that_most_members_like_best_wins_among_those_that_all_know():
    groups = Groups()
    tickets = [
        groups.join(protocols=(ROUND, RANGE, STICKY)),
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
    assert groups.answers == {}, "somebody came: the delay begins anew"
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


def test_members_that_do_not_join_in_the_rebalance_time_are_out():
    groups = Groups()
    (first, second), generation = groups.stable(2)
    newcomer = groups.join()
    again = groups.join(first)
    for _ in range(REBALANCE_MS // 5000 - 1):
        groups.pass_time(5_000)
        groups.heartbeat(second, generation)  # alive, but deaf
    groups.pass_time(4_999)
    assert groups.waits(again)
    groups.pass_time(1)
    assert groups.answer(again).generation_id == generation + 1
    assert [x.member_id for x in groups.answer(again).members] == [
        first,
        groups.answer(newcomer).member_id,
    ]
    assert groups.heartbeat(second, generation).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_another_member_leads_if_the_leader_does_not_come_back():
    groups = Groups()
    (leader, follower), generation = groups.stable(2)
    groups.join()
    again = groups.join(follower)
    groups.pass_time(REBALANCE_MS)
    assert groups.answer(again).leader == follower
    assert leader not in groups.group.members


def test_a_pending_member_holds_the_rebalance_up_until_its_session_would_be_over():
    groups = Groups()
    (member,), _ = groups.stable()
    groups.join(version=4)  # gets an id and does not come back
    groups.join()
    again = groups.join(member)
    assert groups.waits(again)
    groups.pass_time(SESSION_MS)
    assert groups.answer(again).error_code == ErrorCode.NONE


def test_the_one_that_joined_last_leads_if_the_leader_is_gone():
    """One that joined before it may be gone as well, though its join still waits."""
    groups = Groups()
    groups.stable()
    older, newer = groups.join(), groups.join()
    groups.pass_time(SESSION_MS)
    assert groups.answer(older).leader == groups.answer(newer).member_id
    assert groups.answer(newer).leader == groups.answer(newer).member_id


def test_a_join_that_says_nothing_new_is_answered_again_while_the_leader_assigns():
    groups = Groups()
    ticket = groups.join()
    groups.pass_time(0)
    first = groups.answer(ticket)
    assert groups.join(first.member_id) == first
    assert groups.group.state_name == "CompletingRebalance"


def test_a_join_that_says_something_new_begins_another_rebalance():
    groups = Groups()
    tickets = [groups.join(), groups.join()]
    groups.pass_time(0)
    leader, follower = (groups.answer(ticket).member_id for ticket in tickets)
    waiting = groups.sync(follower, 1)
    assert groups.waits(groups.join(leader, protocols=(RANGE, STICKY)))
    assert groups.answer(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert groups.group.state_name == "PreparingRebalance"


def test_in_a_stable_group_a_follower_may_ask_again_but_a_leader_rebalances():
    groups = Groups()
    (leader, follower), generation = groups.stable(2)
    answer = groups.join(follower)
    assert answer.generation_id == generation and answer.members == []
    assert groups.group.state_name == "Stable"
    groups.join(leader)
    assert groups.group.state_name == "PreparingRebalance"


def test_a_follower_with_new_metadata_rebalances():
    groups = Groups()
    (_, follower), _ = groups.stable(2)
    groups.join(follower, protocols=(("range", subscription("orders", "other")),))
    assert groups.group.state_name == "PreparingRebalance"


def test_a_second_join_of_the_same_member_replaces_the_first():
    groups = Groups()
    (first, second), _ = groups.stable(2)
    groups.join()
    old = groups.join(first)
    new = groups.join(first)
    assert groups.answer(old).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    groups.join(second)
    assert groups.answer(new).error_code == ErrorCode.NONE


def test_a_new_member_whose_join_is_never_answered_is_out_in_the_end():
    groups = Groups()
    groups.stable(1, rebalance_ms=1_000_000, session_ms=1_800_000)
    newcomer = groups.join()
    groups.pass_time(NEW_MEMBER_JOIN_TIMEOUT_MS - 1)
    assert groups.waits(newcomer)
    groups.pass_time(1)
    answer = groups.answer(newcomer)
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert answer.member_id == ""


def test_a_group_takes_no_more_members_than_it_may():
    groups = Groups(group_max_size=2)
    tickets = [groups.join(), groups.join()]
    assert groups.join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    groups.pass_time(0)
    (first, second), _ = groups.settle(tickets)
    answer = groups.join()
    assert answer.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED and answer.member_id == ""
    assert groups.group.state_name == "Stable"
    # Those who are in may always rejoin.
    again = groups.join(first)
    groups.join(second)
    assert groups.answer(again).error_code == ErrorCode.NONE


def test_a_lowered_limit_takes_effect_when_the_group_is_loaded():
    groups = Groups()
    (first, second, third), _ = groups.stable(3)
    groups.cluster.config = type(groups.cluster.config).parse({"group.max.size": "2"})
    groups.reload()
    assert groups.group.state_name == "PreparingRebalance"
    tickets = [groups.join(first), groups.join(second)]
    assert groups.join(third).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert {groups.answer(ticket).error_code for ticket in tickets} == {ErrorCode.NONE}
    assert groups.group.members.keys() == {first, second}


@pytest.mark.parametrize(
    "too_long",
    [
        {"group": "x" * 40_000},
        {"instance": "x" * 40_000, "version": 5},
        {"client_id": "x" * 32_750},
        {"protocol_type": "x" * 40_000},
        {"protocols": (("x" * 40_000, b""),)},
    ],
    ids=lambda given: next(iter(given)),
)
def test_texts_that_the_log_could_not_hold_are_refused_at_the_door(too_long):
    groups = Groups()
    assert groups.join(**too_long).error_code == ErrorCode.INVALID_REQUEST
    assert groups.shard.groups == {}


# Static members.


def a_static_pair(groups):
    tickets = [groups.join(version=5, instance="one"), groups.join(version=5, instance="two")]
    groups.pass_time(0)
    return groups.settle(tickets)


def test_a_static_member_that_comes_back_takes_its_old_place_without_a_rebalance():
    groups = Groups()
    (leader, old), generation = a_static_pair(groups)
    answer = groups.join(version=5, instance="two")
    assert answer.generation_id == generation
    assert answer.member_id == "two-#3" and answer.leader == leader and answer.members == []
    assert groups.group.state_name == "Stable"
    assert groups.sync(answer.member_id, generation).assignment == old.encode()
    # The one before it is out, and told why.
    for code in (
        groups.heartbeat(old, generation, instance="two").error_code,
        groups.sync(old, generation, instance="two").error_code,
        groups.join(old, instance="two").error_code,
        groups.commit({0: 1}, old, generation, instance="two")[0],
        groups.leave((old, "two")).members[0].error_code,
    ):
        assert code == ErrorCode.FENCED_INSTANCE_ID
    assert groups.heartbeat(old, generation).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_leader_that_comes_back_does_not_assign_again():
    groups = Groups()
    (old, _), _ = a_static_pair(groups)
    answer = groups.join(version=8, instance="one")
    assert answer.leader == old != answer.member_id, "it must not take itself for the leader"
    assert answer.members == [] and not answer.skip_assignment
    assert groups.group.leader_id == answer.member_id


def test_from_version_9_on_a_static_leader_is_told_to_skip_the_assignment():
    groups = Groups()
    (_, follower), _ = a_static_pair(groups)
    answer = groups.join(version=9, instance="one")
    assert answer.leader == answer.member_id and answer.skip_assignment
    assert [x.member_id for x in answer.members] == [answer.member_id, follower]
    assert not groups.join(version=9, instance="two").skip_assignment


def test_a_static_member_with_another_protocol_rebalances():
    groups = Groups()
    tickets = [
        groups.join(version=5, instance=name, protocols=(RANGE, STICKY)) for name in ("one", "two")
    ]
    groups.pass_time(0)
    groups.settle(tickets)
    groups.join(version=5, instance="two", protocols=(STICKY,))
    assert groups.group.state_name == "PreparingRebalance"


def test_a_static_member_that_comes_back_while_the_leader_assigns_rebalances():
    groups = Groups()
    tickets = [groups.join(version=5, instance="one"), groups.join(version=5, instance="two")]
    groups.pass_time(0)
    old = groups.answer(tickets[1]).member_id
    waiting = groups.sync(old, 1, instance="two")
    groups.join(version=5, instance="two")
    assert groups.answer(waiting).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert groups.group.state_name == "PreparingRebalance"


def test_a_static_member_that_joins_twice_fences_its_first_join():
    groups = Groups()
    groups.stable()
    first = groups.join(version=5, instance="one")
    groups.join(version=5, instance="one")
    assert groups.answer(first).error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_is_away_keeps_its_place_through_a_rebalance():
    groups = Groups()
    (one, two), generation = a_static_pair(groups)
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


def test_a_group_whose_static_members_are_all_away_waits_for_their_sessions():
    groups = Groups()
    (one, two), generation = a_static_pair(groups)
    newcomer = groups.join(version=4).member_id
    ticket = groups.join(newcomer, version=4)
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


# Syncing.


def test_the_leaders_sync_answers_all_of_them():
    groups = Groups()
    tickets = [groups.join(), groups.join(), groups.join()]
    groups.pass_time(0)
    leader, second, third = (groups.answer(ticket).member_id for ticket in tickets)
    waiting = groups.sync(second, 1)
    assert groups.waits(waiting)
    answer = groups.sync(leader, 1, {leader: b"L", second: b"S", "stranger": b"X"})
    assert answer.assignment == b"L" and answer.protocol_name == "range"
    assert groups.answer(waiting).assignment == b"S"
    assert groups.sync(third, 1).assignment == b"", "the leader gave it nothing"
    assert groups.group.state_name == "Stable"


def test_an_assignment_of_garbage_is_passed_on_as_it_is():
    groups = Groups()
    ticket = groups.join(protocols=(("range", b"\xff\x00garbage"),))
    groups.pass_time(0)
    member = groups.answer(ticket).member_id
    assert groups.sync(member, 1, {member: b"\x00\xff\xfe"}).assignment == b"\x00\xff\xfe"
    groups.reload()
    assert groups.sync(member, 1).assignment == b"\x00\xff\xfe"


def test_members_that_lie_in_a_sync_are_told_so():
    groups = Groups()
    (leader, _), generation = groups.stable(2)
    assert groups.sync("x", generation).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.sync(leader, generation + 1).error_code == ErrorCode.ILLEGAL_GENERATION
    assert groups.sync(leader, generation - 1).error_code == ErrorCode.ILLEGAL_GENERATION
    wrong = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert groups.sync(leader, generation, protocol_type="connect").error_code == wrong
    assert groups.sync(leader, generation, protocol_name="sticky").error_code == wrong
    answer = groups.sync(leader, generation, protocol_type="consumer", protocol_name="range")
    assert answer.error_code == ErrorCode.NONE
    assert groups.sync(leader, 1, group="none").error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_sync_comes_too_late_once_the_next_rebalance_has_begun():
    groups = Groups()
    (leader,), generation = groups.stable()
    groups.join()
    assert groups.sync(leader, generation).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_members_that_do_not_sync_in_the_rebalance_time_are_out():
    groups = Groups()
    tickets = [groups.join(), groups.join()]
    groups.pass_time(0)
    leader, follower = (groups.answer(ticket).member_id for ticket in tickets)
    waiting = groups.sync(follower, 1)
    for _ in range(REBALANCE_MS // 5000 - 1):
        groups.pass_time(5_000)
        assert groups.heartbeat(leader, 1).error_code == ErrorCode.NONE
    groups.pass_time(4_999)
    assert groups.waits(waiting)
    groups.pass_time(1)
    assert groups.answer(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert groups.group.members.keys() == {follower}


def test_a_member_that_never_fetches_its_assignment_is_out_of_a_stable_group_too():
    groups = Groups()
    tickets = [groups.join(), groups.join()]
    groups.pass_time(0)
    leader, follower = (groups.answer(ticket).member_id for ticket in tickets)
    groups.sync(leader, 1)
    for _ in range(REBALANCE_MS // 5000):
        groups.pass_time(5_000)
        groups.heartbeat(leader, 1)
        groups.heartbeat(follower, 1)
    assert groups.group.members.keys() == {leader}
    assert groups.group.state_name == "PreparingRebalance"


def test_an_assignment_that_cannot_be_written_leaves_the_group_to_join_again():
    groups = Groups()
    ticket = groups.join()
    groups.pass_time(0)
    member = groups.answer(ticket).member_id
    groups.is_writable = False
    groups.sync(member, 1, {member: b"lost"})
    groups.is_writable = True
    assert groups.group.state_name == "CompletingRebalance"
    assert groups.sync(member, 1, {member: b"kept"}).assignment == b"kept"


# Staying and going.


def test_a_heartbeat_extends_the_session_and_a_missing_one_ends_it():
    groups = Groups()
    (member, other), generation = groups.stable(2)
    for _ in range(3):
        groups.pass_time(SESSION_MS - 1)
        assert groups.heartbeat(member, generation).error_code == ErrorCode.NONE
        groups.heartbeat(other, generation)
    groups.pass_time(SESSION_MS - 1)
    groups.heartbeat(member, generation)
    groups.pass_time(1)
    assert groups.group.members.keys() == {member}
    assert groups.group.state_name == "PreparingRebalance"
    assert groups.heartbeat(member, generation).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_members_that_lie_in_a_heartbeat_are_told_so():
    groups = Groups()
    (member,), generation = groups.stable()
    assert groups.heartbeat("x", generation).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.heartbeat(member, 99).error_code == ErrorCode.ILLEGAL_GENERATION
    assert groups.heartbeat(member, -1).error_code == ErrorCode.ILLEGAL_GENERATION
    assert groups.heartbeat(member, 1, group="no").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    unknown = groups.heartbeat(member, generation, instance="i").error_code
    assert unknown == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_parked_member_has_no_session_to_miss():
    groups = Groups()
    (first, second), generation = groups.stable(2, rebalance_ms=REBALANCE_MS)
    groups.join()
    again = groups.join(first)
    for _ in range(5):
        groups.pass_time(SESSION_MS - 1)
        groups.heartbeat(second, generation)
    assert first in groups.group.members and groups.waits(again)
    groups.join(second)
    assert groups.answer(again).error_code == ErrorCode.NONE


def test_the_session_begins_anew_when_the_join_is_answered():
    groups = Groups()
    ticket = groups.join()
    groups.pass_time(0)
    member = groups.answer(ticket).member_id
    groups.pass_time(SESSION_MS - 1)
    assert member in groups.group.members
    groups.pass_time(1)
    assert member not in groups.group.members


def test_a_commit_extends_the_session():
    groups = Groups()
    (member,), generation = groups.stable()
    groups.pass_time(SESSION_MS - 1)
    assert groups.commit({0: 1}, member, generation) == {0: ErrorCode.NONE}
    groups.pass_time(SESSION_MS - 1)
    assert member in groups.group.members


def test_who_leaves_makes_the_others_share_and_the_last_one_empties_the_group():
    groups = Groups()
    (first, second), generation = groups.stable(2)
    answer = groups.leave(first)
    assert answer.members[0].error_code == ErrorCode.NONE
    assert groups.group.state_name == "PreparingRebalance"
    groups.leave(second)
    assert groups.group.state_name == "Empty"
    assert groups.group.generation == generation + 1
    assert groups.group.protocol_type == "consumer"


def test_several_members_leave_at_once_each_with_its_own_answer():
    groups = Groups()
    (one, two), _ = a_static_pair(groups)
    pending = groups.join(version=4).member_id
    answer = groups.leave(("", "one"), (two, "two"), "stranger", ("", "nobody"), pending)
    assert [x.error_code for x in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert groups.group.state_name == "Empty"
    assert one not in groups.group.members


def test_leaving_what_is_not_there_is_refused_member_by_member():
    groups = Groups()
    answer = groups.leave("a", "b", group="none")
    assert [x.error_code for x in answer.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    assert answer.error_code == ErrorCode.NONE


def test_a_pending_member_that_leaves_lets_the_others_go_on():
    groups = Groups()
    (member,), _ = groups.stable()
    pending = groups.join(version=4).member_id
    groups.join()
    again = groups.join(member)
    assert groups.waits(again)
    groups.leave(pending)
    assert groups.answer(again).error_code == ErrorCode.NONE


# What the log brings back.


def test_a_stable_group_is_loaded_with_its_members_and_assignments():
    groups = Groups()
    (leader, follower), generation = groups.stable(2)
    groups.reload()
    assert groups.group.state_name == "Stable"
    assert groups.sync(follower, generation).assignment == follower.encode()
    assert groups.heartbeat(leader, generation).error_code == ErrorCode.NONE
    described = groups.describe()
    assert [x.member_id for x in described.members] == [leader, follower]
    assert described.members[0].client_host == "/10.0.0.1"
    assert described.members[0].member_metadata == subscription("orders")
    groups.pass_time(SESSION_MS)
    assert groups.group.members.keys() == set()


def test_an_unfinished_rebalance_is_not_loaded():
    groups = Groups()
    (leader,), generation = groups.stable()
    groups.join()
    again = groups.join(leader)
    assert groups.answer(again).generation_id == generation + 1
    groups.reload()
    assert groups.sync(leader, generation + 1).error_code == ErrorCode.ILLEGAL_GENERATION
    assert groups.heartbeat(leader, generation).error_code == ErrorCode.NONE


def test_a_static_member_replaced_before_a_restart_is_known_after_it():
    groups = Groups()
    (_, old), generation = a_static_pair(groups)
    new = groups.join(version=5, instance="two").member_id
    groups.reload()
    assert groups.heartbeat(new, generation, instance="two").error_code == ErrorCode.NONE
    fenced = groups.heartbeat(old, generation, instance="two").error_code
    assert fenced == ErrorCode.FENCED_INSTANCE_ID


def test_an_empty_group_is_loaded_with_its_generation():
    groups = Groups()
    (member,), generation = groups.stable()
    groups.leave(member)
    groups.reload()
    assert groups.group.state_name == "Empty"
    ticket = groups.join()
    groups.pass_time(0)
    assert groups.answer(ticket).generation_id == generation + 2


def test_an_emptied_group_whose_record_was_refused_is_emptied_later():
    groups = Groups()
    (member,), _ = groups.stable()
    groups.is_writable = False
    groups.leave(member)
    groups.is_writable = True
    assert groups.group.state_name == "PreparingRebalance"
    groups.pass_time(5_000)
    assert groups.group.state_name == "Empty"


# Describing.


def test_only_a_stable_group_tells_what_its_members_have():
    groups = Groups()
    (first, _), _ = groups.stable(2)
    described = groups.describe()
    assert described.group_state == "Stable" and described.protocol_data == "range"
    assert described.members[0].member_assignment == first.encode()
    groups.join()
    described = groups.describe()
    assert described.group_state == "PreparingRebalance" and described.protocol_data == ""
    assert {x.member_assignment for x in described.members} == {b""}


def test_a_group_that_is_not_there_is_dead():
    groups = Groups()
    described = groups.describe("none", version=5)
    assert described.group_state == "Dead" and described.error_code == ErrorCode.NONE
    described = groups.describe("none", version=6)
    assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert described.error_message == "Group none not found."


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\0",
        b"\0\0\0\0\0\1",
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\0\0\0\1\xff\xff",
        b"\0\0\0\0\0\1\0\2\xff\xff",
    ],
)
def test_a_subscription_of_garbage_is_refused_in_words(garbage):
    with pytest.raises(ValueError):
        subscribed_topics(garbage)


def test_topics_of_a_subscription_are_read_whatever_follows_them():
    assert subscribed_topics(subscription("a", "bc") + b"later fields") == ["a", "bc"]
    assert subscribed_topics(subscription()) == []
