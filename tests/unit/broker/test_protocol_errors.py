"""A client that sends nonsense again and again does not fill the log with it."""

import pytest

from headrace.broker.protocol_errors import ProtocolErrorLog
from headrace.model.errors import PeerBroken
from headrace.testing import Broker
from tests.fakes.raw_client import RawClient


class Peer:
    listener_name = "PLAINTEXT"

    def __init__(self, host, port=1):
        self.peer_host, self.port = host, port

    def __str__(self):
        return f"{self.peer_host}:{self.port}"


@pytest.fixture
def lines(caplog):
    return lambda: [record.getMessage() for record in caplog.records]


def test_the_same_of_the_same_host_is_said_again_after_a_while_with_how_often(lines):
    complaints = ProtocolErrorLog()
    for port, now in enumerate([0, 0.1, 5, 9.9, 10, 10.1, 30]):
        complaints.say(Peer("127.0.0.1", port), PeerBroken("nonsense"), now)
    first, second, third = lines()
    assert first == "closing the connection from 127.0.0.1:0 on PLAINTEXT: it sent nonsense"
    assert second.endswith(
        "127.0.0.1:4 on PLAINTEXT: it sent nonsense (3 times more since this was last said)"
    )
    assert "(1 times more" in third


def test_other_nonsense_and_other_hosts_are_said_at_once(lines):
    complaints = ProtocolErrorLog()
    for host in ("127.0.0.1", "127.0.0.2"):
        for what in ("nonsense", "more of it"):
            complaints.say(Peer(host), PeerBroken(what), 0)
    assert len(lines()) == 4


def test_what_is_remembered_is_bounded():
    complaints = ProtocolErrorLog()
    for number in range(5000):
        complaints.say(Peer("127.0.0.1"), PeerBroken(f"a frame of -{number} bytes"), 0)
    assert len(complaints._told) <= 1000


def test_a_client_that_comes_back_with_tls_is_named_once(lines):
    with Broker() as broker:
        for _ in range(20):
            with RawClient(broker.bootstrap_servers) as client:
                client.send(bytes.fromhex("16030100a5010000a10303"))
                assert client.is_closed_by_broker()
    assert len([line for line in lines() if "a TLS handshake" in line]) == 1
