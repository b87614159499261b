"""Records inside a batch: read, build and check them. Batches that stay packed do not need this.

A record of magic 2 (numbers are zigzag varints unless noted):

    length            bytes that follow
    attributes        1 byte, unused
    timestamp delta   to the batch's base timestamp
    offset delta      to the batch's base offset
    key length, key           -1 for null
    value length, value       -1 for null
    header count, then for each: key length, key, value length, value (-1 for null)

Both deltas refer to the batch header, so a record can be removed without rewriting the others, as
long as base offset and base timestamp stay.

Any invalid bytes raise BadBatch.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from headrace.model.errors import ErrorCode
from headrace.records.batch import (
    APPEND_TIME,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    LEADER_EPOCH,
    LEGACY_KEY_AT,
    LOG_OVERHEAD,
    NO_CODEC,
    NO_TIMESTAMP,
    RECORDS_AT,
    TRANSACTIONAL,
    BadBatch,
    BatchHeader,
    Buffer,
    headers,
    read_header,
    seal,
)
from headrace.records.compression import DECOMPRESSED_SIZE_MAX, compress, decompress
from headrace.records.varint import long_varint, put_varint, read_varint

_i32 = Struct(">i")
_MARKER_KEY = Struct(">hh")  # version, type
# A complete marker record: the bytes before the key, the key (version, type), the byte before the
# value, the value (version, coordinator epoch), no headers.
_MARKER_RECORD = Struct(">5shhshib")
_MARKER_RECORD_HEAD = b"\x20\0\0\0\x08"  # length 16, attributes, deltas, key length 4
_MARKER_VALUE_HEAD = b"\x0c"  # value length 6
ABORT, COMMIT = 0, 1  # types of transaction markers


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Span(NamedTuple):
    """The position of one record in the decompressed records section; ``end`` is exclusive."""

    start: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool


class RecordFault(NamedTuple):
    """Why one record of a produced batch is refused, for the Produce response."""

    record_index: int
    message: str
    code: ErrorCode


def iter_records(batch: Buffer, limit: int = DECOMPRESSED_SIZE_MAX) -> Iterator[Record]:
    """The records of one complete batch, including control records, with absolute offsets."""
    header = read_header(batch)
    if header.magic < 2:
        return _legacy_records(batch, header, limit)
    return _records(header, open_records(batch, header, limit))


def open_records(batch: Buffer, header: BatchHeader, limit: int = DECOMPRESSED_SIZE_MAX) -> bytes:
    """The decompressed records section of a batch of magic 2."""
    if header.size > len(batch):
        raise _bad(f"the batch is truncated: {len(batch)} of {header.size} bytes")
    if header.size == RECORDS_AT:
        return b""  # compaction removed every record; there is nothing to decompress
    return decompress(header.codec, memoryview(batch)[RECORDS_AT : header.size], limit)


def spans(data: bytes, record_count: int) -> list[Span]:
    """The records of a decompressed section, with the fields that compaction needs.

    Skips values and headers: this is the inner loop of compaction.
    """
    found: list[Span] = []
    add = found.append
    new = tuple.__new__
    position = 0
    section_end = len(data)
    try:
        for _ in range(record_count):
            start = position
            n = data[position]
            position += 1
            if n > 0x7F:
                n, position = long_varint(data, position, n)
            end = position + (n >> 1)
            if n & 1 or end > section_end:
                raise _bad("a record extends beyond its batch")
            position += 1  # attributes
            n = data[position]
            position += 1
            if n > 0x7F:
                n, position = long_varint(data, position, n)
            timestamp_delta = (n >> 1) ^ -(n & 1)
            n = data[position]
            position += 1
            if n > 0x7F:
                n, position = long_varint(data, position, n)
            offset_delta = (n >> 1) ^ -(n & 1)
            n = data[position]
            position += 1
            if n > 0x7F:
                n, position = long_varint(data, position, n)
            key: bytes | None
            if n & 1:
                key = None
            else:
                key_end = position + (n >> 1)
                key = data[position:key_end]
                position = key_end
            if position >= end:
                raise _bad("a key extends beyond its record")
            # The sign of a zigzag varint is the lowest bit of its first byte.
            add(new(Span, (start, end, timestamp_delta, offset_delta, key, not data[position] & 1)))
            position = end
    except IndexError:
        raise _bad("the last record is truncated") from None
    if position != section_end:
        raise _bad(f"{section_end - position} bytes follow the last record of the batch")
    return found


def with_timestamp_delta(data: bytes, span: Span, timestamp_delta: int) -> bytes:
    """The bytes of one record with another timestamp delta."""
    body_at = span.start
    while data[body_at] > 0x7F:
        body_at += 1
    body_at += 2  # the last byte of the length, then the attributes
    rest_at = body_at
    while data[rest_at] > 0x7F:
        rest_at += 1
    body = bytearray((data[body_at - 1],))
    put_varint(body, timestamp_delta)
    body += data[rest_at + 1 : span.end]
    record = bytearray()
    put_varint(record, len(body))
    return bytes(record + body)


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: int = NO_CODEC,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
    timestamp_type: int = 0,
    last_offset_delta: int | None = None,
    delete_horizon: int | None = None,
) -> bytes:
    """One batch of magic 2. Record offsets are absolute, so 0, 1, 2 … in a batch to produce.

    ``last_offset_delta`` is for batches whose last records, or all of them, were compacted away.
    """
    if not records:
        codec = NO_CODEC  # as in Kafka: there is nothing to compress
    attributes = codec & CODEC_MASK
    attributes |= APPEND_TIME if timestamp_type else 0
    attributes |= TRANSACTIONAL if transactional else 0
    attributes |= CONTROL if control else 0
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    if delete_horizon is not None:
        attributes |= DELETE_HORIZON
        base_timestamp = delete_horizon
    max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    if last_offset_delta is None:
        last_offset_delta = records[-1].offset - base_offset
    section = bytearray()
    for record in records:
        _put_record(section, record, base_offset, base_timestamp)
    header = BatchHeader(
        base_offset=base_offset,
        size=0,
        leader_epoch=leader_epoch,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return assemble(header, compress(codec, section))


def assemble(header: BatchHeader, section: Buffer) -> bytes:
    """A batch with these header fields and this (compressed) section, with new size and CRC."""
    size = RECORDS_AT + len(section)
    batch = bytearray(size)
    HEADER.pack_into(batch, 0, header.base_offset, size - LOG_OVERHEAD, *header[LEADER_EPOCH:])
    batch[RECORDS_AT:] = section
    seal(batch)
    return bytes(batch)


def build_survivors(
    header: BatchHeader, data: bytes, kept: Sequence[Span], delete_horizon: int | None = None
) -> bytes:
    """The batch of ``header`` and decompressed section ``data``, reduced to the records ``kept``.

    Offsets, sequences and codec stay. ``delete_horizon`` replaces the base timestamp, if given.
    """
    if not kept:
        # As in Kafka: an empty batch stays for the state of its producer or for its offsets.
        keep_bits = APPEND_TIME | TRANSACTIONAL | CONTROL
        return assemble(
            header._replace(
                attributes=header.attributes & keep_bits,
                base_timestamp=NO_TIMESTAMP,
                record_count=0,
            ),
            b"",
        )
    attributes, max_timestamp = header.attributes, header.max_timestamp
    old_base = base_timestamp = header.base_timestamp
    if not header.log_append_time:
        max_timestamp = old_base + max(span.timestamp_delta for span in kept)
    if delete_horizon is None:
        section = b"".join([data[span.start : span.end] for span in kept])
    else:
        attributes |= DELETE_HORIZON
        base_timestamp = delete_horizon
        section = b"".join(
            [
                with_timestamp_delta(data, span, old_base + span.timestamp_delta - base_timestamp)
                for span in kept
            ]
        )
    return assemble(
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            record_count=len(kept),
        ),
        compress(header.codec, section),
    )


def build_marker(
    *,
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The control batch that ends a transaction."""
    attributes = TRANSACTIONAL | CONTROL
    batch = bytearray(RECORDS_AT + _MARKER_RECORD.size)
    HEADER.pack_into(
        batch,
        0,
        *(base_offset, len(batch) - LOG_OVERHEAD, leader_epoch, 2, 0, attributes, 0),
        *(timestamp, timestamp, producer_id, producer_epoch, -1, 1),
    )
    _MARKER_RECORD.pack_into(
        batch,
        RECORDS_AT,
        *(_MARKER_RECORD_HEAD, 0, COMMIT if commit else ABORT),
        *(_MARKER_VALUE_HEAD, 0, coordinator_epoch, 0),
    )
    seal(batch)
    return bytes(batch)


