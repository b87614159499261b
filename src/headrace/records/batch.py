"""The record batch: read, check and stamp its 61-byte header in place.

A batch of magic 2, byte by byte (all numbers big-endian):

    at   size  field                   note
     0    8    base offset             of its first record; stamped by the leader
     8    4    length                  bytes that follow this field, so size - 12
    12    4    leader epoch            stamped by the leader
    16    1    magic                   2
    17    4    CRC-32C                 of the bytes from 21 to the end of the batch
    21    2    attributes              bits 0-2 codec, 3 append time, 4 transactional, 5 control,
                                       6 the base timestamp is a delete horizon
    23    4    last offset delta       last offset - base offset; compaction keeps it
    27    8    base timestamp          record timestamps are deltas to it
    35    8    max timestamp           with bit 3: the timestamp of every record
    43    8    producer id             -1 if the producer is not idempotent
    51    2    producer epoch
    53    4    base sequence
    57    4    record count            compaction lowers it and keeps the offsets
    61         records                 one compressed block, if there is a codec

The CRC does not cover base offset and leader epoch: the broker stamps both into the receive
buffer and keeps the CRC. It does cover the append time.

Magic 0 and 1, which only directories of old releases contain, have one header per message. Such a
message (or compressed wrapper) reads as a batch of one record with the offset of the message;
records/record.py opens it.
"""

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from headrace.model.errors import ErrorCode, Rejected
from headrace.records.checksum import crc32c

Buffer = bytes | bytearray | memoryview

HEADER = Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
LOG_OVERHEAD = 12  # base offset and length, which the length does not count

# Byte positions of the fields.
BASE_OFFSET_AT = 0
LENGTH_AT = 8
LEADER_EPOCH_AT = 12
MAGIC_AT = 16
MAGIC_MAX = 2  # the newest format
CRC_AT = 17
ATTRIBUTES_AT = 21
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
PRODUCER_EPOCH_AT = 51
BASE_SEQUENCE_AT = 53
RECORD_COUNT_AT = 57
RECORDS_AT = 61
CRC_FROM = ATTRIBUTES_AT  # the CRC covers everything from here to the end
FLAGS_AT = ATTRIBUTES_AT + 1  # the low byte of the attributes, which holds all bits in use

# Indexes into a BatchHeader, for code that runs per batch: access by name is slower.
(BASE_OFFSET, SIZE, LEADER_EPOCH, MAGIC, CRC, ATTRIBUTES, LAST_OFFSET_DELTA, BASE_TIMESTAMP,
 MAX_TIMESTAMP, PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCE, RECORD_COUNT) = range(13)  # fmt: skip

CODEC_MASK = 0x07
APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_CODEC, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

NO_TIMESTAMP = -1
MAX_SEQUENCE = 0x7FFFFFFF
ZSTD_SINCE_PRODUCE_VERSION = 7

# offset, size, CRC, magic, attributes; magic 1 adds a timestamp
_LEGACY_HEADER = Struct(">qiIbb")
_LEGACY_SIZE = {0: 26, 1: 34}  # with the lengths of a null key and a null value
_LEGACY_TIMESTAMP_AT = 18
LEGACY_KEY_AT = {0: 18, 1: 26}

_i64 = Struct(">q")
_i32 = Struct(">i")
_u32 = Struct(">I")
_i16 = Struct(">h")
_pack_i64 = _i64.pack_into
_pack_i32 = _i32.pack_into
_unpack_header = HEADER.unpack_from


class BadBatch(ValueError):
    """Bytes that are not a batch. ``code`` is the error code for a client that sent them."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class UnknownMagic(BadBatch):
    """A batch of a format that this version does not know: of a newer version, or damaged."""

    def __init__(self, magic: int, base_offset: int, size: int) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"magic {magic} does not exist")
        self.magic = magic
        # Offset and length are at the same place in all formats.
        self.base_offset = base_offset
        self.size = size


class BatchHeader(NamedTuple):
    base_offset: int
    size: int  # bytes of the whole batch, header included
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def log_append_time(self) -> bool:
        return self.attributes & APPEND_TIME != 0

    @property
    def delete_horizon(self) -> int | None:
        """When compaction may drop the tombstones and markers of this batch, if known."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; sequences wrap to 0 after 2**31 - 1."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE


