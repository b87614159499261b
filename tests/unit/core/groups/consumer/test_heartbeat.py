"""The consumer protocol: joining, epochs, giving back before taking, going, time-outs."""

import pytest

from headrace.core.groups.consumer import group as consumer
from headrace.core.groups.consumer.members import MemberState
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from tests.fakes.consumers import (
    CONSUMER_SESSION_MS,
    REBALANCE_TIMEOUT_MS,
    Client,
    Consumers,
)
from tests.fakes.groups import a_context, a_topic

ALL = {"orders": {0, 1, 2, 3}}


# Joining.


def test_the_first_member_gets_everything_with_its_first_heartbeat():
    groups = Consumers()
    answer = groups.enter("a")
    assert answer.error_code == ErrorCode.NONE and answer.error_message is None
    assert answer.member_id == "a"
    assert answer.member_epoch == 2  # as in Kafka 4.3: a group begins at 1
    assert answer.heartbeat_interval_ms == 5_000
    assert groups.told(answer) == ALL
    assert groups.group.state_name == "Stable"
    assert groups.group.kind.value == "consumer" and groups.group.protocol_type == "consumer"


def test_a_version_0_client_may_leave_its_id_to_the_coordinator_a_later_one_may_not():
    groups = Consumers()
    answer = groups.enter("", version=0)
    assert answer.member_id == "#1" and answer.member_epoch == 2
    assert groups.enter("", version=1).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"member_id": " "}, "MemberId can't be empty."),
        ({"group": ""}, "GroupId can't be empty."),
        ({"instance": ""}, "InstanceId can't be empty."),
        ({"rack": ""}, "RackId can't be empty."),
        ({"rebalance_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"owned": None}, "TopicPartitions must be empty when (re-)joining."),
        ({"owned": {"orders": [0]}}, "TopicPartitions must be empty when (re-)joining."),
        (
            {"topics": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining.",
        ),
    ],
)
def test_a_join_that_lacks_something_is_refused_and_changes_nothing(changed, reason):
    groups = Consumers()
    answer = groups.enter(**{"member_id": "a", **changed})
    assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_REQUEST, reason)
    assert groups.log == [] and groups.shard.groups == {}


def test_member_epochs_that_mean_nothing_are_refused():
    groups = Consumers()
    assert groups.beat("a", -3).error_code == ErrorCode.INVALID_REQUEST
    answer = groups.beat("a", -2)
    assert answer.error_code == ErrorCode.INVALID_REQUEST  # only a static member can
    assert answer.error_message == "InstanceId can't be null."


def test_texts_that_no_record_can_keep_are_refused():
    groups = Consumers()
    long = "x" * 32_768
    assert groups.enter(long).error_code == ErrorCode.INVALID_REQUEST
    assert groups.enter("a", group=long).error_code == ErrorCode.INVALID_REQUEST
    assert groups.enter("a", topics=None, pattern=long).error_code == ErrorCode.INVALID_REQUEST
    assert groups.enter("a", group=long[1:]).error_code == ErrorCode.NONE


def test_an_assignor_must_be_one_of_those_configured():
    groups = Consumers()
    answer = groups.enter("a", assignor="sticky")
    assert answer.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
    assert groups.enter("a", assignor="range").error_code == ErrorCode.NONE
    only_range = Consumers(group_consumer_assignors="range")
    assert only_range.enter("a", assignor="uniform").error_code == ErrorCode.UNSUPPORTED_ASSIGNOR


