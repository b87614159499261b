"""Who leads a partition and who is in sync, by the rules."""

import pytest

from headrace.core import elections
from headrace.core.controller import NEW_PARTITION, ChangePartition
from headrace.core.elections import TopicRules
from headrace.model.cluster_metadata import NO_LEADER
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId, TopicPartition
from tests.fakes.controllers import a_broker, a_controller, a_state, a_topic, entries


def test_a_leader_that_registered_after_its_election_is_a_new_broker_and_gets_a_new_epoch():
    controller = a_controller(1, topics=(a_topic(a_state((1,))),))
    tp = TopicPartition("t", 0)
    assert elections.decide_takeover(controller, {tp: 1}, TopicRules()) == []
    brokers = {BrokerId(1): a_broker(1, broker_epoch=50)}
    controller.brokers_changed(brokers.values(), BrokerId(1))
    (change,) = elections.decide_takeover(controller, {tp: 49}, TopicRules())
    assert change == ChangePartition(a_state((1,), leader_epoch=5, partition_epoch=7), 6)


def test_a_partition_that_was_assigned_and_never_led_gets_its_first_leader():
    new = a_state((2, 1), leader=NO_LEADER, leader_epoch=-1, partition_epoch=NEW_PARTITION)
    controller = a_controller(1, topics=(a_topic(new),))
    (change,) = elections.decide_takeover(controller, {}, TopicRules())
    assert isinstance(change, ChangePartition)
    assert (change.expected, change.state.leader, change.state.isr) == (NEW_PARTITION, 1, (1,))
    assert (change.state.leader_epoch, change.state.partition_epoch) == (0, 0)


def after(controller, brokers, unclean=False):
    """The changes once the live brokers are ``brokers``."""
    gone = controller.brokers_changed(brokers.values(), min(brokers))
    return elections.decide_brokers(
        controller, controller.states(), gone, TopicRules(lambda topic: unclean)
    )


def test_the_first_live_replica_in_sync_leads_after_a_leader_dies():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(isr=(1, 3))),))
    (change,) = after(controller, entries(2, 3))
    wanted = a_state(isr=(3,), leader=3, leader_epoch=5, partition_epoch=7)
    assert change == ChangePartition(wanted._replace(offline=(1,)), 6)


def test_a_broker_starts_over_only_with_a_partition_without_a_leader():
    tp = TopicPartition("t", 0)
    controller = a_controller(1, topics=(a_topic(a_state((1,), leader=NO_LEADER)),))
    controller.replicas_failed([tp], BrokerId(1))
    change = elections.decide_start_over(controller, tp, BrokerId(1))
    assert (change.state.leader, change.state.isr, change.state.leader_epoch) == (1, (1,), 5)
    with pytest.raises(Rejected) as refused:
        elections.decide_start_over(a_controller(1, topics=(a_topic(),)), tp, BrokerId(1))
    assert refused.value.code == ErrorCode.ELECTION_NOT_NEEDED


def test_a_dead_follower_leaves_the_isr_with_a_new_leader_epoch():
    controller = a_controller(1, 2, 3, topics=(a_topic(),))
    (change,) = after(controller, entries(1, 2))
    wanted = a_state(isr=(1, 2), leader_epoch=5, partition_epoch=7)
    assert change == ChangePartition(wanted._replace(offline=(3,)), 6)


def test_the_death_of_a_follower_out_of_sync_changes_nothing():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(isr=(1, 2))),))
    assert after(controller, entries(1, 2)) == []


def test_without_a_live_replica_in_sync_there_is_no_leader_and_the_isr_is_kept():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(isr=(1,))),))
    (change,) = after(controller, entries(2, 3))
    assert (change.state.leader, change.state.isr, change.state.leader_epoch) == (
        NO_LEADER,
        (1,),
        5,
    )
    controller.replay([change])
    assert after(controller, entries(2, 3)) == []
    (back,) = after(controller, entries(1, 2, 3))
    assert (back.state.leader, back.state.isr, back.state.leader_epoch) == (1, (1,), 6)


def test_an_unclean_election_takes_the_first_alive_if_the_topic_allows_it():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(isr=(1,))),))
    (change,) = after(controller, entries(2, 3), unclean=True)
    assert (change.state.leader, change.state.isr) == (2, (2,))


def test_an_unclean_election_takes_a_replica_that_is_being_added_last():
    state = a_state((3, 2, 1), isr=(1,))._replace(adding=(BrokerId(3),))
    (change,) = after(a_controller(1, 2, 3, topics=(a_topic(state),)), entries(2, 3), unclean=True)
    assert change.state.leader == 2


