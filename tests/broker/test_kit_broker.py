"""The broker of the test kit: a failed start leaves nothing behind; clients find the broker."""

import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from headrace.model.errors import ConfigError
from headrace.testing import Broker, BrokerFailed
from tests.fakes.waiting import wait_until


@pytest.fixture(autouse=True)
def nothing_is_left_behind(monkeypatch, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = set(threading.enumerate())  # the broker of the session may be among them
    yield
    assert list(temporary.iterdir()) == []
    left = [t.name for t in threading.enumerate() if t not in before]
    assert "headrace-broker" not in left


@pytest.mark.parametrize("process", [False, True])
def test_a_topic_that_cannot_be_created_stops_the_broker(process):
    with pytest.raises(KafkaException, match="a/b"), Broker(topics=["a/b"], process=process):
        pass


def test_the_repr_names_the_address_and_the_data_directory(tmp_path):
    broker = Broker(data=tmp_path / "data")
    assert repr(broker) == f"<headrace.testing.Broker not running, data in {tmp_path}/data>"
    with broker:
        assert f"Broker {broker.bootstrap_servers}, data in {tmp_path}" in repr(broker)


@pytest.mark.parametrize("name", ["log.retention.ms", "no.such.setting"])
def test_a_wrong_setting_prevents_the_start(name):
    with pytest.raises(ConfigError, match=name), Broker(config={name: "x"}):
        pass


@pytest.mark.parametrize("name", ["log.retention.ms", "no.such.setting"])
def test_a_child_process_that_cannot_start_says_why(name):
    with pytest.raises(BrokerFailed, match=name), Broker(config={name: "x"}, process=True):
        pass


def test_a_directory_that_cannot_be_created_prevents_the_start(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError), Broker(data=tmp_path / "file" / "data", process=True):
        pass


@pytest.mark.parametrize("process", [False, True])
def test_a_missing_data_directory_is_created(tmp_path, process):
    with Broker(data=tmp_path / "a" / "b", topics=["orders"], process=process) as broker:
        assert (broker.data / "orders-0").is_dir()


@pytest.mark.parametrize("process", [False, True])
def test_bootstrap_servers_follows_the_listener(process):
    config = {"listeners": "PLAINTEXT://[::1]:0"}
    with Broker(config=config, topics=["orders"], process=process) as broker:
        assert broker.bootstrap_servers.startswith("[::1]:")


def test_a_broker_on_every_interface_is_reached_through_the_loopback():
    config = {
        "listeners": "PLAINTEXT://0.0.0.0:0",
        "advertised.listeners": "PLAINTEXT://127.0.0.1:0",
    }
    with Broker(config=config) as broker:
        assert broker.bootstrap_servers.startswith("127.0.0.1:")


def test_a_temporary_data_directory_is_removed_with_the_broker():
    with Broker(topics=["orders"]) as broker:
        data = Path(broker.data)
        assert data.is_dir()
    assert not data.exists()


def test_the_clients_of_the_kit_write_nothing_to_stderr(capfd):
    with Broker() as broker:
        with pytest.raises(KafkaException) as failure:
            broker.create_topics(["a/b"])
        broker.restart()  # the failure still holds the client, which loses its connection
        broker.create_topics(["orders"])
        broker.reset()
    del failure
    assert capfd.readouterr().err == ""


PROGRAM = """
import sys
from headrace.testing import Broker
with Broker(data=sys.argv[1], process=True) as broker:
    print(broker.bootstrap_servers, flush=True)
    sys.stdin.read()
"""


def test_a_broker_process_ends_with_the_killed_program_that_started_it(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        host, port = program.stdout.readline().strip().rsplit(":")
        assert accepts_connections(host, int(port))
        program.kill()
    wait_until(lambda: not accepts_connections(host, int(port)))


def accepts_connections(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port)).close()
    except ConnectionRefusedError:
        return False
    return True
