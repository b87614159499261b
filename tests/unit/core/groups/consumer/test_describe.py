"""ConsumerGroupDescribe, and how other requests present a consumer group."""

from headrace.model.errors import ErrorCode
from tests.fakes.consumers import Client, Consumers


def test_a_described_member_has_its_assignment_and_its_target():
    groups = Consumers()
    first = Client(groups, "a", rack="r1").join()
    Client(groups, "b", None, pattern="oth.*", instance="one").join()
    first.beat(topics=("orders", "other"))
    found = groups.look()
    assert (found.group_id, found.group_state) == ("g", "Reconciling")
    assert (found.group_epoch, found.assignment_epoch, found.assignor_name) == (4, 4, "uniform")
    a, b = found.members
    assert (a.member_id, a.rack_id, a.member_epoch, a.member_type) == ("a", "r1", 4, 1)
    assert (a.client_id, a.client_host) == ("client", "/10.0.0.1")
    assert a.subscribed_topic_names == ["orders", "other"] and a.subscribed_topic_regex == ""
    assert [(t.topic_name, t.partitions) for t in a.assignment.topic_partitions] == [
        ("orders", [0, 1, 2, 3])
    ]
    assert (b.instance_id, b.subscribed_topic_regex) == ("one", "oth.*")
    assert [(t.topic_name, t.partitions) for t in b.target_assignment.topic_partitions] == [
        ("other", [0, 1])
    ]


def test_an_assignment_includes_what_must_be_given_back():
    groups = Consumers()
    first = Client(groups, "a").join()
    Client(groups, "b").join()
    first.beat()
    (a, _) = groups.look().members
    assert a.assignment.topic_partitions[0].partitions == [0, 1, 2, 3]
    assert len(a.target_assignment.topic_partitions[0].partitions) == 2


def test_only_consumer_groups_can_be_described():
    groups = Consumers()
    found = groups.look("unknown")
    assert found.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert found.error_message == "Group unknown not found."
    groups.stable(group="old")
    assert groups.look("old").error_message == "Group old is not a consumer group."


def test_describe_groups_rejects_a_consumer_group_and_list_groups_names_its_kind():
    groups = Consumers()
    Client(groups, "a").join()
    answer = groups.describe()
    assert (answer.error_code, answer.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    assert answer.error_message == "Group g is not a classic group."
    (listed,) = groups.list(kinds={"consumer"}, states={"stable"})
    assert (listed.group_id, listed.protocol_type) == ("g", "consumer")
    assert (listed.group_state, listed.group_type) == ("Stable", "consumer")
    assert groups.list(kinds={"classic"}) == []
