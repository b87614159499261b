"""Frames around messages: size, request and response headers, versions of records. Pure.

    request     i32 size | i16 key | i16 version | i32 correlation | client id | tags | body
    response    i32 size | i32 correlation | tags | body
    record      i16 version or type | body            (internal topics, group metadata)

The client id is an int16-sized string even in flexible versions. Only flexible versions have tags.
Positions refer to the given buffer; ``end`` is the end of the frame, not of the buffer.
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple, TypeVar

from headrace.model.errors import PeerBroken
from headrace.wire import schema
from headrace.wire.api import FIRST_FLEXIBLE_VERSION, NO_LIMIT, ApiKey, is_flexible
from headrace.wire.schema import Buffer, Message

MessageT = TypeVar("MessageT", bound=Message)

# Plain ints: comparing with an enum member takes as long as the rest of the header.
_CONTROLLED_SHUTDOWN = int(ApiKey.CONTROLLED_SHUTDOWN)
_API_VERSIONS = int(ApiKey.API_VERSIONS)

_REQUEST_HEAD = Struct(">hhih")  # key, version, correlation id, size of the client id
_CLIENT_ID_SIZE = 2
_read_request_head = _REQUEST_HEAD.unpack_from
_REQUEST_HEAD_SIZE = _REQUEST_HEAD.size
_SIZE = Struct(">i")
_INT16 = Struct(">h")
_RESPONSE_LEGACY = Struct(">i")
_RESPONSE_FLEXIBLE = Struct(">ix")  # an empty set of tags is one zero byte


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def parse_request_header(buffer: Buffer, position: int, end: int) -> RequestHeader:
    """The header of the request at ``buffer[position:end]``, which excludes the size.

    The header of an unknown API key is read as version 1, so that the caller can name the key.
    """
    client_id_start = position + _REQUEST_HEAD_SIZE
    if client_id_start > end:
        raise PeerBroken(f"a request of {end - position} bytes, too short for a header")
    api_key, api_version, correlation_id, size = _read_request_head(buffer, position)
    if api_key == _CONTROLLED_SHUTDOWN and api_version == 0:
        # The only request whose header has no client id.
        no_client_id_end = client_id_start - _CLIENT_ID_SIZE
        return RequestHeader(api_key, api_version, correlation_id, None, no_client_id_end)
    body_position = client_id_start
    client_id = None
    if size >= 0:
        body_position += size
        if body_position > end:
            raise PeerBroken(f"a client id of {size} bytes in a request of {end - position}")
        try:
            client_id = str(buffer[client_id_start:body_position], "utf-8")
        except UnicodeDecodeError as broken:
            raise PeerBroken(f"a client id that is not UTF-8: {broken}") from broken
    elif size != -1:
        raise PeerBroken(f"a client id of {size} bytes")
    if api_version >= FIRST_FLEXIBLE_VERSION.get(api_key, NO_LIMIT):
        if body_position < end and not buffer[body_position]:
            body_position += 1  # no tagged fields, as all clients send it
        else:
            body_position = skip_tags(buffer, body_position, end)
    # Without the constructor of NamedTuple, which takes as long as the parsing.
    return tuple.__new__(
        RequestHeader, (api_key, api_version, correlation_id, client_id, body_position)
    )


def skip_tags(buffer: Buffer, position: int, end: int) -> int:
    """The position after a set of tagged fields, all of which are ignored."""
    if position >= end:
        raise PeerBroken("a header without its tagged fields")
    first = buffer[position]
    if not first:
        return position + 1
    return position + schema.skip_all_tags(memoryview(buffer)[position:end])


def encode_request(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, request: Message
) -> bytearray:
    """A complete request frame with its size, for a client."""
    out = bytearray(_SIZE.size)
    if api_key == _CONTROLLED_SHUTDOWN and api_version == 0:
        out += _REQUEST_HEAD.pack(api_key, api_version, correlation_id, 0)[:-_CLIENT_ID_SIZE]
    else:
        raw = b"" if client_id is None else client_id.encode()
        size = -1 if client_id is None else len(raw)
        out += _REQUEST_HEAD.pack(api_key, api_version, correlation_id, size)
        out += raw
        if is_flexible(api_key, api_version):
            out.append(0)
    schema.encoder(type(request), api_version)(request, out)
    _SIZE.pack_into(out, 0, len(out) - _SIZE.size)
    return out


def has_flexible_response_header(api_key: int, api_version: int) -> bool:
    # A client that sends ApiVersions does not know yet which versions the broker supports, so
    # this response always has the oldest header (KIP-511).
    return api_key != _API_VERSIONS and is_flexible(api_key, api_version)


def response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """The header of a response, without the size of the frame."""
    if has_flexible_response_header(api_key, api_version):
        return _RESPONSE_FLEXIBLE.pack(correlation_id)
    return _RESPONSE_LEGACY.pack(correlation_id)


class Encoded(Message):
    """A response that is already encoded, because it is sent repeatedly."""

    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        self.body = body


def encode_response(
    api_key: int, api_version: int, correlation_id: int, response: Message
) -> bytearray:
    """A complete response frame with its size."""
    out = bytearray(_SIZE.size)
    out += response_header(api_key, api_version, correlation_id)
    if isinstance(response, Encoded):
        out += response.body
    else:
        schema.encoder(type(response), api_version)(response, out)
    _SIZE.pack_into(out, 0, len(out) - _SIZE.size)
    return out


def parse_response_header(
    buffer: Buffer, position: int, end: int, api_key: int, api_version: int
) -> tuple[int, int]:
    """Correlation id and body position of the response at ``buffer[position:end]``."""
    body_position = position + _RESPONSE_LEGACY.size
    if body_position > end:
        raise PeerBroken(f"a response of {end - position} bytes, too short for a header")
    (correlation_id,) = _RESPONSE_LEGACY.unpack_from(buffer, position)
    if has_flexible_response_header(api_key, api_version):
        body_position = skip_tags(buffer, body_position, end)
    return correlation_id, body_position


def encode_versioned(message: Message, message_version: int) -> bytes:
    """The version, then the message: a value of an internal topic, or a member's metadata."""
    out = bytearray(_INT16.pack(message_version))
    schema.encoder(type(message), message_version)(message, out)
    return bytes(out)


