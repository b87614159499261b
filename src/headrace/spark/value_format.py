"""The options ``value.*``: how values become typed columns, and where bad records go."""

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from headrace.arrow.avro_schema import parse_schema
from headrace.arrow.avro_values import AvroParser
from headrace.arrow.errors import BadSchema
from headrace.arrow.json_values import JsonParser
from headrace.arrow.values import Parser, parse_text
from headrace.spark.failures import BadOption
from headrace.spark.schemas import KnownSchemas, schema_source

VALUE_OPTIONS = (
    "value.format", "value.schema", "value.avro.directory", "value.avro.registry",
    "value.avro.prefix", "value.bad", "value.bad.column", "value.bad.topic",
)  # fmt: skip


class ValueFormat(NamedTuple):
    """How values become columns; the name is empty if they stay bytes."""

    name: str = ""
    schema: str = ""  # DDL for json, the Avro schema (JSON) for avro
    avro_directory: str = ""
    avro_registry: str = ""
    avro_prefixed: bool = False  # a zero byte and the schema's ID precede each value
    on_bad: str = "column"  # column, topic or fail
    bad_column: str = "_bad"
    bad_topic: str = ""


def parse_value_format(options: Mapping[str, str]) -> ValueFormat:
    """From the options, whose names are in lower case."""
    name = options.get("value.format", "").lower()
    if name not in ("", "json", "avro", "string"):
        raise BadOption(f"value.format is {name!r}; use json, avro or string")
    bad_topic = options.get("value.bad.topic", "")
    on_bad = options.get("value.bad", "topic" if bad_topic else "column").lower()
    if on_bad not in ("column", "topic", "fail"):
        raise BadOption(f"value.bad is {on_bad!r}; use column, topic or fail")
    if on_bad == "topic" and not bad_topic:
        raise BadOption("value.bad=topic needs value.bad.topic, the topic for bad records")
    if not name and any(option in options for option in VALUE_OPTIONS if option != "value.format"):
        raise BadOption("options value.* need value.format=json, avro or string")
    schema = options.get("value.schema", "")
    directory = options.get("value.avro.directory", "")
    registry = options.get("value.avro.registry", "")
    if name == "avro" and not (schema or directory or registry):
        raise BadOption(
            "value.format=avro needs a schema: value.schema (its JSON), value.avro.directory "
            "(files named by ID) or value.avro.registry (a URL)"
        )
    prefixed = options.get("value.avro.prefix", str(bool(directory or registry))).strip().lower()
    if prefixed not in ("true", "false"):
        raise BadOption(f"value.avro.prefix must be true or false, not {prefixed!r}")
    return ValueFormat(
        name=name,
        schema=schema,
        avro_directory=directory,
        avro_registry=registry,
        avro_prefixed=prefixed == "true",
        on_bad=on_bad,
        bad_column=options.get("value.bad.column", "_bad"),
        bad_topic=bad_topic,
    )


def value_parser(value: ValueFormat, kind: pa.DataType) -> Parser | None:
    """The parser of values into this type; None if values stay bytes."""
    if not value.name:
        return None
    if value.name == "string":
        return parse_text
    if not pa.types.is_struct(kind):
        raise BadOption(f"with value.format={value.name} the column value is a struct")
    try:
        if value.name == "json":
            return JsonParser(kind).parse
        source = schema_source(value.avro_directory, value.avro_registry)
        schema = parse_schema(value.schema) if source is None else KnownSchemas(source).get
        return AvroParser(kind, schema, prefixed=value.avro_prefixed).parse
    except BadSchema as unfit:
        raise BadOption(f"value.schema: {unfit}") from unfit
