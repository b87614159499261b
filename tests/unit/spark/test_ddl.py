"""The fields of value.schema, parsed on their own."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from headrace.spark.ddl import parse_fields
from headrace.spark.failures import BadOption


def fields_of(ddl):
    return {field.name: field.dataType for field in parse_fields(ddl).fields}


def test_fields_have_names_types_and_comments():
    assert fields_of("id BIGINT, `odd ``name` string COMMENT 'it''s', n: INT NOT NULL") == {
        "id": LongType(),
        "odd `name": StringType(),
        "n": IntegerType(),
    }
    assert [f.nullable for f in parse_fields("a INT, b INT NOT NULL").fields] == [True, False]


def test_types_are_nested():
    assert fields_of("a ARRAY<STRUCT<x: INT, y: MAP<STRING, ARRAY<INT>>>>, d decimal(10,2)") == {
        "a": ArrayType(
            StructType(
                [
                    StructField("x", IntegerType()),
                    StructField("y", MapType(StringType(), ArrayType(IntegerType()))),
                ]
            )
        ),
        "d": DecimalType(10, 2),
    }


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("id BIGNT", r"field 'id' has the unknown type 'BIGNT' \(did you mean BIGINT\?\)"),
        ("a STRUCT<b: ARRAY<STRNG>>", r"field 'a.b\[\]' has the unknown type 'STRNG'"),
        ("id", "field 'id' has no type"),
        ("", "expected the name of a field, found the end"),
        ("id BIGINT page STRING", "expected the end after field 'id', found 'page'"),
        ("id BIGINT,", "expected the name of a field, found the end"),
        ("a ARRAY<INT", "expected '>' after the items of ARRAY, found the end"),
        ("id BIGINT> x", "expected the end after field 'id', found '>'"),
        ("d DECIMAL(50, 2)", r"DECIMAL\(50, 2\); a decimal has 1 to 38 digits"),
        ("d DECIMAL(x)", r"DECIMAL\(x\); give whole numbers"),
        ("id BIGINT; DROP", "cannot read '; DROP'"),
    ],
)
def test_an_error_names_the_option_and_the_field(ddl, reason):
    with pytest.raises(BadOption, match=f"^value.schema: .*{reason}"):
        parse_fields(ddl)
