"""Values to typed columns, and what becomes of values that are none."""

import json
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.failures import BadOption
from headrace.spark.options import ValueFormat
from headrace.spark.typed import value_parser

ROW = pa.struct([("n", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.float64()))])


def parse(values, kind=ROW, name="json", **more):
    parsed = value_parser(ValueFormat(name=name, **more), kind)(pa.array(values, pa.binary()))
    parsed.array.validate(full=True)
    assert parsed.array.type == kind
    assert len(parsed.array) == len(values)
    return parsed


ROWS = st.fixed_dictionaries(
    {},
    optional={
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "s": st.none() | st.text(max_size=20),
        "l": st.none() | st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3),
        "more": st.text(max_size=3),
    },
)


@given(st.lists(ROWS | st.none(), max_size=10), st.sampled_from([None, 2]))
def test_json_objects_become_rows_with_null_for_what_they_lack(rows, indent):
    values = [None if row is None else json.dumps(row, indent=indent).encode() for row in rows]

    parsed = parse(values)

    assert parsed.bad == {}
    expected = [None if r is None else {k: r.get(k) for k in ("n", "s", "l")} for r in rows]
    assert parsed.array.to_pylist() == expected


BAD_JSON = [
    b"", b"   ", b"null", b"[1]", b"17", b'{"n": 1', b'{"n": "x"}', b'{"n": 1} x', b"\xff\xfe",
    b'{"n": 1}{"n": 2}', b'{"s": "\xff"}', b'{"n": 1.5}', b'{"n": 1, "n": 2}', b'{"more":',
    b'{"n": 1}}', b'{"s": "a\nb"}',
]  # fmt: skip


@given(st.lists(st.sampled_from(BAD_JSON) | st.just(b'{"n": 1}') | st.none(), max_size=20))
def test_bad_json_is_told_apart_from_its_neighbours(values):
    parsed = parse(values)

    assert set(parsed.bad) == {i for i, v in enumerate(values) if v in BAD_JSON}
    assert all(parsed.bad.values())
    assert parsed.array.to_pylist() == [
        {"n": 1, "s": None, "l": None} if v == b'{"n": 1}' else None for v in values
    ]


def test_dates_and_times_are_read_from_text():
    kind = pa.struct([("d", pa.date32()), ("t", pa.timestamp("us", "UTC"))])

    parsed = parse([b'{"d": "2026-11-15", "t": "2026-11-15T22:06:00Z"}', b'{"d": "soon"}'], kind)

    assert str(parsed.array[0]["d"]) == "2026-11-15"
    assert set(parsed.bad) == {1}


def test_objects_never_reach_from_one_value_into_the_next():
    # Laid behind each other these are three whole objects, and there are three values.
    parsed = parse([b'{"more": ', b'{"n": 1}}', b'{"n": 2}{"n": 3}'])

    assert set(parsed.bad) == {0, 1, 2}


def test_nanoseconds_are_cut_and_times_beyond_their_reach_are_read_all_the_same():
    kind = pa.struct([("t", pa.list_(pa.field("element", pa.timestamp("us", "UTC"))))])

    parsed = parse(
        [b'{"t": ["2026-11-15T22:06:00.123456789Z"]}', b'{"t": ["9999-12-31T23:59:59Z"]}'], kind
    )

    assert parsed.bad == {}
    assert [row["t"][0].isoformat() for row in parsed.array.to_pylist()] == [
        "2026-11-15T22:06:00.123456+00:00",
        "9999-12-31T23:59:59+00:00",
    ]


@pytest.mark.parametrize("kind", [pa.binary(), pa.duration("us")])
def test_types_that_json_lacks_are_refused_by_the_name_of_their_field(kind):
    with pytest.raises(BadOption, match=r"field 'b\[\]'"):
        parse([], pa.struct([("b", pa.list_(kind))]))


def test_a_map_is_refused_by_the_name_of_its_field():
    with pytest.raises(BadOption, match="field 'm.x'"):
        parse([], pa.struct([("m", pa.struct([("x", pa.map_(pa.string(), pa.int64()))]))]))


def test_text_that_is_not_utf8_is_bad():
    parsed = parse([b"caf\xc3\xa9", b"\xff", None, b""], pa.string(), "string")

    assert parsed.array.to_pylist() == ["café", None, None, ""]
    assert list(parsed.bad) == [1] and "UTF-8" in parsed.bad[1]


