"""Fake peers of a client: a TCP server that responds with scripted bytes."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.wire.framing import encode_response

LIMIT_S = 30


def api_versions(correlation_id: int = 1) -> bytes:
    """The ApiVersions response of a broker that supports Metadata 0 to 13."""
    entry = m.ApiVersionsResponse.ApiVersion(api_key=ApiKey.METADATA, max_version=13)
    answer = m.ApiVersionsResponse(api_keys=[entry])
    return bytes(encode_response(ApiKey.API_VERSIONS, 0, correlation_id, answer))


@contextmanager
def peer(
    *answers: bytes,
    closes: bool = False,
    wrap: Callable[[socket.socket], socket.socket] = lambda plain: plain,
) -> Iterator[int]:
    """Serve one connection and yield the port.

    Each answer is sent after something was received. Then the peer ``closes`` the connection, or
    waits until the client does.
    """

    def serve() -> None:
        plain, _ = server.accept()
        plain.settimeout(LIMIT_S)
        try:
            with wrap(plain) as link:
                for answer in answers:
                    link.recv(1 << 16)
                    link.sendall(answer)
                while not closes and link.recv(1 << 16):
                    pass
        except OSError:
            plain.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_S)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            thread.join(LIMIT_S)
