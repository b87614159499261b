"""Members give partitions back before others take them."""

from headrace.core.groups.consumer.members import MemberState
from tests.fakes.consumers import Client, Consumers

ALL = {"orders": {0, 1, 2, 3}}


def test_a_second_member_gets_its_half_only_when_the_first_has_given_it_back():
    groups = Consumers()
    first = Client(groups, "a").join()
    second = Client(groups, "b").join()
    assert second.member_epoch == 3 and second.owned == {}
    assert groups.group.members["b"].state is MemberState.UNRELEASED

    answer = first.beat()  # must give partitions back, keeps its epoch
    assert answer.member_epoch == 2
    kept = groups.assignment_in(answer)["orders"]
    assert len(kept) == 2
    assert groups.group.members["a"].state is MemberState.UNREVOKED
    assert second.beat().assignment is None
    assert first.beat().member_epoch == 2  # no new report: it has not given back yet

    first.obey()
    assert first.beat().member_epoch == 3
    second.beat_and_obey()
    assert second.owned == {"orders": {0, 1, 2, 3} - kept}
    assert groups.group.state_name == "Stable"


def test_a_member_owns_a_partition_as_long_as_it_reports_it():
    groups = Consumers()
    first = Client(groups, "a").join()
    Client(groups, "b").join()
    first.beat()
    revoking = groups.group.members["a"].revoking
    (partitions,) = revoking.values()
    one_left = {"orders": {*first.wanted["orders"], next(iter(partitions))}}
    answer = groups.beat("a", 2, owned=one_left)
    assert answer.member_epoch == 2
    assert groups.group.members["a"].state is MemberState.UNREVOKED


def test_a_group_reports_its_states_by_name():
    groups = Consumers(group_consumer_assignment_interval_ms=1_000)
    first = Client(groups, "a").join()
    assert groups.group.state_name == "Stable"
    second = Client(groups, "b").join()
    assert groups.group.state_name == "Assigning"
    groups.pass_time(1_000)
    first.beat()
    assert groups.group.state_name == "Reconciling"
    first.obey()
    groups.settle_all(first, second)
    assert groups.group.state_name == "Stable"
    first.leave(), second.leave()
    assert groups.group.state_name == "Empty"


def test_a_member_may_keep_what_it_was_told_to_give_back():
    groups = Consumers()
    first = Client(groups, "a").join()
    second = Client(groups, "b").join()
    first.beat()
    second.leave()
    first.obey()
    answer = first.beat()
    assert groups.assignment_in(answer) == ALL and answer.member_epoch == 4


def test_a_target_waits_for_the_interval_and_then_covers_all_new_members():
    groups = Consumers(group_consumer_assignment_interval_ms=1_000)
    clients = [Client(groups, name).join() for name in "abcd"]
    assert groups.group.assignment_epoch == 2  # the first target is computed at once
    assert [client.member_epoch for client in clients] == [2, 2, 2, 2]
    groups.pass_time(999)
    assert clients[0].beat().assignment is None
    groups.pass_time(1)
    groups.settle_all(*clients)
    assert groups.group.assignment_epoch == 5
    assert all(len(client.owned["orders"]) == 1 for client in clients)