AVRO = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}
NEWER = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "s", "type": "string"}, {"name": "n", "type": "int"}],
}
KIND = pa.struct([("n", pa.int64()), ("s", pa.string())])


def test_plain_avro_with_the_schema_given():
    parsed = parse([b"\x02", b"", None], KIND, "avro", schema=json.dumps(AVRO))

    assert parsed.array.to_pylist() == [{"n": 1, "s": None}, None, None]
    assert list(parsed.bad) == [1]


def test_avro_by_number_takes_each_schema_from_the_folder(tmp_path):
    (tmp_path / "3.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "300000.json").write_text(json.dumps(NEWER))

    def value(number, body):
        return b"\0" + struct.pack(">i", number) + body

    parsed = parse(
        [
            value(300000, b"\x02x\x04"),
            value(3, b"\x06"),
            value(9, b"\x06"),
            b"\x01abcd",
            None,
            b"x",
        ],
        KIND,
        "avro",
        avro_folder=str(tmp_path),
        avro_prefixed=True,
    )

    assert parsed.array.to_pylist() == [{"n": 2, "s": "x"}, {"n": 3, "s": None}] + [None] * 4
    assert parsed.bad == {
        2: "there is no schema 9",
        3: "no schema number in front (a zero byte and four bytes)",
        5: "no schema number in front (a zero byte and four bytes)",
    }


def test_avro_with_a_prefix_and_the_schema_given():
    parsed = parse([b"\0\0\0\0\x09\x02"], KIND, "avro", schema=json.dumps(AVRO), avro_prefixed=True)

    assert parsed.array.to_pylist() == [{"n": 1, "s": None}]


def test_an_avro_number_that_its_column_cannot_hold_is_bad_and_its_neighbours_are_not():
    narrow = pa.struct([("n", pa.int32())])

    parsed = parse(
        [b"\x02", b"\x80\x80\x80\x80\x80\x40", b"\x04"], narrow, "avro", schema=json.dumps(AVRO)
    )

    assert parsed.array.to_pylist() == [{"n": 1}, None, {"n": 2}]
    assert list(parsed.bad) == [1] and "not in range" in parsed.bad[1]


def test_a_time_beyond_what_a_column_can_say_is_bad():
    at = {"type": "long", "logicalType": "timestamp-millis"}
    schema = {"type": "record", "name": "R", "fields": [{"name": "at", "type": at}]}
    kind = pa.struct([("at", pa.timestamp("us", "UTC"))])

    parsed = parse([b"\x80" * 8 + b"\x40", b"\x02"], kind, "avro", schema=json.dumps(schema))

    assert list(parsed.bad) == [0]
    assert parsed.array[1]["at"].value == 1_000


CANNOT_BE_COLUMNS = {
    "a union": (["int", "string"], "schema 4: the Avro schema has a union"),
    "another type": ("string", "schema 4: value.n is string in the Avro schema, but int64"),
    "a decimal": (
        {"type": "bytes", "logicalType": "decimal", "precision": 50},
        "schema 4: the Avro schema has a decimal of 50 digits",
    ),
}


@pytest.mark.parametrize("case", CANNOT_BE_COLUMNS)
def test_values_in_a_schema_that_cannot_be_the_columns_are_bad_and_others_are_read(tmp_path, case):
    kind, reason = CANNOT_BE_COLUMNS[case]
    odd = {"type": "record", "name": "R", "fields": [{"name": "n", "type": kind}]}
    (tmp_path / "3.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "4.avsc").write_text(json.dumps(odd))

    parsed = parse(
        [b"\0\0\0\0\x04\x02x", b"\0\0\0\0\x03\x02"], KIND, "avro",
        avro_folder=str(tmp_path), avro_prefixed=True,
    )  # fmt: skip

    assert parsed.array.to_pylist() == [None, {"n": 1, "s": None}]
    assert list(parsed.bad) == [0] and parsed.bad[0].startswith(reason)


def test_columns_that_a_given_avro_schema_can_never_fill_are_refused():
    with pytest.raises(BadOption, match="value.n is int64 in the Avro schema, but string"):
        parse([], pa.struct([("n", pa.string())]), "avro", schema=json.dumps(AVRO))
