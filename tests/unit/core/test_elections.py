"""Who leads a partition and who is in sync, by the rules."""

import pytest

from headrace.core import elections
from headrace.core.controller import UNBORN, ChangePartition
from headrace.model.cluster_metadata import NO_LEADER
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, TopicPartition
from tests.fakes.controllers import a_broker, a_controller, a_state, a_topic, entries


def test_a_leader_that_registered_after_its_election_is_a_new_broker_and_gets_a_new_epoch():
    controller = a_controller(1, topics=(a_topic(a_state((1,))),))
    tp = TopicPartition("t", 0)
    assert elections.decide_takeover(controller, {tp: 1}, lambda topic: False) == []
    brokers = {BrokerId(1): a_broker(1, broker_epoch=50)}
    controller.brokers_changed(brokers.values(), BrokerId(1))
    (change,) = elections.decide_takeover(controller, {tp: 49}, lambda topic: False)
    assert change == ChangePartition(a_state((1,), leader_epoch=5, partition_epoch=7), 6)


def test_a_partition_that_was_assigned_and_never_led_gets_its_first_leader():
    unborn = a_state((2, 1), leader=NO_LEADER, leader_epoch=-1, partition_epoch=UNBORN)
    controller = a_controller(1, topics=(a_topic(unborn),))
    (change,) = elections.decide_takeover(controller, {}, lambda topic: False)
    assert isinstance(change, ChangePartition)
    assert (change.expected, change.state.leader, change.state.isr) == (UNBORN, 1, (1,))
    assert (change.state.leader_epoch, change.state.partition_epoch) == (0, 0)


def test_the_first_live_replica_in_sync_leads_after_a_leader_dies():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(isr=(1, 3))),))
    (change,) = elections.decide_brokers(controller, entries(2, 3), lambda topic: False)
    assert change == ChangePartition(
        a_state(isr=(3,), leader=3, leader_epoch=5, partition_epoch=7), 6
    )


def test_a_dead_follower_leaves_the_isr_and_the_leader_keeps_its_epoch():
    controller = a_controller(1, 2, 3, topics=(a_topic(),))
    (change,) = elections.decide_brokers(controller, entries(1, 2), lambda topic: False)
    assert change == ChangePartition(a_state(isr=(1, 2), partition_epoch=7), 6)


def test_the_death_of_a_follower_out_of_sync_changes_nothing():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(isr=(1, 2))),))
    assert elections.decide_brokers(controller, entries(1, 2), lambda topic: False) == []


def test_without_a_live_replica_in_sync_there_is_no_leader_and_the_isr_is_kept():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(isr=(1,))),))
    (change,) = elections.decide_brokers(controller, entries(2, 3), lambda topic: False)
    assert isinstance(change, ChangePartition)
    assert (change.state.leader, change.state.isr, change.state.leader_epoch) == (
        NO_LEADER,
        (1,),
        5,
    )
    controller.replay([change])
    controller.brokers_changed(entries(2, 3).values(), BrokerId(2))
    assert elections.decide_brokers(controller, entries(2, 3), lambda topic: False) == []
    (back,) = elections.decide_brokers(controller, entries(1, 2, 3), lambda topic: False)
    assert isinstance(back, ChangePartition)
    assert (back.state.leader, back.state.isr, back.state.leader_epoch) == (1, (1,), 6)


def test_an_unclean_election_takes_the_first_alive_if_the_topic_allows_it():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(isr=(1,))),))
    (change,) = elections.decide_brokers(controller, entries(2, 3), lambda topic: topic == "t")
    assert isinstance(change, ChangePartition)
    assert (change.state.leader, change.state.isr) == (2, (2,))


def test_a_quick_restart_counts_as_another_broker():
    controller = a_controller(1, 2, topics=(a_topic(a_state((1, 2))),))
    reborn = {**entries(2), BrokerId(1): a_broker(1, broker_epoch=9)}
    (change,) = elections.decide_brokers(controller, reborn, lambda topic: False)
    assert isinstance(change, ChangePartition)
    assert change.state.leader_epoch == 5


def test_only_the_leader_of_this_epoch_and_state_changes_the_isr():
    controller = a_controller(1, 2, 3, topics=(a_topic(),))
    wanted = a_state(isr=(1, 2))
    change = elections.decide_isr(controller, wanted, BrokerId(1))
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
            elections.decide_isr(controller, strange, BrokerId(by))
        assert refused.value.code == code


def test_a_dead_broker_cannot_join_the_isr():
    controller = a_controller(1, topics=(a_topic(a_state(isr=(1,))),))
    with pytest.raises(Rejected) as refused:
        elections.decide_isr(controller, a_state(isr=(1, 2)), BrokerId(1))
    assert refused.value.code == ErrorCode.INELIGIBLE_REPLICA


def test_the_preferred_replica_is_elected_when_it_is_in_sync():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(leader=2)),))
    change = elections.decide_election(controller, TopicPartition("t", 0), unclean=False)
    assert (change.state.leader, change.state.leader_epoch) == (1, 5)


def test_a_preferred_replica_on_an_offline_disk_is_not_elected():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(leader=2)),))
    tp = TopicPartition("t", 0)
    controller.replicas_failed([tp], BrokerId(1))
    with pytest.raises(Rejected) as refused:
        elections.decide_election(controller, tp, unclean=False)
    assert refused.value.code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


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
def test_an_impossible_election_is_rejected_with_its_reason(state, partition, unclean, code):
    controller = a_controller(1, 2, 3, topics=(a_topic(state),))
    with pytest.raises(Rejected) as refused:
        elections.decide_election(controller, TopicPartition("t", partition), unclean=unclean)
    assert refused.value.code == code


def test_a_requested_unclean_election_takes_any_live_replica():
    state = a_state((8, 2), leader=NO_LEADER, isr=(8,))
    controller = a_controller(1, 2, 3, topics=(a_topic(state),))
    change = elections.decide_election(controller, TopicPartition("t", 0), unclean=True)
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
    elections.check_reassignment(controller, TopicPartition("t", 0), [BrokerId(1)])
    with pytest.raises(Rejected) as refused:
        elections.check_reassignment(controller, TopicPartition("t", partition), replicas)
    assert refused.value.code == code
