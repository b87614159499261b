"""Log formats: a line of a web server's log as a JSON object. Pure."""

import json
import re
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Any


class Format(StrEnum):
    RAW = "raw"
    JSON = "json"
    COMMON = "common"
    COMBINED = "combined"
    NGINX = "nginx"


# These patterns are ours, without nested repetition; re2 takes several times as long from Python.
_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_COMMON = rf"(\S+) (\S+) (.+?) \[([^\]]+)\] {_QUOTED} (\d{{3}}) (\d+|-)"
_MATCH_COMMON = re.compile(_COMMON).fullmatch
_MATCH_COMBINED = re.compile(rf"{_COMMON} {_QUOTED} {_QUOTED}").fullmatch
_MATCH_NGINX_ERROR = re.compile(
    r"(\d{4})/(\d\d)/(\d\d) (\d\d:\d\d:\d\d) \[(\w+)\] (\d+)#(\d+): (?:\*(\d+) )?(.*)", re.DOTALL
).fullmatch
_REQUEST_FIELDS = re.compile(r', (client|server|request|upstream|host|referrer): ("[^"]*"|[^,]*)')
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)")
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"v": b"\v"}
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}

Parser = Callable[[bytes], bytes | None]


def parser_of(format: Format) -> Parser | None:
    """A function that turns a line into the value to send; None for raw lines.

    It returns None for a line that does not have the format. Such a line is sent as it is.
    """
    return _PARSERS[format]


def _json(line: bytes) -> bytes | None:
    try:
        return line if isinstance(json.loads(line), dict) else None
    except (ValueError, RecursionError):
        return None


def _common(line: bytes) -> bytes | None:
    match = _MATCH_COMMON(line.decode("utf-8", "replace"))
    return None if match is None else _encoded(_request(match))


def _combined(line: bytes) -> bytes | None:
    match = _MATCH_COMBINED(line.decode("utf-8", "replace"))
    if match is None:
        return None
    fields = _request(match)
    if fields is not None:
        fields["referrer"] = _text(match[8])
        fields["user_agent"] = _text(match[9])
    return _encoded(fields)


def _nginx(line: bytes) -> bytes | None:
    """The access log is in the combined format; the error log has its own."""
    return _combined(line) or _nginx_error(line)


def _nginx_error(line: bytes) -> bytes | None:
    match = _MATCH_NGINX_ERROR(line.decode("utf-8", "replace"))
    if match is None:
        return None
    year, month, day, time, level, process, thread, connection, message = match.groups()
    fields: dict[str, Any] = {
        "time": f"{year}-{month}-{day}T{time}",  # nginx writes no time zone
        "level": level,
        "process": int(process),
        "thread": int(thread),
        "connection": None if connection is None else int(connection),
    }
    first = _REQUEST_FIELDS.search(message)
    fields["message"] = message if first is None else message[: first.start()]
    for name, value in _REQUEST_FIELDS.findall(message):
        fields[name] = value.strip('"')
    return _encoded(fields)


def _request(match: re.Match[str]) -> dict[str, Any] | None:
    """The fields that the common and the combined format share."""
    client, identity, user, time, request, status, size = match.groups()[:7]
    at = _iso(time)
    if at is None:
        return None
    method, _, rest = request.partition(" ")
    path, _, protocol = rest.rpartition(" ")
    if not path:  # a malformed request, or HTTP/0.9
        method, path, protocol = "", request, ""
    return {
        "client": client,
        "identity": _text(identity),
        "user": _text(user),
        "time": at,
        "method": method or None,
        "path": _text(path),
        "protocol": protocol or None,
        "status": int(status),
        "size": 0 if size == "-" else int(size),
    }


def _iso(time: str) -> str | None:
    """``17/Nov/2026:15:45:06 +0100`` in ISO 8601."""
    month = _MONTHS.get(time[3:6])
    if month is None or len(time) != 26:
        return None
    text = f"{time[7:11]}-{month:02}-{time[0:2]}T{time[12:20]}{time[21:24]}:{time[24:26]}"
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return None
    return text


def _text(field: str) -> str | None:
    """A field without the server's escapes; "-" means that there was none."""
    if field == "-":
        return None
    if "\\" not in field:
        return field
    # The server escapes bytes: only all of them together are text.
    return _ESCAPE.sub(_unescaped, field.encode()).decode("utf-8", "replace")


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return bytes.fromhex(code[1:].decode()) if len(code) == 3 else _ESCAPED.get(code, code)


def _encoded(fields: dict[str, Any] | None) -> bytes | None:
    if fields is None:
        return None
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


_PARSERS: dict[Format, Parser | None] = {
    Format.RAW: None,
    Format.JSON: _json,
    Format.COMMON: _common,
    Format.COMBINED: _combined,
    Format.NGINX: _nginx,
}
