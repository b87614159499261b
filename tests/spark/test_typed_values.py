"""Values as typed columns in real queries, and where bad records go."""

import io
import json

import fastavro
import pytest
from pyspark.errors import PySparkException

from headrace.spark.ddl import parse_fields
from tests.spark.kit import error_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LINES = ['{"user": 1, "page": "/a"}', "no json", '{"user": 2, "page": "/b", "x": 0}', None]


@pytest.fixture(scope="module")
def lines(topics):
    topic = topics.create("lines")
    topics.send(topic, LINES)
    return topic


def test_json_becomes_a_struct_and_bad_records_go_to_a_column(lines, read):
    frame = read(
        subscribe=lines, value__format="json", value__schema="user BIGINT, page STRING"
    ).orderBy("offset")

    assert frame.schema["value"].dataType.simpleString() == "struct<user:bigint,page:string>"
    rows = frame.collect()
    assert [row.value and row.value.asDict() for row in rows] == [
        {"user": 1, "page": "/a"}, None, {"user": 2, "page": "/b"}, None,
    ]  # fmt: skip
    bad = rows[1]["_bad"]
    assert (bad.topic, bad.partition, bad.offset, bad.value) == (lines, 0, 1, b"no json")
    assert bad.reason
    assert [row["_bad"] for row in rows if row.offset != 1] == [None] * 3


def test_the_schema_may_hold_only_the_used_fields(lines, read):
    frame = read(
        subscribe=lines,
        value__format="json",
        value__bad="fail",
        endingOffsets=json.dumps({lines: {"0": 1}}),
        schema="value STRUCT<page: STRING>",
    )

    assert [row.page for row in frame.select("value.page").collect()] == ["/a"]


def test_bad_records_go_to_their_topic_with_place_and_reason(topics, lines, read):
    letters = topics.create("letters")

    frame = read(
        subscribe=lines,
        value__format="json",
        value__schema="user BIGINT",
        value__bad__topic=letters,
    )

    assert sorted(row.offset for row in frame.select("offset").collect()) == [0, 2, 3]
    (letter,) = topics.read(letters)
    headers = {name: value.decode() for name, value in letter.headers()}
    assert letter.value() == b"no json"
    assert int(headers.pop("__headrace.errors.timestamp")) > 0
    assert headers == {
        "__headrace.errors.topic": lines,
        "__headrace.errors.partition": "0",
        "__headrace.errors.offset": "1",
        "__headrace.errors.reason": "not a JSON object",
    }


def test_a_bad_record_that_is_too_large_for_its_topic_goes_there_without_its_value(topics, read):
    source = topics.create("sized")
    letters = topics.create("small-letters", max_message_bytes=2_000)
    key = "k" * 3_000
    topics.send(source, ["small", "x" * 5_000, (key, "with a large key"), "also small"])

    frame = read(subscribe=source, value__format="json", value__schema="user BIGINT",
                 value__bad__topic=letters)  # fmt: skip
    assert frame.count() == 0

    found = {}  # some are sent twice
    for letter in topics.read(letters):
        headers = dict(letter.headers())
        place = int(headers["__headrace.errors.offset"])
        found[place] = (letter.key(), letter.value(), headers.get("__headrace.errors.omitted"))
    assert found == {
        0: (None, b"small", None),
        1: (None, None, b"5000"),
        2: (None, None, b"3016"),
        3: (None, b"also small", None),
    }


def test_a_topic_for_bad_records_that_matches_the_pattern_is_not_read(
    topics, read_stream, collected
):
    source = topics.create("pattern")
    letters = topics.create(name=f"{source}-letters")
    topics.send(source, ["no json", '{"n": 1}'])
    frame = read_stream(
        subscribePattern=f"{source}.*",
        startingOffsets="earliest",
        value__format="json",
        value__schema="n INT",
        value__bad__topic=letters,
    ).selectExpr("CAST(value.n AS STRING) AS value", "topic")

    for _ in range(2):
        collected.start(frame, availableNow=True).finish()

    assert [row.topic for rows in collected.batches.values() for row in rows] == [source]
    assert len(topics.read(letters)) == 1


def test_letters_are_sent_while_the_next_records_are_fetched(topics, read):
    source, letters = topics.create("many"), topics.create("letters")
    for _ in range(4):  # one batch each, so that one fetch does not return them all
        topics.send(source, [b"x" * 100_000])

    frame = read(
        subscribe=source, value__format="json", value__schema="n INT", value__bad__topic=letters
    )

    assert frame.count() == 0
    headers = [dict(letter.headers()) for letter in topics.read(letters)]
    assert sorted(header["__headrace.errors.offset"] for header in headers) == [
        b"0", b"1", b"2", b"3",
    ]  # fmt: skip


def test_a_letter_has_the_time_when_it_was_sent(topics, read):
    source, letters = topics.create("old"), topics.create("letters")
    topics.send(source, [b"no json"], timestamp=1_000)

    read(
        subscribe=source, value__format="json", value__schema="n INT", value__bad__topic=letters
    ).collect()

    (letter,) = topics.read(letters)
    assert letter.timestamp()[1] > 1_000
    assert dict(letter.headers())["__headrace.errors.timestamp"] == b"1000"


