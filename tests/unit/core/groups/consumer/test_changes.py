"""What changes a target: topics, patterns, assignors and settings."""

from tests.fakes.consumers import Client, Consumers
from tests.fakes.groups import a_topic

ALL = {"orders": {0, 1, 2, 3}}


def test_new_partitions_are_assigned_with_the_next_heartbeat():
    groups = Consumers()
    client = Client(groups, "a").join()
    groups.make_topics(orders=6)
    answer = client.beat()
    assert answer.member_epoch == 3
    assert groups.assignment_in(answer) == {"orders": {0, 1, 2, 3, 4, 5}}


def test_a_deleted_topic_is_revoked():
    groups = Consumers()
    client = Client(groups, "a", ("orders", "other")).join()
    other = groups.topic_id("other")
    groups.drop_topic("other")
    client.wanted.pop("other"), client.obey()
    answer = client.beat()
    assert answer.member_epoch == 3
    assert groups.assignment_in(answer) == ALL
    assert other not in groups.group.targets["a"]


def test_a_re_created_topic_is_another_topic():
    groups = Consumers()
    client = Client(groups, "a", ("other",)).join()
    groups.drop_topic("other")
    groups.cluster.metadata = groups.cluster.metadata.with_topics([a_topic("other", 1, fill="new")])
    client.owned = {}
    answer = client.beat()
    assert groups.assignment_in(answer) == {"other": {0}}


def test_a_change_that_could_not_be_written_is_retried():
    groups = Consumers()
    client = Client(groups, "a").join()
    client.beat()
    groups.make_topics(orders=6)
    groups.is_writable = False
    groups.beat("a", 2)
    groups.is_writable = True
    assert groups.assignment_in(client.beat()) == {"orders": {0, 1, 2, 3, 4, 5}}


def test_unsubscribed_topics_change_nothing():
    groups = Consumers()
    client = Client(groups, "a").join()
    written = len(groups.log)
    groups.make_topics(other=7, third=1)
    assert client.beat().assignment is None
    assert len(groups.log) == written and groups.group.group_epoch == 2


def test_a_pattern_matches_existing_and_later_topics():
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


def test_names_and_a_pattern_add_up():
    groups = Consumers()
    groups.make_topics(third=1)
    client = Client(groups, "a", ("third",), pattern="oth.*").join()
    assert client.owned == {"third": {0}, "other": {0, 1}}


def test_the_record_of_a_pattern_is_deleted_with_its_last_member():
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


def test_the_assignor_with_the_most_votes_is_used():
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
