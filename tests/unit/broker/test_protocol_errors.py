"""A client that keeps sending invalid requests does not fill the log."""

import pytest

from headrace.broker.protocol_errors import ProtocolErrorLog
from headrace.model.errors import PeerBroken


class Peer:
    listener_name = "PLAINTEXT"

    def __init__(self, host, port=1):
        self.peer_host, self.port = host, port

    def __str__(self):
        return f"{self.peer_host}:{self.port}"


@pytest.fixture
def lines(caplog):
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_repeated_error_of_a_host_is_logged_every_ten_seconds_with_its_count(lines):
    errors = ProtocolErrorLog()
    for port, now in enumerate([0, 0.1, 5, 9.9, 10, 10.1, 30]):
        errors.report(Peer("127.0.0.1", port), PeerBroken("nonsense"), now)
    first, second, third = lines()
    assert first == "Closing the connection from 127.0.0.1:0 on PLAINTEXT: it sent nonsense"
    assert second.endswith(
        "127.0.0.1:4 on PLAINTEXT: it sent nonsense (repeated 3 times since the last report)"
    )
    assert "(repeated 1 times" in third


def test_other_errors_and_other_hosts_are_logged_at_once(lines):
    errors = ProtocolErrorLog()
    for host in ("127.0.0.1", "127.0.0.2"):
        for what in ("nonsense", "more of it"):
            errors.report(Peer(host), PeerBroken(what), 0)
    assert len(lines()) == 4


def test_after_a_thousand_kinds_of_errors_all_are_forgotten(lines):
    errors = ProtocolErrorLog()
    for number in (*range(1000), 0, 1000, 0):
        errors.report(Peer("127.0.0.1"), PeerBroken(f"a frame of -{number} bytes"), 0)
    assert len(lines()) == 1002
    assert lines()[0] == lines()[-1]
