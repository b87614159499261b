"""The audit with a real broker and real tables: it finds what is missing and what is doubled."""

import shutil
import time
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from headrace.client.cluster import ClientSettings
from headrace.client.errors import Refused
from headrace.model.audit import AUDIT_TOPIC, AUDIT_TOPIC_CONFIGS, MinuteCounts, reader_name
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition, id_to_text
from headrace.pipeline.quality.audit import FINDINGS, Lost, audit, keep
from headrace.pipeline.quality.balance import Balance, Tier, totals
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.warehouse.batch import Batch
from headrace.pipeline.warehouse.files import PartitionedFiles, unique_name
from headrace.pipeline.warehouse.load_counts import LoadCounts
from headrace.pipeline.warehouse.offsets import Span
from headrace.pipeline.warehouse.retention import remove_before
from headrace.pipeline.warehouse.rows import DEAD_LETTER_SCHEMA, METADATA_COLUMNS
from headrace.pipeline.warehouse.storage import Location, location_of
from headrace.pipeline.warehouse.table import open_or_create
from headrace.spark.cluster import Cluster
from headrace.spark.failures import PipelineError
from headrace.spark.fetching import RangeReader
from headrace.spark.offsets import Range
from headrace.spark.options import FetchSettings
from headrace.spark.read_counts import RangeCounts, ReadCounts
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


def produce(broker, counts, timestamps, *, counted=True, published_at=0):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for timestamp in timestamps:
        producer.produce("views", b"{}", timestamp=timestamp, partition=0)
        if counted:
            counts.add("views", timestamp)
    message = counts.take()
    if message is not None:
        for _ in range(2):  # a message that is sent again counts once
            producer.produce(AUDIT_TOPIC, message.value, message.key, timestamp=published_at)
    assert producer.flush(10) == 0


