"""Streams: batches, restarts, progress and data loss."""

import json
import random
import re
import threading

import pytest
from pyspark.sql.functions import window

from headrace.testing import Broker
from tests.spark.kit import Collected, Topics, wait_for, with_options

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_available_now_reads_all_rows_and_ends(topics, read_stream, collected):
    topic = topics.create(partitions=3)
    for partition in range(3):
        topics.send(topic, [f"{partition}-{n}" for n in range(20)], partition)

    collected.start(
        read_stream(subscribe=topic, startingOffsets="earliest"), availableNow=True
    ).finish()

    assert sorted(collected.values()) == sorted(f"{p}-{n}" for p in range(3) for n in range(20))
    assert sum(told["numInputRows"] for told in collected.query.recentProgress) == 60


def test_a_restarted_query_continues_at_its_checkpoint(topics, read_stream, collected):
    topic = topics.create()
    topics.send(topic, range(5))
    frame = read_stream(subscribe=topic, startingOffsets="earliest")
    collected.start(frame, availableNow=True).finish()
    topics.send(topic, range(5, 8))

    collected.start(frame, once=True).finish()

    assert collected.values() == [str(n) for n in range(8)]


def test_a_stream_starts_at_the_end_by_default(topics, read_stream, collected):
    topic = topics.create()
    topics.send(topic, ["old"])
    collected.start(read_stream(subscribe=topic), processingTime="100 milliseconds")
    wait_for(lambda: collected.query.lastProgress is not None, "the first trigger")

    topics.send(topic, ["new"])

    collected.wait_for_values(1)
    assert collected.values() == ["new"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": '{"TOPIC":{"0":3}}'}, "3456"),
        ({"startingTimestamp": "1005"}, "56"),
        ({"startingOffsetsByTimestamp": '{"TOPIC":{"0":1006}}'}, "6"),
        ({"startingTimestamp": "2000", "startingOffsetsByTimestampStrategy": "latest"}, ""),
        ({"assign": '{"TOPIC":[0]}', "startingOffsets": "earliest"}, "0123456"),
    ],
)
def test_a_stream_starts_at_the_given_offsets(topics, read_stream, collected, options, expected):
    topic = topics.create()
    for n in range(7):
        topics.send(topic, [n], timestamp=1000 + n)
    options = {name: value.replace("TOPIC", topic) for name, value in options.items()}

    if "assign" not in options:
        options["subscribe"] = topic
    collected.start(read_stream(**options), availableNow=True).finish()

    assert "".join(collected.values()) == expected


def test_batches_stay_within_the_row_limit(topics, read_stream, collected):
    topic = topics.create(partitions=2)
    topics.send(topic, range(30), 0)
    topics.send(topic, range(10), 1)

    collected.start(
        read_stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=10),
        availableNow=True,
    ).finish()

    sizes = [len(rows) for rows in collected.batches.values() if rows]
    assert sum(sizes) == 40
    assert max(sizes) <= 10
    assert len(sizes) <= 6


def test_the_largest_possible_limit_has_no_effect(topics, read_stream, collected):
    topic = topics.create(partitions=2)
    topics.send(topic, range(10), 0)
    topics.send(topic, range(10), 1)

    frame = read_stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=2**63 - 1)
    collected.start(frame, availableNow=True).finish()

    assert [len(rows) for rows in collected.batches.values() if rows] == [20]


