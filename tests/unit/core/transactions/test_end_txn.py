"""EndTxn: commits and aborts, repeated ends, bumped epochs."""

import pytest

from headrace.core.transactions.transaction import State
from headrace.model.errors import ErrorCode
from tests.fakes.transactions import Coordinator

NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
INVALID = ErrorCode.INVALID_TXN_STATE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.fixture
def coordinator():
    coordinator = Coordinator()
    coordinator.init()
    return coordinator


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_writes_its_markers_and_is_complete(coordinator, commit):
    coordinator.add((100, 0), 1, 2)
    assert coordinator.end((100, 0), commit) == (NONE, -1, -1)
    assert coordinator.markers == [(1, 0, commit), (2, 0, commit)]
    known = coordinator.known()
    assert known.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert known.partitions == frozenset()


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_never_began_cannot_end(coordinator, commit):
    before = coordinator.known()
    assert coordinator.end((100, 0), commit) == (INVALID, -1, -1)
    assert coordinator.known() == before


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize(
    ("producer", "transactional_id", "code"),
    [
        ((100, 0), "unknown", MAPPING),
        ((101, 1), "tx", MAPPING),
        ((100, 3), "tx", FENCED),
    ],
)
def test_unknown_producers_and_zombies_cannot_end_a_transaction(
    version, producer, transactional_id, code
):
    coordinator = Coordinator()
    coordinator.init()
    coordinator.init()
    coordinator.add((100, 1), 1)
    before = coordinator.known()
    end = coordinator.end(producer, True, transactional_id, version)
    assert end == (code, -1, -1)
    assert coordinator.end((100, 0), True, version=version) == (FENCED, -1, -1)
    assert coordinator.known() == before


@pytest.mark.parametrize("commit", [True, False])
def test_a_repeated_end_is_answered_again_and_the_other_end_is_rejected(coordinator, commit):
    coordinator.add((100, 0), 1)
    coordinator.hold_markers = True
    coordinator.end((100, 0), commit)
    assert coordinator.end((100, 0), commit)[0] is CONCURRENT
    assert coordinator.end((100, 0), not commit)[0] is INVALID
    coordinator.release_markers()
    assert coordinator.end((100, 0), commit) == (NONE, -1, -1)
    assert coordinator.end((100, 0), not commit)[0] is INVALID
    assert coordinator.markers == [(1, 0, commit)]


@pytest.mark.parametrize("commit", [True, False])
def test_with_version_2_every_end_hands_out_the_next_epoch(coordinator, commit):
    coordinator.add((100, 0), 1, version=2)
    assert coordinator.end((100, 0), commit, version=2) == (NONE, 100, 1)
    assert coordinator.markers == [(1, 1, commit)]  # so that a late batch finds a newer epoch
    assert coordinator.add((100, 0), 1, version=2) is FENCED
    assert coordinator.add((100, 1), 1, version=2) is NONE


@pytest.mark.parametrize("commit", [True, False])
def test_with_version_2_a_repeated_end_is_idempotent(coordinator, commit):
    coordinator.add((100, 0), 1, version=2)
    coordinator.hold_markers = True
    assert coordinator.end((100, 0), commit, version=2) == (NONE, 100, 1)
    assert coordinator.end((100, 0), commit, version=2)[0] is CONCURRENT
    assert coordinator.end((100, 0), not commit, version=2)[0] is CONCURRENT
    coordinator.release_markers()
    assert coordinator.end((100, 0), commit, version=2) == (NONE, 100, 1)
    assert coordinator.end((100, 0), not commit, version=2)[0] is INVALID
    assert coordinator.markers == [(1, 1, commit)]


def test_with_version_2_the_next_transaction_waits_for_the_markers_of_the_last(coordinator):
    coordinator.add((100, 0), 1, version=2)
    coordinator.hold_markers = True
    assert coordinator.end((100, 0), True, version=2) == (NONE, 100, 1)
    # With the new epoch, as a producer that sent nothing or whose records are queued.
    assert coordinator.end((100, 1), False, version=2) == (CONCURRENT, -1, -1)
    for epoch in (0, 1, 2):  # no epoch is fenced before the end completes
        assert coordinator.add((100, epoch), 1, version=2) is CONCURRENT
        assert coordinator.init(expected=(100, epoch))[0] is CONCURRENT
    coordinator.release_markers()
    assert coordinator.add((100, 0), 1, version=2) is FENCED
    assert coordinator.end((100, 1), False, version=2) == (NONE, 100, 2)


def test_with_version_2_a_late_end_cannot_hit_the_next_transaction(coordinator):
    coordinator.add((100, 0), 1, version=2)
    coordinator.end((100, 0), True, version=2)
    coordinator.add((100, 1), 2, version=2)
    for commit in (True, False):
        assert coordinator.end((100, 0), commit, version=2) == (FENCED, -1, -1)
    assert coordinator.known().state is State.ONGOING


def test_with_version_2_an_idempotent_end_survives_a_restart(coordinator):
    coordinator.add((100, 0), 1, version=2)
    coordinator.end((100, 0), True, version=2)
    coordinator.restart()
    assert coordinator.end((100, 0), True, version=2) == (NONE, 100, 1)
    assert coordinator.end((100, 0), False, version=2)[0] is INVALID


def test_with_version_2_an_abort_before_anything_was_sent_bumps_the_epoch(coordinator):
    assert coordinator.end((100, 0), True, version=2) == (INVALID, -1, -1)
    assert coordinator.end((100, 0), False, version=2) == (NONE, 100, 1)
    assert coordinator.end((100, 0), False, version=2) == (NONE, 100, 1)  # repeated
    assert coordinator.end((100, 1), False, version=2) == (NONE, 100, 2)  # another
    coordinator.add((100, 2), 1, version=2)
    coordinator.end((100, 2), True, version=2)
    assert coordinator.end((100, 3), True, version=2)[0] is INVALID
    assert coordinator.end((100, 3), False, version=2) == (NONE, 100, 4)
    assert coordinator.markers == [(1, 3, True)]


def test_with_version_2_an_empty_id_takes_no_repeated_end(coordinator):
    coordinator.init()
    assert coordinator.end((100, 0), False, version=2) == (FENCED, -1, -1)


def test_with_version_2_exhausted_epochs_end_under_the_next_producer_id(coordinator):
    producer = coordinator.at_epoch(32766)
    coordinator.add(producer, 1, version=2)
    coordinator.hold_markers = True
    assert coordinator.end(producer, True, version=2) == (NONE, 101, 0)
    assert coordinator.known().producer_id == producer[0]
    assert coordinator.end(producer, True, version=2)[0] is CONCURRENT
    coordinator.release_markers()
    assert coordinator.markers == [(1, 32767, True)]
    assert coordinator.end(producer, True, version=2) == (NONE, 101, 0)
    assert coordinator.end(producer, False, version=2)[0] is INVALID
    assert coordinator.add(producer, 1, version=2) is MAPPING
    assert coordinator.init(expected=producer) == (NONE, 101, 0)
    assert coordinator.add((101, 0), 1, version=2) is NONE
    assert coordinator.end(producer, True, version=2) == (MAPPING, -1, -1)


def test_a_client_without_epoch_bumps_may_end_what_a_newer_client_began(coordinator):
    coordinator.add((100, 0), 1, version=2)
    assert coordinator.end((100, 0), True, version=0) == (NONE, -1, -1)
    assert coordinator.known().producer_epoch == 0
    assert coordinator.markers == [(1, 0, True)]
