"""DescribeTransactions and ListTransactions."""

import pytest

from headrace.core.transactions.listing import Filter
from headrace.model.errors import ErrorCode, Rejected
from headrace.wire import messages as m
from tests.fakes.transactions import Coordinator, partitions


@pytest.fixture
def coordinator():
    coordinator = Coordinator()
    for name in ("idle", "busy", "done"):
        coordinator.init(name)
    coordinator.advance(1_000)
    coordinator.add((101, 0), 1, 2, transactional_id="busy")
    coordinator.add((102, 0), 1, transactional_id="done")
    coordinator.end((102, 0), True, transactional_id="done")
    coordinator.advance(1_000)
    return coordinator


def listed(coordinator, **requests):
    wanted = Filter(m.ListTransactionsRequest(**requests))
    outcome = coordinator.shard.list_transactions(1, wanted, coordinator.now)
    return sorted(
        (state.transactional_id, state.producer_id, state.transaction_state)
        for state in outcome.replies[0].response.transaction_states
    )


def described(coordinator, transactional_id):
    outcome = coordinator.shard.describe(1, transactional_id, coordinator.now)
    return outcome.replies[0].response


def test_all_transactions_are_listed_without_a_filter(coordinator):
    assert listed(coordinator) == [
        ("busy", 101, "Ongoing"),
        ("done", 102, "CompleteCommit"),
        ("idle", 100, "Empty"),
    ]


def test_states_and_producer_ids_narrow_the_list(coordinator):
    assert [row[0] for row in listed(coordinator, state_filters=["Ongoing", "Empty"])] == [
        "busy",
        "idle",
    ]
    assert [row[0] for row in listed(coordinator, producer_id_filters=[102, 7])] == ["done"]
    assert listed(coordinator, state_filters=["Dead"]) == []


def test_unknown_states_are_reported_and_match_nothing(coordinator):
    assert listed(coordinator, state_filters=["Bogus"]) == []
    assert Filter(m.ListTransactionsRequest(state_filters=["Bogus", "Empty"])).unknown_states == [
        "Bogus"
    ]


def test_a_duration_counts_from_the_start_of_the_last_transaction(coordinator):
    """As in Kafka, an id that never had a transaction always matches."""
    assert [row[0] for row in listed(coordinator, duration_filter=999)] == [
        "busy",
        "done",
        "idle",
    ]
    assert [row[0] for row in listed(coordinator, duration_filter=1_000)] == ["idle"]


def test_a_pattern_must_match_the_whole_id(coordinator):
    assert [row[0] for row in listed(coordinator, transactional_id_pattern="b.*y")] == ["busy"]
    assert listed(coordinator, transactional_id_pattern="bus") == []
    assert len(listed(coordinator, transactional_id_pattern="")) == 3
    with pytest.raises(Rejected) as refusal:
        Filter(m.ListTransactionsRequest(transactional_id_pattern="["))
    assert refusal.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_transaction_is_described_with_its_partitions(coordinator):
    busy = described(coordinator, "busy")
    assert (busy.transaction_state, busy.producer_id, busy.producer_epoch) == ("Ongoing", 101, 0)
    assert busy.transaction_start_time_ms == coordinator.now - 1_000
    assert [(topic.topic, topic.partitions) for topic in busy.topics] == [("orders", [1, 2])]
    assert described(coordinator, "idle").transaction_start_time_ms == -1
    assert described(coordinator, "unknown").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_a_prepared_transaction_is_described_with_its_unmarked_partitions(coordinator):
    coordinator.refusals = {partitions(2)[0]: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    coordinator.end((101, 0), True, transactional_id="busy")
    busy = described(coordinator, "busy")
    assert busy.transaction_state == "PrepareCommit"
    assert [(topic.topic, topic.partitions) for topic in busy.topics] == [("orders", [2])]
