"""A classic group: heartbeats, commits, limits, and how it is described."""

from headrace.model.errors import ErrorCode
from tests.fakes.groups import SESSION_MS, Groups


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


def test_a_heartbeat_with_a_wrong_identity_is_rejected():
    groups = Groups()
    (member,), generation = groups.stable()
    assert groups.heartbeat("x", generation).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.heartbeat(member, 99).error_code == ErrorCode.ILLEGAL_GENERATION
    assert groups.heartbeat(member, -1).error_code == ErrorCode.ILLEGAL_GENERATION
    assert groups.heartbeat(member, 1, group="no").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    unknown = groups.heartbeat(member, generation, instance="i").error_code
    assert unknown == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_extends_the_session():
    groups = Groups()
    (member,), generation = groups.stable()
    groups.pass_time(SESSION_MS - 1)
    assert groups.commit({0: 1}, member, generation) == {0: ErrorCode.NONE}
    groups.pass_time(SESSION_MS - 1)
    assert member in groups.group.members


def test_only_a_stable_group_is_described_with_assignments():
    groups = Groups()
    (first, _), _ = groups.stable(2)
    described = groups.describe()
    assert described.group_state == "Stable" and described.protocol_data == "range"
    assert described.members[0].member_assignment == first.encode()
    groups.join()
    described = groups.describe()
    assert described.group_state == "PreparingRebalance" and described.protocol_data == ""
    assert {x.member_assignment for x in described.members} == {b""}
