"""Batches of plain records are written and read back; batches of other writers are read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records.batch import GZIP, BadBatch, read_header
from headrace.records.plain import keys_and_values, plain_batch
from headrace.records.record import Record, build_batch, iter_records, open_records

records = st.lists(
    st.tuples(st.binary(min_size=1, max_size=200), st.none() | st.binary(max_size=300)),
    min_size=1,
    max_size=80,
)


@given(records, st.sampled_from([0, GZIP]), st.none() | st.just((9, 3)))
def test_a_batch_reads_back_as_its_records(given_records, codec, producer):
    batch = plain_batch(given_records, producer, 77, codec)
    header = read_header(batch)
    assert header.is_transactional == (producer is not None)
    assert (header.producer_id, header.producer_epoch) == (producer or (-1, -1))
    assert header.record_count == len(given_records) == header.last_offset_delta + 1
    found = list(iter_records(batch))
    assert [(record.key, record.value) for record in found] == given_records
    assert [record.offset for record in found] == list(range(len(given_records)))
    assert {record.timestamp for record in found} == {77}
    assert list(keys_and_values(open_records(batch, header), header.record_count)) == [
        (delta, *record) for delta, record in enumerate(given_records)
    ]


def test_a_batch_of_thousands_of_records_reads_back():
    many = [(b"key-%d" % number, b"v" * (number % 300)) for number in range(9_000)]
    found = list(iter_records(plain_batch(many, None, 1)))
    assert [(record.key, record.value) for record in found] == many


def test_records_of_other_writers_are_read():
    """With headers, timestamps, gaps from compaction and without a key."""
    batch = build_batch(
        [
            Record(1_005, 10**12, b"a", b"1", (("h", b"x"),)),
            Record(1_300, 10**12 + 10**6, None, b"no key"),
            Record(90_000, 10**12 + 5, b"b", None),
        ],
        base_offset=1_000,
        last_offset_delta=100_000,
    )
    section = open_records(batch, read_header(batch))
    assert list(keys_and_values(section, 3)) == [
        (5, b"a", b"1"),
        (300, None, b"no key"),
        (89_000, b"b", None),
    ]


@given(st.integers(min_value=0, max_value=60), st.integers(min_value=0, max_value=255))
def test_invalid_records_raise_bad_batch_and_nothing_else(place, byte):
    batch = plain_batch([(b"key", b"value"), (b"other", None), (b"k", b"v" * 30)], None, 1)
    section = bytearray(open_records(batch, read_header(batch)))
    section[min(place, len(section) - 1)] = byte
    for data in (bytes(section), bytes(section[: place + 1])):
        try:
            found = list(keys_and_values(data, 3))
        except BadBatch:
            continue
        assert len(found) == 3


def test_a_truncated_record_raises_bad_batch():
    batch = plain_batch([(b"key", b"value")], None, 1)
    section = open_records(batch, read_header(batch))
    for end in range(len(section)):
        with pytest.raises(BadBatch):
            list(keys_and_values(section[:end], 1))
    with pytest.raises(BadBatch):
        list(keys_and_values(bytes([section[0] + 1]) + section[1:], 1))  # a negative length