def reborn(controller, *numbers):
    """The brokers after a quick restart of ``numbers``."""
    again = {BrokerId(number): a_broker(number, broker_epoch=9) for number in numbers}
    return {**controller.metadata.brokers, **again}


def test_a_quick_restart_counts_as_another_broker_which_is_out_of_sync():
    controller = a_controller(1, 2, topics=(a_topic(a_state((1, 2))),))
    (change,) = after(controller, reborn(controller, 1))
    assert (change.state.leader, change.state.isr, change.state.leader_epoch) == (2, (2,), 5)


def test_the_last_in_sync_replica_leads_again_after_a_quick_restart():
    controller = a_controller(1, 2, topics=(a_topic(a_state((1, 2), isr=(1,))),))
    (change,) = after(controller, reborn(controller, 1))
    assert (change.state.leader, change.state.isr, change.state.leader_epoch) == (1, (1,), 5)


def test_a_takeover_notices_a_follower_that_restarted_after_the_state_was_written():
    controller = a_controller(1, 2, 3, topics=(a_topic(),))
    controller.brokers_changed(reborn(controller, 3).values(), BrokerId(1))
    tp = TopicPartition("t", 0)
    (change,) = elections.decide_takeover(controller, {tp: 8}, TopicRules())
    assert (change.state.leader, change.state.isr, change.state.leader_epoch) == (1, (1, 2), 5)
    assert elections.decide_takeover(controller, {tp: 10}, TopicRules()) == []


# --- ISR changes


def proposes(state=None, isr=(1, 2), **changes):
    state = state or a_state()
    made = elections.IsrProposal(
        state.topic_id, state.partition, state.leader_epoch, state.partition_epoch, isr, {}
    )
    return made._replace(**changes)


def test_the_leader_changes_the_isr_and_keeps_its_epoch():
    controller = a_controller(1, 2, 3, topics=(a_topic(),))
    change = elections.decide_isr(controller, proposes(), BrokerId(1))
    assert change == ChangePartition(a_state(isr=(1, 2), partition_epoch=7), 6)


