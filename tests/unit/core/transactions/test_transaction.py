"""The records of ``__transaction_state``, in the version of the cluster's feature level."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.transactions.transaction import (
    State,
    Transaction,
    key_of,
    read_key,
    read_value,
    record_of,
)
from headrace.model.errors import PeerBroken
from headrace.model.ids import TopicPartition
from headrace.wire import messages as m
from headrace.wire.framing import encode_versioned
from tests.fakes.transactions import Coordinator

ONGOING = Transaction(
    "tx",
    producer_id=4_000,
    producer_epoch=7,
    previous_producer_id=3_000,
    next_producer_id=5_000,
    timeout_ms=60_000,
    state=State.ONGOING,
    partitions=frozenset({TopicPartition("b", 2), TopicPartition("a", 1), TopicPartition("a", 0)}),
    started_at=11,
    updated_at=12,
    client_transaction_version=2,
)


def test_the_key_is_its_type_and_the_id():
    assert key_of("tx") == b"\0\0" + b"\0\x02tx"
    assert read_key(key_of("tx")) == "tx"
    assert read_key(b"\0\x09whatever a newer broker wrote") is None


@pytest.mark.parametrize("transaction_version", [1, 2])
def test_records_from_version_1_on_hold_every_field(transaction_version):
    record = record_of(ONGOING, transaction_version)
    assert record.value[:2] == b"\0\x01"
    assert read_value("tx", record.value) == ONGOING


ids = st.sampled_from([-1, 0, 1, 2**40])
small_partitions = st.builds(TopicPartition, st.sampled_from(["a", "b" * 200]), st.integers(0, 300))


@given(
    st.builds(
        Transaction,
        st.just("tx"),
        ids,
        st.sampled_from([-1, 0, 32_767]),
        ids,
        ids,
        st.sampled_from([1, 2**31 - 1]),
        st.sampled_from(list(State)),
        st.frozensets(small_partitions),
        st.sampled_from([-1, 10**12]),
        st.sampled_from([0, 10**12]),
        st.sampled_from([0, 2]),
    )
)
def test_the_hand_written_value_equals_that_of_the_codec(transaction):
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(partition)
    listed = [
        m.TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=ids)
        for topic, ids in by_topic.items()
    ]
    value = m.TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None if transaction.state is State.EMPTY else listed,
        transaction_last_update_timestamp_ms=transaction.updated_at,
        transaction_start_timestamp_ms=transaction.started_at,
        client_transaction_version=transaction.client_transaction_version,
    )
    assert record_of(transaction, 2).value == encode_versioned(value, 1)


def test_version_0_has_only_the_fields_of_old_brokers():
    record = record_of(ONGOING, 0)
    assert record.value[:2] == b"\0\0"
    assert read_value("tx", record.value) == ONGOING._replace(
        previous_producer_id=-1, next_producer_id=-1, client_transaction_version=0
    )


def test_an_empty_id_has_no_list_of_partitions():
    empty = ONGOING._replace(state=State.EMPTY, partitions=frozenset())
    assert record_of(empty, 0).value[17:21] == b"\xff\xff\xff\xff"
    assert read_value("tx", record_of(empty, 2).value).partitions == frozenset()


def test_a_value_of_an_unknown_version_is_rejected():
    with pytest.raises(PeerBroken):
        read_value("tx", b"\0\x07")


def test_the_records_follow_the_finalized_level_at_once():
    coordinator = Coordinator(transaction_version=0)
    coordinator.init()
    coordinator.settings = coordinator.settings._replace(transaction_version=2)
    coordinator.init()
    assert [value[:2] for _, value in coordinator.log] == [b"\0\0", b"\0\x01"]


def test_at_level_0_no_next_producer_id_is_handed_out():
    coordinator = Coordinator(transaction_version=0)
    coordinator.init()
    known = coordinator.known()._replace(producer_epoch=32766)
    coordinator.shard.replay(*record_of(known, 0), 0, -1, -1)
    coordinator.add((100, 32766), 1, version=2)
    assert coordinator.end((100, 32766), True, version=2)[1:] == (100, 32767)
    assert coordinator.init()[1:] == (101, 0)
