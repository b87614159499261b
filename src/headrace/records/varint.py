"""Zigzag varints, the encoding of numbers inside records."""

from headrace.model.errors import ErrorCode
from headrace.records.batch import BadBatch


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The number and the position after it. Raises IndexError if the data ends before."""
    n = data[position]
    position += 1
    if n > 0x7F:
        n, position = long_varint(data, position, n)
    return (n >> 1) ^ -(n & 1), position


def long_varint(data: bytes, position: int, first: int) -> tuple[int, int]:
    """The number that starts with ``first``, before zigzag decoding, and the position after it."""
    n = first & 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        n |= (byte & 0x7F) << shift
        if byte < 0x80:
            return n & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7
        if shift > 63:
            raise BadBatch(ErrorCode.INVALID_RECORD, "a number has more than ten bytes")


def put_varint(out: bytearray, value: int) -> None:
    n = ((value << 1) ^ (value >> 63)) & 0xFFFF_FFFF_FFFF_FFFF
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)


def varint(value: int) -> bytes:
    out = bytearray()
    put_varint(out, value)
    return bytes(out)
