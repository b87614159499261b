"""Decodes Avro values into Arrow columns: all rows of a batch at once, field by field.

Avro stores no lengths, so a field is found by walking over all fields before it. Each row has
its own position in one shared buffer, and one step moves all positions over one field. A row
whose bytes do not fit the schema is marked bad and stays at its end; no row reads outside its
own bytes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrow.columns import binary_fields
from headrace.arrow.errors import BadSchema
from headrace.arrow.varints import Bytes, Ints, byte_pairs, read_varints

_DECIMAL_DIGITS_MAX = 38
_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_PADDING = bytes(32)


class AvroRows:
    """The rows being decoded: the position and the end of each row, and whether it is bad."""

    def __init__(self, values: pa.Array, skip: int = 0) -> None:
        """``values`` has no nulls; decoding starts ``skip`` bytes into each value."""
        count = len(values)
        offsets = np.frombuffer(values.buffers()[1], dtype=np.int32)[values.offset :][: count + 1]
        body = values.buffers()[2]
        start = int(offsets[0]) if count else 0
        end = int(offsets[-1]) if count else 0
        raw = body.slice(start, end - start).to_pybytes() if body is not None else b""
        self.data: Bytes = np.frombuffer(raw + _PADDING, dtype=np.uint8)
        self.pairs = byte_pairs(self.data)
        self.end: Ints = offsets[1:].astype(np.int64) - start
        self.position: Ints = offsets[:-1].astype(np.int64) - start + skip
        self.bad: npt.NDArray[np.bool_] = self.position > self.end
        self._stop_at_end(np.arange(count))

    def _stop_at_end(self, rows: Ints) -> None:
        """Mark rows bad that went past their end, and move them back to it."""
        beyond = rows[self.position[rows] > self.end[rows]]
        if beyond.size:
            self.bad[beyond] = True
            self.position[beyond] = self.end[beyond]

    def mark_bad(self, rows: Ints) -> None:
        self.bad[rows] = True
        self.position[rows] = self.end[rows]

    def numbers(self, rows: Ints) -> Ints:
        """The next varint of these rows."""
        values, behind = read_varints(self.data, self.pairs, self.position[rows])
        self.position[rows] = behind
        self._stop_at_end(rows)
        # A bad row may have read bytes of other rows.
        return np.where(self.bad[rows], 0, values)

    def fixed(self, rows: Ints, width: int, kind: str) -> npt.NDArray[Any]:
        """The next ``width`` bytes of these rows as one number of this numpy type."""
        here = self.position[rows]
        fits = here + width <= self.end[rows]
        safe = np.where(fits, here, 0)
        columns = np.stack([self.data[safe + at] for at in range(width)], axis=1)
        self.position[rows] = here + width
        self._stop_at_end(rows)
        found: npt.NDArray[Any] = np.ascontiguousarray(columns).view(kind).reshape(-1)
        return found

    def fields(self, rows: Ints, sizes: Ints | int) -> tuple[Ints, Ints]:
        """Start and size of the next field of these rows; steps over it."""
        start = self.position[rows].copy()
        size = np.broadcast_to(np.asarray(sizes, dtype=np.int64), start.shape).copy()
        wrong = (size < 0) | (start + np.maximum(size, 0) > self.end[rows])
        if wrong.any():
            self.mark_bad(rows[wrong])
            # In row order, since Arrow's offsets must not decrease.
            start[wrong], size[wrong] = self.end[rows[wrong]], 0
        self.position[rows] = np.where(wrong, self.end[rows], start + size)
        return start, size


# Decodes one field of the given rows. With build=False it only steps over the field.
Decode = Callable[[AvroRows, Ints, bool], pa.Array | None]


class Node:
    """One type of an Avro schema: its Arrow type, and the function that decodes it."""

    def __init__(self, kind: pa.DataType, decode: Decode, *, nullable: bool = False) -> None:
        self.type = kind
        self.decode = decode
        self.nullable = nullable


def decode_rows(
    node: Node, values: pa.Array, skip: int = 0
) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """The values as an array of the node's type, and which entries are bad (and undefined)."""
    rows = AvroRows(values, skip)
    every = np.arange(len(values))
    found = node.decode(rows, every, True)
    rows.bad |= rows.position != rows.end  # bytes are left over
    return found, rows.bad


# --- types ----------------------------------------------------------------------------------------


def _null(rows: AvroRows, which: Ints, build: bool) -> pa.Array | None:
    return pa.nulls(len(which)) if build else None


def _boolean(rows: AvroRows, which: Ints, build: bool) -> pa.Array | None:
    found = rows.fixed(which, 1, "u1")
    wrong = which[found > 1]
    if wrong.size:
        rows.mark_bad(wrong)
    return pa.array(found == 1) if build else None


