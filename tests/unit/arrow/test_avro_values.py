"""Avro values as columns: by one schema, by schema ID, and values that do not fit."""

import json
import struct

import pyarrow as pa
import pytest

from headrace.arrow.avro_decoding import decode_rows
from headrace.arrow.avro_schema import parse_schema
from headrace.arrow.avro_values import AvroParser, fitted
from headrace.arrow.errors import BadSchema

RECORD = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}
NEWER = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "s", "type": "string"}, {"name": "n", "type": "int"}],
}
KIND = pa.struct([("n", pa.int64()), ("s", pa.string())])


def node(schema):
    return parse_schema(json.dumps(schema))


def parse(values, kind, schema, **more):
    parsed = AvroParser(kind, schema, **more).parse(pa.array(values, pa.binary()))
    parsed.array.validate(full=True)
    assert parsed.array.type == kind
    return parsed


def with_id(schema_id, body):
    return b"\0" + struct.pack(">i", schema_id) + body


def test_values_of_one_schema():
    parsed = parse([b"\x02", b"", None], KIND, node(RECORD))

    assert parsed.array.to_pylist() == [{"n": 1, "s": None}, None, None]
    assert list(parsed.bad) == [1]


def test_each_value_is_decoded_in_the_schema_of_its_id():
    schemas = {3: node(RECORD), 300000: node(NEWER), 5: node("string"), 9: "there is no schema 9"}

    parsed = parse(
        [
            with_id(300000, b"\x02x\x04"),
            with_id(3, b"\x06"),
            with_id(9, b"\x06"),
            b"\x01abcd",
            None,
            b"x",
            with_id(5, b"\x02x"),
        ],
        KIND,
        schemas.__getitem__,
        prefixed=True,
    )

    assert parsed.array.to_pylist() == [{"n": 2, "s": "x"}, {"n": 3, "s": None}] + [None] * 5
    assert parsed.bad == {
        2: "there is no schema 9",
        3: "no schema ID in front (a zero byte and four bytes)",
        5: "no schema ID in front (a zero byte and four bytes)",
        6: "schema 5 is not a record",
    }


def test_values_of_one_schema_may_have_an_id_in_front():
    parsed = parse([with_id(9, b"\x02")], KIND, node(RECORD), prefixed=True)

    assert parsed.array.to_pylist() == [{"n": 1, "s": None}]


def test_a_number_that_its_column_cannot_hold_is_bad_and_its_neighbors_are_not():
    narrow = pa.struct([("n", pa.int32())])

    parsed = parse([b"\x02", b"\x80\x80\x80\x80\x80\x40", b"\x04"], narrow, node(RECORD))

    assert parsed.array.to_pylist() == [{"n": 1}, None, {"n": 2}]
    assert list(parsed.bad) == [1] and "not in range" in parsed.bad[1]


def test_a_time_that_a_column_cannot_hold_is_bad():
    at = {"type": "long", "logicalType": "timestamp-millis"}
    schema = {"type": "record", "name": "R", "fields": [{"name": "at", "type": at}]}
    kind = pa.struct([("at", pa.timestamp("us", "UTC"))])

    parsed = parse([b"\x80" * 8 + b"\x40", b"\x02"], kind, node(schema))

    assert list(parsed.bad) == [0]
    assert parsed.array[1]["at"].value == 1_000


def test_values_whose_schema_clashes_with_the_columns_are_bad_and_others_are_read():
    odd = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "string"}]}
    schemas = {3: node(RECORD), 4: node(odd)}

    parsed = parse(
        [with_id(4, b"\x02x"), with_id(3, b"\x02")], KIND, schemas.__getitem__, prefixed=True
    )

    assert parsed.array.to_pylist() == [None, {"n": 1, "s": None}]
    assert parsed.bad == {
        0: "schema 4: value.n is string in the Avro schema, but int64 in the column"
    }


def test_columns_that_the_schema_can_never_fill_are_refused():
    with pytest.raises(BadSchema, match="value.n is int64 in the Avro schema, but string"):
        AvroParser(pa.struct([("n", pa.string())]), node(RECORD))


def test_fields_are_fitted_to_the_columns_by_name():
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "int"}, {"name": "gone", "type": "string"}],
    }
    found, _ = decode_rows(node(schema), pa.array([b"\x0e\x02x"]))

    wanted = pa.struct([("b", pa.string()), ("a", pa.int64())])

    assert fitted(found, wanted).to_pylist() == [{"b": None, "a": 7}]