def load(warehouse, topic_id, offsets, timestamps, end, *, first=0, place="raw/views"):
    """Commit these rows as the load would."""
    table = open_or_create(warehouse / place, SCHEMA, [])
    files = PartitionedFiles(table.location, SCHEMA, unique_name())
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
    span = Span(TopicPartition("views", 0), topic_id, first, end)
    table.commit(Batch((span,), files.finish(), SCHEMA, time.time_ns() // 1_000_000))
    return table


def topic_id(cluster):
    return cluster.topics(["views"])["views"].topic_id


TIMES = [MINUTE + 10_000 * n for n in range(12)]  # two minutes of six


def test_the_books_balance(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    load(tmp_path, topic_id(cluster), range(12), TIMES, 12)

    found = audit(cluster, tmp_path).balances

    assert all(one.is_even for one in found)
    assert [(one.tier, one.expected, one.found) for one in totals(found)] == [
        ("broker", 12, 12),
        ("table", 12, 12),
    ]


def test_records_that_are_not_loaded_yet_are_not_missing(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    load(tmp_path, topic_id(cluster), range(5), TIMES, 5)

    found = audit(cluster, tmp_path).balances

    assert all(one.is_even for one in found)
    assert totals(found)[1].found == 5


def test_missing_and_doubled_rows_are_found_in_their_minute(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    load(tmp_path, topic_id(cluster), [*range(11), 2], TIMES, 12)

    uneven = [one for one in audit(cluster, tmp_path).balances if not one.is_even]

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

    assert all(one.is_even for one in audit(cluster, tmp_path).balances)


def test_records_that_a_producer_counted_and_no_broker_has_are_missing(broker, cluster, tmp_path):
    counts = MinuteCounts("test", "1")
    counts.add("views", MINUTE)
    produce(broker, counts, TIMES)
    produce(broker, MinuteCounts("test", "2"), TIMES[6:8], counted=False)

    first, second = audit(cluster, tmp_path).balances

    assert (first.tier, first.missing, first.surplus) == ("broker", 1, 0)
    assert (second.tier, second.missing, second.surplus) == ("broker", 0, 2)


def test_findings_are_kept_for_reports(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    found = audit(cluster, tmp_path, ["views"]).balances

    keep(found, tmp_path, MINUTE)
    keep(found, tmp_path, MINUTE + 1)

    rows = DeltaTable(str(tmp_path / FINDINGS)).to_pyarrow_table().to_pylist()
    assert len(rows) == 2 * len(found) == 4
    assert {(row["tier"], row["topic"], row["expected"], row["found"]) for row in rows} == {
        ("broker", "views", 6, 6)
    }


@pytest.mark.parametrize("minute_ms", [1 << 62, -(1 << 62), 10**400])
def test_a_timestamp_that_is_no_date_is_kept_as_the_first_or_the_last(tmp_path, minute_ms):
    keep([Balance(Tier.BROKER, "", "views", minute_ms, 1, 1)], tmp_path, MINUTE)

    (row,) = DeltaTable(str(tmp_path / FINDINGS)).to_pyarrow_table().to_pylist()
    assert row["minute"].year == (9999 if minute_ms > 0 else 1)


def read_as_a_job(warehouse, cluster, ranges, *, end, query_id="id", batch=0):
    """What a query of the pipeline ``shop`` leaves behind when it has read these offsets."""
    reader = ReadCounts(cluster, reader_name("shop", "10s", query_id), batch)
    place = TopicPartition("views", 0)
    for first, offset_end in ranges:
        range_ = Range(place, first, offset_end)
        reader.begin(range_, topic_id(cluster))
        for records in RangeReader(cluster, range_, topic_id(cluster), FetchSettings()):
            reader.add(records)
    for _ in range(2):  # a task that runs again
        reader.publish()
    directory = PipelineDirectory(warehouse / "_pipelines" / "shop")
    for name, text in (("commits", "v1\n{}"), ("offsets", f'v1\n{{}}\n{{"views":{{"0":{end}}}}}')):
        path = directory.checkpoint("10s") / name / str(batch)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    directory.record({}, {"10s": "id"})


def test_what_jobs_read_is_compared_with_the_log(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    read_as_a_job(tmp_path, cluster, [(0, 4), (4, 8)], end=8)

    sent, read = totals(audit(cluster, tmp_path).balances)

    assert (sent.tier, sent.found) == ("broker", 12)
    assert (read.tier, read.name, read.topic) == ("job", "shop/10s", "views")
    assert (read.expected, read.found, read.missing, read.surplus) == (8, 8, 0, 0)


def test_records_that_a_job_left_out_are_missing_in_their_minute(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    read_as_a_job(tmp_path, cluster, [(0, 4), (7, 12)], end=12)

    uneven = [one for one in audit(cluster, tmp_path).balances if not one.is_even]

    assert [(one.tier, one.minute_ms - MINUTE, one.missing) for one in uneven] == [
        ("job", 0, 2),
        ("job", 60_000, 1),
    ]


def test_a_query_that_was_started_over_is_not_compared_with_its_past(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    read_as_a_job(tmp_path, cluster, [(0, 12)], end=12, query_id="before --reset")

    assert [one.tier for one in totals(audit(cluster, tmp_path).balances)] == ["broker"]


# --- records that are no counts -----------------------------------------------------------------


def test_a_record_that_is_no_message_is_named_and_the_others_count(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for key, value in (
        (b"a", b"no JSON"),
        (b"b", b"{}"),
        (b"a", b"[]"),
        (b"c", b"{}"),
        (b"c", None),
    ):
        producer.produce(AUDIT_TOPIC, value, key)
    assert producer.flush(10) == 0

    found = audit(cluster, tmp_path)

    # The first two records are the counts. Another value for a key replaces the one before.
    assert sorted((one.partition, one.offset) for one in found.unreadable) == [(0, 3), (0, 4)]
    assert all("not a message of the audit" in one.reason for one in found.unreadable)
    assert all(one.is_even for one in found.balances)
    assert [(one.tier, one.found) for one in totals(found.balances)] == [("broker", 12)]


# --- what retention removed ---------------------------------------------------------------------


def delete_records(broker, offset, topic="views"):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for done in admin.delete_records([Place(topic, 0, offset)]).values():
        done.result(10)


@pytest.mark.parametrize("offset", [8, 12])
def test_rows_whose_records_left_the_log_are_not_compared(broker, cluster, tmp_path, offset):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    load(tmp_path, topic_id(cluster), range(12), TIMES, 12)
    delete_records(broker, offset)

    found = audit(cluster, tmp_path).balances

    assert all(one.is_even for one in found)
    assert sum(one.found for one in found if one.tier == "table") == 12 - offset


def test_a_row_that_is_missing_beside_a_deleted_one_is_missing(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    load(tmp_path, topic_id(cluster), [*range(8), 10, 11], TIMES, 12)
    delete_records(broker, 9)

    (uneven,) = [one for one in audit(cluster, tmp_path).balances if not one.is_even]

    assert (uneven.tier, uneven.missing, uneven.surplus) == ("table", 1, 0)


def test_records_whose_counts_left_the_audit_topic_are_no_surplus(broker, cluster, tmp_path):
    counts = MinuteCounts("test", "1")
    to_come = time.time_ns() // 1_000_000 + 3_600_000
    produce(broker, counts, [TIMES[0], to_come])
    produce(broker, counts, TIMES[:4], published_at=TIMES[3])
    produce(broker, counts, TIMES[4:], published_at=TIMES[11])
    produce(broker, counts, TIMES[11:], counted=False)
    delete_records(broker, 2, AUDIT_TOPIC)

    (second_minute,) = audit(cluster, tmp_path).balances

    assert second_minute.minute_ms == MINUTE + 60_000
    assert (second_minute.tier, second_minute.expected, second_minute.found) == ("broker", 6, 7)


def test_a_job_whose_first_counts_left_the_audit_topic_is_compared_from_its_next_batch(
    broker, cluster, tmp_path
):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    # Two tasks of one batch, and then another batch. Each message is sent twice.
    read_as_a_job(tmp_path, cluster, [(4, 8)], end=8)
    read_as_a_job(tmp_path, cluster, [(0, 4)], end=8)
    read_as_a_job(tmp_path, cluster, [(8, 12)], end=12, batch=1)
    delete_records(broker, 4, AUDIT_TOPIC)

    (read,) = totals(audit(cluster, tmp_path).balances)

    assert (read.tier, read.expected, read.found) == ("job", 4, 4)


def test_the_topic_of_the_audit_does_not_grow_forever(broker, cluster):
    cluster.create_topic(AUDIT_TOPIC, 1, AUDIT_TOPIC_CONFIGS)
    for name, value in (("cleanup.policy", "compact,delete"), ("retention.ms", "2592000000")):
        assert cluster.topic_setting([AUDIT_TOPIC], name) == {AUDIT_TOPIC: value}


MIDNIGHT = int(datetime(2026, 1, 2, tzinfo=UTC).timestamp() * 1000)
# Three records before midnight. The fourth has an event of the day before.
AROUND_MIDNIGHT = [MIDNIGHT + 60_000 * minute for minute in (-60, -2, -1, 3, 10, 11)]


def test_rows_that_table_retention_removed_are_not_missing(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), AROUND_MIDNIGHT)
    table = load(tmp_path, topic_id(cluster), range(6), AROUND_MIDNIGHT, 6)

    assert remove_before(table, date(2026, 1, 2)).row_count == 3

    found = audit(cluster, tmp_path).balances
    assert all(one.is_even for one in found)
    assert sum(one.found for one in found if one.tier == "table") == 3


def test_rows_of_late_events_that_table_retention_removed_are_not_missing(
    broker, cluster, tmp_path
):
    produce(broker, MinuteCounts("test", "1"), AROUND_MIDNIGHT)
    with_date = SCHEMA.append(pa.field("event_date", pa.date32()))
    table = open_or_create(tmp_path / "raw" / "views", with_date, ["event_date"])
    files = PartitionedFiles(table.location, SCHEMA, "a")
    for offset, timestamp in enumerate(AROUND_MIDNIGHT):
        day = "2026-01-01" if offset < 4 else "2026-01-02"
        row = {"_topic": "views", "_topic_id": id_to_text(topic_id(cluster)), "_partition": 0}
        row |= {"_offset": offset, "_timestamp": timestamp * 1000}
        files.add((("event_date", day),), pa.RecordBatch.from_pylist([row], SCHEMA))
    span = Span(TopicPartition("views", 0), topic_id(cluster), 0, 6)
    table.commit(Batch((span,), files.finish(), with_date, time.time_ns() // 1_000_000))

    assert remove_before(table, date(2026, 1, 2)).row_count == 4

    found = audit(cluster, tmp_path).balances
    assert all(one.is_even for one in found)
    assert [one.minute_ms for one in found if one.tier == "table"] == AROUND_MIDNIGHT[4:]


# --- what loads count ---------------------------------------------------------------------------


def publish_load(cluster, table, *ranges):
    """As a load does before it commits these offsets."""
    counted = []
    for first, end in ranges:
        range_ = Range(TopicPartition("views", 0), first, end)
        counts = RangeCounts(range_, topic_id(cluster))
        for records in RangeReader(cluster, range_, topic_id(cluster), FetchSettings()):
            counts.add(records)
        counted += counts.ranges()
    LoadCounts(cluster, table).publish(counted)


def test_a_table_that_a_load_names_is_read(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    table = load(tmp_path, topic_id(cluster), range(11), TIMES, 12, place="elsewhere/of-views")
    publish_load(cluster, table.location, (0, 12))

    found = audit(cluster, tmp_path / "warehouse").balances

    assert [(one.tier, one.name, one.expected, one.found) for one in totals(found)] == [
        ("broker", "", 12, 12),
        ("table", str(tmp_path / "elsewhere" / "of-views"), 12, 11),
    ]


@pytest.mark.parametrize("place", ["s3://bucket/views", "/no/such/directory"])
def test_a_table_that_cannot_be_read_is_compared_by_the_counts_of_its_load(
    broker, cluster, tmp_path, place
):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    publish_load(cluster, Location(place), (0, 5))  # killed before the commit
    publish_load(cluster, Location(place), (0, 7))
    for _ in range(2):
        publish_load(cluster, Location(place), (7, 10))

    sent, loaded = totals(audit(cluster, tmp_path).balances)

    assert (loaded.tier, loaded.name, loaded.topic) == ("load", place, "views")
    assert (loaded.expected, loaded.found, loaded.missing, loaded.surplus) == (10, 10, 0, 0)


def test_offsets_that_a_load_left_out_are_missing(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    publish_load(cluster, Location("s3://bucket/views"), (0, 5), (6, 12))

    (uneven,) = [one for one in audit(cluster, tmp_path).balances if not one.is_even]

    assert (uneven.tier, uneven.minute_ms, uneven.missing) == ("load", MINUTE, 1)


def test_a_raw_table_counts_once_and_without_columns_that_name_records_by_its_load(
    broker, cluster, tmp_path
):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    location = location_of(tmp_path / "raw" / "views")
    publish_load(cluster, location, (0, 12))
    load(tmp_path, topic_id(cluster), range(12), TIMES, 12)
    assert [(one.tier, one.found) for one in totals(audit(cluster, tmp_path).balances)] == [
        ("broker", 12),
        ("table", 12),
    ]

    shutil.rmtree(location)
    open_or_create(location, pa.schema([("page", pa.string())]), [])
    assert [(one.tier, one.found) for one in totals(audit(cluster, tmp_path).balances)] == [
        ("broker", 12),
        ("load", 12),
    ]


def test_a_range_that_was_lost_is_told_and_not_missing(broker, cluster, tmp_path):
    produce(broker, MinuteCounts("test", "1"), TIMES)
    place = Location("s3://bucket/views")
    publish_load(cluster, place, (0, 3))
    delete_records(broker, 7)
    for _ in range(2):
        lost = Span(TopicPartition("views", 0), topic_id(cluster), 3, 7)
        LoadCounts(cluster, place).publish_lost(lost)
    publish_load(cluster, place, (7, 12))

    found = audit(cluster, tmp_path)

    assert found.lost == [Lost("s3://bucket/views", "views", 0, 3, 7)]
    assert all(one.is_even for one in found.balances)
    assert audit(cluster, tmp_path, ["other"]).lost == []


class MayOnlyRead:
    """A cluster whose user may not create the topic of the audit, or may not write to it."""

    def __init__(self):
        self.asked = 0

    def create_topic(self, name, partition_count, configs):
        self.asked += 1
        refused = Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"creating {name}")
        raise PipelineError("cannot write") from refused


def test_a_load_that_may_only_read_loads_without_counts(caplog):
    cluster = MayOnlyRead()
    counts = LoadCounts(cluster, Location("s3://bucket/views"))
    for _ in range(2):
        counts.publish([])
    assert cluster.asked == 1
    assert "Loading without counts for the audit: cannot write" in caplog.text