def test_a_batch_waits_for_rows_but_not_longer_than_its_delay(topics, read_stream, tmp_path):
    topic = topics.create()
    topics.send(topic, range(5))
    waiting, patient = Collected(tmp_path / "waiting"), Collected(tmp_path / "patient")
    options = {"subscribe": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": 10}
    waiting.start(read_stream(maxTriggerDelay="1h", **options))
    patient.start(read_stream(maxTriggerDelay="1s", **options))
    # The first batch of a query does not wait, as in Spark's Kafka source.
    waiting.wait_for_values(5)
    patient.wait_for_values(5)

    topics.send(topic, range(5, 9))
    patient.wait_for_values(9)
    assert len(waiting.values()) == 5
    topics.send(topic, range(9, 20))

    waiting.wait_for_values(20)
    assert [len(rows) for rows in waiting.batches.values() if rows][:2] == [5, 15]


def test_progress_is_committed_to_the_group_after_every_batch(topics, read_stream, collected):
    topic = topics.create(partitions=2)
    topics.send(topic, range(7), 0)
    topics.send(topic, range(4), 1)
    group = topics.name("group")

    collected.start(
        read_stream(subscribe=topic, startingOffsets="earliest", kafka__group__id=group),
        availableNow=True,
    ).finish()

    assert topics.committed(group, topic) == {0: 7, 1: 4}


def test_an_idle_query_commits_its_last_batch_and_shows_the_newest_offsets(
    topics, read_stream, collected
):
    topic = topics.create()
    group = topics.name("group")
    collected.start(
        read_stream(subscribe=topic, startingOffsets="earliest", kafka__group__id=group)
    )
    topics.send(topic, range(3))
    collected.wait_for_values(3)

    wait_for(lambda: topics.committed(group, topic) == {0: 3}, "the commit")
    newest = collected.query.lastProgress["sources"][0]["latestOffset"]
    assert (json.loads(newest) if isinstance(newest, str) else newest) == {topic: {"0": 3}}


def test_the_group_is_drawn_once_and_kept_in_the_checkpoint(topics, read_stream, collected):
    topic = topics.create()
    prefix = topics.name("drawn")
    frame = read_stream(subscribe=topic, startingOffsets="earliest", groupIdPrefix=prefix)
    for n in range(2):
        topics.send(topic, [n])
        collected.start(frame, availableNow=True).finish()

    groups = [g.group_id for g in topics.admin.list_consumer_groups().result(30).valid]
    (group,) = [name for name in groups if name.startswith(prefix)]
    assert topics.committed(group, topic) == {0: 2}
    told = collected.query.lastProgress["sources"][0]["endOffset"]
    ours = json.loads(told)["#headrace"]
    assert ours["group"] == group == f"{prefix}-{ours['query']}"


def test_a_refused_commit_stops_nothing(topics, read_stream, collected, bootstrap):
    from confluent_kafka import Consumer

    topic = topics.create()
    topics.send(topic, range(3))
    group = topics.name("taken")
    member = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    try:
        member.subscribe([topic])
        wait_for(lambda: member.poll(0.1) is not None or member.assignment(), "the member")

        collected.start(
            read_stream(subscribe=topic, startingOffsets="earliest", kafka__group__id=group),
            availableNow=True,
        ).finish()

        assert collected.values() == ["0", "1", "2"]
        assert topics.committed(group, topic).get(0, -1) < 0  # it was refused
    finally:
        member.close()


def test_new_partitions_are_picked_up_from_their_beginning(topics, read_stream, collected):
    topic = topics.create()
    topics.send(topic, ["a"])
    collected.start(read_stream(subscribe=topic, startingOffsets="earliest"))
    collected.wait_for_values(1)

    topics.add_partitions(topic, 2)
    topics.send(topic, ["b", "c"], 1)

    collected.wait_for_values(3)
    assert sorted(collected.values()) == ["a", "b", "c"]


def test_new_topics_that_match_the_pattern_are_picked_up(topics, read_stream, collected):
    first = topics.create("match")
    topics.send(first, ["a"])
    collected.start(
        read_stream(subscribePattern=re.escape(first) + ".*", startingOffsets="earliest")
    )
    collected.wait_for_values(1)

    second = topics.create(name=f"{first}-second")
    topics.send(second, ["b"])

    collected.wait_for_values(2)
    assert sorted(collected.values()) == ["a", "b"]


def test_a_topic_of_the_pattern_may_be_deleted_if_loss_is_allowed(topics, read_stream, collected):
    first = topics.create("goes")
    second = topics.create(name=f"{first}-stays")
    for topic in (first, second):
        topics.send(topic, [topic])
    collected.start(
        read_stream(
            subscribePattern=re.escape(first) + ".*",
            startingOffsets="earliest",
            failOnDataLoss=False,
        )
    )
    collected.wait_for_values(2)

    topics.delete(first)
    topics.send(second, ["more"])

    collected.wait_for_values(3)
    assert collected.values()[2:] == ["more"]


def failure_of(collected):
    wait_for(lambda: not collected.query.isActive, "the query to fail")
    return str(collected.query.exception())


def test_a_deleted_topic_stops_the_query(topics, read_stream, collected):
    topic = topics.create()
    topics.send(topic, range(3))
    collected.start(read_stream(subscribe=topic, startingOffsets="earliest"))
    collected.wait_for_values(3)

    topics.delete(topic)

    assert f"{topic}-0 no longer exists; the query was at offset 3" in failure_of(collected)


def test_a_topic_deleted_between_the_batches_of_an_available_now_query_stops_it(
    topics, read_stream, tmp_path
):
    topic = topics.create()
    topics.send(topic, range(20))
    rows = []

    def keep(batch, batch_id):
        rows.extend(batch.collect())
        if batch_id == 0:
            topics.delete(topic)

    query = (
        read_stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=10)
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )

    wait_for(lambda: not query.isActive, "the query to fail")
    assert "no longer exists" in str(query.exception())
    assert len(rows) == 10


