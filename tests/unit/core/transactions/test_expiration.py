"""Transactions time out, and idle transactional ids expire."""

from headrace.core.transactions.transaction import State
from headrace.model.errors import ErrorCode
from tests.fakes.transactions import Coordinator

NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED


def test_a_transaction_is_aborted_after_its_timeout_and_not_before():
    coordinator = Coordinator()
    coordinator.init(timeout_ms=5_000)
    coordinator.add((100, 0), 1)
    coordinator.advance(4_999)
    assert coordinator.known().state is State.ONGOING
    coordinator.advance(1)
    assert coordinator.known().state is State.COMPLETE_ABORT
    assert coordinator.markers == [(1, 1, False)]


def test_an_extended_transaction_keeps_its_deadline():
    coordinator = Coordinator()
    coordinator.init(timeout_ms=5_000)
    coordinator.add((100, 0), 1)
    coordinator.advance(4_000)
    coordinator.add((100, 0), 2)
    coordinator.advance(1_000)
    assert coordinator.known().state is State.COMPLETE_ABORT


def test_a_producer_that_timed_out_is_fenced_with_and_without_epoch_bumps():
    for version in (0, 2):
        coordinator = Coordinator(transaction_version=version)
        coordinator.init(timeout_ms=5_000)
        coordinator.add((100, 0), 1, version=version)
        coordinator.advance(5_000)
        assert coordinator.add((100, 0), 1, version=version) is FENCED
        # With version 2 a commit looks like a repeated abort with the other result.
        refused = FENCED if version == 0 else ErrorCode.INVALID_TXN_STATE
        assert coordinator.end((100, 0), True, version=version)[0] is refused
        assert coordinator.known().state is State.COMPLETE_ABORT


def test_the_deadline_of_a_transaction_survives_a_restart():
    coordinator = Coordinator()
    coordinator.init(timeout_ms=5_000)
    coordinator.add((100, 0), 1)
    coordinator.advance(3_000)
    coordinator.restart()
    coordinator.advance(1_999)
    assert coordinator.known().state is State.ONGOING
    coordinator.advance(1)
    assert coordinator.known().state is State.COMPLETE_ABORT


def test_an_ended_transaction_leaves_no_deadline_behind():
    coordinator = Coordinator()
    coordinator.init(timeout_ms=5_000)
    coordinator.add((100, 0), 1)
    coordinator.end((100, 0), True)
    coordinator.advance(10_000)
    assert coordinator.known().state is State.COMPLETE_COMMIT


def test_a_timeout_at_the_last_epoch_draws_a_producer_id_first():
    coordinator = Coordinator()
    producer = coordinator.at_epoch(32766)
    coordinator.add(producer, 1)
    coordinator.advance(60_000)
    assert coordinator.known().state is State.ONGOING
    coordinator.advance(100)
    known = coordinator.known()
    assert (known.state, known.producer_id, known.producer_epoch) == (State.COMPLETE_ABORT, 101, 0)
    assert coordinator.markers == [(1, 32767, False)]


def test_an_abort_that_could_not_be_written_is_retried():
    coordinator = Coordinator()
    coordinator.init(timeout_ms=5_000)
    coordinator.add((100, 0), 1)
    coordinator.append_fails = True
    coordinator.advance(5_000)
    assert coordinator.known().state is State.ONGOING
    coordinator.append_fails = False
    coordinator.advance(100)
    assert coordinator.known().state is State.COMPLETE_ABORT


def test_the_largest_timeout_means_none():
    coordinator = Coordinator()
    producer = coordinator.at_epoch(1, timeout_ms=2**31 - 1)
    coordinator.add(producer, 1)
    coordinator.advance(2**31)
    assert coordinator.known().state is State.ONGOING


def test_an_idle_transactional_id_expires_at_the_next_check_and_not_before():
    coordinator = Coordinator(expiration_ms=10_000, expiration_interval_ms=4_000)
    coordinator.init()
    coordinator.advance(8_000)
    assert "tx" in coordinator.shard.transactions
    coordinator.advance(3_999)
    assert "tx" in coordinator.shard.transactions
    coordinator.advance(1)
    assert coordinator.shard.transactions == {}
    assert coordinator.log[-1][1] is None  # a tombstone
    coordinator.restart()
    assert coordinator.shard.transactions == {}
    assert coordinator.init() == (NONE, 101, 0)


def test_an_open_or_prepared_transaction_never_expires():
    coordinator = Coordinator(expiration_ms=10_000, expiration_interval_ms=4_000)
    coordinator.init(timeout_ms=900_000)
    coordinator.add((100, 0), 1)
    coordinator.advance(20_000)
    assert coordinator.known().state is State.ONGOING
    coordinator.hold_markers = True
    coordinator.end((100, 0), True)
    coordinator.advance(20_000)
    assert coordinator.known().state is State.PREPARE_COMMIT


def test_many_idle_ids_expire_in_several_rounds():
    coordinator = Coordinator(expiration_ms=10_000, expiration_interval_ms=4_000)
    for number in range(1_500):
        coordinator.init(f"tx-{number}")
    coordinator.now += 12_000
    coordinator.carry_out(coordinator.shard.tick(coordinator.now))
    assert len(coordinator.shard.transactions) == 500
    coordinator.carry_out(coordinator.shard.tick(coordinator.now))
    assert coordinator.shard.transactions == {}
