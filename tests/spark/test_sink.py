"""Rows written to topics, as a stock consumer reads them."""

import threading

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import pyspark_headrace
from tests.spark.kit import error_of, with_options

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def write(spark, bootstrap):
    def save(frame, **options):
        with_options(frame.write.format("headrace").mode("append"), bootstrap, options).save()

    return save


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_a_frame_is_written_with_key_value_headers_and_partition(
    spark, topics, write, delivery, codec
):
    topic = topics.create(partitions=3)
    frame = spark.createDataFrame(
        [
            (b"k1", b"v1", 2, [("h", b"x"), ("n", None)]),
            (None, b"v2", 0, None),
            (b"k3", None, 1, []),
        ],
        "key BINARY, value BINARY, partition INT, headers ARRAY<STRUCT<key STRING, value BINARY>>",
    )

    write(frame, topic=topic, delivery=delivery, kafka__compression__type=codec)

    found = {
        (m.partition(), m.key(), m.value(), tuple(m.headers() or ())) for m in topics.read(topic)
    }
    assert found == {
        (2, b"k1", b"v1", (("h", b"x"), ("n", None))),
        (0, None, b"v2", ()),
        (1, b"k3", None, ()),
    }


def test_a_thread_that_did_not_start_the_session_writes_once_it_activates_it(spark, topics, write):
    topic = topics.create()
    frame = spark.range(3).selectExpr("CAST(id AS STRING) AS value")
    failures = []

    def work():
        try:
            write(frame, topic=topic)
        except Py4JJavaError as failed:
            failures.append(error_of(failed))
        pyspark_headrace.activate(spark)
        write(frame, topic=topic)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(120)

    assert len(failures) == 1 and "DATA_SOURCE_NOT_FOUND" in failures[0]
    assert sorted(message.value() for message in topics.read(topic)) == [b"0", b"1", b"2"]


def test_keys_go_to_the_partitions_that_the_java_producer_chooses(spark, topics, write, bootstrap):
    from confluent_kafka import Producer

    ours, theirs = topics.create(partitions=7), topics.create(partitions=7)
    keys = [f"key-{n}" for n in range(500)]
    frame = spark.createDataFrame([(key, key) for key in keys], "key STRING, value STRING")
    # librdkafka's name for the hash of the Java client.
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(theirs, key, key)
    assert producer.flush(30) == 0

    write(frame, topic=ours)

    place = {m.key(): m.partition() for m in topics.read(theirs)}
    assert {m.key(): m.partition() for m in topics.read(ours)} == place


def test_the_option_topic_precedes_the_column_topic(spark, topics, write):
    first, second = topics.create(), topics.create()
    frame = spark.createDataFrame(
        [(first, "a"), (second, "b"), (first, "c")], "topic STRING, value STRING"
    )

    write(frame)
    write(frame, topic=second)

    assert sorted(m.value() for m in topics.read(first)) == [b"a", b"c"]
    assert sorted(m.value() for m in topics.read(second)) == [b"a", b"b", b"b", b"c"]


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_many_rows_arrive_once_for_any_batch_size(spark, topics, write, delivery):
    topic = topics.create(partitions=4)
    frame = spark.range(0, 20_000, 1, 3).select(
        F.col("id").cast("string").alias("key"),
        F.repeat(F.col("id").cast("string"), 5).alias("value"),
    )

    write(frame, topic=topic, delivery=delivery, kafka__batch__size=4000)

    found = [m.key() for m in topics.read(topic)]
    assert len(found) == 20_000
    assert set(found) == {str(n).encode() for n in range(20_000)}


def test_tasks_above_the_message_size_stage_their_rows(spark, topics, write):
    topic, staging = topics.create(partitions=2), topics.name("staging")
    frame = spark.range(0, 3_000, 1, 2).select(F.col("id").cast("string").alias("value"))

    write(
        frame,
        topic=topic,
        delivery="exactly-once",
        delivery__messageBytesMax=2_000,
        delivery__stagingTopic=staging,
        kafka__batch__size=1_000,
    )

    assert len(topics.read(staging)) == 3_000
    assert sorted(int(m.value()) for m in topics.read(topic)) == list(range(3_000))


def test_a_batch_that_is_too_large_for_the_topic_is_split(spark, topics, write):
    topic = topics.create(max_message_bytes=5_000)
    frame = spark.range(500).select(F.repeat(F.lit("x"), 100).alias("value"))

    write(frame.coalesce(1), topic=topic)
    write(frame.coalesce(1), topic=topic, delivery="exactly-once")

    assert len(topics.read(topic)) == 1_000


def test_later_tasks_of_a_batch_stage_rows_that_the_first_tasks_may_send(spark, topics, write):
    topic, staging = topics.create(), topics.name("staging")
    frame = spark.range(0, 800, 1, 8).select(F.col("id").cast("string").alias("value"))

    # A task's hundred rows take about 1,200 bytes: within the limit for the first five.
    write(
        frame,
        topic=topic,
        delivery="exactly-once",
        delivery__messageBytesMax=2_000,
        delivery__stagingTopic=staging,
        kafka__compression__type="none",
    )

    assert sorted(int(m.value()) for m in topics.read(staging)) == list(range(500, 800))
    assert sorted(int(m.value()) for m in topics.read(topic)) == list(range(800))


