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

from headrace.model.ids import TopicPartition
from headrace.pipeline.columns import Section, open_sections
from headrace.pipeline.failures import BadOption, PipelineError
from headrace.pipeline.options import ValueFormat, parse_source
from headrace.pipeline.rows import RowBuilder, check_schema
from headrace.records.batch import read_header
from headrace.records.record import Record, build_batch

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
