"""Batch reads: columns, ranges, tasks and filters."""

import datetime
import json
import re

import pytest
from pyspark.errors import PySparkException

from tests.spark.kit import error_of, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def values(frame):
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())


def test_columns_and_types_are_those_of_sparks_kafka_source(topics, read):
    topic = topics.create(partitions=2)
    topics.send(topic, [("k", "v")], 1, timestamp=1_700_000_000_123, headers=[("h", b"x")])
    topics.send(topic, [(None, None)], 0, timestamp=1_700_000_000_456)

    plain, full = read(subscribe=topic), read(subscribe=topic, includeHeaders=True)

    assert plain.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    assert full.schema["headers"].dataType.simpleString() == (
        "array<struct<key:string,value:binary>>"
    )
    rows = {row.partition: row for row in full.collect()}
    assert (rows[1].key, rows[1].value, rows[1].topic) == (b"k", b"v", topic)
    assert (rows[1].offset, rows[1].timestampType) == (0, 0)
    assert rows[1].headers[0].asDict() == {"key": "h", "value": b"x"}
    assert (rows[0].key, rows[0].value, rows[0].headers) == (None, None, None)
    moments = full.selectExpr("unix_millis(timestamp) AS ms", "partition").collect()
    assert {row.partition: row.ms for row in moments} == {
        1: 1_700_000_000_123,
        0: 1_700_000_000_456,
    }


def test_topics_are_chosen_by_name_by_pattern_and_by_partition(topics, read):
    first, second = topics.create("alpha", 2), topics.create("alphabet")
    for number, place in enumerate([(first, 0), (first, 1), (second, 0)]):
        topics.send(place[0], [number], place[1])

    assert values(read(subscribe=f"{first}, {second}")) == ["0", "1", "2"]
    assert values(read(subscribePattern=re.escape(first))) == ["0", "1"]
    assert values(read(subscribePattern=f"({re.escape(first)}|{re.escape(second)})")) == [
        "0", "1", "2",
    ]  # fmt: skip
    assert values(read(assign=json.dumps({first: [1], second: [0]}))) == ["1", "2"]


@pytest.fixture(scope="module")
def numbered(topics):
    """Two partitions of ten records, the n-th of each with the time 1,000,000 + n seconds."""
    topic = topics.create("numbered", 2)
    for partition in range(2):
        for n in range(10):
            topics.send(topic, [f"{partition}{n}"], partition, timestamp=(1_000_000 + n) * 1000)
    return topic


def both(topic, first, second):
    return json.dumps({topic: {"0": first, "1": second}})