@pytest.mark.parametrize(
    ("changes", "by", "code"),
    [
        ({"topic_id": b"x" * 16}, 1, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"partition": 1}, 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader_epoch": 3}, 1, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 5}, 1, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 7}, 1, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 5}, 1, ErrorCode.INVALID_UPDATE_VERSION),
        ({}, 2, ErrorCode.INVALID_REQUEST),
        ({"isr": (2, 3)}, 1, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 9)}, 1, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 2), "recovering": True}, 1, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 2), "broker_epochs": {2: 8}}, 1, ErrorCode.INELIGIBLE_REPLICA),
        # Epochs come first: the leader must learn that its proposal is outdated.
        ({"partition_epoch": 5, "broker_epochs": {2: 8}}, 1, ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
def test_a_proposed_isr_is_refused_with_kafkas_code(changes, by, code):
    controller = a_controller(1, 2, 3, topics=(a_topic(),))
    with pytest.raises(Rejected) as refused:
        elections.decide_isr(controller, proposes(**changes), BrokerId(by))
    assert refused.value.code == code


@pytest.mark.parametrize("partition_epoch", [5, 6])
def test_a_proposal_that_was_carried_out_already_gets_the_current_state(partition_epoch):
    controller = a_controller(1, topics=(a_topic(a_state(isr=(1, 2))),))
    again = proposes(partition_epoch=partition_epoch)
    assert elections.decide_isr(controller, again, BrokerId(1)) == a_state(isr=(1, 2))


@pytest.mark.parametrize("epoch", [-1, 1])
def test_members_have_the_registered_epoch_or_none(epoch):
    controller = a_controller(1, 2, 3, topics=(a_topic(),))
    wanted = proposes(broker_epochs={BrokerId(2): epoch})
    assert isinstance(elections.decide_isr(controller, wanted, BrokerId(1)), ChangePartition)


def test_a_dead_broker_and_one_that_shuts_down_cannot_join_the_isr():
    controller = a_controller(1, 3, topics=(a_topic(a_state(isr=(1,))),))
    controller.shuts_down(BrokerId(3))
    for member in (2, 3):
        with pytest.raises(Rejected) as refused:
            elections.decide_isr(controller, proposes(isr=(1, member)), BrokerId(1))
        assert refused.value.code == ErrorCode.INELIGIBLE_REPLICA


# --- shutdown, failed disks, rebalance


def test_a_broker_that_shuts_down_gives_up_what_others_can_lead():
    states = (
        a_state((1, 2), partition=0),
        a_state((2, 1), leader=2, partition=1),
        a_state((1, 2), isr=(1,), partition=2),
        a_state((1,), partition=3),
        a_state((2, 1), leader=2, isr=(2,), partition=4),
    )
    controller = a_controller(1, 2, topics=(a_topic(*states),))
    controller.shuts_down(BrokerId(1))
    departure = elections.decide_shutdown(controller, controller.states(), BrokerId(1))
    (moved,), (left,) = departure.moved, departure.left
    assert (moved.state.partition, moved.state.leader, moved.state.isr) == (0, 2, (2,))
    assert (left.state.partition, left.state.leader, left.state.isr) == (1, 2, (2,))
    assert (moved.state.leader_epoch, left.state.leader_epoch) == (5, 5)
    assert departure.remaining == [TopicPartition("t", 2)]


def test_replicas_on_a_failed_disk_leave_the_isr_and_their_leadership():
    states = (
        a_state((1, 2), partition=0),
        a_state((2, 1), leader=2, partition=1),
        a_state((1, 2), isr=(1,), partition=2),
    )
    controller = a_controller(1, 2, topics=(a_topic(*states),))
    failed = [state.topic_partition for state in states]
    controller.replicas_failed(failed, BrokerId(1))
    changes = elections.decide_failures(controller, failed, BrokerId(1))
    assert [(c.state.leader, c.state.isr, c.state.leader_epoch) for c in changes] == [
        (2, (2,), 5),
        (2, (2,), 5),
        (NO_LEADER, (1,), 5),
    ]


def test_preferred_leaders_return_when_more_than_the_allowed_share_is_led_elsewhere():
    led = [a_state((1, 2), partition=p) for p in range(8)]
    moved = [a_state((1, 2), leader=2, partition=8), a_state((1, 2), leader=2, partition=9)]
    controller = a_controller(1, 2, topics=(a_topic(*led, *moved),))
    assert elections.decide_rebalance(controller, 20) == []
    changes = elections.decide_rebalance(controller, 19)
    assert [(c.state.partition, c.state.leader, c.state.leader_epoch) for c in changes] == [
        (8, 1, 5),
        (9, 1, 5),
    ]


def test_a_preferred_leader_out_of_sync_or_in_a_move_does_not_return():
    away = [
        a_state((1, 2), leader=2, isr=(2,), partition=0),
        a_state((1, 2), leader=2, partition=1)._replace(adding=(3,)),
    ]
    controller = a_controller(1, 2, topics=(a_topic(*away),))
    assert elections.decide_rebalance(controller, 10) == []


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


# --- records that may be lost, and the minimum of in-sync replicas


TWO = TopicRules(min_insync_replicas=lambda topic: 2)


def a_lossy_broker(broker_id, broker_epoch=50):
    return a_broker(broker_id, broker_epoch=broker_epoch)._replace(may_have_lost_records=True)


def after_arrivals(controller, brokers, rules=TWO):
    before = controller.metadata.brokers
    gone = controller.brokers_changed(brokers, BrokerId(1))
    doubtful = [
        entry.broker_id
        for entry in brokers
        if entry.may_have_lost_records and entry != before.get(entry.broker_id)
    ]
    return elections.decide_brokers(controller, controller.states(), gone, rules, doubtful)


def leader_and_isr(changes):
    (change,) = changes
    assert change.state.leader_epoch == 5
    return change.state.leader, change.state.isr


def test_a_broker_that_may_have_lost_records_leaves_the_isr_although_the_others_are_down():
    controller = a_controller(topics=(a_topic(a_state(isr=(1, 2, 3), leader=NO_LEADER)),))
    changes = after_arrivals(controller, [a_lossy_broker(3)])
    assert leader_and_isr(changes) == (NO_LEADER, (1, 2))


def test_a_broker_that_may_have_lost_records_leads_if_it_alone_was_in_sync():
    controller = a_controller(topics=(a_topic(a_state(isr=(3,), leader=NO_LEADER)),))
    assert leader_and_isr(after_arrivals(controller, [a_lossy_broker(3)])) == (3, (3,))


def test_if_all_members_may_have_lost_records_the_first_of_them_leads():
    controller = a_controller(topics=(a_topic(a_state(isr=(2, 3), leader=NO_LEADER)),))
    changes = after_arrivals(controller, [a_lossy_broker(3, 51), a_lossy_broker(2, 50)])
    assert leader_and_isr(changes) == (2, (2, 3))


def test_a_leader_that_comes_back_with_losses_within_its_session_is_replaced():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(isr=(1, 2))),))
    brokers = [a_lossy_broker(1), a_broker(2), a_broker(3)]
    assert leader_and_isr(after_arrivals(controller, brokers)) == (2, (2,))


