"""The reasons for JSON values that do not fit the columns."""

import json

import pyarrow as pa
import pytest

from headrace.arrow.json_values import JsonParser

KIND = pa.struct(
    [
        ("id", pa.int64()),
        ("small", pa.int8()),
        ("name", pa.string()),
        ("flag", pa.bool_()),
        ("ratio", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("user", pa.struct([("age", pa.int32())])),
    ]
)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"id": "7"}, "field id: expected BIGINT, found a string"),
        ({"id": True}, "field id: expected BIGINT, found a boolean"),
        ({"id": 1.5}, "field id: expected BIGINT, found 1.5"),
        ({"id": 1 << 63}, "field id: expected BIGINT, found 9223372036854775808"),
        ({"small": 128}, "field small: expected TINYINT, found 128"),
        ({"name": 7}, "field name: expected STRING, found a number"),
        ({"name": ["x"]}, "field name: expected STRING, found an array"),
        ({"flag": "yes"}, "field flag: expected BOOLEAN, found a string"),
        ({"ratio": "1"}, "field ratio: expected DOUBLE, found a string"),
        ({"day": "soon"}, 'field day: expected DATE, found "soon"'),
        ({"at": "soon"}, 'field at: expected TIMESTAMP, found "soon"'),
        ({"at": 17}, "field at: expected TIMESTAMP, found a number"),
        ({"price": {}}, "field price: expected DECIMAL(10,2), found an object"),
        ({"tags": "x"}, "field tags: expected ARRAY, found a string"),
        ({"tags": ["x", 1]}, "field tags[]: expected STRING, found a number"),
        ({"user": []}, "field user: expected STRUCT, found an array"),
        ({"user": {"age": "old"}}, "field user.age: expected INT, found a string"),
    ],
)
def test_a_misfit_is_named_with_its_field_and_both_types(value, reason):
    parsed = JsonParser(KIND).parse(pa.array([b'{"id": 1}', json.dumps(value).encode()]))

    assert parsed.bad == {1: reason}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"id": }', "not valid JSON: Expecting value"),
        (b'{"id": 1} x}', "not valid JSON: Extra data"),
        (b'{"id": 1, "id": 2}', "field id appears more than once"),
        (b'{"name": "\xff"}', "not UTF-8: "),
        (b'{"id": 1', "not valid JSON: the object is not closed"),
    ],
)
def test_broken_json_is_told_from_json_that_does_not_fit(value, reason):
    parsed = JsonParser(KIND).parse(pa.array([value]))

    assert list(parsed.bad) == [0]
    assert parsed.bad[0].startswith(reason)