def marker_type(key: bytes | None) -> int:
    """ABORT, COMMIT, or the type of another control record."""
    if key is None or len(key) < _MARKER_KEY.size:
        raise _bad("a control record has no key")
    kind: int = _MARKER_KEY.unpack_from(key)[1]
    return kind


def recompress(
    batch: Buffer, codec: int, level: int | None = None, limit: int = DECOMPRESSED_SIZE_MAX
) -> bytes:
    """The same batch with another codec. Only native code processes the records."""
    header = read_header(batch)
    section = open_records(batch, header, limit)
    attributes = header.attributes & ~CODEC_MASK | codec
    return assemble(header._replace(attributes=attributes), compress(codec, section, level))


def validate_records(
    batch: Buffer,
    *,
    compacted: bool,
    limit: int = DECOMPRESSED_SIZE_MAX,
) -> list[RecordFault]:
    """The invalid records of a produced batch. Raises BadBatch if the bytes are not records.

    Kafka silently corrects wrong offset deltas and a wrong maximum timestamp. Here both are
    refused, because the batch is stored as the client sent it.
    """
    faults: list[RecordFault] = []
    header = read_header(batch)
    max_timestamp = NO_TIMESTAMP
    record_count = 0
    for index, record in enumerate(iter_records(batch, limit)):
        record_count += 1
        max_timestamp = max(max_timestamp, record.timestamp)
        if record.offset - header.base_offset != index:
            faults.append(
                RecordFault(
                    index,
                    f"expected offset delta {index}, not {record.offset - header.base_offset}",
                    ErrorCode.INVALID_RECORD,
                )
            )
        elif compacted and record.key is None:
            faults.append(
                RecordFault(
                    index,
                    "a compacted topic needs a key in every record",
                    ErrorCode.INVALID_RECORD,
                )
            )
    if not faults and not header.log_append_time and max_timestamp != header.max_timestamp:
        faults.append(
            RecordFault(
                record_count - 1,
                f"the header has maximum timestamp {header.max_timestamp}, "
                f"but the records have {max_timestamp}",
                ErrorCode.INVALID_RECORD,
            )
        )
    return faults


