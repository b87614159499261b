"""Avro values with schemas from a real registry, sent by Confluent's serializer."""

import json

import pytest

from tests.spark import registry
from tests.spark.kit import error_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.interop]

OLD = {
    "type": "record",
    "name": "View",
    "fields": [
        {"name": "user", "type": "long"},
        {"name": "page", "type": ["null", "string"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["SEEN", "READ"]}},
    ],
}
NEW = {
    **OLD,
    "fields": [*OLD["fields"], {"name": "took_ms", "type": ["null", "double"], "default": None}],
}
OLD_ROWS = [
    {"user": 1, "page": "/a", "kind": "SEEN"},
    {"user": -(1 << 40), "page": None, "kind": "READ"},
]
NEW_ROWS = [{"user": 3, "page": "/ü", "kind": "READ", "took_ms": 2.5}]
ALL_ROWS = [(1, "/a", "SEEN", None), (-(1 << 40), None, "READ", None), (3, "/ü", "READ", 2.5)]


@pytest.fixture(scope="module")
def address(bootstrap):
    if reason := registry.missing():
        pytest.skip(f"the schema registry {reason}")
    started = registry.Registry(bootstrap)
    yield started.address
    started.close()


@pytest.fixture(scope="module")
def views(topics, bootstrap, address):
    """A topic whose schema got another field between two values."""
    topic = topics.create("views")
    for schema, rows in ((OLD, OLD_ROWS), (NEW, NEW_ROWS)):
        registry.send_avro(bootstrap, address, topic, json.dumps(schema), json.dumps(rows))
    return topic


def test_columns_come_from_the_newest_schema_and_each_row_is_read_in_its_own(read, views, address):
    frame = read(subscribe=views, value__format="avro", value__avro__registry=address)

    assert frame.schema["value"].dataType.simpleString() == (
        "struct<user:bigint,page:string,kind:string,took_ms:double>"
    )
    rows = frame.orderBy("offset").selectExpr("value.*", "_bad").collect()
    assert [(row.user, row.page, row.kind, row.took_ms) for row in rows] == ALL_ROWS
    assert [row["_bad"] for row in rows] == [None, None, None]


def test_the_registry_keeps_its_schemas_in_our_topics(topics, views):
    assert topics.read("kafkasql-journal")


def test_a_stream_reads_the_same(read_stream, views, address, collected):
    frame = read_stream(
        subscribe=views,
        startingOffsets="earliest",
        value__format="avro",
        value__avro__registry=address,
    )
    collected.start(frame.selectExpr("offset", "value.user"), availableNow=True).finish()

    rows = [row for batch in collected.batches.values() for row in batch]
    assert sorted((row.offset, row.user) for row in rows) == [(0, 1), (1, -(1 << 40)), (2, 3)]


def test_an_unknown_schema_id_is_a_bad_record(read, topics, address):
    topic = topics.create()
    topics.send(topic, [b"\0\x7f\0\0\0rest"])

    (row,) = read(
        subscribe=topic,
        value__format="avro",
        value__avro__registry=address,
        schema="value STRUCT<user: BIGINT>, _bad STRUCT<reason: STRING, topic: STRING, "
        "partition: INT, offset: BIGINT, value: BINARY>",
    ).collect()

    assert row.value is None
    assert "there is no schema 2130706432" in row["_bad"].reason


def test_a_topic_that_the_registry_does_not_know_is_named(read, topics, address):
    topic = topics.create()

    with pytest.raises(Exception, match="has no subject") as failed:
        read(subscribe=topic, value__format="avro", value__avro__registry=address)

    assert f"{topic}-value" in error_of(failed.value)
