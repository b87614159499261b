"""Opens fetched record batches into Arrow columns, with no Python object per record.

All batches of one fetch are opened together: their records sections are joined into one buffer,
and every step below works on all records of that buffer.

    record starts     each record begins with its own length, so record n+1 is found through
                      record n. Many batches are walked at the same time, one record of each
                      per turn; a few large batches are walked in a plain loop.
    numbers           varints are read by table (varints.py).
    keys and values   start and end of every field are the offsets of an Arrow array whose
                      entries are wanted and unwanted bytes in turns; Arrow copies out every
                      second entry.

A record-by-record reader costs 1.05 µs per row, this one about a quarter of that.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import cramjam
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrow.selection import Section
from headrace.arrow.varints import STEP_OF_PAIR, Bytes, Ints, byte_pairs, read_varints
from headrace.model.errors import ErrorCode
from headrace.records.batch import LZ4, NO_CODEC, RECORDS_AT, ZSTD, BadBatch
from headrace.records.compression import DECOMPRESSED_SIZE_MAX, decompress
from headrace.records.record import iter_records

# After the last record: the two-byte reads may look past its end.
_PADDING = b"\0" * 16
# A turn over all batches costs about 3 µs, a step of the plain loop about 0.1 µs.
_WALK_TOGETHER_BATCHES_MIN = 48
_WALK_TOGETHER_WASTE_MAX = 4
_ZSTD_BUFFER_SIZE = 8 << 20
_PIECE_SIZE = 64 << 20


class Records:
    """The records of some batches as parallel arrays; positions point into ``data``."""

    __slots__ = (
        "data", "size", "offset", "timestamp_ms", "timestamp_type",
        "key_start", "key_size", "value_start", "value_size", "headers_at", "header_count",
    )  # fmt: skip

    def __init__(
        self, data: Bytes, offset: Ints, timestamp_ms: Ints, timestamp_type: Ints,
        key_start: Ints, key_size: Ints, value_start: Ints, value_size: Ints,
        headers_at: Ints, header_count: Ints,
    ) -> None:  # fmt: skip
        self.data = data
        self.size = len(offset)
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.timestamp_type = timestamp_type
        self.key_start = key_start
        self.key_size = key_size  # -1 for null
        self.value_start = value_start
        self.value_size = value_size  # -1 for null
        self.headers_at = headers_at
        self.header_count = header_count

    def within(self, first_offset: int, offset_end: int) -> "Records":
        """The records with offsets in ``[first_offset, offset_end)``."""
        if not self.size or (self.offset[0] >= first_offset and self.offset[-1] < offset_end):
            return self
        return self.where((self.offset >= first_offset) & (self.offset < offset_end))

    def where(self, kept: npt.NDArray[np.bool_]) -> "Records":
        return Records(
            self.data,
            *(getattr(self, name)[kept] for name in Records.__slots__ if name not in _WHOLE),
        )

    def slice(self, start: int, end: int) -> "Records":
        return Records(
            self.data,
            *(getattr(self, name)[start:end] for name in Records.__slots__ if name not in _WHOLE),
        )

    def keys(self) -> pa.Array:
        return binary_fields(self.data, self.key_start, self.key_size)

    def values(self) -> pa.Array:
        return binary_fields(self.data, self.value_start, self.value_size)

    def headers(self) -> pa.Array:
        return _headers(self.data, self.headers_at, self.header_count)


_WHOLE = ("data", "size")

HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)


def open_sections(sections: Sequence[Section], piece_size: int = _PIECE_SIZE) -> Iterator[Records]:
    """All records of these batches, in order. Raises BadBatch if their bytes are not records.

    Yields pieces of about ``piece_size`` bytes uncompressed: a well compressed fetch of some
    megabytes can hold gigabytes.
    """
    if any(section.header.magic < 2 for section in sections):
        yield _open_one_by_one(sections)
        return
    piece: list[Section] = []
    parts: list[Any] = []
    size = 0
    for section in sections:
        part = _uncompressed(section.header.codec, section.batch[RECORDS_AT:])
        if piece and size + len(part) > piece_size:
            yield _open_together(piece, parts)
            piece, parts, size = [], [], 0
        piece.append(section)
        parts.append(part)
        size += len(part)
    if piece:
        yield _open_together(piece, parts)


def _open_together(sections: Sequence[Section], parts: list[Any]) -> Records:
    """The records of these batches; ``parts`` are their uncompressed records sections."""
    starts = np.zeros(len(sections) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in parts], out=starts[1:])
    size = int(starts[-1])
    if size > 0x7FFF_FFFF - len(_PADDING):
        raise BadBatch(ErrorCode.INVALID_RECORD, f"one batch holds {size} bytes of records")
    data = np.frombuffer(b"".join([*parts, _PADDING]), dtype=np.uint8)
    counts = np.array([header.record_count for header, _ in sections], dtype=np.int64)
    record_starts = _record_starts(data, starts, counts)
    base_offset = np.array([header.base_offset for header, _ in sections], dtype=np.int64)
    # With log append time every record has the batch's maximum, and its delta does not count.
    appended = np.array([header.log_append_time for header, _ in sections])
    base_timestamp = np.array(
        [h.max_timestamp if h.log_append_time else h.base_timestamp for h, _ in sections],
        dtype=np.int64,
    )
    batch_of = np.repeat(np.arange(len(sections)), counts)
    return _parse_records(
        data, record_starts, base_offset[batch_of], base_timestamp[batch_of], appended[batch_of]
    )


def _uncompressed(codec: int, section: memoryview) -> Any:
    if codec == NO_CODEC:
        return section
    try:
        if codec == LZ4:
            # LZ4 expands to at most 255 times its size, so it needs no limit here.
            return cramjam.lz4.decompress(section)
        if codec == ZSTD and len(section) < _ZSTD_BUFFER_SIZE:
            buffer = _zstd_buffer()
            size = cramjam.zstd.decompress_into(section, buffer)
            return bytes(memoryview(buffer)[:size])
    except cramjam.DecompressionError:
        pass  # larger than the buffer, or broken: decompress() tells which
    return decompress(codec, section, DECOMPRESSED_SIZE_MAX)


_buffer: bytearray | None = None


def _zstd_buffer() -> bytearray:
    global _buffer
    if _buffer is None:
        _buffer = bytearray(_ZSTD_BUFFER_SIZE)
    return _buffer


# --- record starts ------------------------------------------------------------------------


def _record_starts(data: Bytes, starts: Ints, counts: Ints) -> Ints:
    """The position of each record's length, and one more entry for the end of the last record."""
    batches, longest, total = len(counts), int(counts.max()), int(counts.sum())
    found = None
    if (
        batches >= _WALK_TOGETHER_BATCHES_MIN
        and longest * batches <= total * _WALK_TOGETHER_WASTE_MAX
    ):
        found = _walk_together(data, starts[:-1], starts[1:], counts)
    if found is None:
        found = _walk_alone(bytes(data), starts, counts)
    # Each batch's first record starts where its section begins, and _parse_records checks that
    # every record ends where the next one begins: so each section is filled exactly.
    return np.append(found, starts[-1])


