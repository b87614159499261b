"""The answer to Fetch, written by hand: header bytes around file ranges that are never copied.

Versions 4 to 18 (12 and later are flexible). Records stand last in a partition's entry, so an
answer is pieces of head, records, head, records, ... The caller gets them as a list whose sizes
are known, with the size prefix already in front.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any, NamedTuple

_FLEXIBLE_SINCE = 12

_partition_v4 = Struct(">ihqq").pack  # index, error, high watermark, last stable offset
_partition_v5 = Struct(">ihqqq").pack  # ... log start
_session = Struct(">ihi").pack  # throttle, error, session id
_i32 = Struct(">i").pack
_i16 = Struct(">h").pack
_aborted = Struct(">qq").pack
_diverging = Struct(">iq").pack
_put_head = Struct(">ii").pack_into


class FetchedPartition(NamedTuple):
    """What one partition answers. ``records`` has a length: bytes, or a range of a file."""

    partition: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start: int = -1
    aborted: Sequence[tuple[int, int]] | None = None  # (producer id, first offset)
    records: Any = None
    records_size: int = 0
    diverging: tuple[int, int] | None = None  # (leader epoch, its end offset)


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
) -> list[Any]:
    """The whole frame. ``topics`` go by name up to version 12 and by id from 13 on."""
    flexible = version >= _FLEXIBLE_SINCE
    head = bytearray(9 if flexible else 8)  # size, correlation id, tags of the header
    parts: list[Any] = [head]
    out = head
    if version >= 7:
        out += _session(throttle_time_ms, error_code, session_id)
    else:
        out += _i32(throttle_time_ms)
    out += _uvarint(len(topics) + 1) if flexible else _i32(len(topics))
    records_size = 0
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
                records_size += entry.records_size
                parts.append(entry.records)
                out = bytearray()
                parts.append(out)
            if flexible:
                _put_partition_tags(out, entry)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    # Only heads are bytearrays here; records come as bytes or file ranges.
    size = records_size + sum(len(part) for part in parts if type(part) is bytearray) - 4
    _put_head(head, 0, size, correlation_id)
    return parts


def _put_partition(out: bytearray, entry: FetchedPartition, version: int, flexible: bool) -> None:
    """Everything of one partition up to and with the size of its records."""
    partition, error_code, high_watermark, last_stable_offset, log_start, aborted = entry[:6]
    if version >= 5:
        out += _partition_v5(partition, error_code, high_watermark, last_stable_offset, log_start)
    else:
        out += _partition_v4(partition, error_code, high_watermark, last_stable_offset)
    if aborted is None:
        out += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        out += _uvarint(len(aborted) + 1) if flexible else _i32(len(aborted))
        for producer_id, first_offset in aborted:
            out += _aborted(producer_id, first_offset)
            if flexible:
                out.append(0)
    if version >= 11:
        out += b"\xff\xff\xff\xff"  # preferred read replica: the leader
    size = entry.records_size
    out += _uvarint(size + 1) if flexible else _i32(size)


def _put_partition_tags(out: bytearray, entry: FetchedPartition) -> None:
    if entry.diverging is None:
        out.append(0)
    else:
        # One tagged field, number 0, of 13 bytes: leader epoch, end offset, no tags of its own.
        out += b"\x01\x00\x0d" + _diverging(*entry.diverging) + b"\0"
