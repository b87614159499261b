"""What every parser of typed values shares: its result, text, and how bad values are isolated.

A value that cannot be parsed is bad. A bad value never affects its neighbors and is never
dropped silently: the parser returns the reason for each one, and its caller decides what to do.
A null value (a tombstone) is null, not bad.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.arrow.varints import Bytes, Ints

# What Arrow raises for values that do not fit a type.
UNFIT = (pa.ArrowInvalid, pa.ArrowNotImplementedError)


class Parsed(NamedTuple):
    """One entry per value, null if the value is null or bad; and the reason of each bad value."""

    array: pa.Array
    bad: dict[int, str]


Parser = Callable[[pa.Array], Parsed]


def parse_text(values: pa.Array) -> Parsed:
    """UTF-8 text."""
    try:
        return Parsed(values.cast(pa.string()), {})
    except pa.ArrowInvalid:
        pass
    texts: list[str | None] = []
    bad = {}
    for index, raw in enumerate(values.to_pylist()):
        try:
            texts.append(None if raw is None else raw.decode())
        except UnicodeDecodeError as broken:
            texts.append(None)
            bad[index] = f"not UTF-8: {broken.reason} at byte {broken.start}"
    return Parsed(pa.array(texts, pa.string()), bad)


def convert_in_halves(
    convert: Callable[[pa.Array], pa.Array], rows: pa.Array, kind: pa.DataType
) -> tuple[pa.Array, dict[int, str]]:
    """All rows converted, null where that fails, and Arrow's reason for each failed row.

    Arrow fails as a whole, so failed rows are halved until each bad row is alone.
    """
    parts: list[pa.Array] = []
    failed: dict[int, str] = {}
    _convert(convert, rows, kind, 0, parts, failed)
    return pa.concat_arrays(parts), failed


def _convert(
    convert: Callable[[pa.Array], pa.Array],
    rows: pa.Array,
    kind: pa.DataType,
    first: int,
    parts: list[pa.Array],
    failed: dict[int, str],
) -> None:
    try:
        parts.append(convert(rows))
        return
    except UNFIT as broken:
        reason = str(broken)
    if len(rows) == 1:
        failed[first] = reason
        parts.append(pa.nulls(1, kind))
        return
    middle = len(rows) // 2
    _convert(convert, rows[:middle], kind, first, parts, failed)
    _convert(convert, rows[middle:], kind, first + middle, parts, failed)


def raw_bytes(values: pa.Array) -> tuple[Ints, Ints, Bytes]:
    """The start and the end of each value of a binary array, and the bytes they point into."""
    narrow = np.frombuffer(values.buffers()[1], dtype=np.int32)
    offsets = narrow[values.offset :][: len(values) + 1].astype(np.int64)
    body = values.buffers()[2]
    data = np.frombuffer(body, dtype=np.uint8) if body is not None else np.empty(0, np.uint8)
    return offsets[:-1], offsets[1:], data
