"""How values are written on the command line, and what they mean. Pure."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from headrace.cli.output import WRONG_USAGE, CommandFailed

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_LAST_INSTANT_MS = 253_402_300_799_999  # of the year 9999, where the calendar ends
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}


def wrong(message: str) -> CommandFailed:
    """The failure of someone who mistyped."""
    return CommandFailed(message, WRONG_USAGE)


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """``key=value`` texts as a mapping; the last one wins, as in a properties file."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise wrong(f"{option} {text!r}: expected KEY=VALUE")
        found[name.strip()] = value
    return found


def duration_ms(text: str) -> int | None:
    """``90s``, ``2h``, ``1d12h``; None if it is written in another way."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return round(sum(float(number) * _UNIT_MS[unit] for number, unit in parts))


def instant_ms(text: str, now: int, option: str = "time", else_: str = "") -> int:
    """A point in time: milliseconds since 1970, ISO 8601, or a duration back from ``now``.

    ``else_`` is what the caller's ``option`` takes besides, for whoever mistyped it.

    An ISO time without a zone is taken in the zone of this machine, because
    that is the clock on the wall of whoever typed it.
    """
    if re.fullmatch(r"\d+", text):
        return int(text)
    back = duration_ms(text)
    if back is not None:
        return now - back
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise wrong(
            f"{option} {text!r}: expected {else_}ISO 8601 (2026-07-31T12:00), "
            "milliseconds since 1970, or a duration back from now (90s, 2h, 1d)"
        ) from None
    return round(instant.astimezone(UTC).timestamp() * 1000)


def iso(timestamp: int) -> str:
    """Milliseconds since 1970 as people and programs both read them."""
    if not 0 <= timestamp <= _LAST_INSTANT_MS:
        return str(timestamp)  # a producer may send any number
    return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds")


def unescaped(text: str) -> str:
    r"""A separator as typed in a shell: ``\t``, ``\n``, ``\x01`` stand for the character."""

    def character(match: re.Match[str]) -> str:
        code = match.group(1)
        if len(code) == 3:
            return chr(int(code[1:], 16))
        return _ESCAPED.get(code, "\\" + code)

    return _ESCAPE.sub(character, text)


def headers(text: str, pair_separator: str = "=") -> list[tuple[str, bytes | None]]:
    """``name=value,name2=value2``; a name alone is a header without a value."""
    found: list[tuple[str, bytes | None]] = []
    for pair in text.split(",") if text else []:
        name, separator, value = pair.partition(pair_separator)
        if not name:
            raise ValueError(f"header {pair!r} has no name")
        found.append((name, value.encode() if separator else None))
    return found


def counted(count: int, thing: str, things: str = "") -> str:
    """``1 record``, ``2 records``; ``things`` where the plural is another."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def size(text: str) -> int:
    """A number of bytes: ``1000``, ``16k``, ``1M`` (binary multiples)."""
    match = re.fullmatch(r"(\d+)([kKmMgG]?)(?:i?[bB])?", text)
    if match is None:
        raise wrong(f"size {text!r}: expected a number of bytes, such as 100, 16k or 1M")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2].lower()]


def numbers(text: str, option: str) -> list[int]:
    """``0,3,5-7`` as partition numbers."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise wrong(f"{option} {text!r}: expected numbers such as 0 or 0,3,5-7")
        first = int(match[1])
        found.extend(range(first, int(match[2] or first) + 1))
    return found
