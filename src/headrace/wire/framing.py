"""What stands around a message: frame size, request and response headers, record versions. Pure.

    request     i32 size | i16 key | i16 version | i32 correlation | client id | tags | body
    response    i32 size | i32 correlation | tags | body
    record      i16 version or type | body            (internal topics, group metadata)

The client id is an int16-sized string even in flexible versions; the tags are
there in flexible versions only. Positions are of the buffer that was given, and
``end`` is where the frame ends, not the buffer.
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple, TypeVar

from headrace.model.errors import PeerBroken
from headrace.wire import schema
from headrace.wire.api import FIRST_FLEXIBLE_VERSION, NO_LIMIT, ApiKey, is_flexible
from headrace.wire.schema import Buffer, Message

MessageT = TypeVar("MessageT", bound=Message)

# Plain numbers: a comparison with a member of the enum costs as much as the rest of a header.
_CONTROLLED_SHUTDOWN = int(ApiKey.CONTROLLED_SHUTDOWN)
_API_VERSIONS = int(ApiKey.API_VERSIONS)

_REQUEST_HEAD = Struct(">hhih")  # key, version, correlation, size of the client id
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
    """Reads the header of the request at ``buffer[position:end]``, the size already taken off.

    A key that nobody knows is read with a header of version 1, so that the
    caller can still name it.
    """
    client_id_start = position + _REQUEST_HEAD_SIZE
    if client_id_start > end:
        raise PeerBroken(f"a request of {end - position} bytes, too few for a header")
    api_key, api_version, correlation_id, size = _read_request_head(buffer, position)
    if api_key == _CONTROLLED_SHUTDOWN and api_version == 0:
        # The one request whose header has no client id.
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
            raise PeerBroken(f"a client id that is no text: {broken}") from broken
    elif size != -1:
        raise PeerBroken(f"a client id of {size} bytes")
    if api_version >= FIRST_FLEXIBLE_VERSION.get(api_key, NO_LIMIT):
        if body_position < end and not buffer[body_position]:
            body_position += 1  # no tagged fields, which is what all clients send
        else:
            body_position = skip_tags(buffer, body_position, end)
    # Past the constructor of NamedTuple, which costs as much as the parsing.
    return tuple.__new__(
        RequestHeader, (api_key, api_version, correlation_id, client_id, body_position)
    )


def skip_tags(buffer: Buffer, position: int, end: int) -> int:
    """Past a set of tagged fields, none of which is looked at."""
    if position >= end:
        raise PeerBroken("a header without its tagged fields")
    first = buffer[position]
    if not first:
        return position + 1
    return position + schema.skip_all_tags(memoryview(buffer)[position:end])


def encode_request(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, request: Message
) -> bytearray:
    """A whole request frame, size included: what a client or a follower sends."""
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
    # A client that asks with ApiVersions does not know yet what the broker
    # speaks, so this answer keeps the oldest header for ever (KIP-511).
    return api_key != _API_VERSIONS and is_flexible(api_key, api_version)


def response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """The header of a response, without the frame's size."""
    if has_flexible_response_header(api_key, api_version):
        return _RESPONSE_FLEXIBLE.pack(correlation_id)
    return _RESPONSE_LEGACY.pack(correlation_id)


class Encoded(Message):
    """A response that was encoded before: the same answer is given again and again."""

    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        self.body = body


def encode_response(
    api_key: int, api_version: int, correlation_id: int, response: Message
) -> bytearray:
    """A whole response frame, size included."""
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
    """Correlation id and position of the body of the response at ``buffer[position:end]``."""
    body_position = position + _RESPONSE_LEGACY.size
    if body_position > end:
        raise PeerBroken(f"a response of {end - position} bytes has no header")
    (correlation_id,) = _RESPONSE_LEGACY.unpack_from(buffer, position)
    if has_flexible_response_header(api_key, api_version):
        body_position = skip_tags(buffer, body_position, end)
    return correlation_id, body_position


def encode_versioned(message: Message, message_version: int) -> bytes:
    """A value of an internal topic, or a group member's metadata: its version, then itself."""
    out = bytearray(_INT16.pack(message_version))
    schema.encoder(type(message), message_version)(message, out)
    return bytes(out)


def decode_versioned(message: type[MessageT], data: Buffer) -> MessageT:
    """The inverse of ``encode_versioned``; all of ``data`` must be used up."""
    known = schema.definition(message.__name__).versions
    message_version = _prefix(data, message.__name__)
    if not known.includes(message_version):
        raise PeerBroken(f"{message.__name__} of version {message_version}, known are {known}")
    return _decode_after_prefix(message, message_version, data)


def encode_record_key(key: Message) -> bytes:
    """A key of an internal topic: the type of the record, then the key in version 0."""
    out = bytearray(_INT16.pack(schema.definition(type(key).__name__).api_key))
    schema.encoder(type(key), 0)(key, out)
    return bytes(out)


def decode_record_key(candidates: Iterable[type[MessageT]], data: Buffer) -> MessageT | None:
    """The key, as the candidate whose record type it names; None for a type not among them.

    Each internal topic counts its record types from 0, so the caller says which
    keys may stand in the one it reads.
    """
    record_type = _prefix(data, "a record key")
    for candidate in candidates:
        if schema.definition(candidate.__name__).api_key == record_type:
            return _decode_after_prefix(candidate, 0, data)
    return None


def _prefix(data: Buffer, what: str) -> int:
    if len(data) < _INT16.size:
        raise PeerBroken(f"{what}: {len(data)} bytes have no version")
    (number,) = _INT16.unpack_from(data)
    return int(number)


def _decode_after_prefix(message: type[MessageT], message_version: int, data: Buffer) -> MessageT:
    decode = schema.decoder(message, message_version)
    decoded, position = decode(data, _INT16.size, len(data))
    if position != len(data):
        raise PeerBroken(f"{message.__name__}: {len(data) - position} bytes too many")
    return decoded
