"""A classic group after a reload from its GroupMetadata record."""

from headrace.model.errors import ErrorCode
from tests.fakes.groups import SESSION_MS, Groups, subscription


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
    (_, old), generation = groups.stable_static_pair()
    new = groups.join(instance="two").member_id
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


def test_an_empty_group_whose_record_failed_is_written_later():
    groups = Groups()
    (member,), _ = groups.stable()
    groups.is_writable = False
    groups.leave(member)
    groups.is_writable = True
    assert groups.group.state_name == "PreparingRebalance"
    groups.pass_time(5_000)
    assert groups.group.state_name == "Empty"