def _walk_together(data: Bytes, starts: Ints, ends: Ints, counts: Ints) -> Ints | None:
    """None if the length of some record takes more than two bytes."""
    pairs = byte_pairs(data)
    order = np.argsort(-counts, kind="stable")
    sorted_counts = counts[order]
    longest = int(sorted_counts[0])
    # The number of batches that have a record number `turn`.
    active = len(counts) - np.searchsorted(sorted_counts[::-1], np.arange(longest), side="right")
    position = starts[order].copy()
    walked = np.empty((longest, len(counts)), dtype=np.int64)
    step_of = STEP_OF_PAIR.take
    try:
        for turn, width in enumerate(active.tolist()):
            here = position[:width]
            walked[turn, :width] = here
            here += step_of(pairs[here])
    except IndexError:
        return None
    # A step that two bytes do not tell is 0, so such a batch has not reached its end.
    if not np.array_equal(position, ends[order]):
        return None
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    by_batch = walked.T[inverse]
    kept: Ints = by_batch[np.arange(longest) < counts[:, None]]
    return kept


def _walk_alone(data: bytes, starts: Ints, counts: Ints) -> Ints:
    found: list[int] = []
    add = found.append
    position_max = len(data) - len(_PADDING)
    for position, count in zip(starts.tolist(), counts.tolist(), strict=False):
        for _ in range(count):
            add(position)
            if position >= position_max:
                raise BadBatch(ErrorCode.INVALID_RECORD, "a record begins after its batch")
            first = data[position]
            if first < 0x80:
                length, position = first, position + 1
            else:
                second = data[position + 1]
                if second < 0x80:
                    length, position = first & 0x7F | second << 7, position + 2
                else:
                    length, position = _long_varint(data, position)
            if length & 1:
                raise BadBatch(ErrorCode.INVALID_RECORD, "a record has a negative length")
            position += length >> 1
    return np.fromiter(found, dtype=np.int64, count=len(found))


def _long_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise BadBatch(ErrorCode.INVALID_RECORD, "a length has more than five bytes")


# --- the fields of a record ---------------------------------------------------------------


def _parse_records(
    data: Bytes,
    record_starts: Ints,
    base_offset: Ints,
    base_timestamp: Ints,
    appended: npt.NDArray[np.bool_],
) -> Records:
    pairs = byte_pairs(data)
    length, position = read_varints(data, pairs, record_starts[:-1])
    end = position + length
    if not np.array_equal(end, record_starts[1:]):
        raise BadBatch(ErrorCode.INVALID_RECORD, "the length of a record is wrong")
    position_max = len(data) - 2
    timestamp_delta, position = read_varints(data, pairs, np.minimum(position + 1, position_max))
    offset_delta, position = read_varints(data, pairs, np.minimum(position, position_max))
    key_size, key_start = read_varints(data, pairs, np.minimum(position, position_max))
    position = key_start + np.maximum(key_size, 0)
    value_size, value_start = read_varints(data, pairs, np.clip(position, 0, position_max))
    position = value_start + np.maximum(value_size, 0)
    header_count, headers_at = read_varints(data, pairs, np.clip(position, 0, position_max))
    # Each field begins where the field before it ends, so checking the last end is enough to
    # find any field outside its record, as long as no size is below that of null (-1).
    fits = (headers_at <= end) & (key_size >= -1) & (value_size >= -1) & (header_count >= 0)
    # A header takes at least two bytes: a larger count would only cost memory and time.
    fits &= header_count <= (end - headers_at) // 2
    fits &= (header_count > 0) | (headers_at == end)
    if not fits.all():
        raise BadBatch(ErrorCode.INVALID_RECORD, "a field ends after its record")
    if appended.any():
        timestamp_delta = np.where(appended, 0, timestamp_delta)
    return Records(
        data,
        base_offset + offset_delta,
        base_timestamp + timestamp_delta,
        appended.astype(np.int64),
        key_start,
        key_size,
        value_start,
        value_size,
        headers_at,
        header_count,
    )


