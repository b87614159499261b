"""The record batch: its 61-byte header read, checked and stamped in place.

A batch of magic 2, byte by byte (all numbers big-endian):

    at   size  field                   note
     0    8    base offset             of its first record; the leader stamps it
     8    4    length                  bytes that follow this field, so size - 12
    12    4    leader epoch            the leader stamps it
    16    1    magic                   2
    17    4    CRC-32C                 of everything from byte 21 to the end of the batch
    21    2    attributes              bits 0-2 codec, 3 append time, 4 transactional, 5 control,
                                       6 the base timestamp is a delete horizon
    23    4    last offset delta       last offset - base offset; survives compaction
    27    8    base timestamp          record timestamps are deltas to it
    35    8    max timestamp           with bit 3 it is the time of every record
    43    8    producer id             -1 if the producer is not idempotent
    51    2    producer epoch
    53    4    base sequence
    57    4    record count            compaction lowers it, the offsets stay
    61         records                 one compressed block if the codec says so

Base offset and leader epoch lie outside the CRC: the broker stamps both into
the receive buffer without touching the checksum. The append time lies inside.

Magic 0 and 1, which only old folders hold, have one header per message. Such a
message (or compressed wrapper) reads as a batch of one record whose offset is
the message's; records/record.py opens it.
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
assert HEADER_SIZE == 61
LENGTH_AT = 8
LOG_OVERHEAD = 12  # base offset and length, which the length does not count
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
CRC_FROM = 21  # the checksum covers everything from here
MAX_TIMESTAMP_AT = 35
RECORDS_AT = 61

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

_i64 = Struct(">q")
_i32 = Struct(">i")
_u32 = Struct(">I")
_i16 = Struct(">h")
_pack_i64 = _i64.pack_into
_pack_i32 = _i32.pack_into
_unpack_header = HEADER.unpack_from


class BadBatch(ValueError):
    """Bytes that are no batch. ``code`` is what a client that sent them is told."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


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
        """When compaction may drop this batch's tombstones and markers; None until it saw them."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; sequences wrap to 0 after 2**31 - 1."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE


_new = tuple.__new__


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at ``position``. The batch may reach beyond the buffer; its CRC is not checked."""
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
            f"a batch cannot have {length} bytes after its length: the header alone has 49",
        )
    return _new(
        BatchHeader,
        (offset, length + LOG_OVERHEAD, leader_epoch, magic, crc, attributes, last_offset_delta,
         base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, record_count),
    )  # fmt: skip


def headers(
    buffer: Buffer, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every whole batch in ``buffer[start:end]``.

    Ends at a batch that is cut by ``end`` (a fetch may bring one): the caller
    sees it because position + size of the last one stays below ``end``.
    """
    if end is None:
        end = len(buffer)
    while end - start > MAGIC_AT:
        size = _i32.unpack_from(buffer, start + 8)[0] + LOG_OVERHEAD
        if size > end - start:
            return
        header = read_header(buffer, start)
        yield start, header
        start += size


def crc_holds(batch: memoryview, header: BatchHeader) -> bool:
    """Whether the bytes of one whole batch (of any magic) have the checksum that it carries."""
    if header.magic == 2:
        return crc32c(batch[CRC_FROM : header.size]) == header.crc
    import zlib

    return zlib.crc32(batch[MAGIC_AT : header.size]) == header.crc


def check_produced(records: memoryview, produce_version: int = MAX_SEQUENCE) -> BatchHeader:
    """The header of the ONE batch that a client produced, or Rejected with Kafka's code.

    The order of the checks is Kafka's, since it decides the code of a batch
    that is wrong in two ways: format and number of batches first, then the
    CRC, then what the header claims. Only the header is looked at; what
    unpacking would show is the business of ``record.validate_records``.
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
    """Write what the leader decides into the batch, in place; the CRC does not cover it."""
    _pack_i64(batch, 0, base_offset)
    _pack_i32(batch, 12, leader_epoch)


def stamp_append_time(batch: memoryview | bytearray, now: int) -> None:
    """Give every record of the batch the time ``now``, in place, and make the CRC anew.

    The base timestamp stays: with the append-time bit nobody reads the deltas.
    """
    attributes = _i16.unpack_from(batch, ATTRIBUTES_AT)[0]
    _i16.pack_into(batch, ATTRIBUTES_AT, attributes | APPEND_TIME)
    _pack_i64(batch, MAX_TIMESTAMP_AT, now)
    seal(batch)


def seal(batch: memoryview | bytearray) -> None:
    """Make the CRC of one whole batch anew, in place."""
    _u32.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))