RANGES = {
    "everything": ({}, range(10), range(10)),
    "from an offset": ({"startingOffsets": (3, -2)}, range(3, 10), range(10)),
    "to an offset": ({"endingOffsets": (3, -1)}, range(3), range(10)),
    "between offsets": (
        {"startingOffsets": (2, 5), "endingOffsets": (4, 5)}, range(2, 4), range(0),
    ),
    "since a time": ({"startingTimestamp": 1_000_007_000}, range(7, 10), range(7, 10)),
    "since between two records": ({"startingTimestamp": 1_000_006_500}, range(7, 10), range(7, 10)),
    "until a time": ({"endingTimestamp": 1_000_002_000}, range(2), range(2)),
    "until a time beyond the end": ({"endingTimestamp": 2_000_000_000}, range(10), range(10)),
    "since a time for each": (
        {"startingOffsetsByTimestamp": (1_000_008_000, 1_000_001_000)}, range(8, 10), range(1, 10),
    ),
    "until a time for each": (
        {"endingOffsetsByTimestamp": (1_000_008_000, 1_000_001_000)}, range(8), range(1),
    ),
    "a time goes before offsets": (
        {"startingTimestamp": 1_000_009_000, "startingOffsets": "earliest"},
        range(9, 10), range(9, 10),
    ),
    "beyond the last record, latest": (
        {"startingTimestamp": 2_000_000_000, "startingOffsetsByTimestampStrategy": "latest"},
        range(0), range(0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RANGES)
def test_a_read_starts_and_ends_at_the_given_limits(numbered, read, case):
    options, first, second = RANGES[case]
    options = {k: both(numbered, *v) if isinstance(v, tuple) else v for k, v in options.items()}

    expected = [f"0{n}" for n in first] + [f"1{n}" for n in second]

    assert values(read(subscribe=numbered, **options)) == expected


REFUSED = {
    "a topic that is not there": ({"subscribe": "pipe-nowhere"}, "pipe-nowhere does not exist"),
    "a time beyond the last record": ({"startingTimestamp": 2_000_000_000}, "has no record at"),
    "a partition left out": (
        {"startingOffsets": '{"TOPIC":{"0":1}}'}, "must name exactly the partitions",
    ),
    "latest as the start": ({"startingOffsets": "latest"}, "cannot be latest in a batch query"),
    "a start beyond the end": (
        {"startingOffsets": '{"TOPIC":{"0":11,"1":0}}'}, "is 11, which is after its endingOffsets",
    ),
    "an end beyond the log": (
        {
            "endingOffsets": '{"TOPIC":{"0":15,"1":0}}',
            "kafkaConsumer.pollTimeoutMs": 2000,
            "kafka.fetch.max.wait.ms": 100,
        },
        "the query reads up to offset 15",
    ),
    "a partition that is not there": (
        {"assign": '{"TOPIC":[0,7]}'}, "-7 does not exist",
    ),
    "an unknown column": ({"columns": "key,colour"}, "columns names colour"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_read_is_refused_by_name(numbered, read, case):
    options, reason = REFUSED[case]
    options = {k: str(v).replace("TOPIC", numbered) for k, v in options.items()}
    if "assign" not in options:
        options = {"subscribe": numbered} | options

    with pytest.raises(PySparkException) as refused:
        read(**options).collect()

    assert reason in error_of(refused.value)


def test_partitions_are_split_for_more_tasks(numbered, read):
    def tasks(**options):
        frame = read(subscribe=numbered, **options)
        assert len(values(frame)) == 20
        return frame.rdd.getNumPartitions()

    assert tasks() == 2
    assert tasks(minPartitions=5) == 5
    assert tasks(maxRecordsPerPartition=3) == 8
    assert tasks(minPartitions=9, maxRecordsPerPartition=3) >= 9


def test_an_empty_topic_has_no_rows(topics, read):
    assert read(subscribe=topics.create()).count() == 0


def test_a_pattern_that_matches_nothing_has_no_rows(topics, read):
    assert read(subscribePattern=re.escape(topics.name("nothing"))).count() == 0


def test_a_frame_keeps_the_rows_of_its_first_use(topics, read):
    topic = topics.create()
    topics.send(topic, ["a"])
    frame = read(subscribe=topic)
    topics.send(topic, ["b"])
    assert values(frame) == ["a", "b"]

    topics.send(topic, ["c"])

    # Spark plans the read of a Python source once, so all uses see the same rows.
    assert values(frame.union(frame)) == ["a", "a", "b", "b"]
    assert values(read(subscribe=topic)) == ["a", "b", "c"]


def test_gaps_from_compaction_are_not_data_loss(topics, read, read_stream, collected):
    topic = topics.create(
        cleanup_policy="compact",
        segment_bytes=1 << 20,
        min_cleanable_dirty_ratio=0.01,
        delete_retention_ms=0,
    )
    # Large enough to roll segments; only closed segments are compacted.
    topics.send(topic, [(f"k{n % 7}", f"{n:04}" + 9_000 * "x") for n in range(500)])
    wait_for(lambda: len(topics.read(topic)) < 250, "compaction")
    left = sorted(message.value().decode() for message in topics.read(topic))

    collected.start(
        read_stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=100),
        availableNow=True,
    ).finish()

    assert values(read(subscribe=topic, minPartitions=4)) == left
    assert sorted(collected.values()) == left


def test_rows_deleted_by_retention_are_an_error_or_a_warning(topics, read):
    topic = topics.create()
    topics.send(topic, range(10))
    topics.delete_records(topic, 0, 6)
    options = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 2}})}

    with pytest.raises(PySparkException) as refused:
        read(**options).collect()
    assert "offsets 2 to 5 are gone" in error_of(refused.value)
    assert values(read(failOnDataLoss=False, **options)) == ["6", "7", "8", "9"]


