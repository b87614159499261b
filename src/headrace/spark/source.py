"""The entry points of ``format("headrace")`` for reading."""

from collections.abc import Mapping

from pyspark.sql.types import StructType

from headrace.spark.batch import BatchReader
from headrace.spark.options import BATCH_ONLY, parse_source
from headrace.spark.source_schema import check_schema, default_schema
from headrace.spark.stream import StreamReader


def schema_of(options: Mapping[str, str]) -> StructType:
    # Spark does not say yet whether the query is a stream. Only a batch has an end: without an
    # ending option the more lenient rules of a stream apply, and the reader checks again.
    streaming = not any(name.lower() in options for name in BATCH_ONLY)
    return default_schema(parse_source(options, streaming=streaming))


def batch_reader(options: Mapping[str, str], schema: StructType) -> BatchReader:
    checked = parse_source(options, streaming=False)
    check_schema(schema, checked)
    return BatchReader(checked, schema, push_filters=checked.push_filters)


def stream_reader(options: Mapping[str, str], schema: StructType) -> StreamReader:
    checked = parse_source(options, streaming=True)
    check_schema(schema, checked)
    return StreamReader(checked, schema)
