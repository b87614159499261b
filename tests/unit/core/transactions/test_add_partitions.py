"""Partitions are added to transactions, and verified before they are written."""

import pytest

from headrace.core.transactions.add_partitions import verify_or_add
from headrace.core.transactions.transaction import State
from headrace.model.errors import ErrorCode
from tests.fakes.transactions import Coordinator, partitions

NONE = ErrorCode.NONE


@pytest.fixture
def coordinator():
    coordinator = Coordinator()
    coordinator.init()
    return coordinator


def test_the_first_partition_begins_a_transaction_and_others_extend_it(coordinator):
    began_at = coordinator.now
    assert coordinator.add((100, 0), 1) is NONE
    coordinator.advance(500)
    assert coordinator.add((100, 0), 2, 3) is NONE
    known = coordinator.known()
    assert known.state is State.ONGOING
    assert known.partitions == frozenset(partitions(1, 2, 3))
    assert known.started_at == began_at
    assert known.updated_at == began_at + 500


def test_a_partition_that_was_added_before_writes_no_record(coordinator):
    coordinator.add((100, 0), 1, 2)
    records = len(coordinator.log)
    assert coordinator.add((100, 0), 2) is NONE
    assert len(coordinator.log) == records


@pytest.mark.parametrize(
    ("producer", "transactional_id", "code"),
    [
        ((100, 0), "unknown", ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ((101, 0), "tx", ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ((100, -1), "tx", ErrorCode.PRODUCER_FENCED),
        ((100, 1), "tx", ErrorCode.PRODUCER_FENCED),
    ],
)
def test_unknown_producers_and_zombies_are_rejected_and_change_nothing(
    coordinator, producer, transactional_id, code
):
    before = dict(coordinator.shard.transactions)
    assert coordinator.add(producer, 1, transactional_id=transactional_id) is code
    assert coordinator.verify(producer, 1, transactional_id=transactional_id) is code
    assert coordinator.shard.transactions == before


@pytest.mark.parametrize("commit", [True, False])
def test_while_an_end_is_prepared_nothing_can_be_added(coordinator, commit):
    coordinator.add((100, 0), 1)
    coordinator.hold_markers = True
    coordinator.end((100, 0), commit)
    assert coordinator.add((100, 0), 2) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.verify((100, 0), 1) is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.release_markers()
    assert coordinator.add((100, 0), 2) is NONE
    assert coordinator.known().partitions == frozenset(partitions(2))


def test_verification_reports_the_partitions_of_the_transaction_and_adds_none(coordinator):
    coordinator.add((100, 0), 1)
    assert coordinator.verify((100, 0), 1, 2) == [NONE, ErrorCode.TRANSACTION_ABORTABLE]
    assert coordinator.known().partitions == frozenset(partitions(1))


def test_verification_without_a_transaction_is_rejected(coordinator):
    assert coordinator.verify((100, 0), 1) is ErrorCode.TRANSACTION_ABORTABLE
    coordinator.add((100, 0), 1)
    coordinator.end((100, 0), True)
    assert coordinator.verify((100, 0), 1) is ErrorCode.TRANSACTION_ABORTABLE


def test_the_last_epoch_cannot_begin_a_transaction():
    coordinator = Coordinator(transaction_version=1)
    producer = coordinator.at_epoch(32766)
    coordinator.add(producer, 1)
    coordinator.init()
    assert coordinator.known().producer_epoch == 32767
    assert coordinator.add((producer[0], 32767), 1) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("producer", [(100, 0), (101, 0), (100, 1)])
def test_partitions_added_by_a_broker_write_the_same_records_as_those_added_by_a_client(producer):
    brokers, clients = Coordinator(), Coordinator()
    for coordinator in (brokers, clients):
        coordinator.init()
    for numbers in ((1,), (1, 2), (2,)):
        verified = brokers.ask(
            lambda numbers=numbers: verify_or_add(
                brokers.shard, 1, "tx", producer, partitions(*numbers), brokers.now
            )
        )
        assert list(verified.codes) == partitions(*numbers)
        assert set(verified.codes.values()) == {clients.add(producer, *numbers, version=2)}
    assert brokers.log == clients.log
