"""Schemas that a user gives, and rows that no column could hold."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.arrow.columns import Section, open_sections
from headrace.model.ids import TopicPartition
from headrace.records.batch import read_header
from headrace.records.record import Record, build_batch
from headrace.spark.failures import BadOption, PipelineError
from headrace.spark.options import ValueFormat, parse_source
from headrace.spark.rows import RowBuilder, check_schema, default_schema

BASIC = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "t"}
JSON = {**BASIC, "value.format": "json", "value.schema": "n BIGINT", "value.bad": "fail"}
N_NOT_NULL = StructType([StructField("n", LongType(), nullable=False)])


@pytest.mark.parametrize(
    ("options", "field", "named"),
    [
        (BASIC, StructField("key", BinaryType(), nullable=False), "key is"),
        (JSON, StructField("value", N_NOT_NULL), "value.n is"),
        (
            JSON,
            StructField("value", StructType([StructField("l", ArrayType(N_NOT_NULL))])),
            r"value.l\[\].n is",
        ),
        (
            JSON,
            StructField(
                "value", StructType([StructField("l", ArrayType(LongType(), containsNull=False))])
            ),
            r"value.l\[\] is",
        ),
    ],
)
def test_a_column_that_may_be_null_cannot_be_declared_otherwise(options, field, named):
    with pytest.raises(BadOption, match=f"{named} declared NOT NULL"):
        check_schema(StructType([field]), parse_source(options, streaming=False))


@pytest.mark.parametrize("schema", ['{"type":', '{"type":"struct"}', '{"fields":[1]}'])
def test_a_schema_that_is_no_json_of_a_struct_is_refused_by_the_name_of_its_option(schema):
    with pytest.raises(BadOption, match="value.schema is neither DDL nor a StructType"):
        default_schema(parse_source({**JSON, "value.schema": schema}, streaming=False))


@pytest.mark.parametrize("name", ["key", "Offset"])
def test_the_column_of_bad_records_does_not_take_the_place_of_another(name):
    options = {**JSON, "value.bad": "column", "value.bad.column": name}

    with pytest.raises(BadOption, match="value.bad.column: there is a column"):
        default_schema(parse_source(options, streaming=False))


def test_a_column_that_is_never_null_may_be_declared_so():
    schema = StructType([StructField("offset", LongType(), nullable=False)])

    check_schema(schema, parse_source(BASIC, streaming=False))


@pytest.mark.parametrize("timestamp", [1 << 62, -(1 << 62)])
def test_a_time_beyond_every_timestamp_is_told_with_its_place(timestamp):
    schema = StructType([StructField("timestamp", TimestampType())])
    batch = build_batch([Record(0, 5, None, b"a"), Record(1, timestamp, None, b"b")])
    (records,) = open_sections([Section(read_header(batch), memoryview(batch))])
    assert records.timestamp_ms[1] == timestamp

    with pytest.raises(PipelineError, match="offset 1 of t-0 has the time"):
        list(RowBuilder(schema, TopicPartition("t", 0), ValueFormat()).batches(records))
