"""The four codecs, in the framing of the Java clients.

    1  gzip     one or more RFC 1952 members
    2  snappy   written as xerial blocks (16-byte head, then length + raw block, 32 KiB each);
                a single raw block, as librdkafka sends it, can be read too
    3  lz4      a frame with independent blocks; Java refuses linked ones
    4  zstd     frames

The native library is loaded on first use, because the broker rarely unpacks a batch.
``decompress`` raises BadBatch for any invalid data and never returns more than ``limit`` bytes.
"""

import mmap
import zlib
from struct import Struct
from typing import Any

from headrace.model.errors import ErrorCode
from headrace.records.batch import (
    CODEC_NAMES,
    GZIP,
    LZ4,
    NO_CODEC,
    SNAPPY,
    ZSTD,
    BadBatch,
    Buffer,
)

# Maximum size of a decompressed batch. Kafka decompresses in a stream, without a limit. A batch of
# max.message.bytes reaches this one only with a ratio of 256.
DECOMPRESSED_SIZE_MAX = 256 * 1024 * 1024

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEAD = (
    _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
)  # version, oldest compatible version
_XERIAL_BLOCK_SIZE = 32 * 1024
_SNAPPY_RATIO_MAX = 32  # the longest copy turns 3 bytes into 64
_i32 = Struct(">i")
_LZ4_FAST = 9
_ZSTD_DEFAULT = 3
_GZIP_WBITS = 31  # expect a gzip header, allow the largest window


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress at Kafka's ``level``; None is its default. Snappy has no levels."""
    if codec == NO_CODEC:
        return bytes(data)
    if codec == GZIP:
        packer = zlib.compressobj(-1 if level is None else level, wbits=_GZIP_WBITS)
        return packer.compress(data) + packer.flush()
    import cramjam

    if codec == SNAPPY:
        return _compress_xerial(cramjam.snappy, memoryview(data))
    if codec == LZ4:
        # Java clients use the fast compressor at their default level, and lz4hc at any other.
        native = None if level in (None, _LZ4_FAST) else level
        frame = cramjam.lz4.Compressor(native, content_checksum=False, block_linked=False)
        frame.compress(bytes(data))
        return bytes(frame.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, _ZSTD_DEFAULT if level is None else level))
    raise _no_such_codec(codec)


def decompress(codec: int, data: Buffer, limit: int = DECOMPRESSED_SIZE_MAX) -> bytes:
    if codec == NO_CODEC:
        return bytes(data)
    if codec == GZIP:
        return _decompress_gzip(data, limit)
    if codec > ZSTD:
        raise _no_such_codec(codec)
    import cramjam

    try:
        if codec == SNAPPY:
            return _decompress_snappy(cramjam.snappy, memoryview(data), limit)
        # Untouched pages of an anonymous map cost nothing, so it can have the size of the limit.
        with mmap.mmap(-1, limit + 1) as room:
            codec_module = cramjam.lz4 if codec == LZ4 else cramjam.zstd
            size = codec_module.decompress_into(data, room)
            if size > limit:
                raise _too_large(codec, limit)
            return room[:size]
    except cramjam.DecompressionError as error:
        raise _broken(codec, str(error)) from None


def _compress_xerial(snappy: Any, data: memoryview) -> bytes:
    parts = [_XERIAL_HEAD]
    for start in range(0, len(data), _XERIAL_BLOCK_SIZE):
        block = bytes(snappy.compress_raw(data[start : start + _XERIAL_BLOCK_SIZE]))
        parts += (_i32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(snappy: Any, data: memoryview, limit: int) -> bytes:
    if data[:8] != _XERIAL_MAGIC:
        return _decompress_raw_snappy(snappy, data, limit)
    parts = []
    position = len(_XERIAL_HEAD)
    while position < len(data):
        if data[position : position + 8] == _XERIAL_MAGIC:  # concatenated streams
            position += len(_XERIAL_HEAD)
            continue
        block_at = position + _i32.size
        if block_at > len(data):
            raise _broken(SNAPPY, "the last block is truncated")
        position = block_at + _i32.unpack_from(data, position)[0]
        if not block_at <= position <= len(data):
            raise _broken(SNAPPY, "a block extends beyond the data")
        block = _decompress_raw_snappy(snappy, data[block_at:position], limit)
        limit -= len(block)
        parts.append(block)
    return b"".join(parts)


def _decompress_raw_snappy(snappy: Any, block: memoryview, limit: int) -> bytes:
    # The block begins with its length; check it before allocating memory.
    size = snappy.decompress_raw_len(block)
    if size > limit:
        raise _too_large(SNAPPY, limit)
    if size > len(block) * _SNAPPY_RATIO_MAX:
        raise _broken(SNAPPY, "a block claims an impossible compression ratio")
    return bytes(snappy.decompress_raw(block))


def _decompress_gzip(data: Buffer, limit: int) -> bytes:
    parts: list[bytes] = []
    left = limit
    rest: Buffer = data
    while rest:
        member = zlib.decompressobj(wbits=_GZIP_WBITS)
        try:
            parts.append(member.decompress(rest, left + 1))
        except zlib.error as error:
            raise _broken(GZIP, str(error)) from None
        left -= len(parts[-1])
        if left < 0:
            raise _too_large(GZIP, limit)
        if not member.eof:
            raise _broken(GZIP, "the stream is truncated")
        rest = member.unused_data
    if not parts:
        raise _broken(GZIP, "the stream is empty")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _broken(codec: int, why: str) -> BadBatch:
    return BadBatch(ErrorCode.INVALID_RECORD, f"the {CODEC_NAMES[codec]} data is invalid: {why}")


def _too_large(codec: int, limit: int) -> BadBatch:
    return BadBatch(
        ErrorCode.INVALID_RECORD,
        f"the {CODEC_NAMES[codec]} data decompresses to more than {limit} bytes",
    )


def _no_such_codec(codec: int) -> BadBatch:
    return BadBatch(ErrorCode.INVALID_RECORD, f"codec {codec} does not exist")