_new = tuple.__new__


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at ``position``. Does not check the CRC, nor that the batch is complete."""
    try:
        (offset, length, leader_epoch, magic, crc, attributes, last_offset_delta, base_timestamp,
         max_timestamp, producer_id, producer_epoch, base_sequence, record_count) = _unpack_header(
            buffer, position
        )  # fmt: skip
    except StructError:
        return _read_short_header(buffer, position)
    if magic != 2:
        return _read_legacy_header(buffer, position)
    if length < HEADER_SIZE - LOG_OVERHEAD:
        raise BadBatch(
            ErrorCode.CORRUPT_MESSAGE,
            f"the length field says {length} bytes; "
            f"the header alone needs {HEADER_SIZE - LOG_OVERHEAD}",
        )
    return _new(
        BatchHeader,
        (offset, length + LOG_OVERHEAD, leader_epoch, magic, crc, attributes, last_offset_delta,
         base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, record_count),
    )  # fmt: skip


def headers(
    buffer: Buffer, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every complete batch in ``buffer[start:end]``.

    Stops at a batch that ``end`` truncates, as a fetch may do. Then position + size of the last
    batch is below ``end``.
    """
    if end is None:
        end = len(buffer)
    while end - start > MAGIC_AT:
        size = _i32.unpack_from(buffer, start + LENGTH_AT)[0] + LOG_OVERHEAD
        if size > end - start:
            return
        header = read_header(buffer, start)
        yield start, header
        start += size


def crc_holds(batch: memoryview, header: BatchHeader) -> bool:
    """Whether the CRC of one complete batch, of any magic, is right."""
    if header.magic == 2:
        return crc32c(batch[CRC_FROM : header.size]) == header.crc
    import zlib

    return zlib.crc32(batch[MAGIC_AT : header.size]) == header.crc


def check_produced(records: memoryview, produce_version: int = MAX_SEQUENCE) -> BatchHeader:
    """The header of the ONE batch that a client produced. Raises Rejected with Kafka's code.

    The checks are in Kafka's order, because the first one that fails decides the error code:
    format and number of batches, then the CRC, then the header fields. Records are not unpacked;
    ``record.validate_records`` does that.
    """
    try:
        (offset, length, leader_epoch, magic, crc, attributes, last_offset_delta, base_timestamp,
         max_timestamp, producer_id, producer_epoch, base_sequence, record_count) = _unpack_header(
            records
        )  # fmt: skip
    except StructError:
        raise _refusal(records) from None
    if (
        magic != 2
        or length != len(records) - LOG_OVERHEAD
        or offset
        or crc32c(records[CRC_FROM:]) != crc
        or record_count != last_offset_delta + 1
        or record_count <= 0
        or attributes & CONTROL
        or attributes & CODEC_MASK >= ZSTD
        or attributes & APPEND_TIME
        or (producer_id >= 0 > base_sequence)
    ):
        _refuse_if_wrong(records, produce_version)
    return _new(
        BatchHeader,
        (offset, length + LOG_OVERHEAD, leader_epoch, magic, crc, attributes, last_offset_delta,
         base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, record_count),
    )  # fmt: skip


def stamp(batch: memoryview | bytearray, base_offset: int, leader_epoch: int) -> None:
    """Write the base offset and the leader epoch into the batch; the CRC does not cover them."""
    _pack_i64(batch, BASE_OFFSET_AT, base_offset)
    _pack_i32(batch, LEADER_EPOCH_AT, leader_epoch)


def stamp_append_time(batch: memoryview | bytearray, now: int) -> None:
    """Give every record of the batch the timestamp ``now`` and update the CRC.

    The base timestamp stays: readers ignore the deltas when the append-time bit is set.
    """
    attributes = _i16.unpack_from(batch, ATTRIBUTES_AT)[0]
    _i16.pack_into(batch, ATTRIBUTES_AT, attributes | APPEND_TIME)
    _pack_i64(batch, MAX_TIMESTAMP_AT, now)
    seal(batch)


def seal(batch: memoryview | bytearray) -> None:
    """Write the CRC of one complete batch into its header."""
    _u32.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))


