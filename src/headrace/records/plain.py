"""Batches of plain records: keys and values with one timestamp, without headers.

Coordinators write and load these. A commit writes a hundred records and a reload reads a hundred
thousand, so this module avoids the per-record objects of ``record``.
"""

from collections.abc import Iterator, Sequence

from headrace.model.errors import ErrorCode
from headrace.records.batch import (
    HEADER,
    LOG_OVERHEAD,
    NO_CODEC,
    RECORDS_AT,
    TRANSACTIONAL,
    BadBatch,
    seal,
)
from headrace.records.compression import compress
from headrace.records.varint import long_varint, varint

_NULL = varint(-1)

# First bytes of records by offset delta, for each pair of key and value size. A commit has many
# records with the same sizes, and the next commit repeats them.
_heads: dict[tuple[int, int], dict[int, bytes]] = {}
_HEADS_KEPT = 256  # pairs of sizes
_HEADS_DELTA_END = 1024


def plain_batch(
    records: Sequence[tuple[bytes, bytes | None]],
    producer: tuple[int, int] | None,
    now: int,
    codec: int = NO_CODEC,
) -> bytearray:
    """A batch of these records; ``producer`` is the id and epoch of its transaction, if any."""
    parts: list[bytes] = []
    last_shape = (-1, -1)
    heads: dict[int, bytes] = {}
    value_head = b""
    for delta, (key, value) in enumerate(records):
        shape = (len(key), -1 if value is None else len(value))
        if shape != last_shape:
            heads = _heads_of(shape)
            value_head = _NULL if value is None else varint(shape[1])
            last_shape = shape
        head = heads.get(delta)
        if head is None:
            head = _record_head(*shape, delta)
            if delta < _HEADS_DELTA_END:
                heads[delta] = head
        parts += (head, key, value_head, value or b"")
    parts.append(b"\0")
    return batch_around(b"".join(parts), len(records), producer, now, codec)


def batch_around(
    section: bytes,
    count: int,
    producer: tuple[int, int] | None,
    now: int,
    codec: int = NO_CODEC,
) -> bytearray:
    """The batch around an uncompressed records section with ``count`` records."""
    assert count > 0, "recovery would truncate the log at a batch without records"
    if codec != NO_CODEC:
        section = compress(codec, section)
    producer_id, producer_epoch = producer or (-1, -1)
    attributes = codec | (TRANSACTIONAL if producer is not None else 0)
    batch = bytearray(RECORDS_AT)
    batch += section
    HEADER.pack_into(
        batch,
        0,
        *(0, len(batch) - LOG_OVERHEAD, -1, 2, 0, attributes, count - 1),
        *(now, now, producer_id, producer_epoch, -1, count),
    )
    seal(batch)
    return batch


def keys_and_values(
    section: bytes, record_count: int
) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """Offset delta, key and value of each record of a decompressed section, from any writer."""
    # Varints are decoded inline, as in ``record.spans``: nearly all of them have one byte.
    position = 0
    section_end = len(section)
    try:
        for _ in range(record_count):
            n = section[position]
            position += 1
            if n > 0x7F:
                n, position = long_varint(section, position, n)
            record_end = -1 if n & 1 else position + (n >> 1)
            position += 1  # attributes
            while section[position] > 0x7F:  # the timestamp delta
                position += 1
            delta = section[position + 1]
            position += 2
            if delta > 0x7F:
                delta, position = long_varint(section, position, delta)
            n = section[position]
            position += 1
            if n > 0x7F:
                n, position = long_varint(section, position, n)
            key = None
            if not n & 1:
                key = section[position : position + (n >> 1)]
                position += n >> 1
            n = section[position]
            position += 1
            if n > 0x7F:
                n, position = long_varint(section, position, n)
            value = None
            if not n & 1:
                value = section[position : position + (n >> 1)]
                position += n >> 1
            if position >= record_end or record_end > section_end:
                raise _bad("a record is longer than its length field")
            yield (delta >> 1) ^ -(delta & 1), key, value
            position = record_end
    except IndexError:
        raise _bad("the last record is truncated") from None


def _heads_of(shape: tuple[int, int]) -> dict[int, bytes]:
    heads = _heads.get(shape)
    if heads is None:
        if len(_heads) >= _HEADS_KEPT:
            _heads.clear()
        heads = _heads[shape] = {}
    return heads


def _record_head(key_size: int, value_size: int, delta: int) -> bytes:
    """The bytes before the key.

    They begin with the zero that ends the previous record: its number of headers.
    """
    value_head_size = len(varint(value_size))
    # Attributes and the timestamp delta are zero.
    rest = b"\0\0" + varint(delta) + varint(key_size)
    size = len(rest) + key_size + value_head_size + max(value_size, 0) + 1
    return (b"\0" if delta else b"") + varint(size) + rest


def _bad(reason: str) -> BadBatch:
    return BadBatch(ErrorCode.INVALID_RECORD, reason)
