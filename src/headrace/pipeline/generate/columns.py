"""The columns of generated events, and their JSON text, with no Python object per event.

A column is a NumPy array: numbers, or codes of words. Arrow joins the pieces of each event.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

NULL = -1  # in numbers and in codes


class Words(NamedTuple):
    """Text, or true and false, by code; ``texts`` are JSON."""

    codes: Codes
    texts: pa.Array

    def taken(self, rows: Any) -> "Words":
        return Words(self.codes[rows], self.texts)

    def json(self) -> pa.Array:
        if self.codes.size and self.codes.min() < 0:
            found = self.texts.take(pa.array(self.codes, mask=self.codes == NULL))
            return found.fill_null("null")
        return self.texts.take(pa.array(self.codes))

    def plain(self) -> pa.Array:
        """The text without its quotes, as a key."""
        return pc.binary_slice(self.texts.cast(pa.binary()), 1, -1).take(pa.array(self.codes))


class Numbers(NamedTuple):
    """Whole numbers, or decimals; NULL is null unless numbers may be negative."""

    values: npt.NDArray[Any]
    signed: bool = False

    def taken(self, rows: Any) -> "Numbers":
        return Numbers(self.values[rows], self.signed)

    def json(self) -> pa.Array:
        if not self.signed and self.values.size and self.values.min() < 0:
            masked = pa.array(self.values, mask=self.values == NULL)
            return masked.cast(pa.string()).fill_null("null")
        return pa.array(self.values).cast(pa.string())

    def plain(self) -> pa.Array:
        return pa.array(self.values).cast(pa.string()).cast(pa.binary())


Column = Words | Numbers


class Events(NamedTuple):
    """Events of one topic, sorted by the time at which they are sent."""

    sent_ms: Ints
    columns: dict[str, Column]

    def taken(self, rows: Any) -> "Events":
        taken = {name: column.taken(rows) for name, column in self.columns.items()}
        return Events(self.sent_ms[rows], taken)

    def followed_by(self, later: "Events") -> "Events":
        """These events, and later ones of the same site."""
        columns: dict[str, Column] = {}
        for name, column in self.columns.items():
            other = later.columns[name]
            if isinstance(column, Words) and isinstance(other, Words):
                columns[name] = Words(np.concatenate((column.codes, other.codes)), column.texts)
            elif isinstance(column, Numbers) and isinstance(other, Numbers):
                values = np.concatenate((column.values, other.values))
                columns[name] = Numbers(values, column.signed)
        return Events(np.concatenate((self.sent_ms, later.sent_ms)), columns)


def quoted(texts: Sequence[str]) -> pa.Array:
    """Texts without characters that JSON escapes, as JSON."""
    return pa.array([f'"{text}"' for text in texts], pa.string())


def numbered(prefix: str, count: int) -> pa.Array:
    """``"prefix0"`` and so on, as JSON."""
    return pc.binary_join_element_wise(
        f'"{prefix}', pa.array(np.arange(count)).cast(pa.string()), '"', ""
    )


def addresses(first: int, count: int) -> pa.Array:
    """Addresses of the network 10.0.0.0/8, as JSON."""
    number = np.arange(first, first + count)
    parts: list[Any] = ['"10']
    for shift in (16, 8, 0):
        parts += [".", pa.array(number >> shift & 255).cast(pa.string())]
    return pc.binary_join_element_wise(*parts, '"', "")


_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), dtype=np.uint16)


def event_ids(base: int, numbers: Ints) -> pa.Array:
    """16 hexadecimal digits for each number; different numbers have different IDs."""
    mixed = mix(np.uint64(base) + numbers.astype(np.uint64))
    digits = _HEX[mixed.astype(">u8").view(np.uint8)]
    offsets = np.arange(0, 16 * len(numbers) + 1, 16, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
    )


def mix(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of splitmix64, which is a bijection."""
    numbers = (numbers ^ numbers >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ numbers >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return numbers ^ numbers >> np.uint64(31)


def times(at_ms: Ints) -> pa.Array:
    """ISO 8601 in UTC, with milliseconds."""
    text = pa.array(at_ms).cast(pa.timestamp("ms")).cast(pa.string())
    return pc.binary_join_element_wise(pc.binary_replace_slice(text, 10, 11, "T"), "Z", "")


def values(ids: pa.Array, at: pa.Array, columns: Mapping[str, Column]) -> pa.Array:
    """The JSON object of each event."""
    pieces: list[Any] = ['{"event_id":"', ids, '","at":"', at, '"']
    for name, column in columns.items():
        pieces += [f',"{name}":', column.json()]
    return pc.binary_join_element_wise(*pieces, "}", "").cast(pa.binary())
