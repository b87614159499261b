"""Avro columns, compared with fastavro, which reads and writes one value at a time."""

import datetime
import decimal
import io
import json

import fastavro
import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.arrow.avro_decoding import decode_rows
from headrace.arrow.avro_schema import parse_schema


def written(schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def decoded(schema, raws):
    found, bad = decode_rows(parse_schema(json.dumps(schema)), pa.array(raws, pa.binary()))
    found.validate(full=True)
    return found, bad


EVENT = {
    "type": "record",
    "name": "Event",
    "namespace": "org.example",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "small", "type": "int"},
        {"name": "large", "type": "long"},
        {"name": "half", "type": "float"},
        {"name": "whole", "type": "double"},
        {"name": "raw", "type": "bytes"},
        {"name": "text", "type": "string"},
        {"name": "maybe", "type": ["null", "string"], "default": None},
        {"name": "perhaps", "type": ["long", "null"]},
        {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
        {"name": "other", "type": "Colour"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "grid", "type": {"type": "array", "items": {"type": "array", "items": "int"}}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {
            "name": "inner",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Inner",
                    "fields": [
                        {"name": "a", "type": "int"},
                        {"name": "b", "type": ["null", {"type": "array", "items": "double"}]},
                    ],
                },
            ],
        },
    ],
}
INTS, LONGS = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32, allow_nan=False)
TEXT = st.text(max_size=70)
EVENTS = st.fixed_dictionaries(
    {
        "flag": st.booleans(),
        "small": INTS,
        "large": LONGS,
        "half": FLOATS,
        "whole": st.floats(allow_nan=False),
        "raw": st.binary(max_size=100),
        "text": TEXT,
        "maybe": st.none() | TEXT,
        "perhaps": st.none() | LONGS,
        "colour": st.sampled_from(["RED", "BLUE"]),
        "other": st.sampled_from(["RED", "BLUE"]),
        "hash": st.binary(min_size=4, max_size=4),
        "tags": st.lists(TEXT, max_size=4),
        "grid": st.lists(st.lists(INTS, max_size=3), max_size=3),
        "counts": st.dictionaries(TEXT, LONGS, max_size=3),
        "inner": st.none()
        | st.fixed_dictionaries(
            {"a": INTS, "b": st.none() | st.lists(st.floats(allow_nan=False), max_size=3)}
        ),
    }
)


@given(st.lists(EVENTS, max_size=6))
def test_every_row_is_decoded_as_fastavro_wrote_it(events):
    found, bad = decoded(EVENT, [written(EVENT, event) for event in events])

    rows = found.to_pylist()
    for row in rows:
        row["counts"] = dict(row["counts"])
    assert not bad.any()
    assert rows == events


@given(st.lists(EVENTS, min_size=2, max_size=4), st.data())
def test_a_broken_row_is_marked_bad_and_its_neighbors_are_not(events, data):
    raws = [written(EVENT, event) for event in events]
    victim = data.draw(st.integers(0, len(raws) - 1))
    cut = data.draw(st.integers(0, len(raws[victim]) - 1))
    raws[victim] = raws[victim][:cut]

    found, bad = decoded(EVENT, raws)

    assert bad[victim]
    for index, event in enumerate(events):
        if index != victim:
            row = found[index].as_py()
            row["counts"] = dict(row["counts"])
            assert not bad[index] and row == event


@given(st.lists(st.binary(max_size=120), min_size=1, max_size=5))
def test_noise_only_marks_rows_bad(raws):
    found, bad = decoded(EVENT, raws)
    assert len(found) == len(bad) == len(raws)


def test_logical_types_become_dates_times_and_decimals():
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2},
            },
            {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        ],
    }
    at = datetime.datetime(2026, 11, 15, 22, 6, 1, 250_000, tzinfo=datetime.UTC)
    rows = [
        {
            "day": datetime.date(2026, 11, 15),
            "ms": at,
            "us": at,
            "price": decimal.Decimal(text),
            "id": "6f1c4ab2-0000-4000-8000-000000000000",
        }
        for text in ("123456789012345678.25", "-0.01", "0.00")
    ]

    found, bad = decoded(schema, [written(schema, row) for row in rows])

    assert not bad.any()
    assert found.to_pylist() == rows


def test_a_row_with_bytes_left_over_is_bad():
    _, bad = decoded({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]},
                     [b"\x02", b"\x02\x02", b""])  # fmt: skip

    assert bad.tolist() == [False, True, True]


def test_a_sliced_array_is_read_from_its_own_start():
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
    values = pa.array([written(schema, {"a": str(n)}) for n in range(10)], pa.binary())

    found, bad = decode_rows(parse_schema(json.dumps(schema)), values[4:7])

    assert found.to_pylist() == [{"a": "4"}, {"a": "5"}, {"a": "6"}]
    assert np.array_equal(bad, [False] * 3)