def test_a_group_and_a_member_come_to_be_by_joining_alone():
    groups = Consumers()
    answer = groups.beat("a", 5)
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert answer.error_message == "Consumer group g not found."
    assert groups.beat("a", -1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    groups.enter("a")
    answer = groups.beat("b", 5)
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert answer.error_message == "Member b is not a member of group g."
    assert groups.beat("b", -1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_takes_nobody_new():
    groups = Consumers(group_consumer_max_size=1)
    groups.enter("a")
    answer = groups.enter("b")
    assert answer.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "maximum capacity of 1 members" in answer.error_message
    assert groups.enter("a").error_code == ErrorCode.NONE  # it is in already


def test_a_topic_that_does_not_exist_may_be_read_and_comes_when_it_is_made():
    groups = Consumers()
    client = Client(groups, "a", ("later",)).join()
    assert client.owned == {}
    groups.make_topics(later=2)
    client.beat_and_obey()
    assert client.owned == {"later": {0, 1}}


# Heartbeats: what is left out has not changed.


def test_a_heartbeat_that_says_nothing_is_told_nothing_and_writes_nothing():
    groups = Consumers()
    client = Client(groups, "a").join()
    written = len(groups.log)
    for _ in range(3):
        answer = client.beat()
        assert answer.member_epoch == 2 and answer.assignment is None
    assert len(groups.log) == written


def test_a_full_request_is_told_the_whole_assignment_again():
    groups = Consumers()
    groups.enter("a")
    full = {"topics": ("orders",), "rebalance_ms": REBALANCE_TIMEOUT_MS, "owned": ALL}
    assert groups.told(groups.beat("a", 2, **full)) == ALL
    for left_out in full:
        answer = groups.beat("a", 2, **{k: v for k, v in full.items() if k != left_out})
        assert answer.assignment is None, left_out


def test_other_topics_bring_another_target_at_once():
    groups = Consumers()
    groups.enter("a")
    answer = groups.beat("a", 2, topics=("orders", "other"))
    assert answer.member_epoch == 3
    assert groups.told(answer) == {"orders": {0, 1, 2, 3}, "other": {0, 1}}
    answer = groups.beat("a", 3, topics=("other",))
    # It has to give orders back first, and is at its old epoch until it did.
    assert answer.member_epoch == 3
    assert groups.told(answer) == {"other": {0, 1}}
    assert groups.group.state_name == "Reconciling"
    answer = groups.beat("a", 3, owned={"other": [0, 1]})
    assert answer.member_epoch == 4


# Member epochs.


def test_an_epoch_from_the_future_is_fenced():
    groups = Consumers()
    groups.enter("a")
    answer = groups.beat("a", 3)
    assert answer.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert "greater member epoch (3)" in answer.error_message


def test_the_previous_epoch_is_taken_once_more_because_the_answer_may_have_been_lost():
    groups = Consumers()
    groups.enter("a")
    assert groups.beat("a", 2, topics=("orders", "other")).member_epoch == 3
    answer = groups.beat("a", 2, owned=ALL)
    assert answer.error_code == ErrorCode.NONE and answer.member_epoch == 3


def test_the_previous_epoch_is_fenced_if_the_member_has_what_it_should_not_or_does_not_say():
    groups = Consumers()
    groups.enter("a")
    groups.beat("a", 2, topics=("orders", "other"))
    groups.make_topics(third=1)
    for owned in (None, {"third": [0]}, {"orders": [9]}):
        answer = groups.beat("a", 2, owned=owned)
        assert answer.error_code == ErrorCode.FENCED_MEMBER_EPOCH, owned
        assert "smaller member epoch (2)" in answer.error_message


def test_an_older_epoch_than_the_previous_is_fenced():
    groups = Consumers()
    groups.enter("a")
    groups.beat("a", 2, topics=("orders", "other"))
    groups.beat("a", 3, topics=("orders",))
    groups.beat("a", 3, owned=ALL)
    assert groups.group.members["a"].member_epoch == 4
    assert groups.beat("a", 2, owned=ALL).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_fenced_member_joins_again_under_its_id():
    groups = Consumers()
    groups.enter("a")
    assert groups.beat("a", 9).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    answer = groups.enter("a")
    assert answer.member_epoch == 2 and groups.told(answer) == ALL
    assert len(groups.group.members) == 1


# Giving back before taking.


def test_a_second_member_gets_its_half_only_when_the_first_has_given_it_back():
    groups = Consumers()
    first = Client(groups, "a").join()
    second = Client(groups, "b").join()
    assert second.member_epoch == 3 and second.owned == {}
    assert groups.group.members["b"].state is MemberState.UNRELEASED

    answer = first.beat()  # told to give back, stays at its epoch
    assert answer.member_epoch == 2
    kept = groups.told(answer)["orders"]
    assert len(kept) == 2
    assert groups.group.members["a"].state is MemberState.UNREVOKED
    assert second.beat().assignment is None
    assert first.beat().member_epoch == 2  # said nothing new: it has not given back yet

    first.obey()
    assert first.beat().member_epoch == 3
    second.beat_and_obey()
    assert second.owned == {"orders": {0, 1, 2, 3} - kept}
    assert groups.group.state_name == "Stable"


def test_a_member_that_still_names_a_partition_still_has_it():
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


def test_states_are_told_by_their_names():
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


def test_what_a_member_is_to_give_back_may_come_back_to_it():
    groups = Consumers()
    first = Client(groups, "a").join()
    second = Client(groups, "b").join()
    first.beat()
    second.leave()
    first.obey()
    answer = first.beat()
    assert groups.told(answer) == ALL and answer.member_epoch == 4


def test_targets_wait_for_the_interval_and_then_serve_everybody_who_came_meanwhile():
    groups = Consumers(group_consumer_assignment_interval_ms=1_000)
    clients = [Client(groups, name).join() for name in "abcd"]
    assert groups.group.assignment_epoch == 2  # the first is worked out at once
    assert [client.member_epoch for client in clients] == [2, 2, 2, 2]
    groups.pass_time(999)
    assert clients[0].beat().assignment is None
    groups.pass_time(1)
    groups.settle_all(*clients)
    assert groups.group.assignment_epoch == 5
    assert all(len(client.owned["orders"]) == 1 for client in clients)


# Going.


def test_what_a_member_had_is_free_at_once_when_it_leaves():
    groups = Consumers()
    first, second = Client(groups, "a").join(), Client(groups, "b").join()
    groups.settle_all(first, second)
    answer = first.leave()
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "a", -1)
    second.beat_and_obey()
    assert second.owned == ALL
    assert first.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_is_not_heard_from_is_out_after_its_session_and_not_before():
    groups = Consumers()
    Client(groups, "a").join()
    groups.pass_time(CONSUMER_SESSION_MS - 1)
    assert "a" in groups.group.members
    groups.pass_time(1)
    assert groups.group.members == {} and groups.group.state_name == "Empty"
    assert groups.beat("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_each_heartbeat_begins_the_session_anew():
    groups = Consumers()
    client = Client(groups, "a").join()
    for _ in range(3):
        groups.pass_time(CONSUMER_SESSION_MS - 1)
        assert not client.beat().error_code


def test_a_member_that_does_not_give_back_in_time_is_out_though_it_heartbeats():
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


def test_time_outs_go_on_after_a_reload():
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
    assert groups.group.members == {}  # nobody was heard from


def test_removing_an_empty_group_leaves_nothing():
    groups = Consumers()
    client = Client(groups, "a").join()
    assert groups.delete() == ErrorCode.NON_EMPTY_GROUP
    client.leave()
    assert groups.delete() == ErrorCode.NONE
    assert groups.shard.groups == {}
    groups.reload()
    assert groups.shard.groups == {}


# Static members.


def test_a_static_member_that_is_back_within_its_session_finds_its_partitions():
    groups = Consumers()
    first = Client(groups, "a", instance="one").join()
    second = Client(groups, "b").join()
    groups.settle_all(first, second)
    had = first.owned
    answer = first.leave(-2)
    assert (answer.error_code, answer.member_epoch) == (0, -2)
    second.beat_and_obey()
    assert second.owned != ALL  # it is only away
    groups.pass_time(CONSUMER_SESSION_MS - 1)
    second.beat()
    back = Client(groups, "c", instance="one").join()
    assert back.owned == had
    assert groups.group.group_epoch == 3  # nothing to share anew
    assert set(groups.group.members) == {"b", "c"}


def test_a_static_member_that_is_not_back_in_time_is_out():
    groups = Consumers()
    first = Client(groups, "a", instance="one").join()
    first.leave(-2)
    groups.pass_time(CONSUMER_SESSION_MS)
    assert groups.group.members == {}


def test_an_instance_is_taken_while_its_member_is_there():
    groups = Consumers()
    Client(groups, "a", instance="one").join()
    answer = groups.enter("b", instance="one")
    assert answer.error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert "owned by a member" in answer.error_message


def test_whoever_was_replaced_is_fenced_and_a_stranger_unknown():
    groups = Consumers()
    first = Client(groups, "a", instance="one").join()
    first.leave(-2)
    Client(groups, "b", instance="one").join()
    assert first.beat().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert first.leave().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert groups.beat("b", 2, instance="two").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.beat("b", -2, instance="two").error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_leaves_for_good_gives_up_its_place():
    groups = Consumers()
    first = Client(groups, "a", instance="one").join()
    assert first.leave(-1).error_code == ErrorCode.NONE
    assert groups.group.members == {} and groups.group.static == {}


def test_a_static_member_may_come_back_with_other_topics():
    groups = Consumers()
    first = Client(groups, "a", instance="one").join()
    first.leave(-2)
    back = Client(groups, "b", ("other",), instance="one").join()
    groups.settle_all(back)
    assert back.owned == {"other": {0, 1}}


def test_commits_of_a_static_member_that_went_away_are_over():
    groups = Consumers()
    first = Client(groups, "a", instance="one").join()
    first.leave(-2)
    assert groups.commit({0: 5}, "a", 2, version=9) == {0: ErrorCode.STALE_MEMBER_EPOCH}
    back = Client(groups, "b", instance="one").join()
    assert groups.commit({0: 5}, "a", 2, version=9) == {0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert groups.commit({0: 5}, "b", back.member_epoch, version=9) == {0: ErrorCode.NONE}


# Topics that change.


def test_new_partitions_are_assigned_with_the_next_heartbeat():
    groups = Consumers()
    client = Client(groups, "a").join()
    groups.make_topics(orders=6)
    answer = client.beat()
    assert answer.member_epoch == 3
    assert groups.told(answer) == {"orders": {0, 1, 2, 3, 4, 5}}


def test_a_deleted_topic_is_taken_away():
    groups = Consumers()
    client = Client(groups, "a", ("orders", "other")).join()
    other = groups.topic_id("other")
    groups.drop_topic("other")
    client.wanted.pop("other"), client.obey()
    answer = client.beat()
    assert answer.member_epoch == 3
    assert groups.told(answer) == ALL
    assert other not in groups.group.targets["a"]


def test_a_topic_made_anew_is_another_topic():
    groups = Consumers()
    client = Client(groups, "a", ("other",)).join()
    groups.drop_topic("other")
    groups.cluster.metadata = groups.cluster.metadata.with_topics([a_topic("other", 1, fill="new")])
    client.owned = {}
    answer = client.beat()
    assert groups.told(answer) == {"other": {0}}


def test_a_change_that_could_not_be_written_is_tried_again():
    groups = Consumers()
    client = Client(groups, "a").join()
    client.beat()
    groups.make_topics(orders=6)
    groups.is_writable = False
    groups.beat("a", 2)
    groups.is_writable = True
    assert groups.told(client.beat()) == {"orders": {0, 1, 2, 3, 4, 5}}


def test_topics_that_nobody_reads_change_nothing():
    groups = Consumers()
    client = Client(groups, "a").join()
    written = len(groups.log)
    groups.make_topics(other=7, third=1)
    assert client.beat().assignment is None
    assert len(groups.log) == written and groups.group.group_epoch == 2


# Patterns.


def test_a_pattern_names_topics_that_are_there_and_those_that_come():
    groups = Consumers()
    client = Client(groups, "a", None, pattern="o.*").join()
    assert client.owned == {"orders": {0, 1, 2, 3}, "other": {0, 1}}
    groups.make_topics(offers=1, payments=1)
    client.beat_and_obey()
    assert client.owned.keys() == {"orders", "other", "offers"}
    groups.drop_topic("offers")
    client.wanted.pop("offers"), client.obey()
    groups.settle_all(client)
    assert client.owned.keys() == {"orders", "other"}


def test_a_pattern_must_match_the_whole_name():
    groups = Consumers()
    assert Client(groups, "a", None, pattern="order").join().owned == {}
    assert Client(groups, "b", None, pattern="^order.$").join().owned == ALL


def test_a_pattern_that_re2_does_not_take_is_refused_and_changes_nothing():
    groups = Consumers()
    for pattern in ("[a", r"(a)\1", "(?=a)"):
        answer = groups.enter("a", None, pattern=pattern)
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert pattern in answer.error_message
    assert groups.log == []


def test_only_what_is_new_about_many_topics_is_large():
    groups = Consumers()

    def is_large(epoch, *, group="g", pattern=None, topics=None):
        request = m.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id="a",
            member_epoch=epoch,
            subscribed_topic_regex=pattern,
            subscribed_topic_names=topics,
        )
        return consumer.is_large(groups.shard, a_context(1), request)

    assert not is_large(0, pattern="o.*"), "there are two topics"
    many = [f"o{number}" for number in range(consumer.LARGE_TOPIC_COUNT)]
    groups.make_topics(**dict.fromkeys(many, 1))
    assert is_large(0, pattern="o.*")
    assert is_large(0, topics=many)
    assert not is_large(0, topics=["orders"])
    client = Client(groups, "a", None, pattern="o.*").join()
    client.beat_and_obey()
    assert not is_large(client.member_epoch), "nothing is new"
    groups.make_topics(offers=1)
    assert is_large(client.member_epoch)
    assert not is_large(1, group="of others", topics=["orders"])


def test_names_and_a_pattern_add_up():
    groups = Consumers()
    groups.make_topics(third=1)
    client = Client(groups, "a", ("third",), pattern="oth.*").join()
    assert client.owned == {"third": {0}, "other": {0, 1}}


def test_the_record_of_a_pattern_goes_with_its_last_member():
    groups = Consumers()
    first = Client(groups, "a", None, pattern="ord.*").join()
    second = Client(groups, "b", None, pattern="ord.*").join()
    groups.settle_all(first, second)
    assert groups.group.resolved == {"ord.*": frozenset({"orders"})}
    first.leave()
    assert groups.group.resolved
    second.beat(pattern="oth.*")
    assert groups.group.resolved == {"oth.*": frozenset({"other"})}
    second.beat(pattern="", topics=("orders",))
    assert groups.group.resolved == {}


# Assignors.


def test_the_assignor_that_most_name_is_taken():
    groups = Consumers()
    Client(groups, "a").join()
    assert groups.look().assignor_name == "uniform"
    Client(groups, "b", assignor="range").join()
    assert groups.look().assignor_name == "range"


def test_kafkas_class_names_are_understood():
    groups = Consumers(
        group_consumer_assignors="org.apache.kafka.coordinator.group.assignor.RangeAssignor"
    )
    Client(groups, "a").join()
    assert groups.look().assignor_name == "range"


# Settings of one group.


def test_a_group_may_have_its_own_intervals():
    groups = Consumers(group_consumer_assignment_interval_ms=1_000)
    groups.cluster.settings_of_groups["g"] = {
        "consumer.heartbeat.interval.ms": "7000",
        "consumer.session.timeout.ms": "50000",
        "consumer.assignment.interval.ms": "0",
    }
    assert groups.enter("a").heartbeat_interval_ms == 7_000
    groups.enter("b")
    assert groups.group.assignment_epoch == 3
    groups.pass_time(49_999)
    assert len(groups.group.members) == 2
    groups.pass_time(1)
    assert groups.group.members == {}


# Looking.


def test_describing_a_group_tells_of_members_what_they_have_and_what_they_are_to_have():
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


def test_what_is_still_to_be_given_back_is_part_of_what_a_member_has():
    groups = Consumers()
    first = Client(groups, "a").join()
    Client(groups, "b").join()
    first.beat()
    (a, _) = groups.look().members
    assert a.assignment.topic_partitions[0].partitions == [0, 1, 2, 3]
    assert len(a.target_assignment.topic_partitions[0].partitions) == 2


def test_describing_what_is_no_consumer_group():
    groups = Consumers()
    found = groups.look("nobody")
    assert found.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert found.error_message == "Group nobody not found."
    groups.stable(group="old")
    assert groups.look("old").error_message == "Group old is not a consumer group."


def test_describe_groups_finds_no_classic_group_and_list_groups_says_what_it_is():
    groups = Consumers()
    Client(groups, "a").join()
    answer = groups.describe(version=6)
    assert (answer.error_code, answer.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    assert answer.error_message == "Group g is not a classic group."
    assert groups.describe(version=5).error_code == ErrorCode.NONE
    (listed,) = groups.list(kinds={"consumer"}, states={"stable"})
    assert (listed.group_id, listed.protocol_type) == ("g", "consumer")
    assert (listed.group_state, listed.group_type) == ("Stable", "consumer")
    assert groups.list(kinds={"classic"}) == []
