"""A line of text as a record to produce."""

import pytest

from headrace.cli.record_lines import LineFormat, LineRecord, NotARecord


def test_a_line_is_a_value():
    assert LineFormat().parse(b"a:b") == LineRecord(None, b"a:b", [])
    assert LineFormat().parse(b"") == LineRecord(None, b"", [])


def test_the_first_key_separator_counts():
    assert LineFormat(key_separator=b":").parse(b"k:v:w") == LineRecord(b"k", b"v:w", [])
    assert LineFormat(key_separator=b":").parse(b":") == LineRecord(b"", b"", [])


def test_headers_come_first_then_the_key():
    line_format = LineFormat(
        key_separator=b"|", header_separator=b"|", constant_headers=(("all", b"1"),)
    )
    assert line_format.parse(b"a=1,b|key|value") == LineRecord(
        b"key", b"value", [("all", b"1"), ("a", b"1"), ("b", None)]
    )


def test_the_null_marker_means_null():
    line_format = LineFormat(key_separator=b":", header_separator=b"|", null_marker=b"NULL")
    assert line_format.parse(b"NULL|NULL:NULL") == LineRecord(None, None, [])
    assert line_format.parse(b"|k:NULLS") == LineRecord(b"k", b"NULLS", [])


@pytest.mark.parametrize(
    ("line_format", "line", "reason"),
    [
        (LineFormat(key_separator=b":"), b"value", "no key separator"),
        (LineFormat(header_separator=b"|"), b"value", "no header separator"),
        (LineFormat(header_separator=b"|"), b"=1|value", "no name"),
        (LineFormat(header_separator=b"|"), b"\xff=1|value", "utf-8"),
    ],
)
def test_a_line_without_a_required_separator_is_refused(line_format, line, reason):
    with pytest.raises(NotARecord, match=reason):
        line_format.parse(line)
