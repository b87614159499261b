"""Parses JSON values into struct columns with Arrow's reader of JSON lines."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace.arrow.errors import BadSchema
from headrace.arrow.json_misfits import why_unfit
from headrace.arrow.values import UNFIT, Parsed, convert_in_halves, raw_bytes

_NEWLINE, _TAB, _OPEN, _CLOSE = 0x0A, 0x09, 0x7B, 0x7D


class JsonParser:
    """Parses one JSON object per value. Raises BadSchema for types that JSON cannot hold."""

    def __init__(self, kind: pa.StructType) -> None:
        self._kind = kind
        plain = pa.struct([pa.field(f.name, _readable(f.type, f.name)) for f in kind])
        # Times with more than six digits after the second (Java and Go write nine) are read as
        # nanoseconds and cut. Nanoseconds only reach from 1677 to 2262, so microseconds go first.
        fine = _in_nanoseconds(plain)
        self._attempts = [plain, fine] if fine != plain else [plain]

    def parse(self, values: pa.Array) -> Parsed:
        count = len(values)
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        bad = _not_objects(values, is_null)
        good = ~is_null
        good[list(bad)] = False
        which = np.flatnonzero(good)
        if not which.size:
            return Parsed(pa.nulls(count, self._kind), bad)
        lines = _without_newlines(values if which.size == count else values.take(pa.array(which)))
        found, failed = convert_in_halves(self._read_lines, lines, self._kind)
        for index, reason in failed.items():
            bad[int(which[index])] = why_unfit(lines[index].as_py(), self._kind, reason)
        if which.size == count and not failed:
            return Parsed(found, bad)
        good[list(bad)] = False
        row_of = np.full(count, -1, dtype=np.int64)
        row_of[which] = np.arange(which.size)
        return Parsed(found.take(pa.array(np.maximum(row_of, 0), mask=~good)), bad)

    def _read_lines(self, lines: pa.Array) -> pa.Array:
        for readable in self._attempts[:-1]:
            try:
                return self._read_as(lines, readable)
            except UNFIT:
                continue
        return self._read_as(lines, self._attempts[-1])

    def _read_as(self, lines: pa.Array, readable: pa.StructType) -> pa.Array:
        joined = pc.binary_join_element_wise(lines, b"\n", b"")
        offsets = np.frombuffer(joined.buffers()[1], dtype=np.int32)
        text = joined.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        table = pj.read_json(
            pa.BufferReader(text),
            # One block: a line must not be cut, and a task has one core.
            read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema(list(readable)), unexpected_field_behavior="ignore"
            ),
        )
        if table.num_rows != len(lines):
            raise pa.ArrowInvalid("more than one JSON object")
        columns = []
        for field in self._kind:
            column = table.column(field.name).combine_chunks()
            if isinstance(column, pa.ChunkedArray):
                column = pa.concat_arrays(column.chunks)
            column.validate(full=True)  # finds text that is not UTF-8
            if column.type != field.type:
                column = column.cast(field.type, safe=False)  # cuts nanoseconds
            columns.append(column)
        return pa.StructArray.from_arrays(columns, fields=list(self._kind))


def _not_objects(values: pa.Array, is_null: npt.NDArray[np.bool_]) -> dict[int, str]:
    """Why a value does not begin and end like a JSON object, for each such value.

    Arrow's reader would skip a blank value without notice, and continue an unclosed object in
    the next value. After this check it cannot: no object continues with "{" after "}".
    """
    bad: dict[int, str] = {}
    start, end, data = raw_bytes(values)
    padded = data if len(data) else np.zeros(1, np.uint8)
    first, last = padded[np.minimum(start, len(padded) - 1)], padded[np.maximum(end - 1, 0)]
    odd = np.flatnonzero(~is_null & ((first != _OPEN) | (last != _CLOSE) | (start == end)))
    for index in odd.tolist():
        text = data[start[index] : end[index]].tobytes().strip()
        if not text.startswith(b"{"):
            bad[index] = "not a JSON object" if text else "empty"
        elif not text.endswith(b"}"):
            bad[index] = "not valid JSON: the object is not closed"
    return bad


_NOT_IN_JSON = (
    pa.types.is_map, pa.types.is_null, pa.types.is_interval, pa.types.is_duration, pa.types.is_time,
)  # fmt: skip


def _readable(kind: pa.DataType, name: str) -> pa.DataType:
    """The type to request from Arrow's reader, which cannot read dates; text is cast to them."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _readable(f.type, f"{name}.{f.name}")) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _readable(kind.value_type, f"{name}[]")))
    if pa.types.is_binary(kind):
        raise BadSchema(f"JSON has no bytes for field {name!r}; make it STRING and use unbase64")
    if any(is_one(kind) for is_one in _NOT_IN_JSON):
        raise BadSchema(
            f"field {name!r} of type {kind} cannot be read from JSON; leave it out, or read the "
            "values as bytes and use from_json"
        )
    return kind


def _in_nanoseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _in_nanoseconds(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _in_nanoseconds(kind.value_type)))
    return kind


def _without_newlines(values: pa.Array) -> pa.Array:
    """Newlines as tabs, since the reader reads lines.

    Between tokens both mean the same. Within text neither is valid JSON, and the reader refuses
    a tab there.
    """
    start, end, data = raw_bytes(values)
    if not len(start):
        return values
    used = data[start[0] : end[-1]]
    if not (used == _NEWLINE).any():
        return values
    changed = np.where(data == _NEWLINE, np.uint8(_TAB), data)
    _, offsets, _ = values.buffers()
    return pa.Array.from_buffers(
        pa.binary(),
        len(values),
        [None, offsets, pa.py_buffer(changed)],
        offset=values.offset,
    )
