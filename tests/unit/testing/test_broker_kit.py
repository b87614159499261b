"""The test kit: what a start that fails leaves behind (nothing), and where a broker is found."""

import tempfile
import threading
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from headrace.model.errors import ConfigError
from headrace.testing import Broker, BrokerFailed


@pytest.fixture(autouse=True)
def nothing_is_left_behind(monkeypatch, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = set(threading.enumerate())  # a broker of the whole session may be among them
    yield
    assert list(folder.iterdir()) == []
    left = [t.name for t in threading.enumerate() if t not in before]
    assert "headrace-broker" not in left


@pytest.mark.parametrize("process", [False, True])
def test_a_topic_that_cannot_be_made_ends_the_start_and_the_broker(process):
    with pytest.raises(KafkaException, match="a/b"), Broker(topics=["a/b"], process=process):
        pass


def test_a_broker_says_where_it_is_and_where_its_files_lie(tmp_path):
    broker = Broker(data=tmp_path / "data")
    assert repr(broker) == f"<headrace.testing.Broker not running, data in {tmp_path}/data>"
    with broker:
        assert f"Broker {broker.bootstrap_servers}, data in {tmp_path}" in repr(broker)


def test_one_name_is_not_taken_for_a_list_of_letters():
    with pytest.raises(TypeError, match=r"topics=\['orders'\]"):
        Broker(topics="orders")


@pytest.mark.parametrize("name", ["log.retention.ms", "no.such.setting"])
def test_a_wrong_setting_ends_the_start(name):
    with pytest.raises(ConfigError, match=name), Broker(config={name: "x"}):
        pass


@pytest.mark.parametrize("name", ["log.retention.ms", "no.such.setting"])
def test_a_child_process_that_cannot_start_says_why(name):
    with pytest.raises(BrokerFailed, match=name), Broker(config={name: "x"}, process=True):
        pass


def test_a_folder_that_cannot_be_made_ends_the_start(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError), Broker(data=tmp_path / "file" / "data", process=True):
        pass


@pytest.mark.parametrize("process", [False, True])
def test_the_folder_for_the_data_is_made_if_it_is_absent(tmp_path, process):
    with Broker(data=tmp_path / "a" / "b", topics=["orders"], process=process) as broker:
        assert (broker.data / "orders-0").is_dir()


@pytest.mark.parametrize("process", [False, True])
def test_a_broker_on_another_address_is_found_there(process):
    config = {"listeners": "PLAINTEXT://[::1]:0"}
    with Broker(config=config, topics=["orders"], process=process) as broker:
        assert broker.bootstrap_servers.startswith("[::1]:")


def test_a_broker_that_listens_everywhere_is_found_on_the_loopback():
    config = {
        "listeners": "PLAINTEXT://0.0.0.0:0",
        "advertised.listeners": "PLAINTEXT://127.0.0.1:0",
    }
    with Broker(config=config) as broker:
        assert broker.bootstrap_servers.startswith("127.0.0.1:")


def test_the_data_of_a_broker_with_its_own_folder_goes_away_with_it():
    with Broker(topics=["orders"]) as broker:
        folder = Path(broker.data)
        assert folder.is_dir()
    assert not folder.exists()


def test_the_kit_says_nothing_on_stderr_of_connections_of_its_own(capfd):
    with Broker() as broker:
        with pytest.raises(KafkaException) as failure:
            broker.create_topics(["a/b"])
        broker.restart()  # the client is still there, held by the failure, and notices
        broker.create_topics(["orders"])
        broker.reset()
    del failure
    assert capfd.readouterr().err == ""
