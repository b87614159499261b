"""One blocking connection to one broker: requests out, answers in the same order.

Versions are negotiated once per connection. Several requests may be under way (``send`` then
``receive``), which is how a reader has the next fetch coming while it decodes the last one.
"""

import contextlib
import socket
from collections import deque
from struct import Struct
from typing import Any, NamedTuple, TypeVar

from headrace.model.errors import PeerBroken
from headrace.spark.failures import Disconnected, Refused, error_code, refuse
from headrace.spark.security import Security, authenticate, tls_wrapped
from headrace.wire import framing, schema
from headrace.wire import messages as m
from headrace.wire.api import ApiKey
from headrace.wire.schema import Message

_SIZE = Struct(">i")
_RESPONSE_SIZE_MAX = 1 << 30

_Answer = TypeVar("_Answer", bound=Message)


class Awaited(NamedTuple):
    """A request whose answer has not been read yet."""

    api_key: int
    api_version: int
    correlation_id: int
    response_name: str


class Connection:
    def __init__(
        self, host: str, port: int, security: Security, client_id: str, timeout_s: float
    ) -> None:
        self.address = f"{host}:{port}"
        self.timeout_s = timeout_s
        self._client_id = client_id
        self._correlation_id = 0
        self._awaited: deque[Awaited] = deque()
        # Answers that came before one that was asked for by somebody else.
        self._early: deque[tuple[Awaited, memoryview]] = deque()
        self._ranges: dict[int, tuple[int, int]] = {}
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if security.uses_tls:
                self._socket = tls_wrapped(self._socket, host, security)
        except OSError as failed:
            raise Disconnected(f"{self.address} cannot be reached: {failed}") from failed
        try:
            self._learn_versions()
            if security.uses_sasl:
                self._authenticate(security)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._awaited.clear()
        self._early.clear()
        with contextlib.suppress(OSError):
            self._socket.close()

    @property
    def under_way(self) -> int:
        """How many answers are still to be read."""
        return len(self._awaited) + len(self._early)

    def version_of(self, request: type[Message], version_max: int | None = None) -> int:
        """The newest version that both ends speak, at most ``version_max``."""
        known = schema.definition(request.__name__)
        first, last = self._ranges.get(known.api_key, (0, -1))
        chosen = min(last, known.versions.last)
        if version_max is not None:
            chosen = min(chosen, version_max)
        if chosen < max(first, known.versions.first):
            raise Refused(
                error_code(35), f"{self.address} serves no {request.__name__} that we can send"
            )
        return chosen

    def send(
        self, request: Message, *, version_max: int | None = None, answered: bool = True
    ) -> None:
        """Sends without waiting. ``answered`` is False for the one request without an answer."""
        name = type(request).__name__
        api_version = self.version_of(type(request), version_max)
        api_key = schema.definition(name).api_key
        self._correlation_id += 1
        frame = framing.encode_request(
            api_key, api_version, self._correlation_id, self._client_id, request
        )
        try:
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(frame)
        except OSError as failed:
            self.close()
            raise Disconnected(f"{self.address} broke the connection: {failed}") from failed
        if answered:
            self._awaited.append(
                Awaited(api_key, api_version, self._correlation_id, name[:-7] + "Response")
            )

    def receive(self, kind: type[_Answer], *, timeout_s: float | None = None) -> _Answer:
        """The answer to the oldest request under way; its buffers belong to the caller."""
        if self._early:
            awaited, frame = self._early.popleft()
        elif not self._awaited:
            # Whoever sent the request sent it on a connection that is gone.
            raise Disconnected(f"{self.address} was connected to anew; the answer is lost")
        else:
            awaited = self._awaited.popleft()
            frame = self._read_frame(timeout_s or self.timeout_s)
        return self._decoded(awaited, frame, kind)

    def ask(
        self,
        request: Message,
        kind: type[_Answer],
        *,
        version_max: int | None = None,
        timeout_s: float | None = None,
    ) -> _Answer:
        """Sends and waits for this answer; those before it are kept for who sent for them."""
        self.send(request, version_max=version_max)
        while len(self._awaited) > 1:
            awaited = self._awaited.popleft()
            self._early.append((awaited, self._read_frame(timeout_s or self.timeout_s)))
        awaited = self._awaited.popleft()
        return self._decoded(awaited, self._read_frame(timeout_s or self.timeout_s), kind)

    def _decoded(self, awaited: Awaited, frame: memoryview, kind: type[_Answer]) -> _Answer:
        assert awaited.response_name == kind.__name__, (awaited, kind)
        try:
            correlation_id, position = framing.parse_response_header(
                frame, 0, len(frame), awaited.api_key, awaited.api_version
            )
            if correlation_id != awaited.correlation_id:
                raise PeerBroken(f"answer {correlation_id} to request {awaited.correlation_id}")
            answer, _ = schema.decoder(kind, awaited.api_version)(frame, position, len(frame))
        except PeerBroken as broken:
            self.close()
            raise Disconnected(f"{self.address} sent what cannot be read: {broken}") from broken
        return answer

    def _read_frame(self, timeout_s: float) -> memoryview:
        # A writable buffer of its own per answer: record batches are handed on as views into it.
        (size,) = _SIZE.unpack(self._read(_SIZE.size, timeout_s))
        if not 0 <= size <= _RESPONSE_SIZE_MAX:
            self.close()
            raise Disconnected(f"{self.address} announced an answer of {size} bytes")
        return self._read(size, timeout_s)

    def _read(self, size: int, timeout_s: float) -> memoryview:
        view = memoryview(bytearray(size))
        filled = 0
        try:
            self._socket.settimeout(timeout_s)
            while filled < size:
                received = self._socket.recv_into(view[filled:])
                if not received:
                    raise ConnectionResetError("it closed the connection")
                filled += received
        except OSError as failed:
            self.close()
            raise Disconnected(f"{self.address} did not answer: {failed}") from failed
        return view

    def _learn_versions(self) -> None:
        # Version 0 is understood by every broker and needs no second try.
        self._ranges = {int(ApiKey.API_VERSIONS): (0, 0)}
        answer = self.ask(m.ApiVersionsRequest(), m.ApiVersionsResponse)
        refuse(answer.error_code, f"{self.address} does not tell its versions")
        self._ranges = {
            entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys
        }

    def _authenticate(self, security: Security) -> None:
        shaken = self.ask(
            m.SaslHandshakeRequest(mechanism=security.mechanism), m.SaslHandshakeResponse
        )
        if shaken.error_code:
            raise Refused(
                error_code(shaken.error_code),
                f"{self.address} knows {', '.join(shaken.mechanisms)}, not {security.mechanism}",
            )

        def exchange(token: bytes) -> bytes:
            answer: Any = self.ask(
                m.SaslAuthenticateRequest(auth_bytes=token), m.SaslAuthenticateResponse
            )
            if answer.error_code:
                raise Refused(
                    error_code(answer.error_code),
                    f"{self.address} does not let {security.username!r} in "
                    f"({answer.error_message or 'no reason given'})",
                )
            return bytes(answer.auth_bytes)

        authenticate(security, exchange)