def decode_versioned(message: type[MessageT], data: Buffer) -> MessageT:
    """The inverse of ``encode_versioned``. Raises PeerBroken if bytes remain."""
    known = schema.definition(message.__name__).versions
    message_version = _prefix(data, message.__name__)
    if not known.includes(message_version):
        raise PeerBroken(
            f"{message.__name__} version {message_version}; "
            f"versions {known.first} to {known.last} are known"
        )
    return _decode_after_prefix(message, message_version, data)


def encode_record_key(key: Message) -> bytes:
    """A key of an internal topic: the record type, then the key in version 0."""
    out = bytearray(_INT16.pack(schema.definition(type(key).__name__).api_key))
    schema.encoder(type(key), 0)(key, out)
    return bytes(out)


def decode_record_key(candidates: Iterable[type[MessageT]], data: Buffer) -> MessageT | None:
    """The key, decoded as the candidate with its record type; None if there is no such candidate.

    Each internal topic numbers its record types from 0, so the caller passes the keys of its
    topic.
    """
    record_type = _prefix(data, "a record key")
    for candidate in candidates:
        if schema.definition(candidate.__name__).api_key == record_type:
            return _decode_after_prefix(candidate, 0, data)
    return None


def _prefix(data: Buffer, what: str) -> int:
    if len(data) < _INT16.size:
        raise PeerBroken(f"{what} of {len(data)} bytes, too short for a version")
    (number,) = _INT16.unpack_from(data)
    return int(number)


def _decode_after_prefix(message: type[MessageT], message_version: int, data: Buffer) -> MessageT:
    decode = schema.decoder(message, message_version)
    decoded, position = decode(data, _INT16.size, len(data))
    if position != len(data):
        raise PeerBroken(f"{message.__name__}: {len(data) - position} extra bytes")
    return decoded