# --- arrays -------------------------------------------------------------------------------


def binary_fields(data: Bytes, start: Ints, size: Ints) -> pa.Array:
    """A binary array of ``data[start:start + size]``; null where the size is -1."""
    count = len(start)
    if not count:
        return pa.array([], pa.binary())
    is_null = size < 0
    some_null = bool(is_null.any())
    if some_null and is_null.all():
        return pa.nulls(count, pa.binary())
    # Wanted and unwanted bytes in turns, without the last unwanted entry.
    turns = np.empty(2 * count, dtype=np.int32)
    turns[0::2] = start
    turns[1::2] = start + np.maximum(size, 0) if some_null else start + size
    alternating = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(turns), pa.py_buffer(data)]
    )
    wanted = alternating.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
    if not some_null:
        return wanted
    valid = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    _, offsets, bytes_ = wanted.buffers()
    return pa.Array.from_buffers(pa.binary(), count, [valid, offsets, bytes_])


def _headers(data: Bytes, headers_at: Ints, header_count: Ints) -> pa.Array:
    """Lists of key and value; null for a record without headers, as in Spark's Kafka source."""
    count = len(header_count)
    total = int(header_count.sum())
    ends = np.concatenate(([0], np.cumsum(header_count))).astype(np.int32)
    key_start = np.empty(total, dtype=np.int64)
    key_size = np.empty(total, dtype=np.int64)
    value_start = np.empty(total, dtype=np.int64)
    value_size = np.empty(total, dtype=np.int64)
    pairs = byte_pairs(data)
    position_max = len(data) - 2
    position = headers_at.copy()
    for turn in range(int(header_count.max(initial=0))):
        has = np.flatnonzero(header_count > turn)
        slot = ends[has] + turn
        size, start = read_varints(data, pairs, np.clip(position[has], 0, position_max))
        key_size[slot], key_start[slot] = size, start
        size, start = read_varints(data, pairs, np.clip(start + size, 0, position_max))
        value_size[slot], value_start[slot] = size, start
        position[has] = start + np.maximum(size, 0)
    if total and (key_size.min() < 0 or value_size.min() < -1 or position.max() > position_max):
        raise BadBatch(ErrorCode.INVALID_RECORD, "a record header ends after its record")
    keys = _texts(binary_fields(data, key_start, key_size))
    pairs_of = pa.StructArray.from_arrays(
        [keys, binary_fields(data, value_start, value_size)], fields=list(HEADERS_TYPE.value_type)
    )
    valid = pa.py_buffer(np.packbits(header_count > 0, bitorder="little"))
    return pa.Array.from_buffers(
        HEADERS_TYPE, count, [valid, pa.py_buffer(ends)], children=[pairs_of]
    )


def _texts(raw: pa.Array) -> pa.Array:
    """As text; invalid UTF-8 is replaced, as Kafka's Java client does."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([one.decode(errors="replace") for one in raw.to_pylist()], pa.string())


def _open_one_by_one(sections: Sequence[Section]) -> Records:
    """Messages of magic 0 and 1, which only brokers before Kafka 4 store."""
    rows = [
        (record, int(header.log_append_time) if header.magic else -1)
        for header, batch in sections
        for record in iter_records(batch)
    ]
    data = bytearray()
    places: dict[str, list[int]] = {"key": [], "value": []}
    sizes: dict[str, list[int]] = {"key": [], "value": []}
    for record, _ in rows:
        for name, field in (("key", record.key), ("value", record.value)):
            places[name].append(len(data))
            sizes[name].append(-1 if field is None else len(field))
            data += field or b""
    none = np.zeros(len(rows), dtype=np.int64)
    return Records(
        np.frombuffer(bytes(data) + _PADDING, dtype=np.uint8),
        np.array([record.offset for record, _ in rows], dtype=np.int64),
        np.array([record.timestamp for record, _ in rows], dtype=np.int64),
        np.array([timestamp_type for _, timestamp_type in rows], dtype=np.int64),
        np.array(places["key"], dtype=np.int64),
        np.array(sizes["key"], dtype=np.int64),
        np.array(places["value"], dtype=np.int64),
        np.array(sizes["value"], dtype=np.int64),
        none,
        none,
    )
