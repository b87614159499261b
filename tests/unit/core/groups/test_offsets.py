"""Committed and pending offsets, and the bytes of their records."""

import pytest

from headrace.core.groups.offsets import CommittedOffset, decode_value, encode_value, key_prefix
from headrace.model.errors import ErrorCode
from headrace.wire import messages as m
from headrace.wire.framing import decode_record_key, encode_record_key, encode_versioned
from tests.fakes.groups import START, Groups, a_topic

ORDERS_ID = a_topic("orders", 1).topic_id
OK = ErrorCode.NONE


def test_offsets_of_a_transaction_count_once_it_is_committed():
    groups = Groups()
    groups.commit({0: 1})
    assert groups.txn_commit({0: 5, 1: 6}) == {0: OK, 1: OK}
    assert groups.offsets() == {0: 1}
    groups.end_transaction(7, committed=True)
    assert groups.offsets() == {0: 5, 1: 6}


def test_offsets_of_an_aborted_transaction_are_dropped():
    groups = Groups()
    groups.commit({0: 1})
    groups.txn_commit({0: 5})
    groups.end_transaction(7, committed=False)
    assert groups.offsets() == {0: 1}
    groups.end_transaction(7, committed=True)
    assert groups.offsets() == {0: 1}, "there is nothing any more that could be committed"


def test_a_commit_after_a_pending_one_wins_over_it():
    groups = Groups()
    groups.txn_commit({0: 5})
    groups.commit({0: 9})
    (topic,) = groups.fetch([0], require_stable=True).topics
    assert topic.partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    groups.end_transaction(7, committed=True)
    assert groups.offsets() == {0: 9}
    groups.reload()
    assert groups.offsets() == {0: 9}


def test_two_transactions_may_hold_the_same_offset():
    groups = Groups()
    groups.txn_commit({0: 5}, producer_id=7)
    groups.txn_commit({0: 6}, producer_id=8)
    groups.end_transaction(8, committed=True)
    assert groups.offsets() == {0: 6}
    (topic,) = groups.fetch([0], require_stable=True).topics
    assert topic.partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    groups.end_transaction(7, committed=False)
    assert groups.fetch([0], require_stable=True).topics[0].partitions[0].committed_offset == 6


def test_an_open_transaction_is_still_open_after_a_restart():
    groups = Groups()
    groups.txn_commit({0: 5})
    groups.reload()
    assert groups.offsets() == {}
    groups.end_transaction(7, committed=True)
    assert groups.offsets() == {0: 5}
    groups.reload()
    assert groups.offsets() == {0: 5}


@pytest.mark.parametrize(
    "committed",
    [
        CommittedOffset(5, -1, "", START, -1, ORDERS_ID),
        CommittedOffset(2**62, 7, "ünicode", START, -1, ORDERS_ID),
        CommittedOffset(5, 3, "", START, -1, bytes(16)),
        CommittedOffset(5, -1, "old", START, START + 5, bytes(16)),
    ],
)
def test_a_value_is_read_as_it_was_written(committed):
    assert decode_value(encode_value(committed)) == committed


def test_a_plain_commit_is_written_as_the_general_codec_writes_it():
    groups = Groups()
    groups.commit({3: 42})
    ((record_key, value, _),) = groups.log
    assert value == encode_versioned(
        m.OffsetCommitValue(
            offset=42, leader_epoch=-1, metadata="", commit_timestamp=START, topic_id=ORDERS_ID
        ),
        4,
    )
    key = m.OffsetCommitKey(group="g", topic="orders", partition=3)
    assert record_key == encode_record_key(key)
    assert decode_record_key((m.OffsetCommitKey,), record_key) == key
    assert key_prefix("g", "orders") == record_key[:-4]


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_values_of_all_versions_are_loaded(version):
    groups = Groups()
    value = encode_versioned(
        m.OffsetCommitValue(offset=9, metadata="old", commit_timestamp=START), version
    )
    key = encode_record_key(m.OffsetCommitKey(group="g", topic="orders", partition=0))
    groups.log.append((key, value, -1))
    groups.reload()
    assert groups.offsets() == {0: 9}
    assert groups.fetch([0]).topics[0].partitions[0].metadata == "old"


def test_an_offset_of_an_unknown_version_is_not_misread():
    groups = Groups()
    key = encode_record_key(m.OffsetCommitKey(group="g", topic="orders", partition=0))
    groups.log.append((key, b"\0\x05rest", -1))
    with pytest.raises(ValueError, match="version 5"):
        groups.reload()
