"""Text values, and the isolation of bad values."""

import pyarrow as pa

from headrace.arrow.values import convert_in_halves, parse_text


def test_text_that_is_not_utf8_is_bad():
    parsed = parse_text(pa.array([b"caf\xc3\xa9", b"\xff", None, b""], pa.binary()))

    assert parsed.array.to_pylist() == ["café", None, None, ""]
    assert parsed.bad == {1: "not UTF-8: invalid start byte at byte 0"}


def test_every_bad_row_is_isolated():
    rows = pa.array(["1", "x", "3", "4", "y", "6"])

    found, failed = convert_in_halves(lambda some: some.cast(pa.int64()), rows, pa.int64())

    assert found.to_pylist() == [1, None, 3, 4, None, 6]
    assert sorted(failed) == [1, 4]
