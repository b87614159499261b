r"""The formats of a printed record: text, JSON, raw bytes, or a pattern. Pure.

A pattern is kcat's: ``%t`` topic, ``%p`` partition, ``%o`` offset, ``%T``
timestamp in milliseconds, ``%k`` key, ``%s`` value, ``%K`` and ``%S`` their
lengths (-1 for null), ``%h`` headers as name=value, ``%%`` a percent sign; and
``\n``, ``\t``, ``\r``, ``\0``, ``\x01`` for characters.
"""

import base64
import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.cli import values

Headers = Sequence[tuple[str, bytes | None]]
_TOKEN = re.compile(r"%(.)|([^%]+)|(%$)", re.DOTALL)
_TIMESTAMP_TYPES = {1: "CreateTime", 2: "LogAppendTime"}
_NULL = b"null"


class ConsumedRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int | None
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers


Printer = Callable[[ConsumedRecord], bytes]


class Shown(NamedTuple):
    """The fields before the value in a line of text."""

    timestamps: bool = False
    offsets: bool = False
    headers: bool = False
    keys: bool = False


def printer(format_text: str, shown: Shown, *, to_terminal: bool) -> Printer:
    """The function that formats a record as bytes."""
    if format_text == "text":
        return lambda record: _text_line(record, shown, to_terminal)
    if format_text == "json":
        return json_line
    if format_text == "raw":
        return lambda record: record.value or b""
    if "%" not in format_text:
        raise values.wrong(
            f"--format {format_text!r}: expected text, json, raw or a pattern such as '%k %s\\n'"
        )
    return pattern(format_text)


def pattern(text: str) -> Printer:
    parts: list[bytes | Printer] = []
    for code, literal, dangling in _TOKEN.findall(text):
        if literal:
            parts.append(values.unescaped(literal).encode())
        elif code == "%":
            parts.append(b"%")
        elif code in _FIELDS:
            parts.append(_FIELDS[code])
        else:
            known = " ".join(f"%{field}" for field in _FIELDS)
            raise values.wrong(
                f"--format: unknown field %{code or dangling}; expected one of {known}"
            )

    def printed(record: ConsumedRecord) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(record) for part in parts)

    return printed


def json_line(record: ConsumedRecord) -> bytes:
    """One object per line; bytes that are not UTF-8 are in base64 under another name."""
    line: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": _TIMESTAMP_TYPES.get(record.timestamp_type),
        **json_bytes("key", record.key),
        **json_bytes("value", record.value),
        # A list, because names may repeat and the order matters.
        "headers": [{"name": name, **json_bytes("value", value)} for name, value in record.headers],
    }
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def json_bytes(name: str, data: bytes | None) -> dict[str, object]:
    """Text under ``name``, or base64 under ``name_base64``."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


def _text_line(record: ConsumedRecord, shown: Shown, to_terminal: bool) -> bytes:
    fields = []
    if shown.timestamps:
        fields.append(b"-" if record.timestamp is None else values.iso(record.timestamp).encode())
    if shown.offsets:
        fields.append(f"{record.partition}:{record.offset}".encode())
    if shown.headers:
        fields.append(_header_text(record.headers))
    if shown.keys:
        fields.append(_NULL if record.key is None else record.key)
    fields.append(_NULL if record.value is None else record.value)
    if to_terminal:
        fields = [harmless(field) for field in fields]
    return b"\t".join(fields) + b"\n"


def harmless(data: bytes) -> bytes:
    """Printable text only: bytes of a record must not control the terminal."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(
        character
        if character.isprintable() or character == "\t"
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    ).encode()


def _header_text(headers: Headers) -> bytes:
    return b",".join(
        name.encode() + b"=" + (_NULL if value is None else value) for name, value in headers
    )


def _length(data: bytes | None) -> bytes:
    return b"-1" if data is None else str(len(data)).encode()


_FIELDS: dict[str, Printer] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: str(record.partition).encode(),
    "o": lambda record: str(record.offset).encode(),
    "T": lambda record: str(-1 if record.timestamp is None else record.timestamp).encode(),
    "k": lambda record: record.key or b"",
    "s": lambda record: record.value or b"",
    "K": lambda record: _length(record.key),
    "S": lambda record: _length(record.value),
    "h": lambda record: _header_text(record.headers),
}
