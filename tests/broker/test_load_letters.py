"""The dead letters of a load in the topic of dead letters, in the shape of those of pipelines."""

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.client.cluster import ClientSettings
from headrace.model.dead_letters import (
    DEAD_LETTER_TOPIC,
    HEADER_PREFIX,
    LETTER_SIZE_MAX,
    LETTER_VALUE_SIZE_MAX,
)
from headrace.model.ids import TopicPartition
from headrace.pipeline.warehouse.files import PartitionedFiles
from headrace.pipeline.warehouse.letter_topic import letter_record, send_letters
from headrace.pipeline.warehouse.rows import DEAD_LETTER_SCHEMA, lost_letter
from headrace.pipeline.warehouse.storage import location_of
from headrace.spark.cluster import Cluster
from headrace.testing import Broker

ROW = {
    "_topic": "views",
    "_topic_id": "T",
    "_partition": 3,
    "_offset": 7,
    "_offset_end": 8,
    "_timestamp_ms": 1_795_000_000_000,
    "_key": b"k",
    "_headers": [{"key": "trace", "value": b"\xff"}, {"key": "none", "value": None}],
    "value": b"{not json",
    "stage": "decode",
    "reason": "not valid JSON",
}


@pytest.fixture
def broker():
    with Broker() as running:
        yield running


def create(broker, config):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topic = NewTopic(DEAD_LETTER_TOPIC, 1, config=config)
    admin.create_topics([topic])[DEAD_LETTER_TOPIC].result(30)


def received(broker, count):
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "letters",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([DEAD_LETTER_TOPIC])
    try:
        found = []
        while len(found) < count:
            message = consumer.poll(10)
            assert message is not None and message.error() is None
            found.append(message)
        return found
    finally:
        consumer.close()


def ours(headers):
    return {
        name.removeprefix(HEADER_PREFIX): value
        for name, value in headers
        if name.startswith(HEADER_PREFIX)
    }


def test_letters_have_their_record_and_say_what_failed(broker, tmp_path):
    directory = location_of(tmp_path / "views" / "_dead_letters")
    files = PartitionedFiles(directory, DEAD_LETTER_SCHEMA, "letters")
    files.add((), pa.RecordBatch.from_pylist([ROW], DEAD_LETTER_SCHEMA))
    lost = lost_letter(TopicPartition("views", 0), bytes(16), 5, 12, 0, "retention was faster")
    files.add((), lost)
    cluster = Cluster(ClientSettings(broker.bootstrap_servers))
    try:
        send_letters(cluster, "warehouse/views", directory, files.finish())
    finally:
        cluster.close()

    letter, range_ = received(broker, 2)

    assert (letter.key(), letter.value()) == (b"k", b"{not json")
    assert letter.headers()[:2] == [("trace", b"\xff"), ("none", None)]
    assert ours(letter.headers()) == {
        "stage": b"decode",
        "table": b"warehouse/views",
        "reason": b"not valid JSON",
        "topic": b"views",
        "topicid": b"T",
        "partition": b"3",
        "offset": b"7",
        "timestamp": b"1795000000000",
        "attempt": b"0",
    }
    found = ours(range_.headers())
    assert (found["stage"], found["offset"], found["offsetend"]) == (b"lost", b"5", b"12")
    assert range_.value() is None


def test_a_value_that_is_too_large_is_only_in_the_table():
    value = bytes(LETTER_VALUE_SIZE_MAX + 1)
    record = letter_record("views", {**ROW, "value": value}, LETTER_SIZE_MAX)
    assert record.value is None and record.key == b"k"
    assert ours(record.headers)["omitted"] == str(len(value)).encode()


def test_a_topic_that_accepts_less_gets_what_fits(broker, tmp_path, caplog):
    limit = 5_000
    create(broker, {"max.message.bytes": str(limit)})
    large, header = b"x" * (limit + 1), {"key": "large", "value": bytes(limit + 1)}
    rows = [
        {**ROW, "_offset": 1},
        {**ROW, "_offset": 2, "value": large},
        {**ROW, "_offset": 3, "value": large, "_headers": [header]},
        {**ROW, "_offset": 4, "_key": large},
        {**ROW, "_offset": 5, "value": b"y" * (limit - 400)},
    ]
    directory = location_of(tmp_path / "views" / "_dead_letters")
    files = PartitionedFiles(directory, DEAD_LETTER_SCHEMA, "letters")
    files.add((), pa.RecordBatch.from_pylist(rows, DEAD_LETTER_SCHEMA))
    cluster = Cluster(ClientSettings(broker.bootstrap_servers))
    try:
        send_letters(cluster, "warehouse/views", directory, files.finish())
    finally:
        cluster.close()

    found = {int(ours(one.headers())["offset"]): one for one in received(broker, len(rows))}

    def left(offset):
        one = found[offset]
        omitted = ours(one.headers()).get("omitted")
        given = [name for name, _ in one.headers() if not name.startswith(HEADER_PREFIX)]
        return one.key(), one.value(), given, omitted

    assert left(1) == (b"k", b"{not json", ["trace", "none"], None)
    assert left(2) == (b"k", None, ["trace", "none"], b"5001")
    assert left(3)[:3] == left(4)[:3] == (None, None, [])
    assert int(left(3)[3]) >= 10_002 and int(left(4)[3]) >= 5_001
    assert left(5)[1] is None  # with its headers it would be above the limit
    assert "offset 2 of views-3 is in warehouse/views/_dead_letters" in caplog.text
