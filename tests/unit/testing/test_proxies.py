"""A proxy passes bytes on, holds them back during a cut, and closes when one of its ends does."""

import socket
import threading

import pytest

from headrace.testing.network_faults import NO_IMPAIRMENT, Impairment
from headrace.testing.proxies import Proxies

LIMIT_S = 20
CUT = Impairment(cut=True)


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_S)
        yield server


@pytest.fixture
def proxies(server):
    proxies = Proxies(*server.getsockname())
    yield proxies
    proxies.close()
    assert "headrace-proxies" not in [thread.name for thread in threading.enumerate()]


@pytest.fixture
def connect(server, proxies):
    """Connect through a proxy; returns both ends."""
    ends = []

    def connected(port, accept=True):
        client = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        ends.append(client)
        if not accept:
            return client
        accepted, _ = server.accept()
        accepted.settimeout(LIMIT_S)
        ends.append(accepted)
        return client, accepted

    yield connected
    for end in ends:
        end.close()


def exchange(client, accepted):
    client.sendall(b"question")
    assert accepted.recv(100) == b"question"
    accepted.sendall(b"answer")
    assert client.recv(100) == b"answer"


def test_bytes_pass_in_both_directions(proxies, connect):
    exchange(*connect(proxies.add()))


def test_a_cut_holds_bytes_back_on_one_proxy_only(proxies, connect):
    cut_port, other_port = proxies.add(), proxies.add()
    client, accepted = connect(cut_port)
    other = connect(other_port)
    proxies.impair(cut_port, CUT)
    assert proxies.impairment(cut_port) == CUT and proxies.impairment(other_port) == NO_IMPAIRMENT
    client.sendall(b"question")
    exchange(*other)
    accepted.setblocking(False)
    with pytest.raises(BlockingIOError):
        accepted.recv(100)
    accepted.settimeout(LIMIT_S)
    proxies.impair(cut_port, NO_IMPAIRMENT)
    assert accepted.recv(100) == b"question"


def test_a_client_that_connects_during_a_cut_waits_for_its_end(proxies, connect, server):
    port = proxies.add()
    proxies.impair(port, CUT)
    client = connect(port, accept=False)
    client.sendall(b"question")
    proxies.impair(port, NO_IMPAIRMENT)
    accepted, _ = server.accept()
    with accepted:
        accepted.settimeout(LIMIT_S)
        assert accepted.recv(100) == b"question"


@pytest.mark.parametrize("closing, hearing", [(0, 1), (1, 0)])
def test_when_one_end_closes_the_other_hears_of_it(proxies, connect, closing, hearing):
    ends = connect(proxies.add())
    ends[closing].close()
    assert ends[hearing].recv(100) == b""


def test_without_a_server_the_client_is_disconnected(proxies, connect, server):
    server.close()
    client = connect(proxies.add(), accept=False)
    assert client.recv(100) == b""


def test_proxies_close_during_a_cut(proxies, connect):
    port = proxies.add()
    client, _ = connect(port)
    proxies.impair(port, CUT)
    waiting = connect(port, accept=False)
    client.sendall(b"question")
    waiting.sendall(b"question")
    assert proxies.impairment(port) == CUT
