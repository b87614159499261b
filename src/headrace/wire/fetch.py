"""Fetch: the shape of a consumer's requests, and responses around file ranges.

A consumer of one partition repeats its request with another session epoch and fetch offset. A
``FetchShape`` remembers the other bytes; a matching request needs no decoding.

    request     size | api key, version | correlation id | client id … session id | session epoch
                       ^^^^^ head ^^^^^                    ^^^^^^^ before epoch ^^
                | topics … leader epoch | fetch offset | … rack id
                  ^^^ before offset ^^^                  ^^ rest ^

Responses have versions 4 to 18 (flexible from 12). Records are last in the entry of a partition,
so a response is a list: head, records, head, records, ... It begins with the size prefix, and no
record is copied.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any, NamedTuple

_FLEXIBLE_SINCE = 12
TOPIC_ID_SINCE = 13
_NO_REPLICA_ID_SINCE = 15
_ENDPOINTS_SINCE = 16
_ONE = 2  # one element, as a compact array count

_read_epoch = Struct(">i").unpack_from
_read_offset = Struct(">q").unpack_from
_partition_v4 = Struct(">ihqq").pack  # index, error, high watermark, last stable offset
_partition_v5 = Struct(">ihqqq").pack  # ... log start
_session = Struct(">ihi").pack  # throttle, error, session id
_i32 = Struct(">i").pack
_i16 = Struct(">h").pack
_aborted = Struct(">qq").pack
_diverging = Struct(">iq").pack
_current_leader = Struct(">ii").pack
_put_head = Struct(">ii").pack_into


class FetchShape:
    """The shape of one client's requests for one partition by topic id."""

    __slots__ = (
        "_head",
        "_before_epoch",
        "_epoch_at",
        "_before_offset",
        "_offset_at",
        "_rest",
        "_size",
    )

    def __init__(self, frame: bytes, epoch_at: int, offset_at: int) -> None:
        self._epoch_at = epoch_at
        self._offset_at = offset_at
        self._head = frame[:4]
        self._before_epoch = frame[8:epoch_at]
        self._before_offset = frame[epoch_at + 4 : offset_at]
        self._rest = frame[offset_at + 8 :]
        self._size = len(frame)

    @classmethod
    def of(cls, frame: bytes, api_version: int, body_at: int) -> "FetchShape | None":
        """The shape of a request without its size; None if it has more than one partition."""
        if api_version < TOPIC_ID_SINCE:
            return None
        # replica id (before 15), max wait, min bytes, max bytes, isolation level, session id
        epoch_at = body_at + 17 + (4 if api_version < _NO_REPLICA_ID_SINCE else 0)
        topics_at = epoch_at + 4
        partitions_at = topics_at + 1 + 16
        if frame[topics_at] != _ONE or frame[partitions_at] != _ONE:
            return None
        return cls(frame, epoch_at, partitions_at + 1 + 4 + 4)  # partition, leader epoch

    def match(self, view: memoryview, start: int, end: int) -> tuple[int, int] | None:
        """Session epoch and fetch offset of the request in ``[start, end)``, if it matches."""
        data = view.obj
        assert isinstance(data, bytearray)  # a view cannot compare in place
        epoch_at = start + self._epoch_at
        offset_at = start + self._offset_at
        if (
            end - start == self._size
            and data.startswith(self._before_offset, epoch_at + 4)
            and data.startswith(self._rest, offset_at + 8)
            and data.startswith(self._before_epoch, start + 8)
            and data.startswith(self._head, start)
        ):
            return _read_epoch(data, epoch_at)[0], _read_offset(data, offset_at)[0]
        return None


class FetchedPartition:
    """The entry of one partition: bytes, or a file range, of ``records_size``."""

    __slots__ = (
        "partition",
        "error_code",
        "high_watermark",
        "last_stable_offset",
        "log_start",
        "aborted",
        "records",
        "records_size",
        "diverging",
        "current_leader",
        "preferred_read_replica",
    )

    def __init__(
        self,
        partition: int,
        error_code: int,
        high_watermark: int = -1,
        last_stable_offset: int = -1,
        log_start: int = -1,
        aborted: Sequence[tuple[int, int]] | None = None,  # (producer id, first offset)
        records: Any = None,
        records_size: int = 0,
        diverging: tuple[int, int] | None = None,  # (leader epoch, its end offset)
        current_leader: tuple[int, int] | None = None,  # (broker, leader epoch), from version 12
        preferred_read_replica: int = -1,
    ) -> None:
        self.partition = partition
        self.error_code = error_code
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start = log_start
        self.aborted = aborted
        self.records = records
        self.records_size = records_size
        self.diverging = diverging
        self.current_leader = current_leader
        self.preferred_read_replica = preferred_read_replica


