"""Avro schemas that cannot become columns."""

import pytest

from headrace.arrow.avro_schema import parse_schema
from headrace.arrow.errors import BadSchema


@pytest.mark.parametrize(
    "schema",
    [
        '["null", "int", "string"]',
        '{"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}',
        "{}",
        '{"type": "record", "name": "R"}',
        '{"type": "record", "name": "R", "fields": [{"nam": "x", "type": "int"}]}',
        '{"type": "record", "name": "R", "fields": [1]}',
        '{"type": "enum", "name": "E"}',
        '{"type": "fixed", "name": "F", "size": "x"}',
        '{"type": "bytes", "logicalType": "decimal"}',
    ],
)
def test_a_schema_that_cannot_be_columns_is_refused(schema):
    with pytest.raises(BadSchema):
        parse_schema(schema)
