"""What a newer version wrote, an older broker refuses by name, and changes nothing."""

import json
import sqlite3

import pytest

from headrace.model.errors import Corrupt, ErrorCode
from headrace.records.record import Record, build_batch
from headrace.testing import Broker, Cluster
from tests.fakes.raw_client import RawClient

A_RECORD = build_batch([Record(0, -1, None, b"1 book")])
NEWER = 99


@pytest.fixture
def stopped(tmp_path):
    """A stopped broker with one record in each of two topics."""
    broker = Broker(data=tmp_path / "data", topics=["orders", "users"])
    with broker, RawClient(broker.bootstrap_servers) as client:
        for topic in ("orders", "users"):
            assert client.produce(topic, A_RECORD).error_code == 0
    yield broker
    broker.stop()


def with_newer_version(value):
    return json.dumps(json.loads(value) | {"version": NEWER}).encode()


@pytest.mark.parametrize("path", ["/headrace/features", "/headrace/directory_assignment/1"])
def test_a_node_of_a_newer_version_is_refused_at_the_start(stopped, path):
    file = stopped.data / "headrace.sqlite"
    with sqlite3.connect(file) as database:
        ((value,),) = database.execute("SELECT value FROM node WHERE path = ?", [path]).fetchall()
        newer = with_newer_version(value)
        database.execute("UPDATE node SET value = ? WHERE path = ?", [newer, path])
    database.close()
    with pytest.raises(Corrupt, match=f"Node {path} .* has version {NEWER}.*upgrade this broker"):
        stopped.start()
    with sqlite3.connect(file) as database:
        assert database.execute("SELECT value FROM node WHERE path = ?", [path]).fetchall() == [
            (newer,)
        ]
    database.close()


def test_a_node_of_a_newer_version_is_refused_by_a_broker_of_a_cluster(tmp_path):
    with Cluster(brokers=1, data=tmp_path):
        pass
    saved = tmp_path / "coordination-tree.json"
    tree = json.loads(saved.read_text())
    for node in tree["nodes"]:
        if node[0] == "/headrace/features":
            node[1] = with_newer_version(node[1]).decode()
    saved.write_text(json.dumps(tree))
    with pytest.raises(Corrupt, match=f"Node /headrace/features .* has version {NEWER}"):
        Cluster(brokers=1, data=tmp_path).start()


def test_a_batch_of_a_newer_version_takes_its_partition_offline_alone(stopped):
    file = stopped.data / "orders-0" / f"{0:020d}.log"
    data = bytearray(file.read_bytes())
    data[16] = NEWER
    file.write_bytes(data)
    with stopped, RawClient(stopped.bootstrap_servers) as client:
        assert client.fetch("orders", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.fetch("users", 0).high_watermark == 1
        assert client.produce("users", A_RECORD).base_offset == 1
    assert file.read_bytes() == data, "nothing was cut off"
