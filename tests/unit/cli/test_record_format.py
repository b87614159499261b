"""The formats of a printed record."""

import json

import pytest

from headrace.cli.output import CommandFailed
from headrace.cli.record_format import ConsumedRecord, Shown, pattern, printer

RECORD = ConsumedRecord(
    "orders", 3, 42, 1_700_000_000_000, 1, b"key", b"value", [("h", b"1"), ("n", None)]
)
TOMBSTONE = RECORD._replace(value=None, key=None, headers=[])


def text(record, *, to_terminal=False, **shown):
    return printer("text", Shown(**shown), to_terminal=to_terminal)(record)


def test_a_line_of_text_is_the_requested_fields_and_the_value():
    assert text(RECORD) == b"value\n"
    line = text(RECORD, timestamps=True, offsets=True, headers=True, keys=True)
    assert line == b"2023-11-14T22:13:20.000+00:00\t3:42\th=1,n=null\tkey\tvalue\n"


def test_null_is_printed_as_null():
    assert text(TOMBSTONE, keys=True) == b"null\tnull\n"


def test_a_terminal_gets_no_control_characters():
    nasty = RECORD._replace(value=b"a\x1b[2Jb\xff\tc")
    assert text(nasty, to_terminal=True) == b"a\\x1b[2Jb\\xff\tc\n"
    assert text(nasty) == b"a\x1b[2Jb\xff\tc\n"


def test_json_is_one_object_per_line():
    line = printer("json", Shown(), to_terminal=False)(RECORD)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert json.loads(line) == {
        "topic": "orders",
        "partition": 3,
        "offset": 42,
        "timestamp": 1_700_000_000_000,
        "timestamp_type": "CreateTime",
        "key": "key",
        "value": "value",
        "headers": [{"name": "h", "value": "1"}, {"name": "n", "value": None}],
    }


def test_bytes_that_are_not_text_are_base64_under_another_name():
    line = json.loads(printer("json", Shown(), to_terminal=False)(RECORD._replace(value=b"\xff")))
    assert line["value_base64"] == "/w=="
    assert "value" not in line


def test_raw_is_only_the_value():
    raw = printer("raw", Shown(), to_terminal=False)
    assert raw(RECORD) + raw(TOMBSTONE) == b"value"


def test_a_pattern_has_the_fields_of_kcat():
    printed = pattern(r"%t/%p@%o %T %k[%K]=%s[%S] %h 100%%\n")
    assert printed(RECORD) == b"orders/3@42 1700000000000 key[3]=value[5] h=1,n=null 100%\n"
    assert pattern("%K %S")(TOMBSTONE) == b"-1 -1"


@pytest.mark.parametrize("format_text", ["%x", "50%", "yaml"])
def test_an_unknown_format_is_refused(format_text):
    with pytest.raises(CommandFailed, match="--format"):
        printer(format_text, Shown(), to_terminal=False)
