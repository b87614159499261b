"""How members leave a consumer group, or are fenced."""

from headrace.model.errors import ErrorCode
from tests.fakes.consumers import CONSUMER_SESSION_MS, Client, Consumers

ALL = {"orders": {0, 1, 2, 3}}


def test_partitions_of_a_member_are_free_as_soon_as_it_leaves():
    groups = Consumers()
    first, second = Client(groups, "a").join(), Client(groups, "b").join()
    groups.settle_all(first, second)
    answer = first.leave()
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "a", -1)
    second.beat_and_obey()
    assert second.owned == ALL
    assert first.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_fenced_after_its_session_and_not_before():
    groups = Consumers()
    Client(groups, "a").join()
    groups.pass_time(CONSUMER_SESSION_MS - 1)
    assert "a" in groups.group.members
    groups.pass_time(1)
    assert groups.group.members == {} and groups.group.state_name == "Empty"
    assert groups.beat("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_each_heartbeat_restarts_the_session():
    groups = Consumers()
    client = Client(groups, "a").join()
    for _ in range(3):
        groups.pass_time(CONSUMER_SESSION_MS - 1)
        assert not client.beat().error_code


def test_a_member_that_does_not_give_back_in_time_is_fenced_despite_heartbeats():
    groups = Consumers()
    first = Client(groups, "a", rebalance_ms=10_000).join()
    second = Client(groups, "b").join()
    first.beat()
    groups.pass_time(9_999)
    assert not first.beat().error_code and not second.beat().error_code
    groups.pass_time(1)
    assert "a" not in groups.group.members
    second.beat_and_obey()
    assert second.owned == ALL


def test_a_member_that_gave_back_in_time_stays():
    groups = Consumers()
    first = Client(groups, "a", rebalance_ms=10_000).join()
    second = Client(groups, "b").join()
    first.beat()
    groups.pass_time(9_999)
    groups.settle_all(first, second)
    groups.pass_time(10_000)
    assert set(groups.group.members) == {"a", "b"}


def test_timeouts_survive_a_reload():
    groups = Consumers()
    first = Client(groups, "a", rebalance_ms=10_000).join()
    Client(groups, "b").join()
    first.beat()
    groups.pass_time(5_000)
    groups.reload()
    groups.pass_time(9_999)
    assert "a" in groups.group.members
    groups.pass_time(1)
    assert "a" not in groups.group.members  # it never gave back
    groups.pass_time(CONSUMER_SESSION_MS)
    assert groups.group.members == {}  # no member sent a heartbeat


def test_removing_an_empty_group_leaves_nothing():
    groups = Consumers()
    client = Client(groups, "a").join()
    assert groups.delete() == ErrorCode.NON_EMPTY_GROUP
    client.leave()
    assert groups.delete() == ErrorCode.NONE
    assert groups.shard.groups == {}
    groups.reload()
    assert groups.shard.groups == {}
