"""Parsing and printing of values on the command line. Pure."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from headrace.cli.output import WRONG_USAGE, CommandFailed

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_LAST_INSTANT_MS = 253_402_300_799_999  # the end of the year 9999, Python's last date
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}


def wrong(message: str) -> CommandFailed:
    """A failure with the exit status for wrong usage."""
    return CommandFailed(message, WRONG_USAGE)


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """``key=value`` texts as a mapping; the last value of a key wins."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise wrong(f"{option} {text!r}: expected KEY=VALUE")
        found[name.strip()] = value
    return found


def duration_ms(text: str) -> int | None:
    """Milliseconds of ``90s``, ``2h`` or ``1d12h``; None for any other text."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return round(sum(float(number) * _UNIT_MS[unit] for number, unit in parts))


def instant_ms(text: str, now: int, option: str = "time", else_: str = "") -> int:
    """A point in time: milliseconds since 1970, ISO 8601, or a duration before ``now``.

    ``else_`` lists other values that ``option`` accepts, for the error message. An ISO time without
    a zone is in the time zone of this machine, the user's own.
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
            "milliseconds since 1970, or a duration before now (90s, 2h, 1d)"
        ) from None
    return round(instant.astimezone(UTC).timestamp() * 1000)


def iso(timestamp: int) -> str:
    """Milliseconds since 1970 in ISO 8601."""
    if not 0 <= timestamp <= _LAST_INSTANT_MS:
        return str(timestamp)  # producers may send any number
    return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds")


def unescaped(text: str) -> str:
    r"""Text with ``\t``, ``\n`` and ``\x01`` replaced by the characters."""

    def character(match: re.Match[str]) -> str:
        code = match.group(1)
        if len(code) == 3:
            return chr(int(code[1:], 16))
        return _ESCAPED.get(code, "\\" + code)

    return _ESCAPE.sub(character, text)


def headers(text: str, pair_separator: str = "=") -> list[tuple[str, bytes | None]]:
    """Headers of ``name=value,name2=value2``; a name alone has the value null."""
    found: list[tuple[str, bytes | None]] = []
    for pair in text.split(",") if text else []:
        name, separator, value = pair.partition(pair_separator)
        if not name:
            raise ValueError(f"header {pair!r} has no name")
        found.append((name, value.encode() if separator else None))
    return found


def counted(count: int, thing: str, things: str = "") -> str:
    """``1 record`` or ``2 records``; ``things`` is an irregular plural."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def size(text: str) -> int:
    """Bytes of ``1000``, ``16k`` or ``1M`` (powers of 1024)."""
    match = re.fullmatch(r"(\d+)([kKmMgG]?)(?:i?[bB])?", text)
    if match is None:
        raise wrong(f"size {text!r}: expected a number of bytes, such as 100, 16k or 1M")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2].lower()]


def readable_size(count: int) -> str:
    """Bytes as people read them: ``512 B``, ``1.4 KiB``, ``3.0 TiB`` (powers of 1024)."""
    if abs(count) < 1024:
        return f"{count} B"
    amount = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if abs(amount) < 1023.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:,.1f} PiB"


def numbers(text: str, option: str) -> list[int]:
    """The numbers of ``0,3,5-7``."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise wrong(f"{option} {text!r}: expected numbers such as 0 or 0,3,5-7")
        first = int(match[1])
        found.extend(range(first, int(match[2] or first) + 1))
    return found
