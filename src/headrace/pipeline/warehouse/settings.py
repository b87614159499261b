"""The settings of a load, checked before anything runs: topics, table, value, event time."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.pipeline.warehouse.planning import Limits
from headrace.pipeline.warehouse.rows import EVENT_COLUMNS, EVENT_DATE, METADATA_COLUMNS, EventTime
from headrace.pipeline.warehouse.storage import Location
from headrace.spark.failures import BadOption
from headrace.spark.options import SourceOptions, parse_source
from headrace.spark.source_schema import default_schema

_PARTITION_TYPES = (
    pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date
)  # fmt: skip


class LoadSettings(NamedTuple):
    topics: tuple[str, ...]
    table: Path | Location
    source: Mapping[str, str]  # options of the Spark source: kafka.*, value.*
    with_metadata: bool = True
    partition_by: tuple[str, ...] = (EVENT_DATE,)
    event_time: EventTime = EventTime()
    limits: Limits = Limits()
    accept_loss: bool = False
    bad_share_max: float = 0.05  # of the records of a batch

    def source_options(self) -> SourceOptions:
        """Records of aborted transactions never become rows, and a lost record is an error."""
        given = {name.lower(): value for name, value in self.source.items()}
        return parse_source(
            {
                **given,
                "subscribe": ",".join(self.topics),
                "kafka.isolation.level": "read_committed",
            },
            streaming=False,
        )


class ValueColumns(NamedTuple):
    """The columns that the value of a record becomes."""

    schema: pa.Schema
    is_struct: bool

    @property
    def kind(self) -> pa.DataType:
        """The type of a parsed value."""
        return pa.struct(list(self.schema)) if self.is_struct else self.schema.field(0).type


def value_columns(settings: LoadSettings, options: SourceOptions) -> ValueColumns:
    """Asks a schema registry for its newest schema, if one is named. Raises BadOption."""
    declared = to_arrow_schema(default_schema(options), timezone="UTC").field("value")
    if pa.types.is_struct(declared.type):
        columns = ValueColumns(pa.schema([_nullable(field) for field in declared.type]), True)
    else:
        columns = ValueColumns(pa.schema([pa.field("value", declared.type)]), False)
    _check_names(columns.schema)
    _check_event_time(settings.event_time, columns)
    _check_partitions(settings.partition_by, columns)
    return columns


def _nullable(field: pa.Field) -> pa.Field:
    # A record may lack any field: a tombstone lacks all.
    return field.with_nullable(True).remove_metadata()


def _check_names(schema: pa.Schema) -> None:
    reserved = {name.lower() for name in (*METADATA_COLUMNS, *EVENT_COLUMNS)}
    for name in schema.names:
        if name.lower() in reserved:
            raise BadOption(
                f"value.schema: the field {name!r} has the name of a column that the load adds. "
                "Leave it out of value.schema, or rename it in the records"
            )


def _check_event_time(event_time: EventTime, columns: ValueColumns) -> None:
    name = event_time.column
    if not name:
        return
    if not columns.is_struct or name not in columns.schema.names:
        known = ", ".join(columns.schema.names) if columns.is_struct else "none, because it is raw"
        raise BadOption(f"--event-time is {name!r}; the fields of the value are {known}")
    kind = columns.schema.field(name).type
    if not pa.types.is_timestamp(kind) and kind != pa.int64():
        raise BadOption(
            f"--event-time {name} is {kind}; use a TIMESTAMP, or a BIGINT of milliseconds since "
            "1970"
        )


def _check_partitions(partition_by: tuple[str, ...], columns: ValueColumns) -> None:
    for name in partition_by:
        if name in EVENT_COLUMNS:
            continue
        if name not in columns.schema.names:
            raise BadOption(
                f"--partition-by names {name!r}; use {', '.join(EVENT_COLUMNS)} or one of "
                f"{', '.join(columns.schema.names)}"
            )
        kind = columns.schema.field(name).type
        if not any(fits(kind) for fits in _PARTITION_TYPES):
            raise BadOption(
                f"--partition-by {name} is {kind}; use a text, a whole number, a boolean or a date"
            )
    if partition_by and set(columns.schema.names) <= set(partition_by):
        raise BadOption("--partition-by names all columns of the value; keep one in the files")
