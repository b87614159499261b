"""A client that repeats the same invalid bytes does not flood the log."""

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


def test_a_repeated_error_of_a_host_is_reported_every_ten_seconds_with_its_count(lines):
    protocol_errors = ProtocolErrorLog()
    for port, now in enumerate([0, 0.1, 5, 9.9, 10, 10.1, 30]):
        protocol_errors.report(Peer("127.0.0.1", port), PeerBroken("nonsense"), now)
    first, second, third = lines()
    assert first == "Closing the connection from 127.0.0.1:0 on PLAINTEXT: it sent nonsense"
    assert second.endswith(
        "127.0.0.1:4 on PLAINTEXT: it sent nonsense (repeated 3 times since the last report)"
    )
    assert "(repeated 1 times" in third


def test_other_errors_and_other_hosts_are_reported_at_once(lines):
    protocol_errors = ProtocolErrorLog()
    for host in ("127.0.0.1", "127.0.0.2"):
        for what in ("nonsense", "more of it"):
            protocol_errors.report(Peer(host), PeerBroken(what), 0)
    assert len(lines()) == 4


def test_the_number_of_remembered_errors_is_bounded():
    protocol_errors = ProtocolErrorLog()
    for number in range(5000):
        protocol_errors.report(Peer("127.0.0.1"), PeerBroken(f"a frame of -{number} bytes"), 0)
    assert len(protocol_errors._reported) <= 1000


def test_a_client_that_reconnects_with_tls_is_reported_once(lines):
    with Broker() as broker:
        for _ in range(20):
            with RawClient(broker.bootstrap_servers) as client:
                client.send(bytes.fromhex("16030100a5010000a10303"))
                assert client.is_closed_by_broker()
    assert len([line for line in lines() if "a TLS handshake" in line]) == 1
