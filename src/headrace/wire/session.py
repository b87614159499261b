"""The client side of a connection without the connection: requests to bytes, bytes to responses.

The caller owns the transport. It sends what ``encode`` returns, receives into ``buffer()``, and
says how many bytes arrived:

    transport.send(session.encode(request))
    while transport is open:
        for frame in session.advance(transport.receive_into(session.buffer())):
            response = session.response(frame).decode(MetadataResponse)

A broker answers in the order of the requests, so each frame belongs to the oldest request in
flight. Anything else raises PeerBroken; the caller then closes the connection.
"""

from collections import deque
from collections.abc import Callable, Mapping
from struct import Struct
from typing import NamedTuple, TypeVar

from headrace.model.errors import PeerBroken
from headrace.wire import messages as m
from headrace.wire import schema
from headrace.wire.api import api_name, response_class
from headrace.wire.framing import encode_request, parse_response_header
from headrace.wire.schema import Buffer, Message

MessageT = TypeVar("MessageT", bound=Message)

# First and last version, both inclusive, by API key.
VersionRanges = Mapping[int, tuple[int, int]]

_SIZE = Struct(">i")
_FRAME_SIZE_MIN = 4  # the correlation ID
FRAME_SIZE_MAX = 1 << 30
# Large enough for most responses but Fetch, small enough that copying them costs nothing.
_READ_AHEAD_SIZE = 8 << 10
CORRELATION_ID_MAX = (1 << 31) - 1
# Every broker understands this version, so one attempt is enough.
API_VERSIONS_VERSION = 0


class UnsupportedVersion(Exception):
    """The two sides have no version of a request in common."""


class Response(NamedTuple):
    """A response that is not decoded yet. ``body`` is a view of the frame's own buffer."""

    api_key: int
    api_version: int
    correlation_id: int
    body: memoryview

    def decode(self, kind: type[MessageT]) -> MessageT:
        """Decode the body; binary fields of the result are views of the same buffer."""
        if kind is not response_class(self.api_key):
            raise TypeError(f"{api_name(self.api_key)} does not answer with {kind.__name__}")
        message, _ = schema.decoder(kind, self.api_version)(self.body, 0, len(self.body))
        return message


def has_response(request: Message) -> bool:
    """False for Produce with acks=0, the one request that a broker does not answer."""
    return not isinstance(request, m.ProduceRequest) or request.acks != 0


def parse_response(frame: Buffer, api_key: int, api_version: int) -> Response:
    """Read the header of a response frame without its size."""
    correlation_id, position = parse_response_header(frame, 0, len(frame), api_key, api_version)
    return Response(api_key, api_version, correlation_id, memoryview(frame)[position:])


class FrameReader:
    """Cuts received bytes into frames. Each frame gets a writable buffer of its own.

    Bytes arrive in a small buffer. A frame that is not complete there continues in its own
    buffer, so the transport writes the bulk of a large frame to its final place.
    """

    def __init__(
        self,
        size_max: int = FRAME_SIZE_MAX,
        allocate: Callable[[int], bytearray] = bytearray,
    ) -> None:
        """``allocate`` returns a buffer of at least the given size, by default a new one.

        It may return the same buffer again if the caller is done with the last frame by then.
        """
        self._size_max = size_max
        self._allocate = allocate
        self._ahead = memoryview(bytearray(_READ_AHEAD_SIZE))
        self._ahead_filled = 0
        self._frame: memoryview | None = None
        self._frame_filled = 0

    def buffer(self) -> memoryview:
        """Where the next received bytes belong; never empty."""
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return self._ahead[self._ahead_filled :]

    def advance(self, count: int) -> list[memoryview]:
        """Take ``count`` bytes that arrived in ``buffer()``; return the frames they complete."""
        if self._frame is not None:
            self._frame_filled += count
            if self._frame_filled < len(self._frame):
                return []
            frame, self._frame = self._frame, None
            return [frame]
        return self._cut(self._ahead_filled + count)

    def feed(self, data: Buffer) -> list[memoryview]:
        """Take bytes that arrived elsewhere; return the frames they complete."""
        rest, frames = memoryview(data), []
        while rest:
            free = self.buffer()
            count = min(len(free), len(rest))
            free[:count] = rest[:count]
            rest = rest[count:]
            frames += self.advance(count)
        return frames

    def _cut(self, end: int) -> list[memoryview]:
        frames = []
        ahead, position = self._ahead, 0
        while end - position >= _SIZE.size:
            (size,) = _SIZE.unpack_from(ahead, position)
            if not _FRAME_SIZE_MIN <= size <= self._size_max:
                raise PeerBroken(f"a response of {size} bytes")
            position += _SIZE.size
            present = min(size, end - position)
            frame = memoryview(self._allocate(size))[:size]
            frame[:present] = ahead[position : position + present]
            position += present
            if present == size:
                frames.append(frame)
            else:
                self._frame, self._frame_filled = frame, present
        self._ahead_filled = end - position
        ahead[: self._ahead_filled] = ahead[position:end]
        return frames


class _InFlight(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int


class Session(FrameReader):
    """Encodes requests and matches responses to them.

    ``versions`` are the ranges that the broker serves. A caller that passes ``api_version`` with
    each request needs none.
    """

    def __init__(
        self,
        client_id: str | None,
        versions: VersionRanges | None = None,
        *,
        size_max: int = FRAME_SIZE_MAX,
        allocate: Callable[[int], bytearray] = bytearray,
    ) -> None:
        super().__init__(size_max, allocate)
        self._client_id = client_id
        self._versions: VersionRanges = versions or {}
        self._correlation_id = 0
        self._in_flight: deque[_InFlight] = deque()

    @property
    def in_flight(self) -> int:
        """The number of requests whose response has not been matched."""
        return len(self._in_flight)

    def learn_versions(self, response: m.ApiVersionsResponse) -> None:
        self._versions = {
            entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys
        }

    def version_of(self, request: type[Message], version_max: int | None = None) -> int:
        """The newest version that both sides know, at most ``version_max``."""
        known = schema.definition(request.__name__)
        first, last = self._versions.get(known.api_key, (0, -1))
        chosen = min(last, known.versions.last)
        if version_max is not None:
            chosen = min(chosen, version_max)
        if chosen < max(first, known.versions.first):
            raise UnsupportedVersion(
                f"no common version of {request.__name__}: we know {known.versions}, "
                + (f"the broker serves {first} to {last}" if last >= 0 else "the broker has none")
            )
        return chosen

    def encode(
        self,
        request: Message,
        *,
        api_version: int | None = None,
        version_max: int | None = None,
    ) -> bytearray:
        """The frame of a request, which the caller must send before the next one.

        ``api_version`` fixes the version; otherwise it is negotiated.
        """
        if api_version is None:
            api_version = self.version_of(type(request), version_max)
        api_key = schema.definition(type(request).__name__).api_key
        correlation_id = self._correlation_id = self._correlation_id % CORRELATION_ID_MAX + 1
        frame = encode_request(api_key, api_version, correlation_id, self._client_id, request)
        if has_response(request):
            self._in_flight.append(_InFlight(api_key, api_version, correlation_id))
        return frame

    def response(self, frame: Buffer) -> Response:
        """Match a frame to the oldest request in flight."""
        if not self._in_flight:
            raise PeerBroken(f"a response of {len(frame)} bytes to no request")
        sent = self._in_flight.popleft()
        response = parse_response(frame, sent.api_key, sent.api_version)
        if response.correlation_id != sent.correlation_id:
            raise PeerBroken(f"response {response.correlation_id} to request {sent.correlation_id}")
        return response