def _refuse_if_wrong(records: memoryview, produce_version: int) -> None:
    """The slow twin of the checks in ``check_produced``: one sentence for each failure."""
    invalid, corrupt = ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE
    magic = records[MAGIC_AT]
    if magic > 2:
        raise Rejected(corrupt, f"the batch has magic {magic}; 2 is the newest there is")
    if magic < 2:
        raise Rejected(invalid, f"the batch has magic {magic}; produce requests carry magic 2 only")
    header = _read_produced(records)
    codec = header.codec
    if codec > ZSTD:
        raise Rejected(invalid, f"there is no codec {codec}")
    if codec == ZSTD and produce_version < ZSTD_SINCE_PRODUCE_VERSION:
        raise Rejected(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce version {produce_version} cannot carry zstd; "
            f"version {ZSTD_SINCE_PRODUCE_VERSION} and newer can",
        )
    if header.size > len(records):
        raise Rejected(
            invalid, f"the batch is cut: it claims {header.size} bytes and {len(records)} came"
        )
    if header.size < len(records):
        raise Rejected(
            invalid,
            f"{len(records) - header.size} bytes follow the batch; "
            "a produce request carries exactly one batch per partition",
        )
    if header.base_offset != 0:
        raise Rejected(
            invalid, f"the base offset must be 0 in a produce request, not {header.base_offset}"
        )
    if not crc_holds(records, header):
        raise Rejected(
            corrupt,
            f"the batch carries CRC {header.crc:#010x} "
            f"but its bytes have {crc32c(records[CRC_FROM:]):#010x}",
        )
    count, last_offset_delta = header.record_count, header.last_offset_delta
    if count <= 0 or count != last_offset_delta + 1:
        raise Rejected(
            invalid,
            f"the batch claims {count} records with offset deltas 0 to {last_offset_delta}",
        )
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise Rejected(
            invalid,
            f"producer {header.producer_id} sent the sequence {header.base_sequence}; "
            "an idempotent batch needs one of 0 or more",
        )
    if header.is_control:
        raise Rejected(invalid, "clients may not write control batches")
    if header.log_append_time:
        raise Rejected(
            ErrorCode.INVALID_TIMESTAMP,
            "the batch has the append-time bit, which is the broker's to set",
        )


def _read_produced(records: memoryview) -> BatchHeader:
    try:
        return read_header(records)
    except BadBatch as bad:
        raise Rejected(bad.code, bad.reason) from None


def _refusal(records: memoryview) -> Rejected:
    """For produced bytes too few to hold a header."""
    if len(records) > MAGIC_AT and records[MAGIC_AT] < 2:
        magic = records[MAGIC_AT]
        reason = f"the batch has magic {magic}; produce requests carry magic 2 only"
    else:
        reason = f"no batch fits into {len(records)} bytes; a header alone has {HEADER_SIZE}"
    return Rejected(ErrorCode.INVALID_RECORD, reason)


def _read_short_header(buffer: Buffer, position: int) -> BatchHeader:
    """Fewer than 61 bytes left: only an old message can be that small."""
    left = len(buffer) - position
    if position >= 0 and left > MAGIC_AT and buffer[position + MAGIC_AT] < 2:
        return _read_legacy_header(buffer, position)
    raise BadBatch(
        ErrorCode.CORRUPT_MESSAGE, f"{max(left, 0)} bytes are too few for a batch header of 61"
    )


def _read_legacy_header(buffer: Buffer, position: int) -> BatchHeader:
    magic = buffer[position + MAGIC_AT]
    least = _LEGACY_SIZE.get(magic)
    if least is None:
        raise BadBatch(ErrorCode.CORRUPT_MESSAGE, f"there is no batch of magic {magic}")
    timestamp = NO_TIMESTAMP
    try:
        offset, length, crc, magic, attributes = _LEGACY_HEADER.unpack_from(buffer, position)
        if magic == 1:
            timestamp = _i64.unpack_from(buffer, position + _LEGACY_TIMESTAMP_AT)[0]
    except StructError:
        raise BadBatch(
            ErrorCode.CORRUPT_MESSAGE, f"the header of a message of magic {magic} is cut"
        ) from None
    size = length + LOG_OVERHEAD
    if size < least:
        raise BadBatch(
            ErrorCode.CORRUPT_MESSAGE,
            f"a message of magic {magic} has at least {least} bytes, not {size}",
        )
    attributes &= CODEC_MASK | (APPEND_TIME if magic else 0)
    return BatchHeader(
        offset, size, -1, magic, crc, attributes, 0, timestamp, timestamp, -1, -1, -1, 1
    )
