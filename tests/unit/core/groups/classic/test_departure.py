"""How members leave a classic group: on request, or by a timeout."""

from headrace.model.errors import ErrorCode
from tests.fakes.groups import REBALANCE_MS, SESSION_MS, Groups


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


def test_the_session_restarts_when_the_join_is_answered():
    groups = Groups()
    ticket = groups.join()
    groups.pass_time(0)
    member = groups.answer(ticket).member_id
    groups.pass_time(SESSION_MS - 1)
    assert member in groups.group.members
    groups.pass_time(1)
    assert member not in groups.group.members


def test_a_leaving_member_causes_a_rebalance_and_the_last_one_empties_the_group():
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
    (one, two), _ = groups.stable_static_pair()
    pending = groups.join(requires_known_member=True).member_id
    answer = groups.leave(("", "one"), (two, "two"), "stranger", ("", "unknown"), pending)
    assert [x.error_code for x in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert groups.group.state_name == "Empty"
    assert one not in groups.group.members


def test_unknown_members_that_leave_are_rejected_one_by_one():
    groups = Groups()
    answer = groups.leave("a", "b", group="none")
    assert [x.error_code for x in answer.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    assert answer.error_code == ErrorCode.NONE


def test_a_pending_member_that_leaves_no_longer_delays_the_others():
    groups = Groups()
    (member,), _ = groups.stable()
    pending = groups.join(requires_known_member=True).member_id
    groups.join()
    again = groups.join(member)
    assert groups.waits(again)
    groups.leave(pending)
    assert groups.answer(again).error_code == ErrorCode.NONE
