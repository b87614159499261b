"""Records of internal topics as plain values."""

import pytest

from headrace.cli import internal_records
from headrace.wire import messages as m
from headrace.wire.framing import encode_record_key, encode_versioned

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


def test_a_committed_offset_has_the_fields_of_its_version():
    key = encode_record_key(m.OffsetCommitKey(group="g", topic="t", partition=3))
    value = encode_versioned(m.OffsetCommitValue(offset=7, metadata="x", commit_timestamp=5), 3)
    assert internal_records.decode(OFFSETS, key, value) == (
        {"type": "OffsetCommit", "group": "g", "topic": "t", "partition": 3},
        {
            "version": 3,
            "offset": 7,
            "leader_epoch": -1,
            "metadata": "x",
            "commit_timestamp": 5,
        },
    )


def test_a_tombstone_has_no_value():
    key = encode_record_key(m.GroupMetadataKey(group="g"))
    assert internal_records.decode(OFFSETS, key, None) == (
        {"type": "GroupMetadata", "group": "g"},
        None,
    )


def test_structs_and_bytes_within_a_value_are_plain_too():
    member = m.GroupMetadataValue.MemberMetadata(member_id="m", subscription=b"\x00\x01")
    key = encode_record_key(m.GroupMetadataKey(group="g"))
    value = encode_versioned(m.GroupMetadataValue(protocol_type="consumer", members=[member]), 3)
    decoded = internal_records.decode(OFFSETS, key, value)
    assert decoded is not None and decoded[1] is not None
    [plain] = decoded[1]["members"]
    assert (plain["member_id"], plain["subscription"]) == ("m", "AAE=")


def test_a_transactions_partitions_are_listed():
    key = encode_record_key(m.TransactionLogKey(transactional_id="x"))
    partitions = m.TransactionLogValue.PartitionsSchema(topic="t", partition_ids=[0, 2])
    value = encode_versioned(
        m.TransactionLogValue(producer_id=9, transaction_partitions=[partitions]), 1
    )
    decoded = internal_records.decode(TRANSACTIONS, key, value)
    assert decoded is not None and decoded[1] is not None
    assert decoded[0] == {"type": "TransactionLog", "transactional_id": "x"}
    assert decoded[1]["producer_id"] == 9
    assert decoded[1]["transaction_partitions"] == [{"topic": "t", "partition_ids": [0, 2]}]


@pytest.mark.parametrize(
    ("topic", "key", "value"),
    [
        ("orders", b"\x00\x01", None),
        (OFFSETS, None, b"v"),
        (OFFSETS, b"", None),
        (OFFSETS, b"\x7f\xff", None),
        (OFFSETS, b"\x00\x01\x00", None),
        (OFFSETS, encode_record_key(m.GroupMetadataKey(group="g")), b"\x00\x63"),
    ],
    ids=["other topic", "no key", "empty key", "unknown type", "cut key", "unknown version"],
)
def test_an_unknown_record_is_not_decoded(topic, key, value):
    assert internal_records.decode(topic, key, value) is None
