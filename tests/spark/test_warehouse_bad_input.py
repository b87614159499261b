"""What may be wrong around a load: a clear message, and nothing is lost."""

import json
import os
import subprocess
import time

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable, write_deltalake

from headrace.cli.main import main
from headrace.client.errors import ClientError
from headrace.pipeline.errors import LoadStopped, SchemaRefused
from headrace.pipeline.warehouse.load import Load
from headrace.pipeline.warehouse.settings import LoadSettings
from headrace.pipeline.warehouse.tasks import DEAD_LETTERS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = {"value.schema": "text STRING"}


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
    loader = Load(spark, LoadSettings((topic,), tmp_path / "views", source | SCHEMA))
    try:
        with pytest.raises(ClientError, match=f"{path.name} cannot be read: "):
            loader.again(lambda done: None, offset=1)  # the file has other rows too
        loader.again(lambda done: None, offset=0)
    finally:
        loader.close()
    found = DeltaTable(str(tmp_path / "views")).to_pyarrow_table()
    places = {(row["_partition"], row["_offset"]) for row in found.to_pylist()}
    assert len(places) == found.num_rows == 11


def test_a_damaged_file_does_not_stop_a_load(
    spark, bootstrap, topics, load, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr("headrace.pipeline.warehouse.compaction.CLOSED_FILES_MIN", 2)
    topic = topics.create("beside-damage")
    two_days_ago = int(time.time() - 2 * 86_400) * 1000
    for text in "ab":  # two files of a date that is over, which a running load joins
        topics.send(topic, [json.dumps({"text": text})], timestamp=two_days_ago)
        load(topic)
    path = next((tmp_path / "views").rglob("part-*.parquet"))
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    topics.send(topic, ['{"text": "c"}'])
    source = {"kafka.bootstrap.servers": bootstrap, "value.format": "json"}
    loader = Load(spark, LoadSettings((topic,), tmp_path / "views", source | SCHEMA))
    try:
        loader.keep_loading(lambda done: None, lambda seconds: True)
    finally:
        loader.close()
    (warning,) = [one.message for one in caplog.records if "Could not join files" in one.message]
    assert f"{path.name} cannot be read: " in warning
    path.write_bytes(whole)
    found = DeltaTable(str(tmp_path / "views")).to_pyarrow_table(columns=["text"])
    assert sorted(found.column("text").to_pylist()) == ["a", "b", "c"]


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


def test_a_table_with_another_schema(topics, load, tmp_path):
    topic = topics.create("schema")
    topics.send(topic, [json.dumps({"text": str(n)}) for n in range(100)])
    write_deltalake(str(tmp_path / "theirs"), pa.table({"id": [1, 2], "text": [3, 4]}))
    with pytest.raises(
        SchemaRefused,
        match="does not fit .*/theirs: column 'id' of the table is missing .*'text' is long in the "
        "table and string in the batch.* Nothing was committed. Correct --schema, or load into "
        "another table",
    ):
        load(topic, tmp_path / "theirs", partition_by=())
    table = DeltaTable(str(tmp_path / "theirs"))
    assert (table.version(), table.to_pyarrow_table().column_names) == (0, ["id", "text"])
    assert load(topic, tmp_path / "ours", partition_by=()) == 100


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


# --- what a user sees ---------------------------------------------------------------------------


class Lasting:
    """The session of the tests, which a command must not stop."""

    def __init__(self, spark):
        self._spark = spark

    def __getattr__(self, name):
        return getattr(self._spark, name)

    def stop(self):
        pass


@pytest.fixture
def load_command(spark, bootstrap, monkeypatch, capfd):
    """Run ``headrace pipeline load`` in this process; returns its status and what it printed."""
    monkeypatch.setattr("headrace.spark.demo.start_spark", lambda *_, **__: Lasting(spark))

    def run(*arguments):
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["pipeline", "load", *map(str, arguments), "-b", bootstrap])
        return ended.value.code, capfd.readouterr()

    return run


def test_the_command_says_what_is_wrong(topics, load_command, tmp_path):
    topic = topics.create("command")
    topics.send(topic, [b"\xff"] * 100)
    here = ["--table", tmp_path / "views", "--value", "string"]

    status, printed = load_command("no-such-topic", *here)
    assert status == 1 and "no-such-topic does not exist" in printed.err

    status, printed = load_command(topic, *here)
    assert status == 1 and "100 of the last 100 records would be dead letters" in printed.err
    assert f"The first is offset 0 of {topic}-0: not UTF-8" in printed.err
    assert "Nothing of this batch was committed" in printed.err

    status, printed = load_command(topic, *here, "--bad-max", "100%")
    assert (status, printed.out.split(" in ")[0]) == (0, "committed 0 rows and 100 dead letters")

    status, printed = load_command(topic, *here)
    assert status == 0 and "nothing to load" in printed.err

    write_deltalake(str(tmp_path / "theirs"), pa.table({"id": [1]}))
    status, printed = load_command(topic, "--table", tmp_path / "theirs")
    assert status == 1 and "partitioned by no column, and the load by event_date" in printed.err
    assert "Traceback" not in printed.err
