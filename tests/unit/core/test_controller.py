"""The controller decides by the rules, and what the tree refused never happened."""

import pytest

from headrace.core.controller import (
    UNBORN,
    ChangePartition,
    Controller,
    CreateTopic,
    DeleteTopic,
    Dice,
)
from headrace.core.topics import PARTITIONS_PER_REQUEST_MAX, NewTopic
from headrace.model.cluster_metadata import (
    NO_LEADER,
    BrokerEntry,
    ClusterMetadata,
    PartitionState,
    TopicState,
)
from headrace.model.errors import ErrorCode, Fenced, Rejected
from headrace.model.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicId, TopicPartition

ID = TopicId(b"i" * 16)


def a_broker(number: int, broker_epoch: int = 1) -> BrokerEntry:
    return BrokerEntry(BrokerId(number), {}, None, broker_epoch)


def entries(*numbers: int) -> dict[BrokerId, BrokerEntry]:
    return {BrokerId(number): a_broker(number) for number in numbers}


def a_controller(*numbers: int, topics: tuple[TopicState, ...] = ()) -> Controller:
    metadata = ClusterMetadata(
        "c", BrokerId(1), entries(*(numbers or (1,))), {topic.name: topic for topic in topics}
    )
    return Controller(ControllerEpoch(3), metadata)


def a_state(replicas=(1, 2, 3), isr=None, leader=1, leader_epoch=4, partition_epoch=6, **more):
    return PartitionState(
        topic=more.pop("topic", "t"),
        partition=more.pop("partition", 0),
        topic_id=ID,
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(leader_epoch),
        isr=tuple(replicas if isr is None else isr),
        replicas=tuple(replicas),
        partition_epoch=partition_epoch,
    )


def a_topic(*states: PartitionState) -> TopicState:
    return TopicState("t", ID, states or (a_state(),), internal=False)


def create(controller: Controller, *requests: NewTopic, check=lambda overrides: None):
    numbers = iter(range(1000))
    return controller.decide_creates(
        requests,
        lambda: (TopicId(next(numbers).to_bytes(16)), Dice(0, 0)),
        default_partition_count=2,
        default_replication_factor=1,
        check_settings=check,
    )


def made(controller: Controller, *requests: NewTopic) -> None:
    changes = create(controller, *requests)
    assert all(isinstance(change, CreateTopic) for change in changes)
    controller.replay(changes)


def code_of(answer: object) -> ErrorCode:
    assert isinstance(answer, Rejected), answer
    return answer.code


# --- topics


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


def test_settings_that_cannot_stand_refuse_their_topic_alone():
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
def test_a_wish_beyond_reason_is_refused_before_anything_is_built(count):
    answers = create(a_controller(), NewTopic("a", count), NewTopic("b", 1))
    assert [code_of(answer) for answer in answers] == [ErrorCode.POLICY_VIOLATION] * 2


def test_more_replicas_than_brokers_are_refused():
    (answer,) = create(a_controller(1, 2), NewTopic("a", 1, 3))
    assert code_of(answer) == ErrorCode.INVALID_REPLICATION_FACTOR


def test_replicas_given_by_hand_are_kept_in_their_order():
    (change,) = create(a_controller(1, 2, 3), NewTopic("a", assignments=[(0, [3, 1])]))
    assert isinstance(change, CreateTopic)
    assert change.topic.partitions[0].replicas == (3, 1)
    assert change.topic.partitions[0].leader == 3


def test_a_doomed_name_is_gone_for_clients_and_taken_until_the_files_are_gone():
    controller = a_controller()
    made(controller, NewTopic("a"))
    topic = controller.metadata.topics["a"]
    controller.replay([controller.decide_mark_for_deletion("a")])
    assert "a" not in controller.metadata.topics
    assert controller.metadata.topic_by_id(topic.topic_id) is None
    assert code_of(create(controller, NewTopic("a"))[0]) == ErrorCode.TOPIC_ALREADY_EXISTS
    with pytest.raises(Rejected) as refused:
        controller.decide_mark_for_deletion("a")
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    controller.replay([DeleteTopic(topic)])
    made(controller, NewTopic("a"))


def test_every_change_gives_the_picture_a_new_generation():
    controller = a_controller()
    generations = [controller.metadata.generation]
    made(controller, NewTopic("a"))
    generations.append(controller.metadata.generation)
    controller.replay([controller.decide_add_partitions("a", 5, None)])
    generations.append(controller.metadata.generation)
    controller.replay([controller.decide_mark_for_deletion("a")])
    generations.append(controller.metadata.generation)
    assert generations == sorted(set(generations))