def _int(rows: AvroRows, which: Ints, build: bool) -> pa.Array | None:
    found = rows.numbers(which)
    outside = (found < -(1 << 31)) | (found >= 1 << 31)
    if outside.any():
        rows.mark_bad(which[outside])
    return pa.array(found.astype(np.int32)) if build else None


def _long(rows: AvroRows, which: Ints, build: bool) -> pa.Array | None:
    found = rows.numbers(which)
    return pa.array(found) if build else None


def _float(rows: AvroRows, which: Ints, build: bool) -> pa.Array | None:
    found = rows.fixed(which, 4, "<f4")
    return pa.array(found) if build else None


def _double(rows: AvroRows, which: Ints, build: bool) -> pa.Array | None:
    found = rows.fixed(which, 8, "<f8")
    return pa.array(found) if build else None


def _bytes(rows: AvroRows, which: Ints, build: bool) -> pa.Array | None:
    start, size = rows.fields(which, rows.numbers(which))
    return binary_fields(rows.data, start, size) if build else None


def _string(rows: AvroRows, which: Ints, build: bool) -> pa.Array | None:
    start, size = rows.fields(which, rows.numbers(which))
    if not build:
        return None
    found = binary_fields(rows.data, start, size)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return _valid_text(rows, which, found)


def _valid_text(rows: AvroRows, which: Ints, found: pa.Array) -> pa.Array:
    texts = []
    for row, raw in zip(which.tolist(), found.to_pylist(), strict=True):
        try:
            texts.append(raw.decode())
        except UnicodeDecodeError:
            rows.mark_bad(np.array([row]))
            texts.append("")
    return pa.array(texts, pa.string())


PRIMITIVES = {
    "null": Node(pa.null(), _null, nullable=True),
    "boolean": Node(pa.bool_(), _boolean),
    "int": Node(pa.int32(), _int),
    "long": Node(pa.int64(), _long),
    "float": Node(pa.float32(), _float),
    "double": Node(pa.float64(), _double),
    "bytes": Node(pa.binary(), _bytes),
    "string": Node(pa.string(), _string),
}


def fixed(size: int) -> Node:
    def decode(rows: AvroRows, which: Ints, build: bool) -> pa.Array | None:
        start, sizes = rows.fields(which, size)
        return binary_fields(rows.data, start, sizes) if build else None

    return Node(pa.binary(), decode)


def enum(symbols: list[str]) -> Node:
    names = pa.array(symbols, pa.string())

    def decode(rows: AvroRows, which: Ints, build: bool) -> pa.Array | None:
        found = rows.numbers(which)
        outside = (found < 0) | (found >= len(symbols))
        if outside.any():
            rows.mark_bad(which[outside])
            found = np.where(outside, 0, found)
        return names.take(pa.array(found)) if build else None

    return Node(pa.string(), decode)


def record(fields: list[tuple[str, Node]]) -> Node:
    kind = pa.struct([pa.field(name, node.type, nullable=True) for name, node in fields])

    def decode(rows: AvroRows, which: Ints, build: bool) -> pa.Array | None:
        arrays = [node.decode(rows, which, build) for _, node in fields]
        if not build:
            return None
        if not arrays:
            return pa.array([{}] * len(which), kind)
        return pa.StructArray.from_arrays(arrays, fields=list(kind))

    return Node(kind, decode)


def nullable(node: Node, null_at: int) -> Node:
    """A union of null and one type; ``null_at`` is -1 if the union has no null."""

    def decode(rows: AvroRows, which: Ints, build: bool) -> pa.Array | None:
        branch = rows.numbers(which)
        outside = (branch < 0) | (branch > (0 if null_at < 0 else 1))
        if outside.any():
            rows.mark_bad(which[outside])
        filled = (branch != null_at) & ~outside & ~rows.bad[which]
        if filled.all():
            return node.decode(rows, which, build)
        inner = node.decode(rows, which[filled], build)
        return _spread(inner, filled) if inner is not None else None

    return Node(node.type, decode, nullable=True)


def _spread(array: pa.Array, filled: npt.NDArray[np.bool_]) -> pa.Array:
    """The entries of ``array`` where ``filled``, null elsewhere."""
    index = np.cumsum(filled) - 1
    return array.take(pa.array(np.where(filled, index, 0), mask=~filled))


