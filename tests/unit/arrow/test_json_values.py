"""JSON values as columns, and the reasons for values that are not."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.arrow.errors import BadSchema
from headrace.arrow.json_values import JsonParser

ROW = pa.struct([("n", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.float64()))])


def parse(values, kind=ROW):
    parsed = JsonParser(kind).parse(pa.array(values, pa.binary()))
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
def test_json_objects_become_rows_with_null_for_missing_fields(rows, indent):
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
def test_bad_json_does_not_affect_its_neighbors(values):
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


def test_an_object_never_continues_in_the_next_value():
    # Joined, these are three whole objects, and there are three values.
    parsed = parse([b'{"more": ', b'{"n": 1}}', b'{"n": 2}{"n": 3}'])

    assert set(parsed.bad) == {0, 1, 2}


def test_nanoseconds_are_cut_and_times_they_cannot_hold_are_read():
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
def test_a_type_that_json_lacks_is_refused_with_its_field(kind):
    with pytest.raises(BadSchema, match=r"field 'b\[\]'"):
        parse([], pa.struct([("b", pa.list_(kind))]))


def test_a_map_is_refused_with_its_field():
    with pytest.raises(BadSchema, match="field 'm.x'"):
        parse([], pa.struct([("m", pa.struct([("x", pa.map_(pa.string(), pa.int64()))]))]))
