"""Rows built from records: columns, bad records, and timestamps that no column can hold."""

import pyarrow as pa
import pytest

from headrace.arrow.columns import open_sections
from headrace.arrow.errors import BadRecord
from headrace.arrow.rows import BAD_TYPE, RejectedRecord, RowBuilder
from headrace.arrow.selection import Section
from headrace.arrow.values import parse_text
from headrace.model.ids import TopicPartition
from headrace.records.batch import read_header
from headrace.records.record import Record, build_batch

PLACE = TopicPartition("t", 3)


def records_of(*values, timestamps=None):
    timestamps = timestamps or [5] * len(values)
    batch = build_batch([Record(n, timestamps[n], b"k", value) for n, value in enumerate(values)])
    (records,) = open_sections([Section(read_header(batch), memoryview(batch))])
    return records


def rows_of(builder, records):
    return [row for batch in builder.batches(records) for row in batch.to_pylist()]


def test_only_the_columns_of_the_schema_are_built():
    schema = pa.schema([("offset", pa.int64()), ("topic", pa.string()), ("partition", pa.int32())])

    assert rows_of(RowBuilder(schema, PLACE), records_of(b"a", b"b")) == [
        {"offset": 0, "topic": "t", "partition": 3},
        {"offset": 1, "topic": "t", "partition": 3},
    ]


def test_bad_records_get_a_row_with_the_reason():
    schema = pa.schema([("value", pa.string()), ("_bad", BAD_TYPE)])

    good, bad = rows_of(
        RowBuilder(schema, PLACE, parse_text, bad_column="_bad"), records_of(b"a", b"\xff")
    )

    assert good == {"value": "a", "_bad": None}
    assert bad["value"] is None
    assert bad["_bad"].pop("reason").startswith("not UTF-8")
    assert bad["_bad"] == {"topic": "t", "partition": 3, "offset": 1, "value": b"\xff"}


def test_rejected_records_get_no_row():
    schema = pa.schema([("value", pa.string()), ("offset", pa.int64())])
    rejected: list[RejectedRecord] = []

    rows = rows_of(
        RowBuilder(schema, PLACE, parse_text, bad_column="_bad", reject=rejected.append),
        records_of(b"a", b"\xff", b"c"),
    )

    assert rows == [{"value": "a", "offset": 0}, {"value": "c", "offset": 2}]
    assert [record._replace(reason="") for record in rejected] == [
        RejectedRecord(PLACE, 1, 5, b"k", b"\xff", "")
    ]


@pytest.mark.parametrize("timestamp", [1 << 62, -(1 << 62)])
def test_a_timestamp_that_no_column_can_hold_is_refused_with_its_place(timestamp):
    schema = pa.schema([("timestamp", pa.timestamp("us", "UTC"))])
    records = records_of(b"a", b"b", timestamps=[5, timestamp])
    assert records.timestamp_ms[1] == timestamp

    with pytest.raises(BadRecord, match="offset 1 of t-3 has the timestamp"):
        list(RowBuilder(schema, PLACE).batches(records))
