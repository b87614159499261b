"""ConsumerGroupHeartbeat: joining, member epochs and static members."""

import pytest

from headrace.core.groups.consumer.heartbeat import LARGE_TOPIC_COUNT, is_large
from headrace.core.outcome import RequestContext
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from tests.fakes.consumers import CONSUMER_SESSION_MS, REBALANCE_TIMEOUT_MS, Client, Consumers

ALL = {"orders": {0, 1, 2, 3}}


def test_the_first_member_gets_everything_with_its_first_heartbeat():
    groups = Consumers()
    answer = groups.enter("a")
    assert answer.error_code == ErrorCode.NONE and answer.error_message is None
    assert answer.member_id == "a"
    assert answer.member_epoch == 2  # as in Kafka 4.3: a group begins at 1
    assert answer.heartbeat_interval_ms == 5_000
    assert groups.assignment_in(answer) == ALL
    assert groups.group.state_name == "Stable"
    assert groups.group.kind.value == "consumer" and groups.group.protocol_type == "consumer"


def test_only_a_client_that_does_not_draw_its_own_id_gets_one():
    groups = Consumers()
    answer = groups.enter("", draws_own_id=False)
    assert answer.member_id == "#1" and answer.member_epoch == 2
    assert groups.enter("").error_code == ErrorCode.INVALID_REQUEST


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
def test_an_incomplete_join_is_rejected_and_changes_nothing(changed, reason):
    groups = Consumers()
    answer = groups.enter(**{"member_id": "a", **changed})
    assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_REQUEST, reason)
    assert groups.log == [] and groups.shard.groups == {}


def test_invalid_member_epochs_are_rejected():
    groups = Consumers()
    assert groups.beat("a", -3).error_code == ErrorCode.INVALID_REQUEST
    answer = groups.beat("a", -2)
    assert (
        answer.error_code == ErrorCode.INVALID_REQUEST
    )  # only a static member may leave temporarily
    assert answer.error_message == "InstanceId can't be null."


def test_texts_too_long_for_a_record_are_rejected():
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


def test_only_joining_creates_a_group_or_a_member():
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


def test_a_full_group_rejects_new_members():
    groups = Consumers(group_consumer_max_size=1)
    groups.enter("a")
    answer = groups.enter("b")
    assert answer.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "maximum capacity of 1 members" in answer.error_message
    assert groups.enter("a").error_code == ErrorCode.NONE  # it is a member already


def test_a_missing_topic_may_be_subscribed_and_is_assigned_once_it_exists():
    groups = Consumers()
    client = Client(groups, "a", ("later",)).join()
    assert client.owned == {}
    groups.make_topics(later=2)
    client.beat_and_obey()
    assert client.owned == {"later": {0, 1}}


def test_a_heartbeat_without_changes_returns_and_writes_nothing():
    groups = Consumers()
    client = Client(groups, "a").join()
    written = len(groups.log)
    for _ in range(3):
        answer = client.beat()
        assert answer.member_epoch == 2 and answer.assignment is None
    assert len(groups.log) == written


def test_a_full_request_gets_the_whole_assignment_again():
    groups = Consumers()
    groups.enter("a")
    full = {"topics": ("orders",), "rebalance_ms": REBALANCE_TIMEOUT_MS, "owned": ALL}
    assert groups.assignment_in(groups.beat("a", 2, **full)) == ALL
    for left_out in full:
        answer = groups.beat("a", 2, **{k: v for k, v in full.items() if k != left_out})
        assert answer.assignment is None, left_out


def test_a_new_subscription_gets_a_new_target_at_once():
    groups = Consumers()
    groups.enter("a")
    answer = groups.beat("a", 2, topics=("orders", "other"))
    assert answer.member_epoch == 3
    assert groups.assignment_in(answer) == {"orders": {0, 1, 2, 3}, "other": {0, 1}}
    answer = groups.beat("a", 3, topics=("other",))
    # It must give orders back first and keeps its old epoch until then.
    assert answer.member_epoch == 3
    assert groups.assignment_in(answer) == {"other": {0, 1}}
    assert groups.group.state_name == "Reconciling"
    answer = groups.beat("a", 3, owned={"other": [0, 1]})
    assert answer.member_epoch == 4


def test_an_epoch_from_the_future_is_fenced():
    groups = Consumers()
    groups.enter("a")
    answer = groups.beat("a", 3)
    assert answer.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert "greater member epoch (3)" in answer.error_message


