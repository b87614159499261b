"""Zigzag varints of many rows at once: read from and written to shared buffers.

Reading goes by table: two bytes together give value and width. Only the few varints that are
wider are read byte by byte.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def _two_byte_tables() -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int8], Ints]:
    """For each pair of bytes: the value of the varint it begins with, its width, and the step.

    Width 3 means wider than two bytes. The step is width + value: the distance to the end of
    a field whose length is this varint. It is 0 if two bytes do not tell or the length is
    negative.
    """
    pairs = np.arange(1 << 16, dtype=np.int32)
    first, second = pairs & 0xFF, pairs >> 8
    one, two = first < 0x80, (first >= 0x80) & (second < 0x80)
    raw = np.where(one, first, first & 0x7F | second << 7)
    value = raw >> 1 ^ -(raw & 1)
    width = np.where(one, 1, np.where(two, 2, 3))
    step = np.where((width < 3) & (value >= 0), value + width, 0)
    return value.astype(np.int16), width.astype(np.int8), step.astype(np.int64)


_VALUE_OF_PAIR, _WIDTH_OF_PAIR, STEP_OF_PAIR = _two_byte_tables()


def byte_pairs(data: Bytes) -> npt.NDArray[np.uint16]:
    """Each pair of adjacent bytes as one number, without a copy."""
    return np.ndarray((len(data) - 1,), dtype="<u2", buffer=data, strides=(1,))


def read_varints(data: Bytes, pairs: npt.NDArray[np.uint16], position: Ints) -> tuple[Ints, Ints]:
    """The varints at these positions, and the positions after them.

    A varint of more than ten bytes is invalid: the position after it is the end of the data.
    """
    pair = pairs[position]
    value = _VALUE_OF_PAIR[pair].astype(np.int64)
    width = _WIDTH_OF_PAIR[pair]
    after = position + width
    wider = np.flatnonzero(width == 3)
    if wider.size:
        _wide_varints(data, position, wider, value, after)
    return value, after


def _wide_varints(data: Bytes, position: Ints, wider: Ints, value: Ints, after: Ints) -> None:
    here = position[wider].copy()
    raw = np.zeros(len(wider), dtype=np.uint64)
    open_ = np.arange(len(wider))
    last = len(data) - 1
    for shift in range(0, 70, 7):
        byte = data[np.minimum(here[open_], last)].astype(np.uint64)
        raw[open_] |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        here[open_] += 1
        open_ = open_[byte > 0x7F]
        if not open_.size:
            break
    else:
        here[open_] = len(data)
    halves = (raw >> np.uint64(1)).astype(np.int64)
    value[wider] = halves ^ -(raw & np.uint64(1)).astype(np.int64)
    after[wider] = here


def _zigzag(values: Ints) -> npt.NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def varint_widths(values: Ints) -> Ints:
    """The number of bytes that each value takes as a varint."""
    zigzag = _zigzag(values)
    widths = np.ones(len(values), dtype=np.int64)
    for limit in range(7, 64, 7):
        wider = zigzag >= np.uint64(1 << limit)
        if not wider.any():
            break
        widths += wider
    return widths


def varint_fields(fields: list[tuple[Ints | None, Ints | int]]) -> pa.Array:
    """A binary array; each entry holds the varints of one row, one after the other.

    A field is its values and their widths. None with a width means that many zero bytes.
    """
    count = next(len(values) for values, _ in fields if values is not None)
    columns: list[npt.NDArray[np.uint8]] = []
    used: list[npt.NDArray[np.bool_] | None] = []
    for values, width in fields:
        if values is None:
            assert isinstance(width, int)
            columns += [np.zeros(count, dtype=np.uint8)] * width
            used += [None] * width
            continue
        assert not isinstance(width, int)
        zigzag = _zigzag(values)
        widest = int(width.max())
        narrowest = int(width.min())
        for byte in range(widest):
            part = (zigzag >> np.uint64(7 * byte) & np.uint64(0x7F)).astype(np.uint8)
            if byte < widest - 1:
                part |= (width > byte + 1).astype(np.uint8) << 7
            columns.append(part)
            used.append(None if byte < narrowest else width > byte)
    table = np.stack(columns, axis=1)
    if all(mask is None for mask in used):
        offsets = np.arange(0, count * table.shape[1] + 1, table.shape[1], dtype=np.int32)
        flat = table.reshape(-1)
    else:
        kept = np.ones(table.shape, dtype=bool)
        for column, mask in enumerate(used):
            if mask is not None:
                kept[:, column] = mask
        flat = table[kept]
        offsets = np.concatenate(([0], np.cumsum(kept.sum(axis=1)))).astype(np.int32)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(flat)]
    )
