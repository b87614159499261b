"""The addresses of brokers in ZooKeeper, and a ZooKeeper that is not there."""

import pytest

from headrace.cli.output import WRONG_USAGE, CommandFailed
from headrace.cli.zookeeper_brokers import bootstrap_servers, plaintext_address


@pytest.mark.parametrize(
    ("node", "address"),
    [
        (
            {
                "listener_security_protocol_map": {"INSIDE": "SSL", "OUT": "PLAINTEXT"},
                "endpoints": ["INSIDE://a:1", "OUT://b:2"],
            },
            "b:2",
        ),
        ({"endpoints": ["PLAINTEXT://[::1]:9092"]}, "[::1]:9092"),
        ({"host": "old", "port": 9092, "version": 1}, "old:9092"),
        ({"endpoints": ["SSL://a:1"], "host": None, "port": -1}, None),
    ],
)
def test_the_address_is_that_of_a_plaintext_listener(node, address):
    assert plaintext_address(node) == address


def test_without_a_zookeeper_on_this_machine_the_default_broker_is_used():
    assert bootstrap_servers("localhost:1,127.0.0.1:1/kafka") is None


@pytest.mark.parametrize(
    ("zookeeper", "message"),
    [
        ("nowhere.invalid:2181/kafka", "cannot reach ZooKeeper (nowhere.invalid:2181: "),
        ("localhost:x", "expected HOST:PORT"),
    ],
)
def test_a_zookeeper_that_cannot_be_asked_is_refused(zookeeper, message):
    with pytest.raises(CommandFailed) as refused:
        bootstrap_servers(zookeeper)
    assert message in str(refused.value) and refused.value.status == WRONG_USAGE
