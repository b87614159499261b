"""What concerns all groups of a shard: listing, deletion, unknown records."""

import pytest

from headrace.model.errors import ErrorCode, PeerBroken
from tests.fakes.groups import Groups, subscription

OK = ErrorCode.NONE


def test_only_a_group_without_members_can_be_deleted_with_its_offsets():
    groups = Groups()
    (member,), generation = groups.stable()
    groups.commit({0: 5}, member, generation)
    assert groups.delete() == ErrorCode.NON_EMPTY_GROUP
    groups.leave(member)
    groups.txn_commit({1: 9})
    assert groups.delete() == OK
    assert groups.shard.groups == {} and groups.offsets() == {}
    assert groups.delete() == ErrorCode.GROUP_ID_NOT_FOUND
    groups.end_transaction(7, committed=True)
    assert groups.offsets() == {}, "what was pending is gone too"
    groups.reload()
    assert groups.shard.groups == {}


def test_groups_are_listed_by_state_and_kind():
    groups = Groups()
    groups.stable(group="stable")
    groups.commit({0: 1}, group="simple")
    listed = {x.group_id: x for x in groups.list()}
    assert listed["stable"].group_state == "Stable" and listed["stable"].group_type == "classic"
    assert listed["stable"].protocol_type == "consumer" and listed["simple"].protocol_type == ""
    assert [x.group_id for x in groups.list(states=["empty"])] == ["simple"]
    assert [x.group_id for x in groups.list(states=["stable", "nonsense"])] == ["stable"]
    assert groups.list(kinds=["consumer"]) == []
    assert len(groups.list(kinds=["classic"])) == 2


def test_keys_of_an_unknown_type_are_skipped():
    groups = Groups()
    groups.commit({0: 1})
    groups.log.append((b"\x03\xe7whatever", b"\0\0", -1))
    groups.log.append((b"\x03\xe7whatever", None, -1))
    groups.reload()
    assert groups.offsets() == {0: 1}


def test_a_truncated_group_record_is_rejected():
    groups = Groups()
    groups.stable(protocols=(("range", subscription("orders")),))
    key, value, _ = groups.log[-1]
    groups.log.append((key, value[:-3], -1))
    with pytest.raises(PeerBroken):
        groups.reload()


def test_an_unknown_group_is_described_as_dead():
    described = Groups().describe("none")
    assert described.group_state == "Dead"
    assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert described.error_message == "Group none not found."
