"""ZooKeeper starts from a configuration file and says how it does."""

import pytest

from headrace.launch.zookeeper import (
    ZooKeeperFailed,
    ZooKeeperServer,
    free_port,
    mode_of,
    read_config,
    write_config,
)

# Session-wide, so that the child process does not count as left behind.
pytestmark = pytest.mark.usefixtures("zookeeper_or_none")


def test_a_written_configuration_is_read_again(tmp_path):
    config = write_config(tmp_path / "data", servers=["a:1:2", "b:1:2"], my_id=2)
    settings = read_config(config)
    assert settings["dataDir"] == str(tmp_path / "data")
    assert (settings["server.1"], settings["server.2"]) == ("a:1:2", "b:1:2")
    assert settings["clientPortAddress"] == "127.0.0.1" and int(settings["clientPort"]) > 0
    assert (tmp_path / "data" / "myid").read_text() == "2\n"
    server = ZooKeeperServer(config)
    assert server.is_one_of_several and server.connect == f"127.0.0.1:{settings['clientPort']}"


def test_a_configuration_of_kafka_is_understood(tmp_path):
    config = tmp_path / "zookeeper.properties"
    config.write_text("# comment=1\ndataDir=/tmp/zookeeper\nclientPort = 2182\nmaxClientCnxns=0\n")
    server = ZooKeeperServer(config)
    assert (server.connect, str(server.data)) == ("127.0.0.1:2182", "/tmp/zookeeper")
    assert not server.is_one_of_several
    config.write_text("clientPort=2181\n")
    with pytest.raises(ZooKeeperFailed, match="dataDir is missing"):
        ZooKeeperServer(config)


def test_a_running_server_tells_its_mode(zookeeper):
    assert mode_of(zookeeper.host, zookeeper.port) == zookeeper.wait_ready() == "standalone"
    assert mode_of("127.0.0.1", free_port()) is None


def test_a_server_of_an_ensemble_needs_its_number(tmp_path):
    config = write_config(tmp_path, servers=["127.0.0.1:1:2", "127.0.0.1:3:4"])
    with pytest.raises(ZooKeeperFailed, match="echo 1 > .*myid"):
        ZooKeeperServer(config).start()


def test_a_port_in_use_is_named(zookeeper, tmp_path):
    config = write_config(tmp_path, port=zookeeper.port)
    with pytest.raises(ZooKeeperFailed, match=f"{zookeeper.connect}: Address already in use"):
        ZooKeeperServer(config).start()


def test_a_server_that_cannot_start_shows_its_output(zookeeper, tmp_path):
    config = write_config(tmp_path)
    with config.open("a") as text:
        text.write("tickTime=soon\n")
    with ZooKeeperServer(config) as server:
        server.start()
        with pytest.raises(ZooKeeperFailed, match=r"ended at once[\s\S]*soon"):
            server.wait_ready()


def test_a_server_keeps_its_data_and_stops_twice(zookeeper, tmp_path):
    for _ in range(2):
        with ZooKeeperServer(write_config(tmp_path)) as server:
            server.start()
            assert server.wait_ready() == "standalone"
            server.stop()
    assert (tmp_path / "version-2").is_dir()
