"""The blocking client: one connection to one broker, for one thread at a time.

Several requests may be in flight (``send``, later ``receive``). A reader uses this to have the
next fetch on its way while it decodes the last one.
"""

import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import Self, TypeVar

from headrace.client.errors import Disconnected, Refused, error_code
from headrace.client.security import Security, authenticate, wrap_in_tls
from headrace.model.errors import ErrorCode, PeerBroken
from headrace.wire import messages as m
from headrace.wire.schema import Buffer, Message
from headrace.wire.session import (
    API_VERSIONS_VERSION,
    Response,
    Session,
    UnsupportedVersion,
    VersionRanges,
)

_PLAINTEXT = Security()

_Answer = TypeVar("_Answer", bound=Message)


class Connection:
    """An open connection. Every failure of the connection closes it and raises Disconnected."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str,
        versions: VersionRanges | None = None,
        security: Security = _PLAINTEXT,
        timeout_s: float = 30.0,
        allocate: Callable[[int], bytearray] = bytearray,
    ) -> None:
        """``versions`` are the ranges that the broker serves; None asks the broker.

        Pass an empty mapping if every request names its version. ``timeout_s`` bounds each wait
        for the socket, not a whole response: a large one may take longer while it makes progress.
        """
        self.address = f"{host}:{port}"
        self.timeout_s = timeout_s
        self._session = Session(client_id, versions, allocate=allocate)
        self._frames: deque[memoryview] = deque()
        # Responses that arrived while ``request`` waited for a later one.
        self._early: deque[Response] = deque()
        try:
            self.socket = socket.create_connection((host, port), timeout_s)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if security.uses_tls:
                self.socket = wrap_in_tls(self.socket, host, security)
        except OSError as failed:
            raise Disconnected(f"cannot connect to {self.address}: {failed}") from failed
        try:
            if versions is None:
                self._negotiate_versions()
            if security.uses_sasl:
                self._authenticate(security)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._frames.clear()
        self._early.clear()
        with contextlib.suppress(OSError):
            self.socket.close()

    @property
    def in_flight(self) -> int:
        """The number of requests whose response was not taken yet."""
        return self._session.in_flight + len(self._early)

    def version_of(self, request: type[Message], version_max: int | None = None) -> int:
        """The newest version that both sides know, at most ``version_max``."""
        try:
            return self._session.version_of(request, version_max)
        except UnsupportedVersion as unsupported:
            raise self._unsupported(unsupported) from unsupported

    def send(
        self,
        request: Message,
        *,
        api_version: int | None = None,
        version_max: int | None = None,
    ) -> None:
        """Send without waiting for the response."""
        try:
            frame = self._session.encode(request, api_version=api_version, version_max=version_max)
        except UnsupportedVersion as unsupported:
            raise self._unsupported(unsupported) from unsupported
        self.send_bytes(frame)

    def receive(self, kind: type[_Answer], *, timeout_s: float | None = None) -> _Answer:
        """The response to the oldest request in flight; its buffers belong to the caller."""
        return self._decode(self.receive_response(timeout_s=timeout_s), kind)

    def receive_response(self, *, timeout_s: float | None = None) -> Response:
        """As ``receive``, for callers that decode the response themselves."""
        if self._early:
            return self._early.popleft()
        if not self._session.in_flight:
            # The caller sent its request on an earlier connection to this broker.
            raise Disconnected(f"the connection to {self.address} was replaced; response lost")
        return self._next_response(timeout_s)

    def request(
        self,
        request: Message,
        kind: type[_Answer],
        *,
        api_version: int | None = None,
        version_max: int | None = None,
        timeout_s: float | None = None,
    ) -> _Answer:
        """Send and wait for this response; earlier ones are kept for ``receive``."""
        self.send(request, api_version=api_version, version_max=version_max)
        while self._session.in_flight > 1:
            self._early.append(self._next_response(timeout_s))
        return self._decode(self._next_response(timeout_s), kind)

    # --- bytes -----------------------------------------------------------------------

    def send_bytes(self, data: Buffer) -> None:
        """Send bytes as they are, such as frames that were encoded before."""
        try:
            self.socket.settimeout(self.timeout_s)
            self.socket.sendall(data)
        except OSError as failed:
            raise self._broken(f"connection to {self.address} lost: {failed}") from failed

    def receive_frame(self, timeout_s: float | None = None) -> memoryview:
        """The next frame without its size, for callers that sent bytes of their own."""
        if not self._frames:
            self._receive_frames(self.timeout_s if timeout_s is None else timeout_s)
        return self._frames.popleft()

    def _receive_frames(self, timeout_s: float) -> None:
        session = self._session
        try:
            self.socket.settimeout(timeout_s)
            while not self._frames:
                count = self.socket.recv_into(session.buffer())
                if not count:
                    raise ConnectionResetError("the broker closed the connection")
                self._frames += session.advance(count)
        except OSError as failed:
            raise self._broken(f"no response from {self.address}: {failed}") from failed
        except PeerBroken as broken:
            raise self._invalid(broken) from broken

    def _next_response(self, timeout_s: float | None) -> Response:
        frame = self.receive_frame(timeout_s)
        try:
            return self._session.response(frame)
        except PeerBroken as broken:
            raise self._invalid(broken) from broken

    def _decode(self, response: Response, kind: type[_Answer]) -> _Answer:
        try:
            return response.decode(kind)
        except PeerBroken as broken:
            raise self._invalid(broken) from broken

    def _invalid(self, broken: PeerBroken) -> Disconnected:
        return self._broken(f"invalid response from {self.address}: {broken}")

    def _broken(self, what: str) -> Disconnected:
        self.close()
        return Disconnected(what)

    def _unsupported(self, unsupported: UnsupportedVersion) -> Refused:
        return Refused(ErrorCode.UNSUPPORTED_VERSION, f"{self.address}: {unsupported}")

    # --- opening ---------------------------------------------------------------------

    def _negotiate_versions(self) -> None:
        response = self.request(
            m.ApiVersionsRequest(), m.ApiVersionsResponse, api_version=API_VERSIONS_VERSION
        )
        if response.error_code:
            raise Refused(
                error_code(response.error_code), f"{self.address} does not report its API versions"
            )
        self._session.learn_versions(response)

    def _authenticate(self, security: Security) -> None:
        handshake = self.request(
            m.SaslHandshakeRequest(mechanism=security.mechanism), m.SaslHandshakeResponse
        )
        if handshake.error_code:
            raise Refused(
                error_code(handshake.error_code),
                f"{self.address} supports {', '.join(handshake.mechanisms)}, "
                f"not {security.mechanism}",
            )

        def exchange(token: bytes) -> bytes:
            response = self.request(
                m.SaslAuthenticateRequest(auth_bytes=token), m.SaslAuthenticateResponse
            )
            if response.error_code:
                raise Refused(
                    error_code(response.error_code),
                    f"{self.address} rejected user {security.username!r} "
                    f"({response.error_message or 'no reason given'})",
                )
            return bytes(response.auth_bytes)

        authenticate(security, exchange)