def test_transactions_are_read_by_isolation_level_without_data_loss(topics, read, bootstrap):
    from confluent_kafka import Producer

    topic = topics.create()
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topics.name("txn")})
    producer.init_transactions(30)
    for number, commit in enumerate([True, False, True, False]):
        producer.begin_transaction()
        for n in range(3):
            producer.produce(topic, f"{number}{n}")
        assert producer.flush(30) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(30)

    committed = values(read(subscribe=topic, kafka__isolation__level="read_committed"))
    everything = values(read(subscribe=topic))

    assert committed == ["00", "01", "02", "20", "21", "22"]
    assert everything == [f"{number}{n}" for number in range(4) for n in range(3)]


def test_columns_are_narrowed_by_option_and_by_schema(numbered, read):
    by_option = read(subscribe=numbered, columns="offset,value")
    by_schema = read(subscribe=numbered, schema="value BINARY, partition INT")

    assert by_option.columns == ["offset", "value"]
    assert by_schema.columns == ["value", "partition"]
    assert values(by_option) == values(by_schema) == values(read(subscribe=numbered))


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_filters_give_the_same_rows_whether_they_are_pushed_down_or_not(
    spark, numbered, read, enabled
):
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, enabled)

    def found(condition, **options):
        return values(read(subscribe=numbered, pushFilters=True, **options).where(condition))

    try:
        assert found("offset >= 8 AND partition = 1") == ["18", "19"]
        assert found("timestamp >= timestamp_millis(1000007000)") == [
            "07", "08", "09", "17", "18", "19",
        ]  # fmt: skip
        assert found("timestamp < timestamp_millis(1000001000)") == ["00", "10"]
        assert found(f"topic = '{numbered}x'") == []
        assert found("offset IN (1, 9) AND partition <> 0") == ["11", "19"]
        early = "timestamp < timestamp_millis(1000001000)"
        assert found(early, timestampDisorder="0") == ["00", "10"]
    finally:
        spark.conf.set(name, before)


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_filters_do_not_affect_the_next_use_of_a_frame(spark, numbered, read, enabled):
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, enabled)
    try:
        frame = read(subscribe=numbered)
        first, last = frame.where("offset < 1"), frame.where("offset > 8")
        assert first.count() == 2
        assert frame.count() == 20
        assert first.union(last).count() == 4
        assert first.union(frame).count() == 22
    finally:
        spark.conf.set(name, before)


def test_pushed_filters_reach_the_reader(spark, numbered, read):
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, "true")
    try:
        frame = read(subscribe=numbered, pushFilters=True, maxRecordsPerPartition=1)
        # One task for each row that remains.
        assert frame.where("offset > 7 AND partition = 1").rdd.getNumPartitions() == 2
    finally:
        spark.conf.set(name, before)


def test_the_source_is_found_without_being_registered_and_reports_unknown_options(spark, bootstrap):
    with pytest.raises(PySparkException) as refused:
        spark.read.format("headrace").option("kafka.bootstrap.servers", bootstrap).option(
            "subscribe", "t"
        ).option("colour", "red").load()

    assert "no option 'colour'" in error_of(refused.value)


def test_a_timestamp_in_the_session_time_zone_is_that_of_the_record(numbered, read):
    row = read(subscribe=numbered).where("partition = 0 AND offset = 0").first()

    assert row.timestamp.astimezone(datetime.UTC) == datetime.datetime.fromtimestamp(
        1_000_000, datetime.UTC
    )
