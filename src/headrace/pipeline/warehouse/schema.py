"""Whether the columns of a batch fit a table, and which the table lacks. Pure.

deltalake accepts files with any columns: a new one stays invisible, and one of another type makes
the whole table unreadable. So every commit is checked here first. Schemas are Delta's own JSON.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Field = Mapping[str, Any]  # name, type, nullable, metadata


class Comparison(NamedTuple):
    """What keeps a batch out of a table, and the columns that the table must get first."""

    conflicts: tuple[str, ...] = ()
    added: tuple[Field, ...] = ()


def fields_of(schema_json: str) -> list[Field]:
    fields: list[Field] = json.loads(schema_json)["fields"]
    return fields


def compare(table: Sequence[Field], batch: Sequence[Field]) -> Comparison:
    """Conflicts in the order of the table's columns; new columns are made nullable."""
    of_table = {field["name"]: field for field in table}
    of_batch = {field["name"]: field for field in batch}
    spelled = {name.lower(): name for name in of_table}
    conflicts: list[str] = []
    for name, field in of_table.items():
        if name in of_batch:
            conflicts += _conflict(name, field, of_batch[name])
        elif not any(other.lower() == name.lower() for other in of_batch):
            conflicts.append(f"column {name!r} of the table is missing in the batch")
    added = []
    for name, field in of_batch.items():
        if name in of_table:
            continue
        known = spelled.setdefault(name.lower(), name)
        if known != name:
            conflicts.append(f"column {name!r} differs from column {known!r} only in case")
        else:
            added.append({**field, "nullable": True})
    return Comparison(tuple(conflicts), tuple(added))


def _conflict(name: str, table: Field, batch: Field) -> list[str]:
    if _bare(table["type"]) != _bare(batch["type"]):
        return [
            f"column {name!r} is {_text(table['type'])} in the table "
            f"and {_text(batch['type'])} in the batch"
        ]
    if table["nullable"] and not batch["nullable"]:
        return [f"column {name!r} may be null in the table and is NOT NULL in the batch"]
    if batch["nullable"] and not table["nullable"]:
        return [f"column {name!r} is NOT NULL in the table and may be null in the batch"]
    return []


def _bare(kind: Any) -> Any:
    """A type without comments and other metadata, which do not change the values."""
    if isinstance(kind, Mapping):
        return {name: _bare(part) for name, part in kind.items() if name != "metadata"}
    return [_bare(part) for part in kind] if isinstance(kind, list) else kind


def _text(kind: Any) -> str:
    """A type in SQL's notation; NOT NULL is shown, since it may be all that differs."""
    if not isinstance(kind, Mapping):
        return str(kind)
    if kind["type"] == "array":
        return f"array<{_text(kind['elementType'])}{_required(kind['containsNull'])}>"
    if kind["type"] == "map":
        value = f"{_text(kind['valueType'])}{_required(kind['valueContainsNull'])}"
        return f"map<{_text(kind['keyType'])}, {value}>"
    inner = (f"{f['name']}: {_text(f['type'])}{_required(f['nullable'])}" for f in kind["fields"])
    return f"struct<{', '.join(inner)}>"


def _required(nullable: bool) -> str:
    return "" if nullable else " not null"