def test_a_topic_created_again_is_noticed_even_past_the_old_offsets(
    topics, read_stream, collected, tmp_path
):
    topic = topics.create()
    topics.send(topic, range(3))
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    collected.start(read_stream(**options), availableNow=True).finish()
    topics.delete(topic)
    topics.create(name=topic)
    topics.send(topic, range(100, 110))

    collected.start(read_stream(**options), availableNow=True)
    assert "was deleted and created again" in failure_of(collected)
    collected.start(read_stream(failOnDataLoss=False, **options), availableNow=True).finish()

    assert collected.values() == [str(n) for n in [*range(3), *range(100, 110)]]


def test_a_query_continues_with_a_re_created_topic_if_loss_is_allowed(
    topics, read_stream, collected
):
    topic = topics.create()
    topics.send(topic, range(3))
    collected.start(read_stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss=False))
    collected.wait_for_values(3)

    topics.delete(topic)
    topics.create(name=topic)
    topics.send(topic, range(10, 12))

    collected.wait_for_values(5)
    assert collected.values()[3:] == ["10", "11"]


@pytest.mark.parametrize("allowed", [False, True])
def test_rows_deleted_by_retention_between_two_runs(topics, read_stream, collected, allowed):
    topic = topics.create()
    topics.send(topic, range(3))
    frame = read_stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss=not allowed)
    collected.start(frame, availableNow=True).finish()
    topics.send(topic, range(3, 10))
    topics.delete_records(topic, 0, 8)

    collected.start(frame, availableNow=True)
    if not allowed:
        assert "offsets 3 to 7 are gone" in failure_of(collected)
        return
    collected.finish()

    assert collected.values() == ["0", "1", "2", "8", "9"]


def test_a_query_that_died_in_its_first_batch_repeats_it_from_the_same_start(
    topics, read_stream, tmp_path
):
    """Spark asks for "latest" again, which has moved by then."""
    topic = topics.create()
    topics.send(topic, ["before"])
    frame = read_stream(subscribe=topic)

    def die(batch, batch_id):
        if batch.count():
            raise RuntimeError("died in the first batch")

    def start(function):
        writer = frame.writeStream.foreachBatch(function)
        return writer.option("checkpointLocation", str(tmp_path / "c")).start()

    query = start(die)
    wait_for(lambda: query.lastProgress is not None, "the first trigger")
    topics.send(topic, ["first", "second"])
    wait_for(lambda: not query.isActive, "the query to die")
    topics.send(topic, ["third"])
    rows = []
    query = start(lambda batch, _: rows.extend(batch.collect()))
    wait_for(lambda: len(rows) >= 3 or not query.isActive, "all rows")

    assert [bytes(row.value).decode() for row in rows] == ["first", "second", "third"]


def test_a_checkpoint_of_sparks_kafka_source_is_continued(topics, read_stream, collected):
    topic = topics.create()
    topics.send(topic, range(4))
    frame = read_stream(subscribe=topic, startingOffsets="earliest")
    collected.start(frame, availableNow=True).finish()
    for log in (collected.checkpoint / "offsets").glob("[0-9]*"):
        lines = log.read_text().splitlines()
        lines[2] = json.dumps({topic: json.loads(lines[2])[topic]})
        log.write_text("\n".join(lines))
        (log.parent / f".{log.name}.crc").unlink(missing_ok=True)
    topics.send(topic, ["more"])

    collected.start(frame, availableNow=True).finish()

    assert collected.values() == ["0", "1", "2", "3", "more"]


def test_a_stream_is_split_into_more_tasks(topics, read_stream, collected):
    topic = topics.create()
    topics.send(topic, range(40))
    counts = []

    def count(batch, batch_id):
        counts.append(batch.rdd.getNumPartitions())
        collected.batches[batch_id] = batch.collect()

    query = (
        read_stream(subscribe=topic, startingOffsets="earliest", minPartitions=4)
        .writeStream.foreachBatch(count)
        .trigger(availableNow=True)
        .option("checkpointLocation", str(collected.checkpoint))
        .start()
    )

    assert query.awaitTermination(120)
    assert counts[0] == 4
    assert sorted(map(int, collected.values())) == list(range(40))


def test_read_committed_skips_gaps_without_data_loss(topics, read_stream, collected, bootstrap):
    from confluent_kafka import Producer

    topic = topics.create()
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topics.name("txn")})
    producer.init_transactions(30)
    collected.start(
        read_stream(
            subscribe=topic,
            startingOffsets="earliest",
            kafka__isolation__level="read_committed",
        )
    )
    for number, commit in enumerate([False, True, False, True]):
        producer.begin_transaction()
        producer.produce(topic, str(number))
        assert producer.flush(30) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(30)

    collected.wait_for_values(2)
    assert collected.values() == ["1", "3"]


