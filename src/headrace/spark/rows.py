"""Records to the rows of a query: Spark's columns, in the types of Spark's own Kafka source.

Spark asks a Python source for every declared column whether the query uses it or not, so what
is not wanted is left out of the declared schema: by the option ``columns`` or by ``.schema``.
Columns that are the same for a whole batch are made once and cut to size.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
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

from headrace.arrow.avro import parse_schema
from headrace.arrow.columns import Records
from headrace.arrow.errors import BadSchema
from headrace.model.ids import TopicPartition
from headrace.spark.dead_letters import DeadLetters
from headrace.spark.failures import BadOption, PipelineError
from headrace.spark.options import SourceOptions, ValueFormat
from headrace.spark.schemas import schema_source
from headrace.spark.typed import Parsed, Parser, value_parser

# Rows per Arrow batch: enough to make the cost per batch small, and few enough that a batch of
# 1 KB rows stays below 32 MB on its way through the JVM.
_BATCH_ROWS_MAX = 32_768

# A timestamp counts microseconds in eight bytes.
_TIME_MS_MAX = ((1 << 63) - 1) // 1000

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


# Where a bad record lay, why it is bad, and what it was.
BAD_FIELDS = "reason STRING, topic STRING, partition INT, offset BIGINT, value BINARY"
_BAD = pa.struct(
    [
        ("reason", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("value", pa.binary()),
    ]
)


def default_schema(options: SourceOptions) -> StructType | str:
    """What a query gets that gives no schema of its own.

    DDL where the user gave DDL: only the JVM can parse it.
    """
    columns: dict[str, str] = {name: kind.simpleString() for name, kind in KAFKA_COLUMNS.items()}
    if not options.include_headers and "headers" not in options.columns:
        del columns["headers"]
    value = options.value
    if value.name:
        columns["value"] = _value_ddl(options)
        if value.on_bad == "column":
            if value.bad_column.lower() in (name.lower() for name in KAFKA_COLUMNS):
                raise BadOption(f"value.bad.column: there is a column {value.bad_column!r} already")
            columns[value.bad_column] = f"STRUCT<{BAD_FIELDS}>"
    if options.columns:
        unknown = [name for name in options.columns if name not in columns]
        if unknown:
            raise BadOption(f"columns names {', '.join(unknown)}; there are {', '.join(columns)}")
        columns = {name: columns[name] for name in options.columns}
    _check_bad_column(options, columns)
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def _value_ddl(options: SourceOptions) -> str:
    value = options.value
    if value.name == "string":
        return "STRING"
    if value.name == "avro":
        return from_arrow_type(_avro_type(options), prefer_timestamp_ntz=True).simpleString()
    if not value.schema:
        raise BadOption(
            "value.format=json needs value.schema, like 'user BIGINT, page STRING', or a schema "
            "with .schema(…) whose column value is a struct"
        )
    if value.schema.lstrip().startswith("{"):
        try:
            return StructType.fromJson(json.loads(value.schema)).simpleString()
        except (ValueError, KeyError, TypeError, AttributeError) as broken:
            raise BadOption(
                f"value.schema is neither DDL nor a StructType as JSON: {value.schema[:200]!r} "
                f"({type(broken).__name__}: {broken})"
            ) from broken
    return f"STRUCT<{value.schema}>"


def _avro_type(options: SourceOptions) -> pa.DataType:
    value = options.value
    text = value.schema
    if not text:
        source = schema_source(value.avro_folder, value.avro_registry)
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
            f"bad records would vanish: keep the column {value.bad_column!r}, or set "
            "value.bad=topic with value.bad.topic, or value.bad=fail"
        )


def check_schema(schema: StructType, options: SourceOptions) -> None:
    """A schema given with ``.schema(…)`` may leave columns out, but not change their types.

    Only ``value`` has the type that the user says, if value.format tells how to get there.
    """
    value = options.value
    expected = {**KAFKA_COLUMNS}
    if value.name == "string":
        expected["value"] = StringType()
    for field in schema.fields:
        # Spark would trust in it, and read rubbish out of the nulls or fail without a reason.
        if field.name not in _NEVER_NULL and (promised := _not_null(field, field.name)):
            raise BadOption(
                f"{promised} is declared NOT NULL, but a record may lack it: leave that out, and "
                "filter where the rows are used"
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
                f"there is no column {field.name!r}; there are {', '.join(KAFKA_COLUMNS)}"
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


class RowBuilder:
    """Makes the Arrow batches of one partition's records."""

    def __init__(
        self,
        schema: StructType,
        place: TopicPartition,
        value: ValueFormat,
        letters: DeadLetters | None = None,
    ) -> None:
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._constants: dict[str, pa.Array] = {}
        self._place = place
        self._value = value
        self._letters = letters
        names = self._schema.names
        self._parse: Parser | None = None
        if value.name and "value" in names:
            self._parse = value_parser(value, self._schema.field("value").type)
        makers: dict[str, Callable[[Records], pa.Array]] = {
            "key": Records.keys,
            "value": Records.values,
            "topic": lambda records: self._repeated("topic", place.topic, records.size),
            "partition": lambda records: self._repeated("partition", place.partition, records.size),
            "offset": lambda records: pa.array(records.offset),
            "timestamp": self._timestamps,
            "timestampType": lambda records: pa.array(records.timestamp_type.astype(np.int32)),
            "headers": Records.headers,
        }
        self._makers = makers

    def batches(self, records: Records) -> Iterator[pa.RecordBatch]:
        for start in range(0, records.size, _BATCH_ROWS_MAX):
            piece = records
            if records.size > _BATCH_ROWS_MAX:
                piece = records.slice(start, min(start + _BATCH_ROWS_MAX, records.size))
            batch = self._batch(piece)
            if batch.num_rows:
                yield batch

    def _batch(self, records: Records) -> pa.RecordBatch:
        made: dict[str, pa.Array] = {}
        if self._parse is not None:
            raw = records.values()
            parsed = self._parse(raw)
            made["value"] = parsed.array
            if parsed.bad and self._value.on_bad != "column":
                records, made["value"] = self._without_bad(records, raw, parsed)
            elif self._value.on_bad == "column":
                made[self._value.bad_column] = self._bad_column(records, raw, parsed.bad)
        elif self._value.name and self._value.on_bad == "column":
            made[self._value.bad_column] = pa.nulls(records.size, _BAD)
        arrays = []
        for field in self._schema:
            array = made[field.name] if field.name in made else self._makers[field.name](records)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _without_bad(
        self, records: Records, raw: pa.Array, parsed: Parsed
    ) -> tuple[Records, pa.Array]:
        """Bad records stop the query or go to their topic; the others stay."""
        bad = sorted(parsed.bad)
        if self._value.on_bad == "fail":
            first = bad[0]
            raise PipelineError(
                f"the value at offset {records.offset[first]} of {self._place} is no "
                f"{self._value.name}: {parsed.bad[first]} (value.bad=fail)"
            )
        assert self._letters is not None
        keys = records.keys()
        for index in bad:
            self._letters.add(
                self._place,
                int(records.offset[index]),
                int(records.timestamp_ms[index]),
                keys[index].as_py(),
                raw[index].as_py(),
                parsed.bad[index],
            )
        kept = np.ones(records.size, dtype=bool)
        kept[bad] = False
        return records.where(kept), parsed.array.filter(pa.array(kept))

    def _bad_column(self, records: Records, raw: pa.Array, bad: dict[int, str]) -> pa.Array:
        if not bad:
            return pa.nulls(records.size, _BAD)
        rows: list[dict[str, Any] | None] = [None] * records.size
        for index, reason in bad.items():
            rows[index] = {
                "reason": reason,
                "topic": self._place.topic,
                "partition": self._place.partition,
                "offset": int(records.offset[index]),
                "value": raw[index].as_py(),
            }
        return pa.array(rows, _BAD)

    def _repeated(self, name: str, value: Any, count: int) -> pa.Array:
        made = self._constants.get(name)
        if made is None or len(made) < count:
            kind = self._schema.field(name).type
            made = self._constants[name] = pa.repeat(pa.scalar(value, kind), max(count, 1024))
        return made.slice(0, count)

    def _timestamps(self, records: Records) -> pa.Array:
        beyond = (records.timestamp_ms > _TIME_MS_MAX) | (records.timestamp_ms < -_TIME_MS_MAX)
        if beyond.any():
            at = int(beyond.argmax())
            raise PipelineError(
                f"the record at offset {records.offset[at]} of {self._place} has the time "
                f"{records.timestamp_ms[at]} ms, beyond what a timestamp can say; leave the column "
                "timestamp out, with the option columns"
            )
        return pa.array(records.timestamp_ms * 1000).view(pa.timestamp("us", "UTC"))
