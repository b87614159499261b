"""Lines of web servers as JSON."""

import json

import pytest

from headrace.ship.formats import Format, parser_of

COMMON = b'127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /a%20b HTTP/1.0" 200 2326'
COMBINED = COMMON + rb' "http://x/\"q\"" "Mozilla/5.0 (\xc3\xa4)"'


def parsed(format: Format, line: bytes):
    parse = parser_of(format)
    assert parse is not None
    value = parse(line)
    return None if value is None else json.loads(value)


def test_the_common_format():
    assert parsed(Format.COMMON, COMMON) == {
        "client": "127.0.0.1",
        "identity": None,
        "user": "frank",
        "time": "2000-10-10T13:55:36-07:00",
        "method": "GET",
        "path": "/a%20b",
        "protocol": "HTTP/1.0",
        "status": 200,
        "size": 2326,
    }


@pytest.mark.parametrize("format", [Format.COMBINED, Format.NGINX])
def test_the_combined_format_with_escapes(format):
    fields = parsed(format, COMBINED)
    assert fields["referrer"] == 'http://x/"q"' and fields["user_agent"] == "Mozilla/5.0 (ä)"
    assert fields["status"] == 200


def test_the_error_log_of_nginx():
    line = (
        b'2026/11/17 15:45:06 [error] 12#34: *56 open() "/x" failed (2: No such file), '
        b'client: 10.0.0.1, server: _, request: "GET /x HTTP/1.1", host: "example"'
    )
    assert parsed(Format.NGINX, line) == {
        "time": "2026-11-17T15:45:06",
        "level": "error",
        "process": 12,
        "thread": 34,
        "connection": 56,
        "message": 'open() "/x" failed (2: No such file)',
        "client": "10.0.0.1",
        "server": "_",
        "request": "GET /x HTTP/1.1",
        "host": "example",
    }


def test_a_malformed_request_keeps_its_text():
    line = COMMON.replace(b"GET /a%20b HTTP/1.0", rb"\x16\x03").replace(b"2326", b"-")
    fields = parsed(Format.COMMON, line)
    assert (fields["method"], fields["path"], fields["size"]) == (None, "\x16\x03", 0)


@pytest.mark.parametrize(
    ("format", "line"),
    [
        (Format.COMMON, b"no"),
        (Format.COMMON, COMBINED),
        (Format.COMBINED, COMMON),
        (Format.COMMON, COMMON.replace(b"Oct", b"Foo")),
        (Format.COMMON, COMMON.replace(b"10/Oct", b"42/Oct")),
        (Format.NGINX, b"\xff\xfe"),
        (Format.JSON, b"{"),
        (Format.JSON, b"[1]"),
        (Format.JSON, b"[" * 100_000),
    ],
)
def test_other_lines_are_refused(format, line):
    assert parsed(format, line) is None


def test_json_is_passed_on_as_it_is():
    parse = parser_of(Format.JSON)
    assert parse is not None and parse(b'{ "a": 1 }') == b'{ "a": 1 }'
    assert parser_of(Format.RAW) is None
