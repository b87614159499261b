"""The parser that the options value.* choose."""

import json
import struct

import pyarrow as pa
import pytest

from headrace.spark.failures import BadOption
from headrace.spark.value_format import ValueFormat, value_parser

RECORD = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}
KIND = pa.struct([("n", pa.int64())])


def parsed(value, kind, *raw):
    return value_parser(value, kind)(pa.array(raw, pa.binary()))


def test_values_stay_bytes_without_a_format():
    assert value_parser(ValueFormat(), pa.binary()) is None


def test_the_format_chooses_the_parser():
    avro = ValueFormat(name="avro", schema=json.dumps(RECORD))

    assert parsed(ValueFormat(name="string"), pa.string(), b"x").array.to_pylist() == ["x"]
    assert parsed(ValueFormat(name="json"), KIND, b'{"n": 3}').array.to_pylist() == [{"n": 3}]
    assert parsed(avro, KIND, b"\x06").array.to_pylist() == [{"n": 3}]


def test_avro_schemas_come_from_a_directory_by_id(tmp_path):
    union = {"type": "record", "name": "R", "fields": [{"name": "n", "type": ["int", "string"]}]}
    (tmp_path / "3.avsc").write_text(json.dumps(RECORD))
    (tmp_path / "4.json").write_text(json.dumps(union))
    value = ValueFormat(name="avro", avro_directory=str(tmp_path), avro_prefixed=True)

    found = parsed(
        value, KIND, *(b"\0" + struct.pack(">i", number) + b"\x06" for number in (3, 4, 9))
    )

    assert found.array.to_pylist() == [{"n": 3}, None, None]
    assert found.bad[1].startswith("schema 4: the Avro schema has a union of 2 types")
    assert found.bad[2] == "there is no schema 9"


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        (ValueFormat(name="json"), pa.string(), "with value.format=json the column value"),
        (
            ValueFormat(name="json"),
            pa.struct([("b", pa.binary())]),
            "value.schema: JSON has no bytes for field 'b'",
        ),
        (
            ValueFormat(name="avro", schema=json.dumps(RECORD)),
            pa.struct([("n", pa.string())]),
            "value.schema: the columns do not fit the Avro schema: value.n is int64",
        ),
        (ValueFormat(name="avro", schema="{}"), KIND, "value.schema: not an Avro schema"),
    ],
)
def test_a_schema_that_cannot_be_parsed_is_refused_by_its_option(value, kind, reason):
    with pytest.raises(BadOption, match=reason):
        value_parser(value, kind)
