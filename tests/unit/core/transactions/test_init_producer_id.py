"""InitProducerId: which id and epoch a producer gets, and which producers are fenced."""

import pytest

from headrace.core.transactions.transaction import State
from headrace.model.errors import ErrorCode, Rejected
from tests.fakes.transactions import Coordinator

NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
REFUSED = (-1, -1)


def test_a_new_id_begins_at_epoch_0_and_every_init_bumps_it():
    coordinator = Coordinator()
    assert coordinator.init() == (NONE, 100, 0)
    assert coordinator.init() == (NONE, 100, 1)
    assert coordinator.init("other") == (NONE, 101, 0)
    assert coordinator.known().state is State.EMPTY


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_must_be_positive_and_within_the_brokers_limit(timeout_ms):
    coordinator = Coordinator()
    assert coordinator.init(timeout_ms=timeout_ms) == (
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        *REFUSED,
    )
    assert coordinator.shard.transactions == {}
    assert coordinator.init(timeout_ms=900_000)[0] is NONE


def test_the_last_init_sets_the_timeout():
    coordinator = Coordinator()
    coordinator.init(timeout_ms=5_000)
    coordinator.init(timeout_ms=7_000)
    assert coordinator.known().timeout_ms == 7_000


def test_a_producer_that_continues_gets_the_next_epoch():
    coordinator = Coordinator()
    coordinator.init()
    assert coordinator.init(expected=(100, 0)) == (NONE, 100, 1)


def test_a_repeated_init_of_a_continuing_producer_gets_the_same_answer():
    coordinator = Coordinator()
    coordinator.init()
    coordinator.init(expected=(100, 0))
    assert coordinator.init(expected=(100, 0)) == (NONE, 100, 1)
    assert coordinator.init(expected=(100, 1)) == (NONE, 100, 2)


def test_continuing_with_a_stale_epoch_is_fenced_and_changes_nothing():
    coordinator = Coordinator()
    coordinator.init()
    coordinator.init()  # a newer instance
    before = coordinator.known()
    assert coordinator.init(expected=(100, 0)) == (FENCED, *REFUSED)
    assert coordinator.init(expected=(100, 5)) == (FENCED, *REFUSED)
    assert coordinator.known() == before


def test_continuing_with_another_producer_id_is_fenced():
    coordinator = Coordinator()
    coordinator.init()
    assert coordinator.init(expected=(999, 0)) == (FENCED, *REFUSED)


def test_a_producer_whose_id_has_expired_gets_a_fresh_one():
    coordinator = Coordinator()
    assert coordinator.init(expected=(55, 3)) == (NONE, 100, 0)


def test_an_open_transaction_is_aborted_first_and_the_epoch_rises_twice():
    coordinator = Coordinator()
    coordinator.init()
    coordinator.add((100, 0), 1, 2)
    assert coordinator.init() == (CONCURRENT, *REFUSED)
    assert coordinator.markers == [(1, 1, False), (2, 1, False)]
    assert coordinator.init() == (NONE, 100, 2)


def test_an_init_must_be_retried_until_the_markers_are_written():
    coordinator = Coordinator()
    coordinator.init()
    coordinator.add((100, 0), 1)
    coordinator.hold_markers = True
    coordinator.init()
    assert coordinator.init() == (CONCURRENT, *REFUSED)
    assert len(coordinator.held_markers) == 1
    coordinator.release_markers()
    assert coordinator.init() == (NONE, 100, 2)


def test_a_stale_producer_cannot_abort_the_transaction_of_its_successor():
    coordinator = Coordinator()
    coordinator.init()
    coordinator.init()
    coordinator.add((100, 1), 1)
    assert coordinator.init(expected=(100, 0)) == (FENCED, *REFUSED)
    assert coordinator.known().state is State.ONGOING
    assert coordinator.init(expected=(100, 1)) == (CONCURRENT, *REFUSED)
    assert coordinator.known().state is State.COMPLETE_ABORT


def test_a_fenced_producer_may_continue_only_where_ends_bump_the_epoch():
    for version, answer in [(2, (NONE, 100, 1)), (1, (FENCED, *REFUSED))]:
        coordinator = Coordinator(transaction_version=version)
        coordinator.init()
        coordinator.add((100, 0), 1)
        coordinator.init()
        assert coordinator.init(expected=(100, 0)) == answer


def test_exhausted_epochs_bring_a_new_producer_id():
    coordinator = Coordinator()
    coordinator.at_epoch(32765)
    assert coordinator.init() == (NONE, 100, 32766)
    assert coordinator.init() == (NONE, 101, 0)


def test_a_repeated_init_across_the_change_of_ids_gets_the_same_answer():
    coordinator = Coordinator()
    producer = coordinator.at_epoch(32766)
    assert coordinator.init(expected=producer) == (NONE, 101, 0)
    assert coordinator.init(expected=producer) == (NONE, 101, 0)
    assert coordinator.init(expected=(100, 32765)) == (FENCED, *REFUSED)


def test_the_last_epoch_is_never_handed_out():
    """A producer fenced at its last epoch continues with a fresh id, not with epoch 32767."""
    for version in (0, 1, 2):
        coordinator = Coordinator(transaction_version=version)
        producer = coordinator.at_epoch(32766)
        coordinator.add(producer, 1)
        assert coordinator.init() == (CONCURRENT, *REFUSED)
        assert coordinator.markers == [(1, 32767, False)]
        assert coordinator.init()[:2] == (NONE, 101)
        assert coordinator.known().producer_id == 101


def test_a_repeated_init_at_the_last_but_one_epoch_is_answered_where_kafka_fails():
    coordinator = Coordinator()
    coordinator.at_epoch(32765)
    assert coordinator.init(expected=(100, 32765)) == (NONE, 100, 32766)
    assert coordinator.init(expected=(100, 32765)) == (NONE, 100, 32766)
    assert coordinator.init(expected=(100, 3)) == (FENCED, *REFUSED)


def test_a_restart_forgets_the_epoch_before_and_fences_a_repeated_init():
    coordinator = Coordinator()
    coordinator.init()
    coordinator.init(expected=(100, 0))
    coordinator.restart()
    assert coordinator.init(expected=(100, 0)) == (FENCED, *REFUSED)
    assert coordinator.init(expected=(100, 1)) == (NONE, 100, 2)


def test_an_init_that_could_not_be_written_changes_nothing():
    coordinator = Coordinator()
    coordinator.init()
    coordinator.append_fails = True
    with pytest.raises(Rejected):
        coordinator.init()
    coordinator.append_fails = False
    assert coordinator.known().producer_epoch == 0
    assert coordinator.add((100, 0), 1) is NONE
