"""Record batches from Arrow rows, read back with the record reader."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.arrow.encoding import Outgoing, encode, stamp_producer
from headrace.arrow.errors import BadRow
from headrace.model.ids import TopicPartition
from headrace.records.batch import check_produced, read_header
from headrace.records.record import iter_records

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ROW = st.tuples(
    st.integers(0, 1),
    st.integers(0, 3),
    st.none() | st.binary(max_size=100),
    st.none() | st.binary(max_size=20_000),
    st.none()
    | st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=9000)), max_size=3),
)


def outgoing(rows, headers=True):
    return Outgoing(
        ["a", "b"],
        np.array([row[0] for row in rows], dtype=np.int64),
        np.array([row[1] for row in rows], dtype=np.int64),
        pa.array([row[2] for row in rows], pa.binary()),
        pa.array([row[3] for row in rows], pa.binary()),
        pa.array(
            [
                None if row[4] is None else [{"key": k, "value": v} for k, v in row[4]]
                for row in rows
            ],
            HEADERS,
        )
        if headers
        else None,
    )


def encoded(rows, **more):
    settings = {
        "codec": 0, "batch_size": 1 << 20, "row_size_max": 1 << 20, "now_ms": 1234, "first_row": 0
    }  # fmt: skip
    return encode(rows, **(settings | more))


@given(st.lists(ROW, max_size=30), st.integers(0, 4), st.sampled_from([100, 5_000, 1 << 20]))
def test_every_row_is_encoded_once_in_order_in_its_partition(rows, codec, batch_size):
    batches = encoded(outgoing(rows), codec=codec, batch_size=batch_size)

    found: dict[TopicPartition, list] = {}
    for batch in batches:
        header = check_produced(memoryview(bytearray(batch.data)))
        assert header.record_count == batch.record_count
        assert header.codec == codec
        for index, record in enumerate(iter_records(batch.data)):
            assert (record.offset, record.timestamp) == (index, 1234)
            found.setdefault(batch.place, []).append((record.key, record.value, record.headers))
    expected: dict[TopicPartition, list] = {}
    for topic, partition, key, value, headers in rows:
        place = TopicPartition("ab"[topic], partition)
        expected.setdefault(place, []).append((key, value, tuple(headers or ())))
    assert found == expected


def test_batches_stay_within_their_size():
    rows = [(0, 0, None, b"x" * 100, None)] * 100

    batches = encoded(outgoing(rows, headers=False), batch_size=1000)

    assert sum(batch.record_count for batch in batches) == 100
    assert max(len(batch.data) for batch in batches) <= 1000 + 61
    assert len(batches) < 20


def test_a_row_that_is_too_large_is_named_with_the_option_to_change():
    rows = [(0, 1, None, b"", None), (1, 2, b"the key", b"x" * 5000, None)]

    with pytest.raises(BadRow) as refused:
        encoded(outgoing(rows), row_size_max=3000, first_row=40)

    text = str(refused.value)
    assert "row 41" in text and "partition 2 of topic 'b'" in text and "the key" in text
    assert "kafka.max.request.size allows 3000" in text


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"x"}])
def test_a_row_with_a_header_without_a_key_is_named(header):
    fine = [{"key": "k", "value": None}]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = outgoing([(0, partition, None, b"v", None) for partition in (2, 1, 0)])._replace(
        headers=pa.array([fine, [*fine, header], None], kind)
    )

    with pytest.raises(BadRow, match="row 41 of this task, for partition 1 of topic 'a', has a"):
        encoded(rows, first_row=40)


def test_a_batch_has_the_numbers_of_its_first_and_last_row():
    rows = [(0, partition, None, b"v", None) for partition in (1, 0, 1, 0, 0)]

    batches = encoded(outgoing(rows), first_row=100)

    assert {batch.place.partition: batch.rows for batch in batches} == {
        0: (101, 104),
        1: (100, 102),
    }


def test_stamping_a_producer_updates_the_checksum():
    batch = bytearray(encoded(outgoing([(0, 0, b"k", b"v", None)] * 3))[0].data)

    stamp_producer(batch, 77, 5, 1000, transactional=True)

    header = check_produced(memoryview(batch))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 5, 1000)
    assert header.is_transactional
    stamp_producer(batch, 1, 2, 3, transactional=False)
    assert not read_header(batch).is_transactional


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1 << 45)), min_size=1, max_size=30))
def test_rows_with_times_of_their_own(rows):
    count = len(rows)
    values = pa.array([b"%d" % number for number in range(count)], pa.binary())
    written = Outgoing(
        ["a"],
        np.zeros(count, dtype=np.int64),
        np.array([partition for partition, _ in rows]),
        pa.nulls(count, pa.binary()),
        values,
        None,
        np.array([timestamp for _, timestamp in rows]),
    )
    found = {}
    for batch in encoded(written, batch_size=200):
        header = check_produced(memoryview(bytearray(batch.data)))
        records = list(iter_records(batch.data))
        assert header.max_timestamp == max(record.timestamp for record in records)
        found |= {int(record.value): (batch.place.partition, record.timestamp) for record in records}
    assert [found[number] for number in range(count)] == rows