def _items(
    rows: AvroRows, which: Ints, build: bool, nodes: Sequence[Node]
) -> tuple[list[pa.Array], npt.NDArray[np.int32]]:
    """The blocks of arrays and maps: all items of each node in row order, and the list offsets."""
    parts: list[list[pa.Array]] = [[] for _ in nodes]
    owners: list[Ints] = []
    counts = np.zeros(len(which), dtype=np.int64)
    open_ = np.arange(len(which))
    while open_.size:
        left = rows.numbers(which[open_])
        sized = left < 0
        if sized.any():  # the block's size in bytes follows a negative count
            rows.numbers(which[open_[sized]])
            left = np.abs(left)
        # An item takes at least one byte, unless its type takes none.
        room = rows.end[which[open_]] - rows.position[which[open_]]
        absurd = left > np.maximum(room, 1) * 8
        if absurd.any():
            rows.mark_bad(which[open_[absurd]])
            left[absurd] = 0
        keep = left > 0
        open_, left = open_[keep], left[keep]
        while True:
            active = open_[(left > 0) & ~rows.bad[which[open_]]]
            if not active.size:
                break
            for part, node in zip(parts, nodes, strict=True):
                array = node.decode(rows, which[active], build)
                if array is not None:
                    part.append(array)
            owners.append(active)
            counts[active] += 1
            left -= 1
        open_ = open_[~rows.bad[which[open_]]]
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    if not build:
        return [], offsets
    if not owners:
        return [pa.array([], node.type) for node in nodes], offsets
    # Items were decoded turn by turn; a stable sort by row groups each row's items in order.
    order = pa.array(np.argsort(np.concatenate(owners), kind="stable"))
    return [pa.concat_arrays(part).take(order) for part in parts], offsets


def array(item: Node) -> Node:
    kind = pa.list_(pa.field("element", item.type))

    def decode(rows: AvroRows, which: Ints, build: bool) -> pa.Array | None:
        found, offsets = _items(rows, which, build, [item])
        if not build:
            return None
        return pa.Array.from_buffers(
            kind, len(which), [None, pa.py_buffer(offsets)], children=found
        )

    return Node(kind, decode)


def map_(value: Node) -> Node:
    kind = pa.map_(pa.string(), value.type)

    def decode(rows: AvroRows, which: Ints, build: bool) -> pa.Array | None:
        found, offsets = _items(rows, which, build, [PRIMITIVES["string"], value])
        if not build:
            return None
        return pa.MapArray.from_arrays(pa.array(offsets), *found).cast(kind)

    return Node(kind, decode)


def logical(schema: dict[str, Any], node: Node) -> Node:
    """The node with the schema's logical type applied."""
    name = schema.get("logicalType")
    if name == "date" and node.type == pa.int32():
        return _viewed(node, pa.date32())
    if node.type == pa.int64() and name in _TIMESTAMPS:
        factor, kind = _TIMESTAMPS[name]
        return _scaled(node, factor, kind)
    if name == "decimal" and node.type == pa.binary():
        return _decimal(node, int(schema["precision"]), int(schema.get("scale", 0)))
    return node  # the Avro specification says to ignore unknown logical types


_TIMESTAMPS = {
    "timestamp-millis": (1000, pa.timestamp("us", "UTC")),
    "timestamp-micros": (1, pa.timestamp("us", "UTC")),
    "local-timestamp-millis": (1000, pa.timestamp("us")),
    "local-timestamp-micros": (1, pa.timestamp("us")),
}


def _viewed(node: Node, kind: pa.DataType) -> Node:
    def decode(rows: AvroRows, which: Ints, build: bool) -> pa.Array | None:
        found = node.decode(rows, which, build)
        return found.view(kind) if found is not None else None

    return Node(kind, decode)


def _scaled(node: Node, factor: int, kind: pa.DataType) -> Node:
    def decode(rows: AvroRows, which: Ints, build: bool) -> pa.Array | None:
        found = node.decode(rows, which, build)
        if found is None:
            return None
        numbers = found.to_numpy()
        beyond = (numbers < _LONG_MIN // factor) | (numbers > _LONG_MAX // factor)
        if beyond.any():
            rows.mark_bad(which[beyond])
            numbers = np.where(beyond, 0, numbers)
        return pa.array(numbers * factor).view(kind)

    return Node(kind, decode)


def _decimal(node: Node, precision: int, scale: int) -> Node:
    if not 0 <= scale <= precision <= _DECIMAL_DIGITS_MAX or not precision:
        raise BadSchema(
            f"the Avro schema has a decimal of {precision} digits with scale {scale}; a column "
            f"holds up to {_DECIMAL_DIGITS_MAX} digits"
        )
    kind = pa.decimal128(precision, scale)

    def decode(rows: AvroRows, which: Ints, build: bool) -> pa.Array | None:
        found = node.decode(rows, which, build)
        if found is None:
            return None
        words = np.zeros((len(which), 2), dtype="<i8")
        for at, raw in enumerate(found.to_pylist()):
            number = int.from_bytes(raw, "big", signed=True)
            if abs(number) >= 10**precision:
                rows.mark_bad(which[at : at + 1])
                number = 0
            words[at, 0] = np.uint64(number & 0xFFFF_FFFF_FFFF_FFFF).astype(np.int64)
            words[at, 1] = number >> 64
        return pa.Array.from_buffers(kind, len(which), [None, pa.py_buffer(words)])

    return Node(kind, decode)
