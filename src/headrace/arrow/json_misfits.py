"""Explains why one JSON value does not fit the columns, by field and in the words of SQL."""

import json
from typing import Any

import pyarrow as pa

_TEXT_MAX = 40


def why_unfit(value: bytes, kind: pa.StructType, otherwise: str) -> str:
    """The reason; ``otherwise`` is Arrow's, for a value in which this module finds no fault."""
    repeated: list[str] = []

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        repeated.extend(name for name in names if names.count(name) > 1)
        return dict(pairs)

    try:
        row = json.loads(value, object_pairs_hook=object_of)
    except UnicodeDecodeError as broken:
        return f"not UTF-8: {broken.reason} at byte {broken.start}"
    except (ValueError, RecursionError) as broken:
        return f"not valid JSON: {broken}"
    for field in kind:
        reason = _misfit(row.get(field.name), field.type, field.name)
        if reason:
            return reason
    if repeated:
        return f"field {repeated[0]} appears more than once"
    return otherwise.removeprefix("JSON parse error: ").partition(" in row ")[0]


def _misfit(value: Any, kind: pa.DataType, name: str) -> str:
    """Why a value of parsed JSON cannot be of this type; empty if it can."""
    if value is None:
        return ""
    if pa.types.is_struct(kind) and isinstance(value, dict):
        inner = (_misfit(value.get(f.name), f.type, f"{name}.{f.name}") for f in kind)
        return next(filter(None, inner), "")
    if pa.types.is_list(kind) and isinstance(value, list):
        inner = (_misfit(item, kind.value_type, f"{name}[]") for item in value)
        return next(filter(None, inner), "")
    right_kind = isinstance(value, _json_types(kind)) and (
        not isinstance(value, bool) or pa.types.is_boolean(kind)
    )
    if right_kind and _can_hold(value, kind):
        return ""
    found = json.dumps(value)[:_TEXT_MAX] if right_kind else _JSON_NAMES[type(value)]
    return f"field {name}: expected {sql_name(kind)}, found {found}"


_JSON_NAMES = {
    str: "a string", bool: "a boolean", int: "a number", float: "a number",
    dict: "an object", list: "an array",
}  # fmt: skip


def _json_types(kind: pa.DataType) -> tuple[type, ...]:
    types = pa.types
    if types.is_boolean(kind):
        return (bool,)
    if types.is_integer(kind) or types.is_floating(kind):
        return (int, float)
    if types.is_decimal(kind):
        return (int, float, str)
    return (str,) if not types.is_nested(kind) else ()


def _can_hold(value: Any, kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_integer(kind):
        largest = 1 << kind.bit_width - 1
        return isinstance(value, int) and -largest <= value < largest
    if types.is_date(kind) or types.is_timestamp(kind):
        finest = pa.timestamp("ns", kind.tz) if types.is_timestamp(kind) else kind
        return _can_cast(value, kind) or _can_cast(value, finest)
    return True


def _can_cast(text: str, kind: pa.DataType) -> bool:
    try:
        pa.scalar(text).cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def sql_name(kind: pa.DataType) -> str:
    """The type as a schema in DDL names it."""
    types = pa.types
    if types.is_struct(kind):
        return "STRUCT"
    if types.is_list(kind):
        return "ARRAY"
    if types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if types.is_timestamp(kind):
        return "TIMESTAMP" if kind.tz else "TIMESTAMP_NTZ"
    return _SQL_NAMES.get(kind, str(kind))


_SQL_NAMES = {
    pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT",
    pa.int64(): "BIGINT", pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.string(): "STRING",
    pa.date32(): "DATE",
}  # fmt: skip
