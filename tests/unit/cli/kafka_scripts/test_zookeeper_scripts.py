"""ZooKeeper's scripts as ``headrace zookeeper`` command lines."""

import pytest

from tests.unit.cli.kafka_scripts.command_lines import check_refused, check_translated


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        (
            "zookeeper-server-start.sh config/zookeeper.properties",
            "zookeeper config/zookeeper.properties",
        ),
        (
            "bin/zookeeper-server-start.sh -daemon config/zookeeper.properties",
            "zookeeper config/zookeeper.properties -daemon",
        ),
        ("zookeeper-server-start.sh", "zookeeper --help"),
        ("zookeeper-server-stop.sh", "zookeeper stop"),
        ("zookeeper-shell.sh 127.0.0.1:2181", "zookeeper shell 127.0.0.1:2181"),
        (
            "zookeeper-shell.sh 127.0.0.1:2181/kafka get /config/topics/my-topic",
            "zookeeper shell 127.0.0.1:2181/kafka get /config/topics/my-topic",
        ),
        ("zookeeper-shell", "zookeeper --help"),
        ("zkServer.sh --config conf start", "zookeeper conf/zoo.cfg -daemon"),
        ("zkServer.sh start-foreground /etc/zoo1.cfg", "zookeeper /etc/zoo1.cfg"),
        ("zkServer.sh status", "zookeeper status conf/zoo.cfg"),
        ("zkServer.sh --config conf/ stop zoo2.cfg", "zookeeper stop conf/zoo2.cfg"),
        ("zkServer.sh", "zookeeper --help"),
        ("zkCli.sh -server a:2181 ls /", "zookeeper shell a:2181 ls /"),
        ("zkCli.sh", "zookeeper shell 127.0.0.1:2181"),
    ],
)
def test_a_script_is_a_verb_of_zookeeper(line, translated):
    check_translated(line, translated)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("zookeeper-server-stop.sh 2181", "zookeeper stop --data DIR"),
        ("zookeeper-shell.sh a:2181 -zk-tls-config-file f", "-zk-tls-config-file is not supported"),
        ("zkServer.sh upgrade", "expected one of start, start-foreground, status, stop"),
        ("zookeeper-server-start.sh --port 1", "--port is not supported"),
    ],
)
def test_what_cannot_be_expressed_is_refused(line, message):
    check_refused(line, message)
