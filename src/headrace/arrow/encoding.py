"""Encodes Arrow rows as record batches, with no Python object per row.

Rows are sorted by output partition. Arrow joins the pieces of each row (numbers, key, value,
headers) into one buffer, and each batch is a slice of that buffer.

An encoded batch names no producer: its sender stamps it (``stamp_producer``).
"""

from struct import Struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrow.errors import BadRow
from headrace.arrow.varints import Ints, varint_fields, varint_widths
from headrace.model.ids import TopicPartition
from headrace.records.batch import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    CODEC_MASK,
    LEADER_EPOCH_AT,
    PRODUCER_ID_AT,
    TRANSACTIONAL,
    BatchHeader,
    seal,
)
from headrace.records.compression import compress
from headrace.records.record import assemble

_PRODUCER = Struct(">qhi")  # id, epoch, base sequence
_i16 = Struct(">h")
_i64 = Struct(">q")
_i32 = Struct(">i")
# Length, attributes, both deltas, key and value length, header count: at most this many bytes.
_NUMBERS_SIZE_MAX = 5 + 1 + 1 + 5 + 5 + 5 + 5
_TIMESTAMP_SIZE_MAX = 10  # the delta of a row with a time of its own


class EncodedBatch(NamedTuple):
    """One record batch, complete except for its producer."""

    place: TopicPartition
    record_count: int
    data: bytes
    rows: tuple[int, int] | None = None  # first and last row, as numbered by the task


class Outgoing(NamedTuple):
    """Rows to write, as columns of equal length; ``topic_of`` holds indexes into ``topics``."""

    topics: list[str]
    topic_of: Ints
    partition: Ints
    key: pa.Array  # binary
    value: pa.Array  # binary
    headers: pa.Array | None  # lists of key and value
    timestamp_ms: Ints | None = None  # None: all rows have the time at which they are encoded


def encode(
    rows: Outgoing, *, codec: int, batch_size: int, row_size_max: int, now_ms: int, first_row: int
) -> list[EncodedBatch]:
    """All rows as batches; rows of one partition keep their order.

    ``first_row`` is the number of the first row within its task, for error messages.
    """
    count = len(rows.value)
    if not count:
        return []
    # A stable sort: rows of one partition keep their order.
    order = np.lexsort((rows.partition, rows.topic_of))
    if not np.array_equal(order, np.arange(count)):
        taken = pa.array(order)
        rows = Outgoing(
            rows.topics,
            rows.topic_of[order],
            rows.partition[order],
            rows.key.take(taken),
            rows.value.take(taken),
            None if rows.headers is None else rows.headers.take(taken),
            None if rows.timestamp_ms is None else rows.timestamp_ms[order],
        )
    key_size, value_size = _sizes(rows.key), _sizes(rows.value)
    headers = None if rows.headers is None else _header_bytes(rows, order, first_row)
    content_size = np.maximum(key_size, 0) + np.maximum(value_size, 0)
    if headers is not None:
        content_size = content_size + _sizes(headers)
    _check_sizes(rows, content_size, row_size_max, order, first_row)
    row_size = content_size + _NUMBERS_SIZE_MAX
    if rows.timestamp_ms is not None:
        row_size += _TIMESTAMP_SIZE_MAX
    starts = _batch_starts(rows.topic_of, rows.partition, row_size, batch_size)
    section = _sections(rows, key_size, value_size, headers, content_size, starts)
    offsets = np.frombuffer(section.buffers()[1], dtype=np.int32)
    data = memoryview(section.buffers()[2])
    batches = []
    borders = [*starts.tolist(), count]
    for first, end in zip(borders, borders[1:], strict=False):
        records = data[offsets[first] : offsets[end]]
        place = TopicPartition(rows.topics[rows.topic_of[first]], int(rows.partition[first]))
        row_numbers = (first_row + int(order[first]), first_row + int(order[end - 1]))
        times = (now_ms, now_ms)
        if rows.timestamp_ms is not None:
            own = rows.timestamp_ms[first:end]
            times = (int(own[0]), int(own.max()))
        data_of_batch = _batch(records, end - first, codec, times)
        batches.append(EncodedBatch(place, end - first, data_of_batch, row_numbers))
    return batches


def _batch(
    records: memoryview, record_count: int, codec: int, base_and_max_ms: tuple[int, int]
) -> bytes:
    header = BatchHeader(
        base_offset=0,
        size=0,
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=codec & CODEC_MASK,
        last_offset_delta=record_count - 1,
        base_timestamp=base_and_max_ms[0],
        max_timestamp=base_and_max_ms[1],
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=record_count,
    )
    return assemble(header, compress(codec, records))


def stamp_producer(
    batch: bytearray,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    *,
    transactional: bool,
) -> None:
    """Assigns the batch to this producer, in place; resets its base offset and leader epoch."""
    _i64.pack_into(batch, BASE_OFFSET_AT, 0)
    _i32.pack_into(batch, LEADER_EPOCH_AT, -1)
    attributes = _i16.unpack_from(batch, ATTRIBUTES_AT)[0] & ~TRANSACTIONAL
    _i16.pack_into(batch, ATTRIBUTES_AT, attributes | (TRANSACTIONAL if transactional else 0))
    _PRODUCER.pack_into(batch, PRODUCER_ID_AT, producer_id, producer_epoch, base_sequence)
    seal(batch)