def test_rows_above_the_default_batch_limit_pass_through_the_staging_topic(spark, topics, write):
    topic, staging = topics.create(max_message_bytes=4_000_000), topics.name("staging")

    write(
        spark.sql("SELECT repeat('x', 2000000) AS value"),
        topic=topic,
        delivery="exactly-once",
        delivery__messageBytesMax=1_000,
        delivery__stagingTopic=staging,
        kafka__max__request__size=3_000_000,
        kafka__compression__type="none",
    )

    assert [len(message.value()) for message in topics.read(topic)] == [2_000_000]


def test_a_topic_is_copied_whole_without_a_select(topics, read, write):
    source, target = topics.create(partitions=2), topics.create(partitions=2)
    topics.send(source, [("k", "a"), ("l", "b")], partition=1)

    write(read(subscribe=source), topic=target)

    copied = [(m.partition(), m.key(), m.value()) for m in topics.read(target)]
    assert copied == [(1, b"k", b"a"), (1, b"l", b"b")]


REFUSED = {
    "a row larger than the producer allows": (
        "SELECT repeat('x', 5000) AS value", {"kafka__max__request__size": 3000},
        "kafka.max.request.size allows 3000",
    ),
    "a null topic": (
        "SELECT CAST(NULL AS STRING) AS topic, 'v' AS value", {"topic": ""},
        "row 0 of this task has a null topic",
    ),
    "a partition that is not there": (
        "SELECT 9 AS partition, 'v' AS value", {}, "partition 9 of topic",
    ),
    "a negative partition": (
        "SELECT -1 AS partition, 'v' AS value", {}, "partition -1 of topic",
    ),
    "an unknown topic": (
        "SELECT 'v' AS value", {"topic": "pipe-unknown/made", "kafka__max__block__ms": 500},
        "is not a valid topic name",
    ),
    "no value": ("SELECT 'k' AS key", {}, "the column value is missing"),
    "a value of the wrong type": ("SELECT 1 AS value", {}, "'value' must be string or binary"),
    "a column in other letters": (
        "SELECT 'v' AS value, 'k' AS Key", {}, "column 'Key' must be spelled 'key'",
    ),
    "no topic at all": ("SELECT 'v' AS value", {"topic": ""}, "set the option topic"),
    "an unknown option": ("SELECT 'v' AS value", {"colour": "red"}, "no option 'colour'"),
    "an option for reading": (
        "SELECT 'v' AS value", {"subscribe": "t"}, "subscribe is an option for reading",
    ),
    "a Java setting that cannot be": (
        "SELECT 'v' AS value", {"kafka__transactional__id": "x"}, "use delivery=exactly-once",
    ),
    "a wrong delivery": ("SELECT 'v' AS value", {"delivery": "twice"}, "delivery is 'twice'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_write_is_refused_by_name(spark, topics, write, case):
    query, options, reason = REFUSED[case]
    topic = topics.create() if "topic" not in options else ""

    with pytest.raises(PySparkException) as refused:
        write(spark.sql(query), **({"topic": topic} | options))

    assert reason in error_of(refused.value)


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_row_that_is_too_large_for_the_topic_is_refused(spark, topics, write, delivery):
    topic = topics.create(max_message_bytes=5_000)

    with pytest.raises(PySparkException) as refused:
        write(
            spark.sql("SELECT 'small' AS value UNION ALL SELECT repeat('x', 6000)").coalesce(1),
            topic=topic,
            delivery=delivery,
            kafka__compression__type="none",
        )

    told = error_of(refused.value)
    assert "row 1 of its task without a key" in told
    assert f"too large for {topic}-0: raise the topic's max.message.bytes" in told
    if delivery == "exactly-once":
        assert topics.read(topic) == []


def test_rows_without_keys_are_refused_by_a_compacted_topic(spark, topics, write):
    topic = topics.create(cleanup_policy="compact")

    with pytest.raises(PySparkException) as refused:
        write(spark.sql("SELECT 'v' AS value"), topic=topic)

    assert f"cannot write to {topic}-0" in error_of(refused.value)
    assert "a compacted topic requires keys" in error_of(refused.value)


@pytest.mark.parametrize("mode", ["error", "ignore"])
def test_append_mode_is_required(spark, topics, bootstrap, mode):
    frame = spark.sql("SELECT 'v' AS value").write.format("headrace").mode(mode)

    with pytest.raises(PySparkException) as refused:
        with_options(frame, bootstrap, {"topic": topics.create()}).save()

    assert "append" in error_of(refused.value).lower()


def test_a_topic_is_not_overwritten(spark, topics, bootstrap):
    frame = spark.sql("SELECT 'v' AS value").write.format("headrace").mode("overwrite")

    with pytest.raises(PySparkException) as refused:
        with_options(frame, bootstrap, {"topic": topics.create()}).save()

    assert "cannot be overwritten" in error_of(refused.value)
