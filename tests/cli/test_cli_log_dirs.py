"""Log directories, deleted records and offsets, with Headrace's commands and Kafka's scripts."""

import json
import time

import pytest
from confluent_kafka import Producer

from headrace.testing import Broker
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from tests.fakes.held_moves import held_moves
from tests.fakes.raw_client import RawClient


@pytest.fixture
def filled(headrace, topic):
    """A topic of two partitions with three records in the first."""
    headrace("topics", "create", topic, "-p", "2")
    headrace("produce", topic, "--partition", "0", stdin=b"a\nb\nc\n")
    return topic


def test_log_dirs_shows_the_directory_and_size_of_partitions(headrace, filled, broker):
    ran = headrace("log-dirs", filled)
    head, first, second = (line.split() for line in ran.lines)
    assert head == ["BROKER", "DIRECTORY", "FREE", "TOPIC", "PARTITION", "SIZE"]
    assert first[:2] == ["1", str(broker.data)]
    # FREE and SIZE are a number and a unit.
    assert first[3].endswith("iB") and first[4:6] == [filled, "0"]
    assert int(first[6]) > 0 and first[7] == "B" and second[6:] == ["0", "B"]


def test_topics_list_shows_the_size_of_all_replicas(headrace, filled):
    rows = headrace("topics", "list", "--size", "--format", "json").document
    (size,) = (row["size"] for row in rows if row["name"] == filled)
    assert size > 0
    (line,) = (one for one in headrace("topics", "list", "--size").lines if filled in one)
    assert line.split()[-2:] == [str(size), "B"]


def test_kafka_log_dirs_prints_kafkas_document_in_one_line(headrace, filled, broker):
    ran = headrace("kafka-log-dirs.sh", "--describe", "--topic-list", filled, "--broker-list", "1")
    (line,) = ran.lines
    (described,) = json.loads(line)["brokers"]
    (log_dir,) = described["logDirs"]
    assert (described["broker"], log_dir["logDir"], log_dir["error"]) == (1, str(broker.data), None)
    partition = log_dir["partitions"][0]
    assert partition["partition"] == f"{filled}-0"
    assert (partition["size"] > 0, partition["offsetLag"], partition["isFuture"]) == (
        True,
        0,
        False,
    )


def test_log_dirs_of_a_missing_broker(headrace):
    ran = headrace("log-dirs", "--broker", "7", status=1)
    assert "broker 7 does not exist; broker IDs in this cluster: 1" in ran.err


def test_log_dirs_of_a_missing_topic(headrace):
    ran = headrace("log-dirs", "nope", status=1)
    assert "topic nope does not exist" in ran.err and ran.out == ""


def test_log_dirs_shows_an_offline_directory(headrace, tmp_path, monkeypatch):
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.write_bytes(b"")
    with Broker(config={"log.dirs": f"{good},{bad}"}, data=good) as broken:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", broken.bootstrap_servers)
        ran = headrace("log-dirs", status=1)
    assert any(str(bad) in line and "KAFKA_STORAGE_ERROR" in line for line in ran.lines)


def test_log_dirs_shows_a_partition_that_is_moving(headrace, tmp_path, monkeypatch):
    log_dirs = [str(tmp_path / name) for name in "ab"]
    request = m.AlterReplicaLogDirsRequest
    with (
        held_moves(monkeypatch),
        Broker(config={"log.dirs": ",".join(log_dirs)}, data=tmp_path, topics=["t"]) as broker,
        RawClient(broker.bootstrap_servers) as raw,
    ):
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.bootstrap_servers)
        headrace("produce", "t", stdin=b"a\nb\nc\n")
        (here,) = tmp_path.glob("?/t-0")
        (there,) = (path for path in log_dirs if path != str(here.parent))
        topics = [request.AlterReplicaLogDirTopic(name="t", partitions=[0])]
        asked = request(dirs=[request.AlterReplicaLogDir(path=there, topics=topics)])
        raw.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, asked)
        ran = headrace("log-dirs", "t")
        rows = {line.split()[1]: line.split()[6:] for line in ran.lines}
        assert rows[there] == ["0", "B", "moving", "here,", "3", "records", "left"]
        assert rows[str(here.parent)][1:] == ["B", "-"]
        ran = headrace("kafka-log-dirs.sh", "--describe", "--topic-list", "t")
        copies = [
            (log_dir["logDir"], copy["offsetLag"])
            for log_dir in json.loads(ran.out)["brokers"][0]["logDirs"]
            for copy in log_dir["partitions"]
            if copy["isFuture"]
        ]
        assert copies == [(there, 3)]


def test_records_are_deleted_below_an_offset(headrace, filled):
    ran = headrace("topics", "delete-records", f"{filled}:0", "--before", "2", "--format", "json")
    assert ran.document == [
        {"topic": filled, "partition": 0, "low_watermark": 2, "error": None, "detail": None}
    ]
    ran = headrace("consume", filled, "--from-beginning", "--max", "1")
    assert ran.lines == ["c"]
    headrace("topics", "delete-records", filled, "--before", "latest")
    ran = headrace("topics", "offsets", filled, "--time", "earliest", "--plain")
    assert ran.lines == [f"{filled}:0:3", f"{filled}:1:0"]


def test_records_cannot_be_deleted_beyond_the_end(headrace, filled):
    ran = headrace("topics", "delete-records", f"{filled}:0", "--before", "9", status=1)
    assert "OFFSET_OUT_OF_RANGE" in ran.out


def test_kafka_delete_records_reads_its_file(headrace, filled, tmp_path):
    file = tmp_path / "offsets.json"
    file.write_text(
        json.dumps({"partitions": [{"topic": filled, "partition": 0, "offset": 1}], "version": 1})
    )
    headrace("kafka-delete-records.sh", "--offset-json-file", str(file))
    ran = headrace("kafka-get-offsets.sh", "--topic", filled, "--time", "-2")
    assert ran.lines == [f"{filled}:0:1", f"{filled}:1:0"]
    file.write_text("no JSON")
    ran = headrace("topics", "delete-records", "--file", str(file), status=2)
    assert f"{file}: not a JSON document" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["t"], "--before"),
        (["t", "--before", "soon"], "expected an offset, or latest"),
        (["t", "--file", "f"], "give nothing else"),
    ],
)
def test_an_ambiguous_deletion_is_refused(headrace, arguments, message):
    ran = headrace("topics", "delete-records", *arguments, status=2)
    assert message in ran.err


def test_plain_offsets_have_kafkas_format(headrace, filled, broker):
    ran = headrace("kafka-get-offsets.sh", "--topic", filled)
    assert ran.lines == [f"{filled}:0:3", f"{filled}:1:0"]
    # The other records may share a timestamp; this one is the latest in any case.
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(filled, b"d", partition=0, timestamp=int(time.time() * 1000) + 60_000)
    assert producer.flush(20) == 0
    ran = headrace("kafka-get-offsets.sh", "--topic", filled, "--time", "-3")
    assert ran.lines == [f"{filled}:0:3"], "an empty partition has no maximum timestamp"
    headrace("topics", "offsets", filled, "--plain", status=2)
