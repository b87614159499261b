"""Lost or damaged small files beside the logs: the broker starts, or reports the problem."""

import shutil

import pytest

from headrace.model.errors import Corrupt
from headrace.records.record import Record, build_batch
from headrace.testing import Broker
from tests.fakes.raw_client import RawClient


@pytest.fixture
def stopped(tmp_path):
    """A stopped broker with one record in ``orders``."""
    broker = Broker(data=tmp_path, topics=["orders"])
    with broker, RawClient(broker.bootstrap_servers) as client:
        client.produce("orders", build_batch([Record(0, -1, None, b"1 book")]))
    yield broker
    broker.stop()


def holds_the_record(broker):
    with RawClient(broker.bootstrap_servers) as client:
        return client.fetch("orders", 0).high_watermark == 1


def cluster_id(broker):
    with RawClient(broker.bootstrap_servers) as client:
        return client.metadata().cluster_id


@pytest.mark.parametrize("lose", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_without_meta_properties_a_directory_belongs_to_the_cluster_of_its_tree(stopped, lose):
    stopped.start()
    before = cluster_id(stopped)
    stopped.stop()
    lose(stopped.data / "meta.properties")
    stopped.start()
    assert holds_the_record(stopped)
    stopped.restart()
    assert cluster_id(stopped) == before
    assert before in (stopped.data / "meta.properties").read_text()


def test_a_new_disk_before_the_others_joins_their_cluster(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    with Broker(data=old) as broker:
        before = cluster_id(broker)
    with Broker(config={"log.dirs": f"{new},{old}"}) as broker:
        assert cluster_id(broker) == before


def test_the_error_for_unreadable_meta_properties_names_the_file(stopped):
    (stopped.data / "meta.properties").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Corrupt, match=r"meta\.properties: not a text file"):
        stopped.start()


def test_a_partition_directory_without_topic_id_gets_it_back(stopped):
    path = stopped.data / "orders-0" / "partition.metadata"
    written = path.read_text()
    path.unlink()
    stopped.start()
    assert path.read_text() == written
    with RawClient(stopped.bootstrap_servers) as client:
        topic_id = client.metadata("orders").topics[0].topic_id
        assert client.fetch(topic_id, 0, version=13).high_watermark == 1
        stopped.reset()
        assert client.fetch(topic_id, 0, version=13).error_code == 100  # UNKNOWN_TOPIC_ID


def test_a_clean_shutdown_marker_that_is_not_text_counts(stopped):
    (stopped.data / ".kafka_cleanshutdown").write_bytes(b"\xff\xfe\x00")
    stopped.start()
    assert holds_the_record(stopped)


def test_a_partition_whose_directory_is_gone_starts_over_and_is_reported(stopped, caplog):
    shutil.rmtree(stopped.data / "orders-0")
    stopped.start()
    assert "orders-0 has no directory in log.dirs; creating it, empty" in caplog.text
    assert not holds_the_record(stopped)
