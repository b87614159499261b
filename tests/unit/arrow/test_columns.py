"""Arrow columns from record batches, compared with the record-by-record reader."""

import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.arrow.columns import open_sections
from headrace.arrow.selection import Section, select_batches
from headrace.records.batch import BadBatch, read_header
from headrace.records.record import Record, build_batch, iter_records

RECORD = st.tuples(
    st.integers(-1, 2**41),
    st.none() | st.binary(max_size=300),
    st.none() | st.binary(max_size=9000),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=200)), max_size=3),
)


def a_batch(rows, base_offset=0, **more):
    records = [
        Record(base_offset + index, timestamp, key, value, tuple(headers))
        for index, (timestamp, key, value, headers) in enumerate(rows)
    ]
    return build_batch(records, base_offset=base_offset, **more)


def section(batch):
    return Section(read_header(batch), memoryview(batch))


def opened(sections):
    """The records of sections that fit into one piece."""
    (records,) = open_sections(sections)
    return records


def rows_of(records):
    headers = records.headers()
    assert headers.validate(full=True) is None
    return [
        Record(
            offset,
            timestamp,
            key,
            value,
            tuple((entry["key"], entry["value"]) for entry in found or ()),
        )
        for offset, timestamp, key, value, found in zip(
            records.offset.tolist(),
            records.timestamp_ms.tolist(),
            records.keys().to_pylist(),
            records.values().to_pylist(),
            headers.to_pylist(),
            strict=True,
        )
    ]


@given(
    st.lists(st.lists(RECORD, min_size=1, max_size=8), min_size=1, max_size=6), st.integers(0, 4)
)
def test_columns_equal_the_records_of_the_record_reader(batches, codec):
    sections = []
    base_offset = 7
    for rows in batches:
        sections.append(section(a_batch(rows, base_offset, codec=codec)))
        base_offset += len(rows) + 3

    found = rows_of(opened(sections))

    assert found == [record for _, batch in sections for record in iter_records(batch)]


@pytest.mark.parametrize("value_size", [10, 500, 9000])
def test_many_batches_opened_together_keep_their_order(value_size):
    sections = []
    base_offset = 0
    for number in range(200):
        rows = [
            (number, b"%d" % number, b"x" * (value_size + index), [])
            for index in range(1 + number % 5)
        ]
        sections.append(section(a_batch(rows, base_offset)))
        base_offset += len(rows)

    found = rows_of(opened(sections))

    assert found == [record for _, batch in sections for record in iter_records(batch)]


def test_a_record_without_headers_has_null_and_not_an_empty_list():
    batch = a_batch([(0, None, b"a", []), (0, None, b"b", [("k", None)])])

    assert opened([section(batch)]).headers().to_pylist() == [
        None,
        [{"key": "k", "value": None}],
    ]


def test_log_append_time_is_the_timestamp_of_every_record():
    batch = a_batch([(5, None, b"a", []), (9, None, b"b", [])], timestamp_type=1)

    records = opened([section(batch)])

    assert records.timestamp_ms.tolist() == [9, 9]
    assert records.timestamp_type.tolist() == [1, 1]


def test_a_range_is_cut_inside_a_batch():
    batch = memoryview(a_batch([(0, None, b"%d" % n, []) for n in range(10)]))
    selected = select_batches(batch, 3, 6, None)

    records = opened(selected.sections).within(3, 6)

    assert records.values().to_pylist() == [b"3", b"4", b"5"]
    assert selected.next_offset == 10


@given(st.binary(min_size=1, max_size=40), st.integers(0, 200), st.integers(1, 5))
def test_broken_bytes_are_refused_or_read_as_the_record_reader_does(noise, position, count):
    batch = bytearray(a_batch([(1, b"key", b"v" * 30, [("h", b"x")])] * count))
    at = 61 + position % (len(batch) - 61)
    batch[at : at + len(noise)] = noise[: len(batch) - at]
    sections = [section(bytes(batch))]
    try:
        expected = list(iter_records(bytes(batch)))
    except BadBatch:
        expected = None
    try:
        records = opened(sections)
        found = records.values().to_pylist(), records.keys().to_pylist()
        records.headers()
    except (BadBatch, pa.ArrowInvalid):
        return
    if expected is not None:
        assert found == ([r.value for r in expected], [r.key for r in expected])


def test_messages_of_magic_1_are_read():
    # A message of magic 1: offset, size, CRC, magic, attributes, timestamp, key, value.
    body = b"\x01\x00" + (1234).to_bytes(8, "big") + (-1).to_bytes(4, "big", signed=True)
    body += (2).to_bytes(4, "big") + b"hi"
    message = (5).to_bytes(8, "big") + (len(body) + 4).to_bytes(4, "big")
    message += zlib.crc32(body).to_bytes(4, "big") + body
    selected = select_batches(memoryview(message), 0, 10, None)

    records = opened(selected.sections)

    assert records.offset.tolist() == [5]
    assert records.timestamp_ms.tolist() == [1234]
    assert records.keys().to_pylist() == [None]
    assert records.values().to_pylist() == [b"hi"]
    assert records.headers().to_pylist() == [None]


def test_empty_keys_and_values_are_not_null():
    records = opened([section(a_batch([(0, b"", b"", []), (0, None, None, [])]))])

    assert records.keys().to_pylist() == [b"", None]
    assert records.values().to_pylist() == [b"", None]
    assert np.array_equal(records.value_size, [0, -1])


def test_a_header_key_that_is_not_utf8_is_read_as_java_does():
    batch = a_batch([(1, None, b"v", [("AB", b"1"), ("b", None)])]).replace(b"AB", b"\xffB")

    (found,) = opened([section(batch)]).headers().to_pylist()

    assert found == [{"key": "\ufffdB", "value": b"1"}, {"key": "b", "value": None}]


def test_batches_that_decompress_to_many_bytes_are_opened_in_pieces():
    batches = [
        a_batch([(1, None, b"x" * 1000, [])] * 3, base_offset=3 * number, codec=1)
        for number in range(5)
    ]

    pieces = list(open_sections([section(batch) for batch in batches], piece_size=7_000))

    assert [piece.offset.tolist() for piece in pieces] == [
        [0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [12, 13, 14],
    ]  # fmt: skip
    assert all(value == b"x" * 1000 for piece in pieces for value in piece.values().to_pylist())