def test_a_bad_record_stops_the_query_only_with_fail(lines, read):
    with pytest.raises(PySparkException) as stopped:
        read(
            subscribe=lines, value__format="json", value__schema="user BIGINT", value__bad="fail"
        ).collect()

    assert (
        f"offset 1 of {lines}-0 does not fit value.format and value.schema: not a JSON object"
        in error_of(stopped.value)
    )


def test_json_that_does_not_fit_the_schema_is_bad_with_its_field_and_type(topics, read):
    topic = topics.create()
    topics.send(topic, ['{"user": "one"}'])

    (row,) = read(
        subscribe=topic, value__format="json", value__schema="user BIGINT, page STRING"
    ).collect()

    assert row["_bad"].reason == "field user: expected BIGINT, found a string"


def test_a_wrong_type_in_the_schema_is_refused_by_the_name_of_the_option(lines, read):
    with pytest.raises(PySparkException) as refused:
        read(subscribe=lines, value__format="json", value__schema="user BIGNT").collect()

    assert "value.schema: field 'user' has the unknown type 'BIGNT'" in error_of(refused.value)


@pytest.mark.parametrize(
    "ddl",
    [
        "id BIGINT, n int, s: STRING",
        "`odd name` double COMMENT 'it is', last timestamp_ntz",
        "a ARRAY<STRUCT<x: INT, y: STRUCT<z DECIMAL(10,2)>>>, d dec, e decimal(5) NOT NULL",
        "b BOOLEAN, t TINYINT, m SMALLINT, l LONG, f FLOAT, day DATE, at TIMESTAMP, raw BINARY",
        "counts MAP<STRING, ARRAY<BIGINT>>",
    ],
)
def test_a_schema_is_parsed_as_spark_parses_it(spark, ddl):
    from pyspark.sql.types import StructType

    expected = StructType.fromDDL(f"value STRUCT<{ddl}>")["value"].dataType
    for field in expected.fields:
        field.metadata = {}  # comments

    assert parse_fields(ddl) == expected


def test_the_column_of_bad_records_cannot_be_left_out(lines, read):
    with pytest.raises(PySparkException) as refused:
        read(
            subscribe=lines, value__format="json", value__schema="user BIGINT", columns="value"
        ).collect()

    assert "bad records would be lost" in error_of(refused.value)


def test_values_are_read_as_text(topics, read):
    topic = topics.create()
    topics.send(topic, ["héllo", b"\xff", None])

    rows = read(subscribe=topic, value__format="string").orderBy("offset").collect()

    assert [row.value for row in rows] == ["héllo", None, None]
    assert [row["_bad"] is not None for row in rows] == [False, True, False]


SCHEMA = {
    "type": "record",
    "name": "View",
    "fields": [
        {"name": "user", "type": "long"},
        {"name": "page", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def avro(value, prefix=b""):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), value)
    return prefix + out.getvalue()


def test_avro_without_and_with_a_schema_id_in_front(topics, read, tmp_path):
    plain, numbered = topics.create(), topics.create()
    views = [
        {"user": 7, "page": None, "tags": [], "at": 1_700_000_000_000},
        {"user": 8, "page": "/b", "tags": ["x", "y"], "at": 1_700_000_000_001},
    ]
    topics.send(plain, [avro(view) for view in views] + [b"\x01"])
    topics.send(numbered, [avro(view, b"\0\0\0\0\x05") for view in views] + [b"\0\0\0\0\x06x"])
    (tmp_path / "5.avsc").write_text(json.dumps(SCHEMA))
    expected = [(7, None, [], 1_700_000_000_000), (8, "/b", ["x", "y"], 1_700_000_000_001)]

    frames = [
        read(subscribe=plain, value__format="avro", value__schema=json.dumps(SCHEMA)),
        read(subscribe=numbered, value__format="avro", value__avro__directory=tmp_path),
    ]

    for frame in frames:
        assert frame.schema["value"].dataType.simpleString() == (
            "struct<user:bigint,page:string,tags:array<string>,at:timestamp>"
        )
        good = frame.where("_bad IS NULL").orderBy("offset")
        rows = good.selectExpr("value.*", "unix_millis(value.at) AS ms").collect()
        assert [(row.user, row.page, row.tags, row.ms) for row in rows] == expected
        assert frame.where("_bad IS NOT NULL").count() == 1


def test_typed_values_are_read_in_a_stream(lines, read_stream, collected):
    collected.start(
        read_stream(
            subscribe=lines,
            startingOffsets="earliest",
            value__format="json",
            value__schema="user BIGINT",
        ).selectExpr("CAST(value.user AS STRING) AS value", "offset", "_bad"),
        availableNow=True,
    ).finish()

    rows = [row for batch in collected.batches.values() for row in batch]
    assert sorted((row.offset, row.value, row["_bad"] is not None) for row in rows) == [
        (0, "1", False), (1, None, True), (2, "2", False), (3, None, False),
    ]  # fmt: skip
