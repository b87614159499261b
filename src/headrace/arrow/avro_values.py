"""Parses Avro values into struct columns: decodes the writer's schema, then fits it by name."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from headrace.arrow.avro_decoding import Node, decode_rows
from headrace.arrow.errors import BadSchema
from headrace.arrow.values import Parsed, convert_in_halves, raw_bytes
from headrace.arrow.varints import Ints

_PREFIX_SIZE = 5  # a zero byte and the schema's ID
_NO_PREFIX = "no schema ID in front (a zero byte and four bytes)"

# The schema with this ID, or why it cannot be used.
SchemaById = Callable[[int], Node | str]


class AvroParser:
    """Parses values of one schema, or of the schema whose ID is in front of each value."""

    def __init__(
        self, kind: pa.StructType, schema: Node | SchemaById, *, prefixed: bool = False
    ) -> None:
        self._kind = kind
        self._schema = schema
        self._prefixed = prefixed
        if isinstance(schema, Node):
            clash = _clash(schema.type, kind, "value")
            if clash:
                raise BadSchema(f"the columns do not fit the Avro schema: {clash}")

    def parse(self, values: pa.Array) -> Parsed:
        count = len(values)
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        bad: dict[int, str] = {}
        parts: list[pa.Array] = []
        owners: list[Ints] = []
        for node, which in self._by_schema(values, np.flatnonzero(~is_null), bad):
            taken = values if which.size == count else values.take(pa.array(which))
            decoded, wrong = decode_rows(node, taken, _PREFIX_SIZE if self._prefixed else 0)
            for index in np.flatnonzero(wrong).tolist():
                bad[int(which[index])] = "the bytes do not fit the Avro schema"
            part, failed = convert_in_halves(self._fitted, decoded, self._kind)
            bad |= {int(which[at]): reason for at, reason in failed.items() if not wrong[at]}
            parts.append(part)
            owners.append(which)
        if not parts:
            return Parsed(pa.nulls(count, self._kind), bad)
        row_of = np.full(count, -1, dtype=np.int64)
        row_of[np.concatenate(owners)] = np.arange(sum(len(owner) for owner in owners))
        row_of[list(bad)] = -1
        found = pa.concat_arrays(parts)
        if len(parts) == 1 and len(found) == count and not bad:
            return Parsed(found, bad)
        return Parsed(found.take(pa.array(np.maximum(row_of, 0), mask=row_of < 0)), bad)

    def _by_schema(
        self, values: pa.Array, which: Ints, bad: dict[int, str]
    ) -> list[tuple[Node, Ints]]:
        if not self._prefixed:
            assert isinstance(self._schema, Node)
            return [(self._schema, which)] if which.size else []
        start, end, data = raw_bytes(values)
        long_enough = end[which] - start[which] >= _PREFIX_SIZE
        magic = np.zeros(which.size, dtype=np.uint8)
        magic[long_enough] = data[start[which[long_enough]]]
        has_prefix = long_enough & (magic == 0)
        bad |= dict.fromkeys(which[~has_prefix].tolist(), _NO_PREFIX)
        which = which[has_prefix]
        schema_ids = np.zeros(which.size, dtype=np.int64)
        for at in range(1, _PREFIX_SIZE):
            schema_ids = schema_ids << 8 | data[start[which] + at]
        groups = []
        for schema_id in np.unique(schema_ids).tolist():
            here = which[schema_ids == schema_id]
            node = self._node(schema_id)
            if isinstance(node, str):
                bad |= dict.fromkeys(here.tolist(), node)
            else:
                groups.append((node, here))
        return groups

    def _node(self, schema_id: int) -> Node | str:
        """The schema with this ID, or why its values cannot become the columns."""
        if isinstance(self._schema, Node):
            return self._schema
        node = self._schema(schema_id)
        if isinstance(node, str):
            return node
        if not pa.types.is_struct(node.type):
            return f"schema {schema_id} is not a record"
        clash = _clash(node.type, self._kind, "value")
        return f"schema {schema_id}: {clash}" if clash else node

    def _fitted(self, rows: pa.Array) -> pa.Array:
        return fitted(rows, self._kind)


# Types of one family convert to each other, for each value that the other type can hold.
_FAMILIES = (
    (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    (pa.types.is_string, pa.types.is_binary),
    (pa.types.is_timestamp,),
)


def _clash(written: pa.DataType, wanted: pa.DataType, name: str) -> str:
    """Why no value of one type can become the other; empty if some can."""
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
    """The array as another type: fields by name, missing fields null, numbers widened."""
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