class NodeEndpoint(NamedTuple):
    """The address of a broker that an entry names as leader (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None


def _uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_fetch_response(
    version: int,
    correlation_id: int,
    session_id: int,
    topics: Sequence[tuple[str | bytes, Sequence[FetchedPartition]]],
    *,
    error_code: int = 0,
    throttle_time_ms: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> list[Any]:
    """The complete frame. ``topics`` have names up to version 12, and ids from version 13.

    ``endpoints`` are sent from version 16.
    """
    flexible = version >= _FLEXIBLE_SINCE
    head = bytearray(9 if flexible else 8)  # size, correlation id, header tags
    parts: list[Any] = [head]
    out = head
    size = -4  # of all parts before ``out``, without the size field itself
    if version >= 7:
        out += _session(throttle_time_ms, error_code, session_id)
    else:
        out += _i32(throttle_time_ms)
    out += _uvarint(len(topics) + 1) if flexible else _i32(len(topics))
    for topic, partitions in topics:
        if isinstance(topic, bytes):
            out += topic
        else:
            name = topic.encode()
            out += _uvarint(len(name) + 1) if flexible else _i16(len(name))
            out += name
        out += _uvarint(len(partitions) + 1) if flexible else _i32(len(partitions))
        for entry in partitions:
            _put_partition(out, entry, version, flexible)
            if entry.records_size:
                size += len(out) + entry.records_size
                out = bytearray()
                parts += (entry.records, out)
            if flexible:
                _put_partition_tags(out, entry)
        if flexible:
            out.append(0)
    if endpoints and version >= _ENDPOINTS_SINCE:
        _put_endpoints(out, endpoints)
    elif flexible:
        out.append(0)
    _put_head(head, 0, size + len(out), correlation_id)
    return parts


def _put_partition(out: bytearray, entry: FetchedPartition, version: int, flexible: bool) -> None:
    """The entry of one partition up to and including the size of its records."""
    if version >= 5:
        out += _partition_v5(
            entry.partition,
            entry.error_code,
            entry.high_watermark,
            entry.last_stable_offset,
            entry.log_start,
        )
    else:
        out += _partition_v4(
            entry.partition, entry.error_code, entry.high_watermark, entry.last_stable_offset
        )
    aborted = entry.aborted
    if aborted is None:
        out += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        out += _uvarint(len(aborted) + 1) if flexible else _i32(len(aborted))
        for producer_id, first_offset in aborted:
            out += _aborted(producer_id, first_offset)
            if flexible:
                out.append(0)
    if version >= 11:
        out += _i32(entry.preferred_read_replica)
    size = entry.records_size
    out += _uvarint(size + 1) if flexible else _i32(size)


def _put_partition_tags(out: bytearray, entry: FetchedPartition) -> None:
    if entry.diverging is not None:
        # One tagged field with tag 0 and 13 bytes: leader epoch, end offset, no tags.
        out += b"\x01\x00\x0d" + _diverging(*entry.diverging) + b"\0"
    elif entry.current_leader is not None:
        # One tagged field with tag 1 and 9 bytes: broker, leader epoch, no tags.
        out += b"\x01\x01\x09" + _current_leader(*entry.current_leader) + b"\0"
    else:
        out.append(0)


def _put_endpoints(out: bytearray, endpoints: Sequence[NodeEndpoint]) -> None:
    """The tags of the response: one tagged field with tag 0."""
    field = bytearray(_uvarint(len(endpoints) + 1))
    for node_id, host, port, rack in endpoints:
        field += _i32(node_id) + _compact(host) + _i32(port)
        field += b"\0" if rack is None else _compact(rack)
        field.append(0)
    out += b"\x01\x00" + _uvarint(len(field)) + field


def _compact(text: str) -> bytes:
    data = text.encode()
    return _uvarint(len(data) + 1) + data
