"""Parses an Avro schema into the nodes that decode its values.

The Arrow types are those of Spark's Avro support: enum as string, fixed as binary, the logical
types date, timestamp-millis and -micros (also local) and decimal. A union may hold null and one
other type.
"""

import json
from typing import Any

from headrace.arrow import avro_decoding as decoding
from headrace.arrow.avro_decoding import Node
from headrace.arrow.errors import BadSchema

_DEPTH_MAX = 64


def parse_schema(text: str) -> Node:
    """Raises BadSchema if the text is not an Avro schema, or its values cannot be columns."""
    try:
        schema = json.loads(text)
    except ValueError:
        schema = text.strip()  # a primitive type may be given by its bare name
    try:
        return _Parser().node(schema, "", 0)
    except (KeyError, TypeError, ValueError, AttributeError) as broken:
        raise BadSchema(
            f"not an Avro schema: {text[:200]} ({type(broken).__name__}: {broken})"
        ) from broken


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, Node] = {}

    def node(self, schema: Any, namespace: str, depth: int) -> Node:
        if depth > _DEPTH_MAX:
            raise BadSchema("the Avro schema is nested too deeply, or recursive")
        if isinstance(schema, list):
            return self._union(schema, namespace, depth)
        if isinstance(schema, str):
            return self._by_name(schema, namespace)
        if not isinstance(schema, dict) or "type" not in schema:
            raise BadSchema(f"not an Avro schema: {json.dumps(schema)[:200]}")
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.node(kind, namespace, depth + 1)
        if kind == "record":
            return self._record(schema, namespace, depth)
        if kind == "array":
            return decoding.array(self.node(schema["items"], namespace, depth + 1))
        if kind == "map":
            return decoding.map_(self.node(schema["values"], namespace, depth + 1))
        if kind == "enum":
            return self._remember(schema, namespace, decoding.enum(list(schema["symbols"])))
        if kind == "fixed":
            size = int(schema["size"])
            return self._remember(schema, namespace, decoding.logical(schema, decoding.fixed(size)))
        return decoding.logical(schema, self._by_name(kind, namespace))

    def _by_name(self, name: str, namespace: str) -> Node:
        if name in decoding.PRIMITIVES:
            return decoding.PRIMITIVES[name]
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self._named.get(full) or self._named.get(name)
        if found is None:
            raise BadSchema(
                f"the Avro schema uses {name!r} before its definition; recursive types cannot be "
                "columns"
            )
        return found

    def _remember(self, schema: dict[str, Any], namespace: str, node: Node) -> Node:
        name = schema.get("name", "")
        space = schema.get("namespace", namespace)
        self._named[name if "." in name or not space else f"{space}.{name}"] = node
        return node

    def _record(self, schema: dict[str, Any], namespace: str, depth: int) -> Node:
        space = schema.get("namespace", namespace)
        name = schema.get("name", "")
        if "." in name:
            space = name.rpartition(".")[0]
        fields = [
            (field["name"], self.node(field["type"], space, depth + 1))
            for field in schema["fields"]
        ]
        return self._remember(schema, namespace, decoding.record(fields))

    def _union(self, branches: list[Any], namespace: str, depth: int) -> Node:
        names = [branch if isinstance(branch, str) else "" for branch in branches]
        others = [branch for branch in branches if branch != "null"]
        null_at = names.index("null") if "null" in names else -1
        nodes = [self.node(branch, namespace, depth + 1) for branch in others]
        if len(nodes) == 1:
            return decoding.nullable(nodes[0], null_at)
        raise BadSchema(
            f"the Avro schema has a union of {len(nodes)} types; a column can hold null and one "
            "other type"
        )
