"""Numbers and times as people read them. Pure.

The ending of a column's name chooses the unit of its values: ``_share`` (of 1), ``_change``
(relative), ``_seconds``, ``_ms``, ``_bytes``, ``hour`` (of the day). Other numbers are counts.
"""

import re
from datetime import date, datetime

MISSING = "–"
NARROW_SPACE = "\u202f"  # keeps a number and its unit on one line
UNITS = ("share", "change", "seconds", "ms", "bytes", "hour")
_IN_CELLS = ("seconds", "ms", "bytes")  # units that each cell names
_PERCENTILE = re.compile(r"p\d+\b")
_BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def unit_of(column: str) -> str:
    """The unit that the ending of a column's name stands for; "" for a count."""
    ending = column.rsplit("_", 1)[-1]
    return ending if ending in UNITS else ""


def heading_of(column: str) -> str:
    """A column's name as a heading: ``views_before`` is "Views before"."""
    name = column.removesuffix("_" + unit_of(column)) if unit_of(column) in _IN_CELLS else column
    text = name.replace("_", " ")
    return text if _PERCENTILE.match(text) else text[:1].upper() + text[1:]


def text_of(value: object, unit: str = "") -> str:
    """A value of a table or a figure."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{short_date(value)}, {value:%H:%M}"
    if isinstance(value, date):
        return f"{short_date(value)} {value.year}"
    if isinstance(value, (int, float)):
        return _number(value, unit).replace(" ", NARROW_SPACE)
    return str(value)


def _number(value: float, unit: str) -> str:
    match unit:
        case "share":
            return _percent(value)
        case "change":
            return signed_percent(value)
        case "seconds":
            return duration(value)
        case "ms":
            return duration(value / 1000) if value >= 10_000 else _milliseconds(value)
        case "hour":
            return f"{value:02.0f}:00"
        case "bytes":
            return _bytes(value)
    return f"{value:,}" if isinstance(value, int) else _decimal(value)


def _decimal(value: float) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return _minus(f"{value:,.{digits}f}")


def _percent(share: float) -> str:
    percent = share * 100
    digits = 0 if abs(percent) >= 99.95 else 1 if abs(percent) >= 0.995 or percent == 0 else 2
    return f"{_minus(f'{percent:,.{digits}f}')} %"


def signed_percent(change: float) -> str:
    """A relative change: +8.2 %; large ones as a multiple."""
    return f"×{change + 1:,.0f}" if change >= 9.995 else f"{_signed(change * 100)}{NARROW_SPACE}%"


def signed_points(difference: float) -> str:
    """The difference of two shares: +2.6 points."""
    return f"{_signed(difference * 100)}{NARROW_SPACE}points"


def _signed(value: float) -> str:
    text = _minus(f"{value:+.1f}")
    return "±0.0" if text in ("+0.0", "−0.0") else text


def relative_change(value: float | None, before: float | None) -> float | None:
    """The change against a value before; None if there is nothing to compare with."""
    if value is None or not before:
        return None
    return value / before - 1


def duration(seconds: float) -> str:
    """Two units at most: 45 s, 4 min 12 s, 3 h 5 min."""
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    return f"{hours:,} h {rest} min" if rest else f"{hours:,} h"


def _milliseconds(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:.2f} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def _bytes(value: float) -> str:
    for name, size in _BYTES:
        if value >= size:
            return f"{_decimal(value / size)} {name}"
    return f"{value:,.0f} B"


def _minus(text: str) -> str:
    return text.replace("-", "−")


def short_date(day: date) -> str:
    return f"{day.day} {day:%b}"


def long_date(day: date) -> str:
    """Monday, 16 November 2026"""
    return f"{day:%A}, {day.day} {day:%B} {day.year}"


def counted(count: int, thing: str, things: str = "") -> str:
    """``1 incident`` or ``2 incidents``; ``things`` is an irregular plural."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"
