"""Records to the rows of a query: Spark's columns, in the types of Spark's own Kafka source.

Spark asks a Python source for every declared column whether the query uses it or not, so what
is not wanted is left out of the declared schema: by the option ``columns`` or by ``.schema``.
Columns that are the same for a whole batch are made once and cut to size.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.model.ids import TopicPartition
from headrace.pipeline.columns import Records
from headrace.pipeline.failures import BadOption
from headrace.pipeline.options import SourceOptions

# Rows per Arrow batch: enough to make the cost per batch small, and few enough that a batch of
# 1 KB rows stays below 32 MB on its way through the JVM.
_BATCH_ROWS_MAX = 32_768

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


def default_schema(options: SourceOptions) -> StructType:
    """What a query gets that gives no schema of its own."""
    columns = dict(KAFKA_COLUMNS)
    if not options.include_headers and "headers" not in options.columns:
        del columns["headers"]
    if options.columns:
        unknown = [name for name in options.columns if name not in columns]
        if unknown:
            raise BadOption(f"columns names {', '.join(unknown)}; there are {', '.join(columns)}")
        columns = {name: columns[name] for name in options.columns}
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def check_schema(schema: StructType) -> None:
    """A schema given with ``.schema(…)`` may leave columns out, but not change their types."""
    for field in schema.fields:
        expected = KAFKA_COLUMNS.get(field.name)
        if expected is None:
            raise BadOption(
                f"there is no column {field.name!r}; there are {', '.join(KAFKA_COLUMNS)}"
            )
        if field.dataType != expected:
            raise BadOption(
                f"column {field.name!r} is {expected.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )


class RowBuilder:
    """Makes the Arrow batches of one partition's records."""

    def __init__(self, schema: StructType, place: TopicPartition) -> None:
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._constants: dict[str, pa.Array] = {}
        self._topic = place.topic
        self._partition = place.partition
        makers: dict[str, Callable[[Records], pa.Array]] = {
            "key": Records.keys,
            "value": Records.values,
            "topic": lambda records: self._repeated("topic", self._topic, records.size),
            "partition": lambda records: self._repeated("partition", self._partition, records.size),
            "offset": lambda records: pa.array(records.offset),
            "timestamp": lambda records: _timestamps(records),
            "timestampType": lambda records: pa.array(records.timestamp_type.astype(np.int32)),
            "headers": Records.headers,
        }
        self._makers = [(field.type, makers[field.name]) for field in self._schema]

    def batches(self, records: Records) -> Iterator[pa.RecordBatch]:
        for start in range(0, records.size, _BATCH_ROWS_MAX):
            piece = records
            if records.size > _BATCH_ROWS_MAX:
                piece = records.slice(start, min(start + _BATCH_ROWS_MAX, records.size))
            yield self._batch(piece)

    def _batch(self, records: Records) -> pa.RecordBatch:
        arrays = []
        for kind, make in self._makers:
            array = make(records)
            arrays.append(array if array.type == kind else array.cast(kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _repeated(self, name: str, value: Any, count: int) -> pa.Array:
        made = self._constants.get(name)
        if made is None or len(made) < count:
            kind = self._schema.field(name).type
            made = self._constants[name] = pa.repeat(pa.scalar(value, kind), max(count, 1024))
        return made.slice(0, count)


def _timestamps(records: Records) -> pa.Array:
    return pa.array(records.timestamp_ms * 1000).view(pa.timestamp("us", "UTC"))
