"""The schema of the source: given by options, or by the user."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StructField,
    StructType,
)

from headrace.spark.failures import BadOption
from headrace.spark.options import parse_source
from headrace.spark.source_schema import check_schema, default_schema

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
def test_a_column_that_may_be_null_cannot_be_declared_not_null(options, field, named):
    with pytest.raises(BadOption, match=f"{named} declared NOT NULL"):
        check_schema(StructType([field]), parse_source(options, streaming=False))


@pytest.mark.parametrize("schema", ['{"type":', '{"type":"struct"}', '{"fields":[1]}'])
def test_a_schema_that_is_not_the_json_of_a_struct_is_refused_by_its_option(schema):
    with pytest.raises(BadOption, match="value.schema is neither DDL nor a StructType"):
        default_schema(parse_source({**JSON, "value.schema": schema}, streaming=False))


@pytest.mark.parametrize("name", ["key", "Offset"])
def test_the_column_of_bad_records_cannot_replace_another_column(name):
    options = {**JSON, "value.bad": "column", "value.bad.column": name}

    with pytest.raises(BadOption, match="value.bad.column is .*, which is another column"):
        default_schema(parse_source(options, streaming=False))


def test_only_a_column_that_is_never_null_may_be_declared_not_null():
    def declare(name, kind):
        schema = StructType([StructField(name, kind, nullable=False)])
        check_schema(schema, parse_source(BASIC, streaming=False))

    declare("offset", LongType())
    with pytest.raises(BadOption, match="key is declared NOT NULL"):
        declare("key", BinaryType())