def test_a_topic_grows_at_its_end_and_the_old_partitions_stay():
    controller = a_controller(1, 2, 3)
    made(controller, NewTopic("a", 2, 2))
    before = controller.metadata.topics["a"].partitions
    change = controller.decide_add_partitions("a", 4, None)
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
def test_growth_that_cannot_be_is_refused_by_name(name, count, assignments, code):
    controller = a_controller(1, 2)
    made(controller, NewTopic("a", 2, 1))
    with pytest.raises(Rejected) as refused:
        controller.decide_add_partitions(name, count, assignments)
    assert refused.value.code == code


def test_new_partitions_may_be_assigned_by_hand():
    controller = a_controller(1, 2)
    made(controller, NewTopic("a", 1, 1))
    change = controller.decide_add_partitions("a", 3, [[2], [1]])
    assert [p.replicas for p in change.added] == [(2,), (1,)]


# --- a reign begins


def test_a_leader_that_registered_after_its_election_is_a_new_broker_and_gets_a_new_epoch():
    controller = a_controller(1, topics=(a_topic(a_state((1,))),))
    tp = TopicPartition("t", 0)
    assert controller.decide_takeover({tp: 1}, lambda topic: False) == []
    brokers = {BrokerId(1): a_broker(1, broker_epoch=50)}
    controller.brokers_changed(brokers.values(), BrokerId(1))
    (change,) = controller.decide_takeover({tp: 49}, lambda topic: False)
    assert change == ChangePartition(a_state((1,), leader_epoch=5, partition_epoch=7), 6)


def test_a_partition_that_was_assigned_and_never_led_gets_its_first_leader():
    unborn = a_state((2, 1), leader=NO_LEADER, leader_epoch=-1, partition_epoch=UNBORN)
    controller = a_controller(1, topics=(a_topic(unborn),))
    (change,) = controller.decide_takeover({}, lambda topic: False)
    assert isinstance(change, ChangePartition)
    assert (change.expected, change.state.leader, change.state.isr) == (UNBORN, 1, (1,))
    assert (change.state.leader_epoch, change.state.partition_epoch) == (0, 0)


# --- brokers come and go


def test_when_a_leader_dies_the_first_live_replica_in_sync_leads():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(isr=(1, 3))),))
    (change,) = controller.decide_brokers(entries(2, 3), lambda topic: False)
    assert change == ChangePartition(
        a_state(isr=(3,), leader=3, leader_epoch=5, partition_epoch=7), 6
    )


def test_when_a_follower_dies_it_leaves_the_isr_and_the_leader_reigns_on():
    controller = a_controller(1, 2, 3, topics=(a_topic(),))
    (change,) = controller.decide_brokers(entries(1, 2), lambda topic: False)
    assert change == ChangePartition(a_state(isr=(1, 2), partition_epoch=7), 6)


def test_a_follower_out_of_sync_may_die_unnoticed():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(isr=(1, 2))),))
    assert controller.decide_brokers(entries(1, 2), lambda topic: False) == []


def test_without_a_live_replica_in_sync_nobody_leads_and_the_isr_is_remembered():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(isr=(1,))),))
    (change,) = controller.decide_brokers(entries(2, 3), lambda topic: False)
    assert isinstance(change, ChangePartition)
    assert (change.state.leader, change.state.isr, change.state.leader_epoch) == (
        NO_LEADER,
        (1,),
        5,
    )
    controller.replay([change])
    controller.brokers_changed(entries(2, 3).values(), BrokerId(2))
    assert controller.decide_brokers(entries(2, 3), lambda topic: False) == []
    (back,) = controller.decide_brokers(entries(1, 2, 3), lambda topic: False)
    assert isinstance(back, ChangePartition)
    assert (back.state.leader, back.state.isr, back.state.leader_epoch) == (1, (1,), 6)


def test_an_unclean_election_takes_the_first_alive_if_the_topic_allows_it():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(isr=(1,))),))
    (change,) = controller.decide_brokers(entries(2, 3), lambda topic: topic == "t")
    assert isinstance(change, ChangePartition)
    assert (change.state.leader, change.state.isr) == (2, (2,))


def test_a_broker_that_came_back_too_quickly_to_be_missed_is_still_another_one():
    controller = a_controller(1, 2, topics=(a_topic(a_state((1, 2))),))
    reborn = {**entries(2), BrokerId(1): a_broker(1, broker_epoch=9)}
    (change,) = controller.decide_brokers(reborn, lambda topic: False)
    assert isinstance(change, ChangePartition)
    assert change.state.leader_epoch == 5


def test_replicas_on_dead_brokers_are_offline():
    controller = a_controller(1, 2, 3, topics=(a_topic(),))
    controller.brokers_changed(entries(1).values(), BrokerId(1))
    assert controller.metadata.topics["t"].partitions[0].offline == (2, 3)
    controller.brokers_changed(entries(1, 2, 3).values(), BrokerId(1))
    assert controller.metadata.topics["t"].partitions[0].offline == ()


