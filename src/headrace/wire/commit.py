"""OffsetCommit by hand: partitions stay together as bytes until somebody looks at one.

A consumer commits all its partitions at once, a hundred of them in a second's rhythm, and nearly
always without metadata. In the flexible versions such partitions have one width:

    i32 partition · i64 offset · i32 leader epoch · u8 size of the metadata + 1 · u8 tagged fields

``decode`` keeps a run of them as ``PackedPartitions``, which can be taken apart column by column.
Anything else (metadata, tags, an older version) goes to the compiled codec.
"""

# Every broker loads this, and annotations would build message classes that it may never need.
from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import Any

from headrace.wire import messages as m
from headrace.wire import schema
from headrace.wire.schema import Buffer

WIDTH = 18
PARTITION_AT, OFFSET_AT, _METADATA_AT, _TAGS_AT = 0, 4, 16, 17

VERSIONS = (8, 9, 10)
_FIRST_WITH_TOPIC_IDS = 10
_TOPIC_ID_SIZE = 16
_ROW = Struct(">iqiBB")
_unpack_generation = Struct(">i").unpack_from


class PackedPartitions:
    """Reads like a list of partitions, each made when it is asked for; all without metadata."""

    __slots__ = ("block", "indexes")

    def __init__(self, block: bytes) -> None:
        self.block = block
        self.indexes = bytes(self.column(PARTITION_AT, 4))  # i32 each, one after the other

    def column(self, at: int, size: int) -> bytearray:
        """One field of all partitions, back to back."""
        block = self.block
        column = bytearray(len(block) // WIDTH * size)
        for place in range(size):
            column[place::size] = block[at + place :: WIDTH]
        return column

    def __len__(self) -> int:
        return len(self.block) // WIDTH

    def __iter__(self) -> Iterator[m.OffsetCommitRequest.OffsetCommitRequestPartition]:
        for partition, offset, leader_epoch, size, _ in _ROW.iter_unpack(self.block):
            yield m.OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=leader_epoch,
                committed_metadata="" if size else None,
            )


def decode(buffer: Buffer, position: int, end: int, api_version: int) -> m.OffsetCommitRequest:
    """Raises PeerBroken and nothing else, as all decoders."""
    data = bytes(memoryview(buffer)[position:end])
    request = _decode_packed(data, api_version)
    if request is None:
        request, _ = schema.decoder(m.OffsetCommitRequest, api_version)(data, 0, len(data))
    return request


def _decode_packed(data: bytes, api_version: int) -> m.OffsetCommitRequest | None:
    """None for what is not of the plain shape, be it broken or only unusual."""
    try:
        group_id, at = _text(data, 0)
        (generation,) = _unpack_generation(data, at)
        member_id, at = _text(data, at + 4)
        instance_id, at = _text(data, at) if data[at] else (None, at + 1)
        topic_count = data[at] - 1
        at += 1
        topics = []
        if not 0 <= topic_count < 0x7F:
            return None
        for _ in range(topic_count):
            topic: Any = m.OffsetCommitRequest.OffsetCommitRequestTopic()
            if api_version >= _FIRST_WITH_TOPIC_IDS:
                topic.topic_id = data[at : at + _TOPIC_ID_SIZE]
                at += _TOPIC_ID_SIZE
            else:
                topic.name, at = _text(data, at)
            count, at = _length(data, at)
            block = data[at : at + count * WIDTH]
            at += len(block)
            if (
                len(block) != count * WIDTH
                or block[_METADATA_AT::WIDTH].strip(b"\0\1")  # no metadata, or an empty one
                or block[_TAGS_AT::WIDTH].strip(b"\0")
                or data[at]
            ):
                return None
            at += 1
            topic.partitions = PackedPartitions(block)
            topics.append(topic)
        if data[at]:
            return None
    except (IndexError, StructError, UnicodeDecodeError, ValueError):
        return None
    return m.OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=topics,
    )


def _length(data: bytes, at: int) -> tuple[int, int]:
    """A compact length of up to two bytes, and the position behind it."""
    size = data[at]
    if size < 0x80:
        size, at = size - 1, at + 1
    elif data[at + 1] < 0x80:
        size, at = (size & 0x7F | data[at + 1] << 7) - 1, at + 2
    else:
        raise ValueError("more than is worth a short way")
    if size < 0:
        raise ValueError("null")
    return size, at


def _text(data: bytes, at: int) -> tuple[str, int]:
    size, at = _length(data, at)
    end = at + size
    if end > len(data):
        raise ValueError("cut short")
    return data[at:end].decode(), end
