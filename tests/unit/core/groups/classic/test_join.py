"""JoinGroup in a classic group: new members, repeated joins, static members."""

import pytest

from headrace.core.groups.classic.join import NEW_MEMBER_JOIN_TIMEOUT_MS
from headrace.model.errors import ErrorCode
from tests.fakes.groups import RANGE, SESSION_MS, STICKY, Groups, subscription


def test_the_first_member_leads_and_gets_all_members():
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


def test_a_follower_does_not_get_the_other_members():
    groups = Groups()
    tickets = [groups.join(), groups.join()]
    groups.pass_time(0)
    leader, follower = (groups.answer(ticket) for ticket in tickets)
    assert leader.leader == follower.leader == leader.member_id
    assert len(leader.members) == 2 and follower.members == []


def test_a_member_that_needs_its_id_first_joins_twice_or_is_forgotten():
    groups = Groups()
    answer = groups.join(requires_known_member=True)
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id == "client-#1"
    assert groups.group.state_name == "Empty"
    ticket = groups.join(answer.member_id, requires_known_member=True)
    groups.pass_time(0)
    assert groups.answer(ticket).member_id == answer.member_id

    other = groups.join(requires_known_member=True).member_id
    groups.pass_time(SESSION_MS - 1)
    groups.heartbeat("client-#1", 1)
    groups.pass_time(1)
    assert groups.join(other, requires_known_member=True).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_needs_no_second_join():
    groups = Groups()
    ticket = groups.join(instance="one")
    groups.pass_time(0)
    assert groups.answer(ticket).member_id == "one-#1"
    assert groups.answer(ticket).members[0].group_instance_id == "one"


def test_an_id_that_was_never_handed_out_is_unknown():
    groups = Groups()
    assert groups.join("stranger").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert "g" not in groups.shard.groups
    groups.stable()
    assert groups.join("stranger").error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_the_session_timeout_must_be_within_the_limits_of_the_broker(session_ms):
    groups = Groups()
    assert groups.join(session_ms=session_ms).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert groups.shard.groups == {}


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_the_limits_of_the_session_timeout_are_allowed(session_ms):
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
    assert groups.shard.groups == {}, "a rejected join leaves no group behind"


@pytest.mark.parametrize(
    "wrong",
    [{"protocols": (("other", b""),)}, {"protocol_type": "connect"}],
    ids=["no common protocol", "another type"],
)
def test_a_member_without_a_common_protocol_is_rejected(wrong):
    groups = Groups()
    groups.stable()
    assert groups.join(**wrong).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert groups.group.state_name == "Stable"


def test_an_unchanged_join_is_answered_again_while_the_leader_assigns():
    groups = Groups()
    ticket = groups.join()
    groups.pass_time(0)
    first = groups.answer(ticket)
    assert groups.join(first.member_id) == first
    assert groups.group.state_name == "CompletingRebalance"


def test_a_changed_join_begins_another_rebalance():
    groups = Groups()
    tickets = [groups.join(), groups.join()]
    groups.pass_time(0)
    leader, follower = (groups.answer(ticket).member_id for ticket in tickets)
    waiting = groups.sync(follower, 1)
    assert groups.waits(groups.join(leader, protocols=(RANGE, STICKY)))
    assert groups.answer(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert groups.group.state_name == "PreparingRebalance"


def test_in_a_stable_group_a_follower_may_rejoin_but_a_leader_causes_a_rebalance():
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


def test_a_new_member_whose_join_is_never_answered_is_removed_in_the_end():
    groups = Groups()
    groups.stable(1, rebalance_ms=1_000_000, session_ms=1_800_000)
    newcomer = groups.join()
    groups.pass_time(NEW_MEMBER_JOIN_TIMEOUT_MS - 1)
    assert groups.waits(newcomer)
    groups.pass_time(1)
    answer = groups.answer(newcomer)
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert answer.member_id == ""


def test_a_group_does_not_exceed_its_maximum_size():
    groups = Groups(group_max_size=2)
    tickets = [groups.join(), groups.join()]
    assert groups.join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    groups.pass_time(0)
    (first, second), _ = groups.settle(tickets)
    answer = groups.join()
    assert answer.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED and answer.member_id == ""
    assert groups.group.state_name == "Stable"
    # Members may always rejoin.
    again = groups.join(first)
    groups.join(second)
    assert groups.answer(again).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    "too_long",
    [
        {"group": "x" * 40_000},
        {"instance": "x" * 40_000},
        {"client_id": "x" * 32_750},
        {"protocol_type": "x" * 40_000},
        {"protocols": (("x" * 40_000, b""),)},
    ],
    ids=lambda given: next(iter(given)),
)
def test_texts_too_long_for_the_record_are_rejected(too_long):
    groups = Groups()
    assert groups.join(**too_long).error_code == ErrorCode.INVALID_REQUEST
    assert groups.shard.groups == {}


def test_a_static_member_that_returns_takes_its_old_place_without_a_rebalance():
    groups = Groups()
    (leader, old), generation = groups.stable_static_pair()
    answer = groups.join(instance="two")
    assert answer.generation_id == generation
    assert answer.member_id == "two-#3" and answer.leader == leader and answer.members == []
    assert groups.group.state_name == "Stable"
    assert groups.sync(answer.member_id, generation).assignment == old.encode()
    # The replaced member is fenced everywhere.
    for code in (
        groups.heartbeat(old, generation, instance="two").error_code,
        groups.sync(old, generation, instance="two").error_code,
        groups.join(old, instance="two").error_code,
        groups.commit({0: 1}, old, generation, instance="two")[0],
        groups.leave((old, "two")).members[0].error_code,
    ):
        assert code == ErrorCode.FENCED_INSTANCE_ID
    assert groups.heartbeat(old, generation).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_leader_that_returns_does_not_assign_again():
    groups = Groups()
    (old, _), _ = groups.stable_static_pair()
    answer = groups.join(instance="one")
    assert answer.leader == old != answer.member_id, "it must not take itself for the leader"
    assert answer.members == [] and not answer.skip_assignment
    assert groups.group.leader_id == answer.member_id


def test_a_static_leader_is_told_to_skip_the_assignment_if_its_client_supports_it():
    groups = Groups()
    (_, follower), _ = groups.stable_static_pair()
    answer = groups.join(supports_skip_assignment=True, instance="one")
    assert answer.leader == answer.member_id and answer.skip_assignment
    assert [x.member_id for x in answer.members] == [answer.member_id, follower]
    assert not groups.join(supports_skip_assignment=True, instance="two").skip_assignment


def test_a_static_member_with_another_protocol_rebalances():
    groups = Groups()
    tickets = [groups.join(instance=name, protocols=(RANGE, STICKY)) for name in ("one", "two")]
    groups.pass_time(0)
    groups.settle(tickets)
    groups.join(instance="two", protocols=(STICKY,))
    assert groups.group.state_name == "PreparingRebalance"


def test_a_static_member_that_returns_while_the_leader_assigns_causes_a_rebalance():
    groups = Groups()
    tickets = [groups.join(instance="one"), groups.join(instance="two")]
    groups.pass_time(0)
    old = groups.answer(tickets[1]).member_id
    waiting = groups.sync(old, 1, instance="two")
    groups.join(instance="two")
    assert groups.answer(waiting).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert groups.group.state_name == "PreparingRebalance"


def test_a_static_member_that_joins_twice_fences_its_first_join():
    groups = Groups()
    groups.stable()
    first = groups.join(instance="one")
    groups.join(instance="one")
    assert groups.answer(first).error_code == ErrorCode.FENCED_INSTANCE_ID