def _records(header: BatchHeader, data: bytes) -> Iterator[Record]:
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.log_append_time else None
    position = 0
    if header.record_count < 0:
        raise _bad(f"the header has record count {header.record_count}")
    for _ in range(header.record_count):
        try:
            length, position = read_varint(data, position)
            end = position + length
            if length < 0 or end > len(data):
                raise _bad("a record extends beyond its batch")
            timestamp_delta, position = read_varint(data, position + 1)
            offset_delta, position = read_varint(data, position)
            key, position = _nullable(data, position, end)
            value, position = _nullable(data, position, end)
            record_headers, position = _headers(data, position, end)
        except IndexError:
            raise _bad("the last record is truncated") from None
        if position != end:
            raise _bad("a record does not have the length of its length field")
        yield Record(
            base_offset + offset_delta,
            base_timestamp + timestamp_delta if append_time is None else append_time,
            key,
            value,
            record_headers,
        )
    if position != len(data):
        raise _bad(f"{len(data) - position} bytes follow the last record of the batch")


def _headers(
    data: bytes, position: int, end: int
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = read_varint(data, position)
    if count == 0:
        return (), position
    if not 0 < count <= end - position:  # each takes two bytes at least
        raise _bad(f"a record has header count {count}")
    found = []
    for _ in range(count):
        key, position = _nullable(data, position, end)
        value, position = _nullable(data, position, end)
        if key is None:
            raise _bad("a record header has no key")
        try:
            found.append((key.decode(), value))
        except UnicodeDecodeError:
            raise _bad("the key of a record header is not UTF-8") from None
    return tuple(found), position


def _nullable(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:
        if length != -1:
            raise _bad(f"a field has length {length}")
        return None, position
    field_end = position + length
    if field_end > end:
        raise _bad("a field extends beyond its record")
    return data[position:field_end], field_end


def _put_record(out: bytearray, record: Record, base_offset: int, base_timestamp: int) -> None:
    body = bytearray(1)  # attributes
    put_varint(body, record.timestamp - base_timestamp)
    put_varint(body, record.offset - base_offset)
    _put_nullable(body, record.key)
    _put_nullable(body, record.value)
    put_varint(body, len(record.headers))
    for key, value in record.headers:
        _put_nullable(body, key.encode())
        _put_nullable(body, value)
    put_varint(out, len(body))
    out += body


def _put_nullable(out: bytearray, field: bytes | None) -> None:
    if field is None:
        out.append(1)  # -1 in zigzag
    else:
        put_varint(out, len(field))
        out += field


def _legacy_records(
    message: Buffer, header: BatchHeader, limit: int, *, nested: bool = False
) -> Iterator[Record]:
    """One message of magic 0 or 1; a compressed one wraps others.

    In a wrapper of magic 1 the offsets count from 0, and the wrapper has the offset of the last
    message. In a wrapper of magic 0 they are absolute.
    """
    if header.size > len(message):
        raise _bad(f"the message is truncated: {len(message)} of {header.size} bytes")
    view = memoryview(message)[: header.size]
    key, position = _legacy_field(view, LEGACY_KEY_AT[header.magic])
    value, position = _legacy_field(view, position)
    if position != header.size:
        raise _bad("a message does not have the length of its length field")
    if header.codec == NO_CODEC:
        yield Record(header.base_offset, header.max_timestamp, key, value)
        return
    if nested or value is None:
        raise _bad("a compressed message contains another one, or nothing")
    inner = decompress(header.codec, value, limit)
    messages = list(headers(inner))
    if not messages or messages[-1][0] + messages[-1][1].size != len(inner):
        raise _bad("a compressed message contains no complete messages")
    shift = header.base_offset - messages[-1][1].base_offset if header.magic else 0
    for position, inner_header in messages:
        if inner_header.magic != header.magic:
            raise _bad("a compressed message contains messages of another magic")
        piece = inner[position : position + inner_header.size]
        for record in _legacy_records(piece, inner_header, limit, nested=True):
            timestamp = header.max_timestamp if header.log_append_time else record.timestamp
            yield record._replace(offset=record.offset + shift, timestamp=timestamp)


def _legacy_field(view: memoryview, position: int) -> tuple[bytes | None, int]:
    try:
        length = _i32.unpack_from(view, position)[0]
    except StructError:
        raise _bad("a message is truncated") from None
    position += _i32.size
    if length < 0:
        return None, position
    field_end = position + length
    if field_end > len(view):
        raise _bad("a field extends beyond its message")
    return bytes(view[position:field_end]), field_end


def _bad(reason: str) -> BadBatch:
    return BadBatch(ErrorCode.INVALID_RECORD, reason)
