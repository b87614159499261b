"""The audit with a real broker and real tables: it finds what is missing and what is doubled."""

import time

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from headrace.client.cluster import ClientSettings
from headrace.model.audit import AUDIT_TOPIC, MinuteCounts, reader_name
from headrace.model.ids import TopicPartition, id_to_text
from headrace.pipeline.quality.audit import FINDINGS, audit, keep
from headrace.pipeline.quality.balance import totals
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.warehouse.batch import Batch
from headrace.pipeline.warehouse.files import PartitionedFiles
from headrace.pipeline.warehouse.offsets import Span
from headrace.pipeline.warehouse.rows import DEAD_LETTER_SCHEMA, METADATA_COLUMNS
from headrace.pipeline.warehouse.table import open_or_create
from headrace.spark.cluster import Cluster
from headrace.spark.fetching import RangeReader
from headrace.spark.offsets import Range
from headrace.spark.options import FetchSettings
from headrace.spark.read_counts import ReadCounts
from headrace.testing import Broker

MINUTE = 1_700_000_040_000
SCHEMA = pa.schema([pa.field(name, kind) for name, kind in METADATA_COLUMNS.items()])


@pytest.fixture
def broker():
    with Broker() as running:
        yield running


@pytest.fixture
def cluster(broker):
    made = Cluster(ClientSettings(broker.bootstrap_servers))
    yield made
    made.close()


def produce(broker, counts, timestamps, *, counted=True):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for timestamp in timestamps:
        producer.produce("views", b"{}", timestamp=timestamp, partition=0)
        if counted:
            counts.add("views", timestamp)
    message = counts.take()
    if message is not None:
        for _ in range(2):  # a message that is sent again counts once
            producer.produce(AUDIT_TOPIC, message.value, message.key)
    assert producer.flush(10) == 0