def test_the_previous_epoch_is_accepted_because_the_response_may_be_lost():
    groups = Consumers()
    groups.enter("a")
    assert groups.beat("a", 2, topics=("orders", "other")).member_epoch == 3
    answer = groups.beat("a", 2, owned=ALL)
    assert answer.error_code == ErrorCode.NONE and answer.member_epoch == 3


def test_the_previous_epoch_is_fenced_unless_the_member_reports_a_subset_of_its_assignment():
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
    assert answer.member_epoch == 2 and groups.assignment_in(answer) == ALL
    assert len(groups.group.members) == 1


def test_a_static_member_that_returns_within_its_session_keeps_its_partitions():
    groups = Consumers()
    first = Client(groups, "a", instance="one").join()
    second = Client(groups, "b").join()
    groups.settle_all(first, second)
    had = first.owned
    answer = first.leave(-2)
    assert (answer.error_code, answer.member_epoch) == (0, -2)
    second.beat_and_obey()
    assert second.owned != ALL  # it left temporarily
    groups.pass_time(CONSUMER_SESSION_MS - 1)
    second.beat()
    back = Client(groups, "c", instance="one").join()
    assert back.owned == had
    assert groups.group.group_epoch == 3  # no new target is needed
    assert set(groups.group.members) == {"b", "c"}


def test_a_static_member_that_does_not_return_in_time_is_fenced():
    groups = Consumers()
    first = Client(groups, "a", instance="one").join()
    first.leave(-2)
    groups.pass_time(CONSUMER_SESSION_MS)
    assert groups.group.members == {}


def test_an_instance_id_is_taken_while_its_member_is_active():
    groups = Consumers()
    Client(groups, "a", instance="one").join()
    answer = groups.enter("b", instance="one")
    assert answer.error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert "owned by a member" in answer.error_message


def test_a_replaced_static_member_is_fenced_and_an_unknown_instance_is_unknown():
    groups = Consumers()
    first = Client(groups, "a", instance="one").join()
    first.leave(-2)
    Client(groups, "b", instance="one").join()
    assert first.beat().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert first.leave().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert groups.beat("b", 2, instance="two").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.beat("b", -2, instance="two").error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_leaves_for_good_frees_its_instance_id():
    groups = Consumers()
    first = Client(groups, "a", instance="one").join()
    assert first.leave(-1).error_code == ErrorCode.NONE
    assert groups.group.members == {} and groups.group.static == {}


def test_a_static_member_may_return_with_other_topics():
    groups = Consumers()
    first = Client(groups, "a", instance="one").join()
    first.leave(-2)
    back = Client(groups, "b", ("other",), instance="one").join()
    groups.settle_all(back)
    assert back.owned == {"other": {0, 1}}


def test_commits_of_a_static_member_that_left_temporarily_are_rejected():
    groups = Consumers()
    first = Client(groups, "a", instance="one").join()
    first.leave(-2)
    assert groups.commit({0: 5}, "a", 2) == {0: ErrorCode.STALE_MEMBER_EPOCH}
    back = Client(groups, "b", instance="one").join()
    assert groups.commit({0: 5}, "a", 2) == {0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert groups.commit({0: 5}, "b", back.member_epoch) == {0: ErrorCode.NONE}


def test_an_invalid_pattern_is_rejected_and_changes_nothing():
    groups = Consumers()
    for pattern in ("[a", r"(a)\1", "(?=a)"):
        answer = groups.enter("a", None, pattern=pattern)
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert pattern in answer.error_message
    assert groups.log == []


def test_only_a_change_of_many_topics_is_large():
    groups = Consumers()

    def asks_for_much(epoch, *, group="g", pattern=None, topics=None):
        request = m.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id="a",
            member_epoch=epoch,
            subscribed_topic_regex=pattern,
            subscribed_topic_names=topics,
        )
        return is_large(groups.shard, RequestContext("client", "/10.0.0.1"), request)

    assert not asks_for_much(0, pattern="o.*"), "there are two topics"
    many = [f"o{number}" for number in range(LARGE_TOPIC_COUNT)]
    groups.make_topics(**dict.fromkeys(many, 1))
    assert asks_for_much(0, pattern="o.*")
    assert asks_for_much(0, topics=many)
    assert not asks_for_much(0, topics=["orders"])
    client = Client(groups, "a", None, pattern="o.*").join()
    client.beat_and_obey()
    assert not asks_for_much(client.member_epoch), "nothing is new"
    groups.make_topics(offers=1)
    assert asks_for_much(client.member_epoch)
    assert not asks_for_much(1, group="of others", topics=["orders"])