def test_a_stream_joined_with_itself_reads_the_topic_for_both_sides(
    spark, topics, read_stream, tmp_path
):
    topic = topics.create(partitions=2)
    topics.send(topic, range(10), 0)
    topics.send(topic, range(10, 20), 1)
    numbers = read_stream(subscribe=topic, startingOffsets="earliest").selectExpr(
        "CAST(CAST(value AS STRING) AS INT) AS n"
    )
    joined = numbers.alias("a").join(numbers.alias("b"), "n")
    rows = []

    query = (
        joined.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )

    assert query.awaitTermination(120)
    assert sorted(row.n for row in rows) == list(range(20))


def test_an_idle_topic_keeps_its_offset_beside_a_busy_one(topics, read_stream, collected):
    idle, busy = topics.create("idle"), topics.create("busy")
    topics.send(idle, ["once"])
    frames = [read_stream(subscribe=name, startingOffsets="earliest") for name in (idle, busy)]
    frame = frames[0].union(frames[1])
    for n in range(3):
        topics.send(busy, [n])
        collected.start(frame, availableNow=True).finish()

    assert sorted(collected.values()) == ["0", "1", "2", "once"]


def test_record_timestamps_drive_a_watermark(topics, read_stream, tmp_path):
    topic = topics.create()
    frame = (
        read_stream(subscribe=topic, startingOffsets="earliest")
        .withWatermark("timestamp", "10 seconds")
        .groupBy(window("timestamp", "5 seconds"))
        .count()
        .selectExpr("CAST(window.start AS LONG) AS start", "count")
    )
    rows = []

    def run():
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
            .option("checkpointLocation", str(tmp_path / "c"))
            .outputMode("append")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    for second in (10, 11, 15, 25):
        topics.send(topic, [second], timestamp=second * 1000)
    run()
    # The watermark is at 15 now, and this record is too late.
    topics.send(topic, ["late"], timestamp=12_000)
    topics.send(topic, ["next"], timestamp=31_000)
    run()

    assert [(row.start, row["count"]) for row in rows] == [(10, 2), (15, 1)]


def test_each_row_is_read_once_while_topics_and_the_broker_change(spark, tmp_path):
    """Random steps: rows, partitions, topics and restarts while a query runs."""
    dice = random.Random(5)
    with Broker(process=True) as broker:
        topics = Topics(broker.bootstrap_servers)
        prefix = topics.name("stress")
        # Small segments and large rows, so that logs roll while they are read.
        counts = {topics.create(name=f"{prefix}-0", segment_bytes=1 << 20): 1}
        collected = Collected(tmp_path / "c")
        frame = with_options(
            spark.readStream.format("headrace"),
            broker.bootstrap_servers,
            {
                "subscribePattern": re.escape(prefix) + ".*",
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": 300,
            },
        ).load()
        collected.start(frame, processingTime="200 milliseconds")
        sent = 0
        for step in range(40):
            topic = dice.choice(list(counts))
            what = "restart" if step in (13, 27) else dice.choice(["rows"] * 6 + ["part", "topic"])
            if what == "restart":
                broker.restart()
            elif what == "part":
                counts[topic] += 1
                topics.add_partitions(topic, counts[topic])
            elif what == "topic":
                counts[topics.create(name=f"{prefix}-{step}", segment_bytes=1 << 20)] = 1
            else:
                rows = dice.randrange(1, 200)
                values = [f"{n} {'x' * 5_000}" for n in range(sent, sent + rows)]
                topics.send(topic, values, dice.randrange(counts[topic]))
                sent += rows
        collected.wait_for_values(sent)
        collected.stop()

    assert sorted(int(value.split()[0]) for value in collected.values()) == list(range(sent))


def test_a_broker_restart_during_a_batch_loses_no_row(spark, tmp_path):
    with Broker(process=True) as broker:
        topics = Topics(broker.bootstrap_servers)
        topic = topics.create(partitions=2)
        for partition in range(2):
            topics.send(topic, [f"{partition}-{n:05}" + "x" * 200 for n in range(5000)], partition)
        frame = with_options(
            spark.read.format("headrace"),
            broker.bootstrap_servers,
            # Many small fetches, so that the broker restarts between two of them.
            {"subscribe": topic, "kafka.max.partition.fetch.bytes": 10_000},
        ).load()
        restarts = threading.Thread(target=lambda: [broker.restart() for _ in range(3)])
        restarts.start()
        try:
            rows = [bytes(row.value)[:7].decode() for row in frame.select("value").collect()]
        finally:
            restarts.join()

    assert sorted(rows) == [f"{partition}-{n:05}" for partition in range(2) for n in range(5000)]