def load(warehouse, topic_id, offsets, timestamps, end, name="a"):
    """Commit these rows as the load would."""
    table = open_or_create(warehouse / "raw" / "views", SCHEMA, [])
    files = PartitionedFiles(table.location, SCHEMA, name)
    rows = [
        {
            "_topic": "views",
            "_topic_id": id_to_text(topic_id),
            "_partition": 0,
            "_offset": offset,
            "_timestamp": timestamps[offset] * 1000,
        }
        for offset in offsets
    ]
    files.add((), pa.RecordBatch.from_pylist(rows, SCHEMA))
    span = Span(TopicPartition("views", 0), topic_id, 0, end)
    table.commit(Batch((span,), files.finish(), SCHEMA, time.time_ns() // 1_000_000))


def topic_id(cluster):
    return cluster.topics(["views"])["views"].topic_id


TIMES = [MINUTE + 10_000 * n for n in range(12)]  # two minutes of six


def test_the_books_balance(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    load(tmp_path, topic_id(cluster), range(12), TIMES, 12)

    found = audit(cluster, tmp_path)

    assert all(one.is_even for one in found)
    assert [(one.tier, one.expected, one.found) for one in totals(found)] == [
        ("broker", 12, 12),
        ("table", 12, 12),
    ]


def test_records_that_are_not_loaded_yet_are_not_missing(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    load(tmp_path, topic_id(cluster), range(5), TIMES, 5)

    found = audit(cluster, tmp_path)

    assert all(one.is_even for one in found)
    assert totals(found)[1].found == 5


def test_missing_and_doubled_rows_are_found_in_their_minute(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    load(tmp_path, topic_id(cluster), [*range(11), 2], TIMES, 12)

    uneven = [one for one in audit(cluster, tmp_path) if not one.is_even]

    assert [(one.tier, one.minute_ms - MINUTE, one.missing, one.surplus) for one in uneven] == [
        ("table", 0, 0, 1),
        ("table", 60_000, 1, 0),
    ]


def test_a_dead_letter_accounts_for_its_record_however_often_it_was_written(
    broker, cluster, tmp_path
):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    load(tmp_path, topic_id(cluster), range(11), TIMES, 12)
    letter = {
        "_topic": "views",
        "_topic_id": id_to_text(topic_id(cluster)),
        "_partition": 0,
        "_offset": 11,
        "_timestamp_ms": TIMES[11],
        "stage": "decode",
    }
    letters = open_or_create(tmp_path / "raw" / "views" / "_dead_letters", DEAD_LETTER_SCHEMA, [])
    files = PartitionedFiles(letters.location, DEAD_LETTER_SCHEMA, "letters")
    files.add((), pa.RecordBatch.from_pylist([letter, letter], DEAD_LETTER_SCHEMA))
    letters.commit(Batch((), files.finish(), DEAD_LETTER_SCHEMA, time.time_ns() // 1_000_000))

    assert all(one.is_even for one in audit(cluster, tmp_path))


def test_records_that_a_producer_counted_and_no_broker_has_are_missing(broker, cluster, tmp_path):
    counts = MinuteCounts("test", "1")
    counts.add("views", MINUTE)
    produce(broker, counts, TIMES)
    produce(broker, MinuteCounts("test", "2"), TIMES[6:8], counted=False)

    first, second = audit(cluster, tmp_path)

    assert (first.tier, first.missing, first.surplus) == ("broker", 1, 0)
    assert (second.tier, second.missing, second.surplus) == ("broker", 0, 2)


def test_findings_are_kept_for_reports(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    found = audit(cluster, tmp_path, ["views"])

    keep(found, tmp_path, MINUTE)
    keep(found, tmp_path, MINUTE + 1)

    rows = DeltaTable(str(tmp_path / FINDINGS)).to_pyarrow_table().to_pylist()
    assert len(rows) == 2 * len(found) == 4
    assert {(row["tier"], row["topic"], row["expected"], row["found"]) for row in rows} == {
        ("broker", "views", 6, 6)
    }


def read_as_a_job(warehouse, cluster, ranges, *, end, query_id="id"):
    """What a query of the pipeline ``shop`` leaves behind when it has read these offsets."""
    reader = ReadCounts(cluster, reader_name("shop", "10s", query_id), 0)
    place = TopicPartition("views", 0)
    for first, offset_end in ranges:
        range_ = Range(place, first, offset_end)
        reader.begin(range_)
        for records in RangeReader(cluster, range_, topic_id(cluster), FetchSettings()):
            reader.add(range_, records)
    for _ in range(2):  # a task that runs again
        reader.publish({"views": topic_id(cluster)})
    directory = PipelineDirectory(warehouse / "_pipelines" / "shop")
    for name, text in (("commits", "v1\n{}"), ("offsets", f'v1\n{{}}\n{{"views":{{"0":{end}}}}}')):
        path = directory.checkpoint("10s") / name / "0"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    directory.record({}, {"10s": "id"})


def test_what_jobs_read_is_compared_with_the_log(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    read_as_a_job(tmp_path, cluster, [(0, 4), (4, 8)], end=8)

    sent, read = totals(audit(cluster, tmp_path))

    assert (sent.tier, sent.found) == ("broker", 12)
    assert (read.tier, read.name, read.topic) == ("job", "shop/10s", "views")
    assert (read.expected, read.found, read.missing, read.surplus) == (8, 8, 0, 0)


def test_records_that_a_job_left_out_are_missing_in_their_minute(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    read_as_a_job(tmp_path, cluster, [(0, 4), (7, 12)], end=12)

    uneven = [one for one in audit(cluster, tmp_path) if not one.is_even]

    assert [(one.tier, one.minute_ms - MINUTE, one.missing) for one in uneven] == [
        ("job", 0, 2),
        ("job", 60_000, 1),
    ]


def test_a_query_that_was_started_over_is_not_compared_with_its_past(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    read_as_a_job(tmp_path, cluster, [(0, 12)], end=12, query_id="before --reset")

    assert [one.tier for one in totals(audit(cluster, tmp_path))] == ["broker"]
