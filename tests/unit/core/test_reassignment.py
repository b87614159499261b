"""Which replicas a reassigned partition gets, and when the old ones may go."""

import pytest

from headrace.core import reassignment
from headrace.core.controller import NEW_PARTITION
from headrace.core.topic_changes import decide_add_partitions
from headrace.model.cluster_metadata import NO_LEADER
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import TopicPartition
from tests.fakes.controllers import a_controller, a_state, a_topic

T0 = TopicPartition("t", 0)


def over(state, *brokers):
    return a_controller(*(brokers or (1, 2, 3, 4)), topics=(a_topic(state),))


def moving(replicas, adding=(), removing=(), **more):
    return a_state(replicas, **more)._replace(adding=tuple(adding), removing=tuple(removing))


def assignment(state):
    return state.replicas, state.adding, state.removing


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ((3, 2), ((3, 2, 1), (3,), (1,))),
        ((3, 4), ((3, 4, 1, 2), (3, 4), (1, 2))),
        ((1, 2, 3), ((1, 2, 3), (3,), ())),
        ((2,), ((2, 1), (), (1,))),
        ((2, 1), ((2, 1), (), ())),
        ((1, 2), ((1, 2), (), ())),
    ],
)
def test_a_move_has_the_replicas_of_kafka(target, expected):
    before = a_state((1, 2))
    after = reassignment.decide_target(over(before), T0, target)
    assert assignment(after) == expected
    assert after.target_replicas == target and set(after.origin_replicas) == {1, 2}
    assert (after.leader, after.isr, after.leader_epoch) == (1, (1, 2), 4)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (None, ((2, 1), (), ())),
        ((4, 2), ((4, 2, 1), (4,), (1,))),
        ((3, 2), ((3, 2, 1), (3,), (1,))),
        ((1, 3), ((1, 3, 2), (3,), (2,))),
    ],
)
def test_a_new_target_replaces_that_of_a_move_in_progress(target, expected):
    state = moving((3, 2, 1), adding=(3,), removing=(1,), isr=(1, 2))
    assert assignment(reassignment.decide_target(over(state), T0, target)) == expected


@pytest.mark.parametrize(
    ("partition", "target", "code", "words"),
    [
        (0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "t-0 is not being reassigned"),
        (7, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no partition t-7"),
        (7, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no partition t-7"),
        (0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "at least one replica"),
        (0, [1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "names a broker more than once"),
        (0, [1, 5], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Broker 5 .* is not registered"),
        (0, [1, -1], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Broker -1 .* is not registered"),
        (0, [1, 4], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Broker 4 .* shutting down"),
    ],
)
def test_a_wrong_target_is_refused_by_name(partition, target, code, words):
    controller = over(a_state((1, 2)))
    controller.shuts_down(4)
    with pytest.raises(Rejected, match=words) as refused:
        reassignment.decide_target(controller, TopicPartition("t", partition), target)
    assert refused.value.code == code


def test_a_dead_broker_may_stay_in_the_target_but_not_join_it():
    controller = over(a_state((1, 2), isr=(1,)), 1, 3)
    assert reassignment.decide_target(controller, T0, [2, 3]).adding == (3,)


def test_a_partition_that_never_had_a_leader_is_not_moved():
    controller = over(a_state((1, 2), partition_epoch=NEW_PARTITION))
    with pytest.raises(Rejected) as refused:
        reassignment.decide_target(controller, T0, [3])
    assert refused.value.code == ErrorCode.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize("target", [[1], [1, 2, 3], None])
def test_a_request_may_forbid_another_number_of_replicas(target):
    state = moving((3, 2, 1), adding=(3,), removing=(1,), isr=(1, 2))
    if target is None:
        assert reassignment.decide_target(over(state), T0, target, may_change_factor=False)
        return
    with pytest.raises(Rejected) as refused:
        reassignment.decide_target(over(state), T0, target, may_change_factor=False)
    assert refused.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize("isr", [(3,), (3, 1)])
def test_the_only_replicas_with_all_records_are_not_dropped(isr):
    # Broker 1 is dead.
    state = moving((3, 4, 1), adding=(3, 4), removing=(1,), leader=3, isr=isr)
    with pytest.raises(Rejected, match="only these have all its records") as refused:
        reassignment.decide_target(over(state, 3, 4), T0, None)
    assert refused.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_partitions_are_not_added_while_a_topic_is_reassigned():
    state = moving((3, 2, 1), adding=(3,), removing=(1,))
    with pytest.raises(Rejected) as refused:
        decide_add_partitions(over(state), "t", 2, None)
    assert refused.value.code == ErrorCode.REASSIGNMENT_IN_PROGRESS


def test_dropped_replicas_lose_leadership_and_isr():
    state = moving((3, 2, 1), adding=(3,), removing=(1,), leader=3, isr=(1, 2, 3))
    controller = over(state)
    (change,) = reassignment.decide_begin(
        controller, [reassignment.decide_target(controller, T0, None)]
    )
    assert (change.state.leader, change.state.isr, change.state.leader_epoch) == (2, (1, 2), 5)
    assert assignment(change.state) == ((2, 1), (), ()) and change.expected == 6


def test_the_leader_learns_of_new_replicas_in_a_new_epoch():
    state = moving((3, 2, 1), adding=(3,), removing=(1,), isr=(1, 2))
    (change,) = reassignment.decide_begin(over(state), [state])
    assert (change.state.leader, change.state.isr, change.state.leader_epoch) == (1, (1, 2), 5)


@pytest.mark.parametrize(
    ("isr", "live", "ready"),
    [
        ((1, 2), (1, 2, 3), False),
        ((1, 2, 3), (1, 2, 3), True),
        ((2, 3), (2, 3), True),
        ((1, 3), (1, 2, 3), False),
        ((1, 2, 3), (1, 2), False),
    ],
)
def test_a_move_ends_once_its_whole_target_is_in_sync_and_alive(isr, live, ready):
    state = moving((3, 2, 1), adding=(3,), removing=(1,), isr=isr)
    controller = over(state, *live)
    assert reassignment.is_ready(controller, state) is ready
    changes = reassignment.decide_completion(controller, [state])
    assert bool(changes) is ready
    for change in changes:
        assert (change.state.leader, change.state.leader_epoch) == (3, 5)
        assert set(change.state.isr) == {2, 3}
        assert assignment(change.state) == ((3, 2), (), ())


def test_a_leader_in_the_target_stays():
    state = moving((3, 2, 1), adding=(3,), removing=(1,), leader=2, isr=(1, 2, 3))
    (change,) = reassignment.decide_completion(over(state), [state])
    assert (change.state.leader, change.state.isr) == (2, (2, 3))


def test_a_new_controller_begins_moves_again_and_repairs_isrs():
    moved = moving((3, 2, 1), adding=(3,), removing=(1,), isr=(1, 2))
    assert len(reassignment.decide_resumption(over(moved), [moved])) == 1
    dropped = a_state((2, 1), isr=(1, 3), leader=3)
    (change,) = reassignment.decide_resumption(over(dropped), [dropped])
    assert (change.state.leader, change.state.isr) == (1, (1,))
    for settled in (
        a_state((1, 2)),
        a_state((1, 2), isr=(3,), leader=NO_LEADER),  # an ISR is never empty
        moved._replace(partition_epoch=NEW_PARTITION),
    ):
        assert reassignment.decide_resumption(over(settled), [settled]) == []
