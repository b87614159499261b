"""SyncGroup: the leader assigns, every member fetches its assignment."""

from headrace.model.errors import ErrorCode
from tests.fakes.groups import REBALANCE_MS, Groups


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


def test_a_sync_with_a_wrong_identity_or_protocol_is_rejected():
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


def test_a_sync_is_rejected_once_the_next_rebalance_has_begun():
    groups = Groups()
    (leader,), generation = groups.stable()
    groups.join()
    assert groups.sync(leader, generation).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_members_that_do_not_sync_within_the_rebalance_timeout_are_removed():
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


def test_a_member_that_never_fetches_its_assignment_is_removed_from_a_stable_group():
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


def test_an_assignment_that_cannot_be_written_can_be_synced_again():
    groups = Groups()
    ticket = groups.join()
    groups.pass_time(0)
    member = groups.answer(ticket).member_id
    groups.is_writable = False
    groups.sync(member, 1, {member: b"lost"})
    groups.is_writable = True
    assert groups.group.state_name == "CompletingRebalance"
    assert groups.sync(member, 1, {member: b"kept"}).assignment == b"kept"