def _refuse_if_wrong(records: memoryview, produce_version: int) -> None:
    """The checks of ``check_produced`` again, with a message for each failure."""
    invalid, corrupt = ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE
    magic = records[MAGIC_AT]
    if magic > 2:
        raise Rejected(corrupt, f"the batch has magic {magic}; the newest is 2")
    if magic < 2:
        raise Rejected(invalid, f"the batch has magic {magic}; a produce request needs magic 2")
    header = _read_produced(records)
    codec = header.codec
    if codec > ZSTD:
        raise Rejected(invalid, f"codec {codec} does not exist")
    if codec == ZSTD and produce_version < ZSTD_SINCE_PRODUCE_VERSION:
        raise Rejected(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce version {produce_version} does not support zstd; "
            f"version {ZSTD_SINCE_PRODUCE_VERSION} and newer do",
        )
    if header.size > len(records):
        raise Rejected(invalid, f"the batch is truncated: {len(records)} of {header.size} bytes")
    if header.size < len(records):
        raise Rejected(
            invalid,
            f"{len(records) - header.size} bytes follow the batch; "
            "a produce request has exactly one batch per partition",
        )
    if header.base_offset != 0:
        raise Rejected(
            invalid, f"the base offset must be 0 in a produce request, not {header.base_offset}"
        )
    if not crc_holds(records, header):
        raise Rejected(
            corrupt,
            f"the header has CRC {header.crc:#010x}, "
            f"but the bytes have {crc32c(records[CRC_FROM:]):#010x}",
        )
    count, last_offset_delta = header.record_count, header.last_offset_delta
    if count <= 0 or count != last_offset_delta + 1:
        raise Rejected(
            invalid,
            f"the header has record count {count} and last offset delta {last_offset_delta}",
        )
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise Rejected(
            invalid,
            f"idempotent producer {header.producer_id} sent base sequence {header.base_sequence}; "
            "expected 0 or more",
        )
    if header.is_control:
        raise Rejected(invalid, "clients may not write control batches")
    if header.log_append_time:
        raise Rejected(
            ErrorCode.INVALID_TIMESTAMP,
            "the append-time bit is set; only the broker may set it",
        )


def _read_produced(records: memoryview) -> BatchHeader:
    try:
        return read_header(records)
    except BadBatch as bad:
        raise Rejected(bad.code, bad.reason) from None


def _refusal(records: memoryview) -> Rejected:
    """The error for produced bytes that are too short for a header."""
    if len(records) > MAGIC_AT and records[MAGIC_AT] < 2:
        magic = records[MAGIC_AT]
        reason = f"the batch has magic {magic}; a produce request needs magic 2"
    else:
        reason = f"{len(records)} bytes are no batch; the header alone needs {HEADER_SIZE}"
    return Rejected(ErrorCode.INVALID_RECORD, reason)


def _read_short_header(buffer: Buffer, position: int) -> BatchHeader:
    """Fewer than 61 bytes are left: a batch of magic 2 cannot be that small."""
    left = len(buffer) - position
    if position >= 0 and left > MAGIC_AT and buffer[position + MAGIC_AT] != 2:
        return _read_legacy_header(buffer, position)
    raise BadBatch(
        ErrorCode.CORRUPT_MESSAGE,
        f"{max(left, 0)} bytes are left; a batch header needs {HEADER_SIZE}",
    )


def _read_legacy_header(buffer: Buffer, position: int) -> BatchHeader:
    magic = buffer[position + MAGIC_AT]
    least = _LEGACY_SIZE.get(magic)
    if least is None:
        raise UnknownMagic(
            magic,
            _i64.unpack_from(buffer, position)[0],
            _i32.unpack_from(buffer, position + LENGTH_AT)[0] + LOG_OVERHEAD,
        )
    timestamp = NO_TIMESTAMP
    try:
        offset, length, crc, magic, attributes = _LEGACY_HEADER.unpack_from(buffer, position)
        if magic == 1:
            timestamp = _i64.unpack_from(buffer, position + _LEGACY_TIMESTAMP_AT)[0]
    except StructError:
        raise BadBatch(
            ErrorCode.CORRUPT_MESSAGE, f"the header of a message of magic {magic} is truncated"
        ) from None
    size = length + LOG_OVERHEAD
    if size < least:
        raise BadBatch(
            ErrorCode.CORRUPT_MESSAGE,
            f"a message of magic {magic} needs at least {least} bytes, not {size}",
        )
    attributes &= CODEC_MASK | (APPEND_TIME if magic else 0)
    return BatchHeader(
        offset, size, -1, magic, crc, attributes, 0, timestamp, timestamp, -1, -1, -1, 1
    )
