"""Markers that end a prepared transaction: retries, restarts, late answers."""

import pytest

from headrace.core.transactions import markers
from headrace.core.transactions.transaction import State
from headrace.model.errors import ErrorCode
from tests.fakes.transactions import Coordinator, partitions


@pytest.fixture
def coordinator():
    coordinator = Coordinator()
    coordinator.init()
    return coordinator


def test_the_markers_wait_for_the_prepared_record(coordinator):
    coordinator.add((100, 0), 1)
    coordinator.append_fails = True
    assert coordinator.end((100, 0), True)[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.markers == []
    assert coordinator.known().state is State.ONGOING


def test_a_restart_continues_a_prepared_end(coordinator):
    coordinator.add((100, 0), 1, 2)
    coordinator.hold_markers = True
    coordinator.end((100, 0), True)
    coordinator.hold_markers = False
    coordinator.restart()
    assert coordinator.markers == [(1, 0, True), (2, 0, True)]
    assert coordinator.known().state is State.COMPLETE_COMMIT


def test_a_prepared_end_without_partitions_is_completed_after_loading(coordinator):
    """Kafka writes such records."""
    coordinator.at_epoch(1, state=State.PREPARE_ABORT, client_transaction_version=2)
    coordinator.restart()
    coordinator.advance(0)
    assert coordinator.known().state is State.COMPLETE_ABORT


def test_only_failed_markers_are_retried(coordinator):
    coordinator.add((100, 0), 1, 2)
    coordinator.refusals = {partitions(2)[0]: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    coordinator.end((100, 0), True)
    assert coordinator.markers == [(1, 0, True)]
    assert coordinator.known().state is State.PREPARE_COMMIT
    coordinator.advance(99)
    assert coordinator.markers == [(1, 0, True)]
    coordinator.refusals = {}
    coordinator.advance(1)
    assert coordinator.markers == [(1, 0, True), (2, 0, True)]
    assert coordinator.known().state is State.COMPLETE_COMMIT


def test_a_partition_with_a_newer_epoch_needs_no_marker(coordinator):
    coordinator.add((100, 0), 1)
    coordinator.refusals = {partitions(1)[0]: ErrorCode.INVALID_PRODUCER_EPOCH}
    coordinator.end((100, 0), False)
    assert coordinator.known().state is State.COMPLETE_ABORT


def test_a_completion_that_could_not_be_written_is_retried(coordinator):
    coordinator.add((100, 0), 1)
    coordinator.hold_markers = True
    coordinator.end((100, 0), True)
    coordinator.append_fails = True
    coordinator.release_markers()
    assert coordinator.known().state is State.PREPARE_COMMIT
    coordinator.advance(100)
    assert coordinator.known().state is State.PREPARE_COMMIT
    coordinator.append_fails = False
    coordinator.advance(100)
    assert coordinator.known().state is State.COMPLETE_COMMIT
    assert coordinator.markers == [(1, 0, True)]


def test_a_late_marker_result_does_not_complete_the_next_transaction(coordinator):
    coordinator.add((100, 0), 1, version=2)
    coordinator.hold_markers = True
    coordinator.end((100, 0), True, version=2)
    (late,) = coordinator.held_markers
    coordinator.release_markers()
    coordinator.add((100, 1), 1, version=2)
    coordinator.hold_markers = True
    coordinator.end((100, 1), True, version=2)
    coordinator.write_markers(late)
    assert coordinator.known().state is State.PREPARE_COMMIT


def test_the_partitions_of_each_leader_may_be_answered_on_their_own(coordinator):
    coordinator.add((100, 0), 1, 2)
    coordinator.hold_markers = True
    coordinator.end((100, 0), True)
    (effect,) = coordinator.held_markers
    first, second = partitions(1, 2)
    coordinator.hold_markers, coordinator.held_markers = False, []
    coordinator.carry_out(
        markers.answered(coordinator.shard, effect, {first: ErrorCode.NONE}, coordinator.now)
    )
    assert coordinator.known().state is State.PREPARE_COMMIT
    coordinator.carry_out(
        markers.answered(coordinator.shard, effect, {second: ErrorCode.NONE}, coordinator.now)
    )
    assert coordinator.known().state is State.COMPLETE_COMMIT


def test_a_fenced_coordinator_leaves_the_markers_to_the_next_one(coordinator):
    coordinator.add((100, 0), 1, 2)
    coordinator.refusals = {partitions(2)[0]: ErrorCode.TRANSACTION_COORDINATOR_FENCED}
    coordinator.end((100, 0), True)
    coordinator.advance(10_000)
    assert coordinator.markers == [(1, 0, True)]
    assert coordinator.known().state is State.PREPARE_COMMIT
    coordinator.refusals = {}
    coordinator.restart()
    assert coordinator.known().state is State.COMPLETE_COMMIT


def test_markers_have_the_current_epoch_of_a_coordinator_that_stays(coordinator):
    coordinator.hold_markers = True
    coordinator.add((100, 0), 1)
    coordinator.end((100, 0), True)
    coordinator.shard.coordinator_epoch = lambda: 8
    (again,) = markers.pending(coordinator.shard)
    (effect,) = coordinator.held_markers
    assert (effect.coordinator_epoch, again.coordinator_epoch) == (7, 8)