def _check_sizes(
    rows: Outgoing, content_size: Ints, row_size_max: int, order: Ints, first_row: int
) -> None:
    too_large = np.flatnonzero(content_size + _NUMBERS_SIZE_MAX > row_size_max)
    if not too_large.size:
        return
    at = int(too_large[0])
    key = rows.key[at].as_py()
    raise BadRow(
        f"row {first_row + int(order[at])} of this task, for partition {int(rows.partition[at])} "
        f"of topic {rows.topics[rows.topic_of[at]]!r}"
        + (f", key {key[:40]!r}" if key is not None else "")
        + f", has {int(content_size[at])} bytes; kafka.max.request.size allows {row_size_max} "
        "(and the topic's max.message.bytes must allow it too)"
    )


def _batch_starts(topic_of: Ints, partition: Ints, row_size: Ints, batch_size: int) -> Ints:
    """The first row of each batch: a batch ends with its partition, or when it is full."""
    changes = np.flatnonzero((np.diff(topic_of) != 0) | (np.diff(partition) != 0)) + 1
    borders = [0, *changes.tolist(), len(topic_of)]
    total = np.concatenate(([0], np.cumsum(row_size)))
    starts: list[int] = []
    for first, end in zip(borders, borders[1:], strict=False):
        while first < end:
            starts.append(first)
            # The last row that fits; a batch always takes at least one row.
            full = int(np.searchsorted(total, total[first] + batch_size, side="right")) - 1
            first = min(max(full, first + 1), end)
    return np.array(starts, dtype=np.int64)


def _sections(
    rows: Outgoing,
    key_size: Ints,
    value_size: Ints,
    headers: pa.Array | None,
    content_size: Ints,
    starts: Ints,
) -> pa.Array:
    """The bytes of each record, as one binary array."""
    count = len(key_size)
    first = np.repeat(starts, np.diff(np.append(starts, count)))  # of the batch of each row
    offset_delta = np.arange(count) - first
    header_count = (
        np.zeros(count, dtype=np.int64) if rows.headers is None else _list_sizes(rows.headers)
    )
    offset_width = varint_widths(offset_delta)
    key_width, value_width = varint_widths(key_size), varint_widths(value_size)
    header_width = varint_widths(header_count)
    length = 1 + offset_width + key_width + value_width + header_width + content_size
    # Attributes take one byte, and so does a timestamp delta of 0.
    numbers: list[tuple[Ints | None, Ints | int]] = [(None, 2)]
    if rows.timestamp_ms is None:
        length += 1
    else:
        time_delta = rows.timestamp_ms - rows.timestamp_ms[first]
        time_width = varint_widths(time_delta)
        length += time_width
        numbers = [(None, 1), (time_delta, time_width)]
    front = varint_fields(
        [(length, varint_widths(length)), *numbers, (offset_delta, offset_width),
         (key_size, key_width)]
    )  # fmt: skip
    middle = varint_fields([(value_size, value_width)])
    back = varint_fields([(header_count, header_width)])
    pieces = [front, _filled(rows.key), middle, _filled(rows.value), back]
    if headers is not None:
        pieces.append(headers)
    return pc.binary_join_element_wise(*pieces, b"")


def _filled(array: pa.Array) -> pa.Array:
    """Null becomes empty: the length in front of the field says that it is null."""
    return array.fill_null(b"") if array.null_count else array


def _sizes(array: pa.Array) -> Ints:
    """Bytes of each field; -1 for null."""
    sizes = pc.binary_length(array)
    if sizes.null_count:
        sizes = sizes.fill_null(-1)
    found: Ints = sizes.to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _list_sizes(lists: pa.Array) -> Ints:
    sizes = pc.list_value_length(lists).fill_null(0)
    found: Ints = sizes.to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _header_bytes(rows: Outgoing, order: Ints, first_row: int) -> pa.Array:
    """The bytes of all headers of each row."""
    lists = rows.headers
    assert lists is not None
    entries = lists.flatten()
    counts = _list_sizes(lists)
    if not len(entries):
        return pa.array([b""] * len(lists), pa.binary())
    keys = entries.field("key").cast(pa.binary())
    values = entries.field("value")
    key_size, value_size = _sizes(keys), _sizes(values)
    if entries.null_count or keys.null_count:
        wrong = pc.or_(entries.is_null(), keys.is_null()).to_numpy(zero_copy_only=False)
        at = int(np.repeat(np.arange(len(lists)), counts)[wrong.argmax()])
        raise BadRow(
            f"row {first_row + int(order[at])} of this task, for partition "
            f"{int(rows.partition[at])} of topic {rows.topics[rows.topic_of[at]]!r}, has a header "
            "that is null or has a null key; correct the column headers"
        )
    joined = pc.binary_join_element_wise(
        varint_fields([(key_size, varint_widths(key_size))]),
        keys,
        varint_fields([(value_size, varint_widths(value_size))]),
        _filled(values),
        b"",
    )
    entry_offsets = np.frombuffer(joined.buffers()[1], dtype=np.int32)
    row_offsets = entry_offsets[np.concatenate(([0], np.cumsum(counts)))].copy()
    return pa.Array.from_buffers(
        pa.binary(), len(lists), [None, pa.py_buffer(row_offsets), joined.buffers()[2]]
    )
