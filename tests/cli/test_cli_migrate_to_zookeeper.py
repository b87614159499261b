"""``headrace migrate-to-zookeeper``."""

import pytest

from headrace.testing import Broker

pytestmark = pytest.mark.usefixtures("zookeeper_or_none")


def test_a_stopped_node_is_carried_over(headrace, tmp_path, zookeeper):
    with Broker(data=tmp_path, topics=["orders"]):
        pass
    connect = f"zookeeper.connect={zookeeper.connect}/by-command"
    said = headrace("migrate-to-zookeeper", "--data", str(tmp_path), "-X", connect).err
    assert "topics: 1" in said and "Start the broker" in said
    again = headrace("migrate-to-zookeeper", "--data", str(tmp_path), "-X", connect, status=1).err
    assert "no data of a standalone node" in again


def test_the_address_of_zookeeper_is_required(headrace, tmp_path):
    said = headrace("migrate-to-zookeeper", "--data", str(tmp_path), status=1).err
    assert "zookeeper.connect is not set" in said


def test_a_running_node_is_refused(headrace, tmp_path):
    with Broker(data=tmp_path):
        said = headrace(
            *("migrate-to-zookeeper", "--data", str(tmp_path)),
            *("-X", "zookeeper.connect=127.0.0.1:1"),
            status=1,
        ).err
    assert "is in use by another broker" in said