# --- partitions


def test_only_the_leader_of_this_epoch_and_state_changes_the_isr():
    controller = a_controller(1, 2, 3, topics=(a_topic(),))
    wanted = a_state(isr=(1, 2))
    change = controller.decide_isr(wanted, BrokerId(1))
    assert change == ChangePartition(wanted._replace(partition_epoch=7), 6)
    for strange, by, code in [
        (wanted, 2, ErrorCode.FENCED_LEADER_EPOCH),
        (wanted._replace(leader_epoch=3), 1, ErrorCode.FENCED_LEADER_EPOCH),
        (wanted._replace(partition_epoch=5), 1, ErrorCode.INVALID_UPDATE_VERSION),
        (wanted._replace(isr=(2, 3)), 1, ErrorCode.INVALID_REQUEST),
        (wanted._replace(isr=(1, 9)), 1, ErrorCode.INVALID_REQUEST),
        (wanted._replace(topic="u"), 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (wanted._replace(topic_id=b"x" * 16), 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]:
        with pytest.raises(Rejected) as refused:
            controller.decide_isr(strange, BrokerId(by))
        assert refused.value.code == code


def test_a_dead_broker_cannot_join_the_isr():
    controller = a_controller(1, topics=(a_topic(a_state(isr=(1,))),))
    with pytest.raises(Rejected) as refused:
        controller.decide_isr(a_state(isr=(1, 2)), BrokerId(1))
    assert refused.value.code == ErrorCode.INELIGIBLE_REPLICA


def test_the_preferred_replica_is_elected_when_it_is_in_sync():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(leader=2)),))
    change = controller.decide_election(TopicPartition("t", 0), unclean=False)
    assert (change.state.leader, change.state.leader_epoch) == (1, 5)


@pytest.mark.parametrize(
    ("state", "partition", "unclean", "code"),
    [
        (a_state(), 0, False, ErrorCode.ELECTION_NOT_NEEDED),
        (a_state(), 0, True, ErrorCode.ELECTION_NOT_NEEDED),
        (a_state(), 7, False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (a_state(leader=2, isr=(2,)), 0, False, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (
            a_state((8, 9), leader=NO_LEADER, isr=(9,)),
            0,
            True,
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ),
    ],
)
def test_an_election_that_cannot_be_says_why(state, partition, unclean, code):
    controller = a_controller(1, 2, 3, topics=(a_topic(state),))
    with pytest.raises(Rejected) as refused:
        controller.decide_election(TopicPartition("t", partition), unclean=unclean)
    assert refused.value.code == code


def test_an_unclean_election_by_command_takes_anyone_alive():
    state = a_state((8, 2), leader=NO_LEADER, isr=(8,))
    controller = a_controller(1, 2, 3, topics=(a_topic(state),))
    change = controller.decide_election(TopicPartition("t", 0), unclean=True)
    assert (change.state.leader, change.state.isr) == (2, (2,))


@pytest.mark.parametrize(
    ("partition", "replicas", "code"),
    [
        (0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (7, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (7, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, [1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, [5], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, [2], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_a_reassignment_to_anywhere_else_is_refused(partition, replicas, code):
    controller = a_controller(1, 2, topics=(a_topic(a_state((1,))),))
    controller.check_reassignment(TopicPartition("t", 0), [BrokerId(1)])
    with pytest.raises(Rejected) as refused:
        controller.check_reassignment(TopicPartition("t", partition), replicas)
    assert refused.value.code == code


def test_a_change_that_the_picture_has_overtaken_is_not_believed():
    controller = a_controller(1, 2, 3, topics=(a_topic(),))
    change = controller.decide_isr(a_state(isr=(1, 2)), BrokerId(1))
    controller.replay([change])
    with pytest.raises(Fenced):
        controller.replay([change])


# --- folders without a place in the tree


def test_a_lost_topic_is_taken_in_above_every_epoch_its_logs_know():
    controller = a_controller()
    change = controller.decide_adopt("t", ID, {0: LeaderEpoch(4), 2: LeaderEpoch(-1)}, {"a": "1"})
    assert isinstance(change, CreateTopic) and change.overrides == {"a": "1"}
    assert [p.leader_epoch for p in change.topic.partitions] == [5, 0, 0]


def test_a_lost_partition_joins_the_topic_and_known_ones_change_nothing():
    controller = a_controller(topics=(a_topic(a_state((1,))),))
    assert controller.decide_adopt("t", ID, {0: LeaderEpoch(2)}, {}) is None
    change = controller.decide_adopt("t", ID, {0: LeaderEpoch(2), 1: LeaderEpoch(2)}, {})
    assert change is not None
    controller.replay([change])
    assert len(controller.metadata.topics["t"].partitions) == 2
