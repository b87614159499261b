"""Values as typed columns: JSON, Avro and text, parsed by native code straight into Arrow.

A value that cannot be parsed is bad. It never stops the others, and it never goes away
silently: the caller gets the reason for each bad row and decides where it goes.
A null value (a tombstone) is null, not bad.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace.arrow.avro import Node, decode_rows, parse_schema
from headrace.arrow.columns import Bytes, Ints
from headrace.arrow.errors import BadSchema
from headrace.spark.failures import BadOption
from headrace.spark.options import ValueFormat
from headrace.spark.schemas import KnownSchemas, schema_source

_PREFIX_SIZE = 5  # a zero byte and the schema's number
_NEWLINE, _TAB, _OPEN, _CLOSE = 0x0A, 0x09, 0x7B, 0x7D


class Parsed(NamedTuple):
    """One entry per value, null where it was null or bad; and why each bad one is bad."""

    array: pa.Array
    bad: dict[int, str]


Parser = Callable[[pa.Array], Parsed]

_UNFIT = (pa.ArrowInvalid, pa.ArrowNotImplementedError)


def value_parser(settings: ValueFormat, kind: pa.DataType) -> Parser:
    """A function from a binary array to one of the wanted type."""
    if settings.name == "string":
        return _parse_text
    if not pa.types.is_struct(kind):
        raise BadOption(f"with value.format={settings.name} the column value is a struct")
    if settings.name == "json":
        return _JsonParser(kind).parse
    return _AvroParser(settings, kind).parse


def _in_halves(
    convert: Callable[[pa.Array], pa.Array],
    rows: pa.Array,
    kind: pa.DataType,
    first: int,
    parts: list[pa.Array],
    failed: dict[int, str],
) -> None:
    """All rows converted, in parts. Arrow fails as a whole, so it gets half of them until the
    bad ones stand alone."""
    try:
        parts.append(convert(rows))
        return
    except _UNFIT as broken:
        reason = str(broken).removeprefix("JSON parse error: ").partition(" in row ")[0]
    if len(rows) == 1:
        failed[first] = reason
        parts.append(pa.nulls(1, kind))
        return
    middle = len(rows) // 2
    _in_halves(convert, rows[:middle], kind, first, parts, failed)
    _in_halves(convert, rows[middle:], kind, first + middle, parts, failed)


# --- text -----------------------------------------------------------------------------------------


def _parse_text(values: pa.Array) -> Parsed:
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


# --- JSON -----------------------------------------------------------------------------------------


class _JsonParser:
    """One JSON object per value, by Arrow's reader of JSON lines."""

    def __init__(self, kind: pa.StructType) -> None:
        self._kind = kind
        plain = pa.struct([pa.field(f.name, _readable(f.type, f.name)) for f in kind])
        # Times with more than six digits behind the second (Java and Go write nine) are read as
        # nanoseconds, which reach from 1677 to 2262 only, and cut: so only if microseconds fail.
        fine = _in_nanoseconds(plain)
        self._ways = [plain, fine] if fine != plain else [plain]

    def parse(self, values: pa.Array) -> Parsed:
        count = len(values)
        bad: dict[int, str] = {}
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        start, end, data = _raw(values)
        # Every value that goes to the reader must begin and end an object. Blank ones would be
        # skipped by it without a trace, other JSON is no row, and an object that stays open
        # would go on in the next value: an object never goes on with "{" behind a "}".
        padded = data if len(data) else np.zeros(1, np.uint8)
        first, last = padded[np.minimum(start, len(padded) - 1)], padded[np.maximum(end - 1, 0)]
        odd = np.flatnonzero(~is_null & ((first != _OPEN) | (last != _CLOSE) | (start == end)))
        for index in odd.tolist():
            text = data[start[index] : end[index]].tobytes().strip()
            if not text.startswith(b"{"):
                bad[index] = "not a JSON object" if text else "empty"
            elif not text.endswith(b"}"):
                bad[index] = "does not end as a JSON object"
        good = ~is_null
        good[list(bad)] = False
        which = np.flatnonzero(good)
        if not which.size:
            return Parsed(pa.nulls(count, self._kind), bad)
        lines = _without_newlines(values if which.size == count else values.take(pa.array(which)))
        parts: list[pa.Array] = []
        failed: dict[int, str] = {}
        _in_halves(self._read_any_way, lines, self._kind, 0, parts, failed)
        found = pa.concat_arrays(parts)
        bad |= {int(which[index]): reason for index, reason in failed.items()}
        if which.size == count and not failed:
            return Parsed(found, bad)
        good[list(bad)] = False
        place = np.full(count, -1, dtype=np.int64)
        place[which] = np.arange(which.size)
        return Parsed(found.take(pa.array(np.maximum(place, 0), mask=~good)), bad)

    def _read_any_way(self, lines: pa.Array) -> pa.Array:
        for way in self._ways[:-1]:
            try:
                return self._read(lines, way)
            except _UNFIT:
                continue
        return self._read(lines, self._ways[-1])

    def _read(self, lines: pa.Array, readable: pa.StructType) -> pa.Array:
        joined = pc.binary_join_element_wise(lines, b"\n", b"")
        offsets = np.frombuffer(joined.buffers()[1], dtype=np.int32)
        text = joined.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        table = pj.read_json(
            pa.BufferReader(text),
            # One block: a line must not be cut, and the task has one core anyway.
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
            column.validate(full=True)  # text that is not UTF-8
            if column.type != field.type:
                column = column.cast(field.type, safe=False)  # nanoseconds are cut
            columns.append(column)
        return pa.StructArray.from_arrays(columns, fields=list(self._kind))


_NOT_IN_JSON = (
    pa.types.is_map, pa.types.is_null, pa.types.is_interval, pa.types.is_duration, pa.types.is_time,
)  # fmt: skip


def _readable(kind: pa.DataType, name: str) -> pa.DataType:
    """The type to ask of Arrow's reader; it reads no dates, but they can be cast from text."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _readable(f.type, f"{name}.{f.name}")) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _readable(kind.value_type, f"{name}[]")))
    if pa.types.is_binary(kind):
        raise BadOption(
            f"value.schema: JSON has no bytes for field {name!r}; make it STRING and use unbase64"
        )
    if any(is_one(kind) for is_one in _NOT_IN_JSON):
        raise BadOption(
            f"value.schema: field {name!r} of type {kind} cannot be read out of JSON; leave it "
            "out, or read value as bytes and use from_json"
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


def _raw(values: pa.Array) -> tuple[Ints, Ints, Bytes]:
    """Start and end of each value within its bytes."""
    narrow = np.frombuffer(values.buffers()[1], dtype=np.int32)
    offsets = narrow[values.offset :][: len(values) + 1].astype(np.int64)
    body = values.buffers()[2]
    data = np.frombuffer(body, dtype=np.uint8) if body is not None else np.empty(0, np.uint8)
    return offsets[:-1], offsets[1:], data


def _without_newlines(values: pa.Array) -> pa.Array:
    """Newlines as tabs: between tokens they mean the same, and the reader reads lines.

    Within text neither may stand there as it is, and the reader refuses a tab.
    """
    start, end, data = _raw(values)
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


# --- Avro -----------------------------------------------------------------------------------------


class _AvroParser:
    """Values in the writer's schema, fitted by field name to the columns that are wanted."""

    def __init__(self, settings: ValueFormat, kind: pa.StructType) -> None:
        self._kind = kind
        source = schema_source(settings.avro_folder, settings.avro_registry)
        self._known = KnownSchemas(source) if source is not None else None
        self._plain: Node | None = None
        self._prefixed = settings.avro_prefixed
        if self._known is None:
            try:
                self._plain = parse_schema(settings.schema)
            except BadSchema as unfit:
                raise BadOption(f"value.schema: {unfit}") from unfit
            clash = _clash(self._plain.type, kind, "value")
            if clash:
                raise BadOption(f"value.schema and the columns do not fit: {clash}")

    def parse(self, values: pa.Array) -> Parsed:
        count = len(values)
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        bad: dict[int, str] = {}
        parts: list[pa.Array] = []
        owners: list[Ints] = []
        for node, which in self._by_schema(values, np.flatnonzero(~is_null), bad):
            taken = values if which.size == count else values.take(pa.array(which))
            found, wrong = decode_rows(node, taken, _PREFIX_SIZE if self._prefixed else 0)
            for index in np.flatnonzero(wrong).tolist():
                bad[int(which[index])] = "the bytes do not fit the Avro schema"
            failed: dict[int, str] = {}
            _in_halves(self._fitted, found, self._kind, 0, parts, failed)
            bad |= {int(which[at]): reason for at, reason in failed.items() if not wrong[at]}
            owners.append(which)
        if not parts:
            return Parsed(pa.nulls(count, self._kind), bad)
        place = np.full(count, -1, dtype=np.int64)
        place[np.concatenate(owners)] = np.arange(sum(len(owner) for owner in owners))
        place[list(bad)] = -1
        found = pa.concat_arrays(parts)
        if len(parts) == 1 and len(found) == count and not bad:
            return Parsed(found, bad)
        return Parsed(found.take(pa.array(np.maximum(place, 0), mask=place < 0)), bad)

    def _by_schema(
        self, values: pa.Array, which: Ints, bad: dict[int, str]
    ) -> list[tuple[Node, Ints]]:
        if not self._prefixed:
            assert self._plain is not None
            return [(self._plain, which)] if which.size else []
        start, end, data = _raw(values)
        long_enough = end[which] - start[which] >= _PREFIX_SIZE
        magic = np.zeros(which.size, dtype=np.uint8)
        magic[long_enough] = data[start[which[long_enough]]]
        fits = long_enough & (magic == 0)
        for index in which[~fits].tolist():
            bad[index] = "no schema number in front (a zero byte and four bytes)"
        which = which[fits]
        numbers = np.zeros(which.size, dtype=np.int64)
        for at in range(1, _PREFIX_SIZE):
            numbers = numbers << 8 | data[start[which] + at]
        groups = []
        for number in np.unique(numbers).tolist():
            here = which[numbers == number]
            node = self._schema(number)
            if isinstance(node, str):
                bad |= dict.fromkeys(here.tolist(), node)
            else:
                groups.append((node, here))
        return groups

    def _schema(self, number: int) -> Node | str:
        """The schema of this number, or why its values cannot be had."""
        if self._known is None:
            assert self._plain is not None
            return self._plain
        node = self._known.get(number)
        if isinstance(node, str):
            return node
        if not pa.types.is_struct(node.type):
            return f"schema {number} is no record"
        clash = _clash(node.type, self._kind, "value")
        return f"schema {number}: {clash}" if clash else node

    def _fitted(self, rows: pa.Array) -> pa.Array:
        return fitted(rows, self._kind)


# Within a family types become each other, each value that the other type can hold.
_FAMILIES = (
    (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    (pa.types.is_string, pa.types.is_binary),
    (pa.types.is_timestamp,),
)


def _clash(written: pa.DataType, wanted: pa.DataType, name: str) -> str:
    """Why values of one type can never be of the other; empty if they may."""
    types = pa.types
    if written == wanted or types.is_null(written):
        return ""
    if types.is_struct(written) and types.is_struct(wanted):
        common = [f for f in wanted if written.get_field_index(f.name) >= 0]
        clashes = (_clash(written.field(f.name).type, f.type, f"{name}.{f.name}") for f in common)
        return next(filter(None, clashes), "")
    if types.is_list(written) and types.is_list(wanted):
        return _clash(written.value_type, wanted.value_type, f"{name}[]")
    if types.is_map(written) and types.is_map(wanted):
        return _clash(written.item_type, wanted.item_type, f"{name}[]")
    for family in _FAMILIES:
        if all(any(is_one(kind) for is_one in family) for kind in (written, wanted)):
            return ""
    return f"{name} is {written} in the Avro schema, but {wanted} in the column"


def fitted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array as another type: fields by name, missing ones null, numbers widened."""
    if array.type == kind:
        return array
    if not pa.types.is_struct(kind):
        return array.cast(kind)
    children = []
    for field in kind:
        at = array.type.get_field_index(field.name)
        children.append(
            pa.nulls(len(array), field.type) if at < 0 else fitted(array.field(at), field.type)
        )
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
