"""Which topics are created, grow, are marked for deletion or adopted."""

import pytest

from headrace.core import topic_changes
from headrace.core.controller import CreateTopic, DeleteTopic
from headrace.core.topics import PARTITIONS_PER_REQUEST_MAX, NewTopic
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import LeaderEpoch
from tests.fakes.controllers import ID, a_controller, a_state, a_topic, code_of, create, made


def test_a_new_topic_has_the_first_replica_as_leader_and_all_in_sync():
    controller = a_controller(1, 2, 3)
    (change,) = create(controller, NewTopic("t", 2, 3))
    assert isinstance(change, CreateTopic)
    assert [(p.leader, p.isr, p.replicas) for p in change.topic.partitions] == [
        (1, (1, 2, 3), (1, 2, 3)),
        (2, (2, 3, 1), (2, 3, 1)),
    ]
    assert {(p.leader_epoch, p.partition_epoch) for p in change.topic.partitions} == {(0, 0)}
    assert "t" not in controller.metadata.topics, "deciding changes nothing"
    controller.replay([change])
    assert controller.metadata.topics["t"] == change.topic
    assert controller.metadata.topic_by_id(change.topic.topic_id) == change.topic


def test_minus_one_takes_the_brokers_defaults():
    (change,) = create(a_controller(), NewTopic("t"))
    assert isinstance(change, CreateTopic)
    assert len(change.topic.partitions) == 2


def test_an_existing_name_a_colliding_name_and_a_reserved_name_are_refused():
    controller = a_controller()
    made(controller, NewTopic("a.b"))
    answers = create(
        controller, NewTopic("a.b"), NewTopic("a_b"), NewTopic("__cluster_metadata"), NewTopic("..")
    )
    assert [code_of(answer) for answer in answers] == [
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]


def test_names_of_one_request_collide_with_each_other_too():
    first, second, third = create(a_controller(), NewTopic("a.b"), NewTopic("a_b"), NewTopic("c"))
    assert isinstance(first, CreateTopic) and isinstance(third, CreateTopic)
    assert code_of(second) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_name_given_twice_is_refused_both_times():
    answers = create(a_controller(), NewTopic("a"), NewTopic("a"))
    assert [code_of(answer) for answer in answers] == [ErrorCode.INVALID_REQUEST] * 2


def test_invalid_settings_reject_their_topic_alone():
    def check(overrides):
        if "bad" in overrides:
            raise Rejected(ErrorCode.INVALID_CONFIG)

    bad, good = create(
        a_controller(),
        NewTopic("a", overrides={"bad": "1"}),
        NewTopic("b", overrides={"good": "1"}),
        check=check,
    )
    assert code_of(bad) == ErrorCode.INVALID_CONFIG
    assert isinstance(good, CreateTopic) and good.overrides == {"good": "1"}


def test_a_setting_without_a_value_is_refused():
    (answer,) = create(a_controller(), NewTopic("a", overrides={"x": None}))
    assert code_of(answer) == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize("count", [PARTITIONS_PER_REQUEST_MAX + 1, 1_000_000, 2**31 - 1])
def test_a_request_for_too_many_partitions_is_rejected_before_any_work(count):
    answers = create(a_controller(), NewTopic("a", count), NewTopic("b", 1))
    assert [code_of(answer) for answer in answers] == [ErrorCode.POLICY_VIOLATION] * 2


def test_more_replicas_than_brokers_are_refused():
    (answer,) = create(a_controller(1, 2), NewTopic("a", 1, 3))
    assert code_of(answer) == ErrorCode.INVALID_REPLICATION_FACTOR


def test_assigned_replicas_keep_their_order():
    (change,) = create(a_controller(1, 2, 3), NewTopic("a", assignments=[(0, [3, 1])]))
    assert isinstance(change, CreateTopic)
    assert change.topic.partitions[0].replicas == (3, 1)
    assert change.topic.partitions[0].leader == 3


def test_a_topic_pending_deletion_is_hidden_and_keeps_its_name_until_its_files_are_gone():
    controller = a_controller()
    made(controller, NewTopic("a"))
    topic = controller.metadata.topics["a"]
    controller.replay([topic_changes.decide_mark_for_deletion(controller, "a")])
    assert "a" not in controller.metadata.topics
    assert controller.metadata.topic_by_id(topic.topic_id) is None
    assert code_of(create(controller, NewTopic("a"))[0]) == ErrorCode.TOPIC_ALREADY_EXISTS
    with pytest.raises(Rejected) as refused:
        topic_changes.decide_mark_for_deletion(controller, "a")
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    controller.replay([DeleteTopic(topic)])
    made(controller, NewTopic("a"))


def test_a_topic_grows_at_its_end_and_the_old_partitions_stay():
    controller = a_controller(1, 2, 3)
    made(controller, NewTopic("a", 2, 2))
    before = controller.metadata.topics["a"].partitions
    change = topic_changes.decide_add_partitions(controller, "a", 4, None)
    assert [p.partition for p in change.added] == [2, 3]
    assert all(len(p.replicas) == 2 for p in change.added)
    controller.replay([change])
    assert controller.metadata.topics["a"].partitions == before + change.added


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code"),
    [
        ("nope", 3, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a", 2, None, ErrorCode.INVALID_PARTITIONS),
        ("a", 1, None, ErrorCode.INVALID_PARTITIONS),
        ("a", -1, None, ErrorCode.INVALID_PARTITIONS),
        ("a", 2**31 - 1, None, ErrorCode.POLICY_VIOLATION),
        ("a", 3, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("a", 3, [[1], [1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("a", 3, [[9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("a", 3, [[1, 2]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_impossible_growth_is_rejected_with_its_reason(name, count, assignments, code):
    controller = a_controller(1, 2)
    made(controller, NewTopic("a", 2, 1))
    with pytest.raises(Rejected) as refused:
        topic_changes.decide_add_partitions(controller, name, count, assignments)
    assert refused.value.code == code


def test_the_client_may_assign_new_partitions():
    controller = a_controller(1, 2)
    made(controller, NewTopic("a", 1, 1))
    change = topic_changes.decide_add_partitions(controller, "a", 3, [[2], [1]])
    assert [p.replicas for p in change.added] == [(2,), (1,)]


def test_a_lost_topic_is_adopted_with_epochs_above_those_in_its_logs():
    controller = a_controller()
    change = topic_changes.decide_adopt(
        controller, "t", ID, {0: LeaderEpoch(4), 2: LeaderEpoch(-1)}, {"a": "1"}
    )
    assert isinstance(change, CreateTopic) and change.overrides == {"a": "1"}
    assert [p.leader_epoch for p in change.topic.partitions] == [5, 0, 0]


def test_a_lost_partition_is_adopted_and_known_ones_change_nothing():
    controller = a_controller(topics=(a_topic(a_state((1,))),))
    assert topic_changes.decide_adopt(controller, "t", ID, {0: LeaderEpoch(2)}, {}) is None
    change = topic_changes.decide_adopt(
        controller, "t", ID, {0: LeaderEpoch(2), 1: LeaderEpoch(2)}, {}
    )
    assert change is not None
    controller.replay([change])
    assert len(controller.metadata.topics["t"].partitions) == 2
