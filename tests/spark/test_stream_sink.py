"""Streams that write at least once: topics, output modes and refused options."""

import pytest
from pyspark.errors import PySparkException

from tests.spark.kit import error_of, with_options

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def write_stream(bootstrap, tmp_path):
    """Write all available rows; options go to the sink."""

    def run(frame, mode="append", **options):
        options = {"checkpointLocation": tmp_path / "c", **options}
        writer = with_options(frame.writeStream.format("headrace"), bootstrap, options)
        query = writer.outputMode(mode).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return query

    return run


def values(topics, topic):
    return sorted(message.value().decode() for message in topics.read(topic))


def test_rows_go_to_the_topic_of_their_column(topics, read_stream, write_stream):
    source, even, odd = topics.create(), topics.create(), topics.create()
    topics.send(source, range(10))
    frame = read_stream(subscribe=source, startingOffsets="earliest").selectExpr(
        f"IF(CAST(CAST(value AS STRING) AS INT) % 2 = 0, '{even}', '{odd}') AS topic", "value"
    )

    write_stream(frame)

    assert values(topics, even) == list("02468")
    assert values(topics, odd) == list("13579")


def test_the_option_topic_precedes_the_column_topic(topics, read_stream, write_stream):
    source, target = topics.create(), topics.create()
    topics.send(source, range(3))
    frame = read_stream(subscribe=source, startingOffsets="earliest").select("topic", "value")

    write_stream(frame, topic=target)

    assert values(topics, target) == list("012")
    assert values(topics, source) == list("012")


def counts_of(read_stream, source):
    counts = read_stream(subscribe=source, startingOffsets="earliest").groupBy("value").count()
    return counts.selectExpr("value AS key", "concat(CAST(value AS STRING), '=', count) AS value")


def test_complete_mode_writes_all_counts_each_time(topics, read_stream, write_stream):
    source, target = topics.create(), topics.create()
    counts = counts_of(read_stream, source)
    for letters in ("aba", "a"):
        topics.send(source, letters)
        write_stream(counts, "complete", topic=target)

    assert values(topics, target) == ["a=2", "a=3", "b=1", "b=1"]


def test_update_mode_is_written_once_through_foreach_batch(
    topics, read_stream, bootstrap, tmp_path
):
    """Spark refuses this mode for Python sinks; docs/spark.md shows this way."""
    source, target = topics.create(), topics.create()
    counts = counts_of(read_stream, source)
    name = topics.name("counts")

    def land(batch, batch_id):
        options = {
            "topic": target,
            "delivery": "exactly-once",
            "delivery.id": name,
            "delivery.batch": batch_id,
        }
        for _ in range(2):  # as if the first run had died after its commit
            writer = batch.write.format("headrace").mode("append")
            with_options(writer, bootstrap, dict(options)).save()

    for letters in ("aba", "a"):
        topics.send(source, letters)
        query = (
            counts.writeStream.foreachBatch(land)
            .option("checkpointLocation", str(tmp_path / "c"))
            .outputMode("update")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    assert values(topics, target) == ["a=2", "a=3", "b=1"]


REFUSED = {
    "no topic": (("value",), {}, "set the option topic"),
    "no value": (("key",), {"topic": "t"}, "the column value is missing"),
    "a wrong type": (("offset AS value",), {"topic": "t"}, "'value' must be string or binary"),
    "a null topic": (("CAST(NULL AS STRING) AS topic", "value"), {}, "has a null topic"),
    "a topic that cannot be": (("value",), {"topic": "no/name"}, "is not a valid topic name"),
    "a serializer": (
        ("value",), {"topic": "t", "kafka__value__serializer": "x"}, "keys and values are bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_stream_is_refused_by_name(topics, read_stream, write_stream, case):
    columns, options, reason = REFUSED[case]
    source = topics.create()
    topics.send(source, ["x"])
    frame = read_stream(subscribe=source, startingOffsets="earliest").selectExpr(*columns)

    with pytest.raises(PySparkException) as refused:
        write_stream(frame, **options)

    assert reason in error_of(refused.value)
