"""What may be wrong around a load: a clear message, and nothing is lost."""

import json
import os
import subprocess

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from headrace.client.errors import ClientError
from headrace.pipeline.errors import LoadStopped
from headrace.pipeline.warehouse.load import Load
from headrace.pipeline.warehouse.settings import LoadSettings
from headrace.pipeline.warehouse.tasks import DEAD_LETTERS

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def load(spark, bootstrap, tmp_path):
    """Load once; returns the number of rows in the table."""

    def run(topic, table=None, value="json", schema="text STRING", **more):
        source = {"kafka.bootstrap.servers": bootstrap, "value.format": value}
        if value == "json":
            source["value.schema"] = schema
        table = table or tmp_path / "views"
        loader = Load(spark, LoadSettings((topic,), table, source, **more))
        try:
            loader.once(lambda done: None)
        finally:
            loader.close()
        return DeltaTable(str(table)).to_pyarrow_table().num_rows

    return run


def letters(tmp_path):
    table = DeltaTable(str(tmp_path / "views" / DEAD_LETTERS))
    return table.to_pyarrow_table().sort_by("_offset").to_pylist()


def test_an_empty_topic(topics, load):
    topic = topics.create("empty", 2)
    assert load(topic) == 0
    topics.send(topic, ['{"text": "a"}'])
    assert load(topic) == 1


def test_a_topic_that_does_not_exist_or_vanishes(spark, bootstrap, topics, load, tmp_path):
    with pytest.raises(ClientError, match="no-such-topic does not exist"):
        load("no-such-topic")
    topic = topics.create("vanishing")
    topics.send(topic, ['{"text": "a"}'])
    source = {"kafka.bootstrap.servers": bootstrap}
    loader = Load(spark, LoadSettings((topic,), tmp_path / "raw", source))
    batches = []

    def delete_then_wait(seconds):
        if batches:
            topics.delete(topic)
        return False

    try:
        with pytest.raises(ClientError, match=f"{topic} does not exist"):
            loader.keep_loading(batches.append, delete_then_wait)
    finally:
        loader.close()
    assert DeltaTable(str(tmp_path / "raw")).to_pyarrow_table().num_rows == 1


def test_invalid_utf_8(topics, load, tmp_path):
    topic = topics.create("utf8")
    topics.send(topic, [b'{"text": "\xff\xfe"}', b'{"text": "fine"}'], headers=[("h", b"\xff")])
    topics.send(topic, [(b"\xff", b'{"text": "also fine"}')])
    assert load(topic) == 2
    (letter,) = letters(tmp_path)
    assert letter["_offset"] == 0 and letter["stage"] == "decode" and letter["reason"]
    assert letter["value"] == b'{"text": "\xff\xfe"}'
    assert load(topic, tmp_path / "texts", value="string") == 2
    found = DeltaTable(str(tmp_path / "texts" / DEAD_LETTERS)).to_pyarrow_table().to_pylist()
    assert [one["reason"] for one in found] == ["not UTF-8: invalid start byte at byte 10"]


def test_values_of_10_mb(bootstrap, topics, load, tmp_path):
    topic = topics.create("large", max_message_bytes=20_000_000)
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 20_000_000})
    text = "x" * 10_000_000
    for _ in range(4):
        producer.produce(topic, json.dumps({"text": text}))
    producer.produce(topic, b"y" * 10_000_000)  # a dead letter
    assert producer.flush(60) == 0
    assert load(topic) == 4
    found = DeltaTable(str(tmp_path / "views")).to_pyarrow_table(columns=["text"])
    assert set(found.column("text").to_pylist()) == {text}
    assert [len(one["value"]) for one in letters(tmp_path)] == [10_000_000]


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_a_reload_replaces_a_damaged_file(spark, bootstrap, topics, load, tmp_path, damage):
    topic = topics.create("damaged", 2)
    for partition in range(2):
        topics.send(topic, [json.dumps({"text": str(n)}) for n in range(5)], partition)
    assert load(topic) == 10
    topics.send(topic, ['{"text": "later"}'])
    assert load(topic) == 11
    path = min((tmp_path / "views").rglob("part-*.parquet"), key=lambda one: one.stat().st_mtime)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:100])
    else:
        path.unlink()
    source = {"kafka.bootstrap.servers": bootstrap, "value.format": "json"}
    source["value.schema"] = "text STRING"
    loader = Load(spark, LoadSettings((topic,), tmp_path / "views", source))
    try:
        with pytest.raises(ClientError, match=f"{path.name} cannot be read: "):
            loader.again(lambda done: None, offset=1)  # the file has other rows too
        loader.again(lambda done: None, offset=0)
    finally:
        loader.close()
    found = DeltaTable(str(tmp_path / "views")).to_pyarrow_table()
    places = {(row["_partition"], row["_offset"]) for row in found.to_pylist()}
    assert len(places) == found.num_rows == 11


def test_a_full_disk(topics, load, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(disk)]
    if subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        topic = topics.create("full", 2)
        for partition in range(2):
            random_text = [json.dumps({"text": os.urandom(100).hex()}) for _ in range(2_000)]
            topics.send(topic, random_text, partition)
        with pytest.raises(ClientError, match="No space left on device"):
            load(topic, disk / "views")
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        assert load(topic, disk / "views") == 4_000
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_table_of_another_program(topics, load, tmp_path):
    topic = topics.create("other")
    topics.send(topic, ['{"text": "a"}'])
    assert load(topic, partition_by=()) == 1
    with pytest.raises(LoadStopped, match="partitioned by no column, and the load by event_date"):
        load(topic)
    log = tmp_path / "damaged" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("no json")
    with pytest.raises(LoadStopped, match="cannot open the table .*/damaged: "):
        load(topic, tmp_path / "damaged")