def test_a_takeover_removes_brokers_that_may_have_lost_records_and_keeps_the_intact_one():
    """Both came back within their sessions: the intact one must lead, not the one without logs."""
    controller = a_controller(topics=(a_topic(a_state(isr=(1, 2))),))
    brokers = [a_broker(1, broker_epoch=50), a_lossy_broker(2, 51)]
    controller.brokers_changed(brokers, BrokerId(1))
    granted = {TopicPartition("t", 0): 40}
    assert leader_and_isr(elections.decide_takeover(controller, granted, TWO)) == (1, (1,))


def test_a_member_that_took_back_its_losses_stays():
    controller = a_controller(topics=(a_topic(a_state(isr=(1, 2))),))
    controller.brokers_changed([a_lossy_broker(2), a_broker(1)], BrokerId(1))
    assert after_arrivals(controller, [a_broker(2, broker_epoch=50), a_broker(1)]) == []


def test_a_dead_member_stays_in_the_isr_if_too_few_would_be_left():
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(isr=(1, 2))),))
    assert after_arrivals(controller, [a_broker(1), a_broker(3)]) == []
    controller = a_controller(1, 2, 3, topics=(a_topic(a_state(isr=(1, 2))),))
    assert leader_and_isr(after_arrivals(controller, [a_broker(2)])) == (2, (1, 2))


def test_the_minimum_is_at_most_the_number_of_replicas():
    controller = a_controller(1, 2, topics=(a_topic(a_state((1, 2), isr=(1, 2))),))
    rules = TopicRules(min_insync_replicas=lambda topic: 3)
    assert rules.insync_required(a_state((1, 2))) == 2
    assert after_arrivals(controller, [a_broker(1)], rules) == []


def test_a_member_that_stays_although_it_registered_again_gets_a_new_leader_epoch():
    """It fetches again, and so the leader learns its new broker epoch."""
    controller = a_controller(1, 2, topics=(a_topic(a_state(isr=(1, 2))),))
    brokers = [a_broker(1), a_broker(2, broker_epoch=50)]
    assert leader_and_isr(after_arrivals(controller, brokers)) == (1, (1, 2))


def test_a_failed_replica_stays_in_the_isr_if_too_few_would_be_left():
    tp = TopicPartition("t", 0)
    controller = a_controller(1, 2, topics=(a_topic(a_state(isr=(1, 2))),))
    controller.replicas_failed([tp], BrokerId(1))
    assert leader_and_isr(elections.decide_failures(controller, [tp], BrokerId(1), TWO)) == (
        2,
        (1, 2),
    )


def test_a_broker_that_shuts_down_stays_in_the_isr_if_too_few_would_be_left():
    """Its clean shutdown flushes its log."""
    led, followed = a_state(isr=(1, 2)), a_state(partition=1, isr=(2, 1), leader=2)
    controller = a_controller(1, 2, topics=(a_topic(led, followed),))
    controller.shuts_down(BrokerId(1))
    departure = elections.decide_shutdown(controller, controller.states(), BrokerId(1), TWO)
    assert leader_and_isr(departure.moved) == (2, (1, 2))
    assert (departure.left, departure.remaining) == ([], [])


def test_a_member_that_joins_takes_the_place_of_a_dead_one():
    controller = a_controller(1, 3, topics=(a_topic(a_state(isr=(1, 2))),))
    wanted = proposes(isr=(1, 2, 3))
    change = elections.decide_isr(controller, wanted, BrokerId(1), TWO)
    assert change.state.isr == (1, 3)


def test_a_partition_that_was_never_led_begins_with_the_live_replicas():
    new = a_state((2, 1), leader=NO_LEADER, leader_epoch=-1, partition_epoch=NEW_PARTITION)
    controller = a_controller(1, topics=(a_topic(new),))
    (change,) = elections.decide_takeover(controller, {}, TWO)
    assert change.state.isr == (1,)


def test_a_partition_that_was_never_led_begins_with_brokers_that_came_after_its_creation():
    """They have lost nothing. An older registration may be that of a process that is gone."""
    new = a_state((1, 2), leader=NO_LEADER, leader_epoch=-1, partition_epoch=NEW_PARTITION)
    controller = a_controller(topics=(a_topic(new),))
    controller.brokers_changed([a_broker(1), a_broker(2, broker_epoch=50)], BrokerId(1))
    (change,) = elections.decide_takeover(controller, {TopicPartition("t", 0): 40}, TWO)
    assert change.state.isr == (1, 2)
