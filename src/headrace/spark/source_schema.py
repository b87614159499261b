"""The columns of the source, in the types of Spark's Kafka source.

Spark requests every declared column from a Python source, whether the query uses it or not. So a
query leaves out columns in the declared schema: with the option ``columns`` or with ``.schema``.
"""

import json
from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.arrow.avro_schema import parse_schema
from headrace.arrow.errors import BadSchema
from headrace.spark.ddl import parse_fields
from headrace.spark.failures import BadOption
from headrace.spark.options import SourceOptions
from headrace.spark.schemas import schema_source

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
KAFKA_COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}
# Of the batch, with the option query.checkpoint: its watermark, and when it was planned.
WATERMARK, PLANNED_AT = "watermark", "planned_at"
# A bad record: the reason, its place, and its value.
BAD_RECORD = StructType(
    [
        StructField("reason", StringType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("value", BinaryType()),
    ]
)


def default_schema(options: SourceOptions) -> StructType:
    """The schema of a query that gives no schema with ``.schema(…)``."""
    columns = dict(KAFKA_COLUMNS)
    if not options.include_headers and "headers" not in options.columns:
        del columns["headers"]
    if options.checkpoint:
        columns |= dict.fromkeys((WATERMARK, PLANNED_AT), TimestampType())
    value = options.value
    if value.name:
        columns["value"] = _value_type(options)
        if value.on_bad == "column":
            if value.bad_column.lower() in (name.lower() for name in KAFKA_COLUMNS):
                raise BadOption(
                    f"value.bad.column is {value.bad_column!r}, which is another column; choose "
                    "another name"
                )
            columns[value.bad_column] = BAD_RECORD
    if options.columns:
        unknown = [name for name in options.columns if name not in columns]
        if unknown:
            raise BadOption(
                f"the option columns names {', '.join(unknown)}; the columns are "
                f"{', '.join(columns)}"
            )
        columns = {name: columns[name] for name in options.columns}
    _check_bad_column(options, columns)
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def _value_type(options: SourceOptions) -> DataType:
    value = options.value
    if value.name == "string":
        return StringType()
    if value.name == "avro":
        return from_arrow_type(_avro_type(options), prefer_timestamp_ntz=True)
    if not value.schema:
        raise BadOption(
            "value.format=json needs value.schema, like 'user BIGINT, page STRING', or a schema "
            "with .schema(…) whose column value is a struct"
        )
    if not value.schema.lstrip().startswith("{"):
        return parse_fields(value.schema)
    try:
        return StructType.fromJson(json.loads(value.schema))
    except (ValueError, KeyError, TypeError, AttributeError) as broken:
        raise BadOption(
            f"value.schema is neither DDL nor a StructType as JSON: {value.schema[:200]!r} "
            f"({type(broken).__name__}: {broken})"
        ) from broken


def _avro_type(options: SourceOptions) -> pa.DataType:
    value = options.value
    text = value.schema
    if not text:
        source = schema_source(value.avro_directory, value.avro_registry)
        assert source is not None
        text = source.newest(options.subscription.topics)
    try:
        kind = parse_schema(text).type
    except BadSchema as unfit:
        raise BadOption(f"value.schema: {unfit}") from unfit
    if not pa.types.is_struct(kind):
        raise BadOption("the Avro schema of a value must be a record")
    return kind


def _check_bad_column(options: SourceOptions, names: Iterable[str]) -> None:
    value = options.value
    goes_to_column = value.name and value.on_bad == "column" and "value" in names
    if goes_to_column and value.bad_column not in names:
        raise BadOption(
            f"bad records would be lost: keep the column {value.bad_column!r}, or set "
            "value.bad=topic with value.bad.topic, or value.bad=fail"
        )


def check_schema(schema: StructType, options: SourceOptions) -> None:
    """Check a schema given with ``.schema(…)``: it may leave out columns, but not change types.

    Only ``value`` has the type that the user declares, if value.format says how to parse it.
    """
    value = options.value
    expected = {**KAFKA_COLUMNS}
    if options.checkpoint:
        expected |= dict.fromkeys((WATERMARK, PLANNED_AT), TimestampType())
    if value.name == "string":
        expected["value"] = StringType()
    for field in schema.fields:
        # Spark trusts NOT NULL, and reads garbage from the nulls or fails without a reason.
        if field.name not in _NEVER_NULL and (promised := _not_null(field, field.name)):
            raise BadOption(
                f"{promised} is declared NOT NULL, but a record may lack it: leave out NOT NULL, "
                "and filter the rows of the query"
            )
        if value.name in ("json", "avro") and field.name == "value":
            if not isinstance(field.dataType, StructType):
                raise BadOption(
                    f"with value.format={value.name} column 'value' is a struct, "
                    f"not {field.dataType.simpleString()}"
                )
            continue
        if value.name and value.on_bad == "column" and field.name == value.bad_column:
            continue
        kind = expected.get(field.name)
        if kind is None:
            raise BadOption(
                f"there is no column {field.name!r}; the columns are {', '.join(KAFKA_COLUMNS)}"
            )
        if field.dataType != kind:
            raise BadOption(
                f"column {field.name!r} is {kind.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )
    _check_bad_column(options, schema.fieldNames())


_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")


def _not_null(field: StructField, name: str) -> str:
    """The name of the first field at or below this one that may not be null; empty if none."""
    if not field.nullable:
        return name
    kind = field.dataType
    while isinstance(kind, ArrayType | MapType):
        inner_nullable = (
            kind.containsNull if isinstance(kind, ArrayType) else kind.valueContainsNull
        )
        if not inner_nullable:
            return f"{name}[]"
        kind, name = (
            kind.elementType if isinstance(kind, ArrayType) else kind.valueType,
            f"{name}[]",
        )
    fields = kind.fields if isinstance(kind, StructType) else []
    return next(filter(None, (_not_null(inner, f"{name}.{inner.name}") for inner in fields)), "")
