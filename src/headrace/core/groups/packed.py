"""Commits of many partitions at once, without an object for each: records made column by column.

For partitions that came packed (``wire.commit``) all records of a topic have one shape, so they
are written as so many copies of a template, into which the columns of the request are laid with
one strided assignment per byte. ``take_packed`` does what ``offsets.take_commits`` does, for
commits that are taken whole; everything else goes there.

A record, with what differs from its neighbour in capitals (see ``records.record``):

    length · 0 · 0 · DELTA · key size · prefix · PARTITION · value size · value head · OFFSET ·
    LEADER EPOCH · value tail · 0
"""

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

from headrace.core.groups.offsets import PLAIN_SIZE, PLAIN_TAIL, Commit, Offsets
from headrace.core.outcome import NewRecord, PackedRecords, Shard
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicId
from headrace.wire import messages as m
from headrace.wire.commit import LEADER_EPOCH_AT, OFFSET_AT, PARTITION_AT, WIDTH, PackedPartitions

_PARTITION = Struct(">i")
_VALUE_HEAD = b"\0\4"  # version 4
_NO_METADATA = b"\1"
_FIELDS_SIZE = 8 + 4  # offset and leader epoch

# Deltas are zigzag varints: one byte up to 63, two up to here; no commit has more partitions.
_DELTA_COUNT = 8192
_ONE_BYTE_COUNT = 64
_deltas_low = bytes(
    delta << 1 if delta < _ONE_BYTE_COUNT else delta << 1 & 0x7F | 0x80
    for delta in range(_DELTA_COUNT)
)
_deltas_high = bytes(delta >> 6 for delta in range(_DELTA_COUNT))


class _Seen(NamedTuple):
    """What follows from the partitions that a consumer names, which are the same each time."""

    partitions: tuple[int, ...]
    lowest: int
    highest: int
    answers: list[m.OffsetCommitResponse.OffsetCommitResponsePartition]  # all fine


_seen: dict[bytes, _Seen] = {}
_SEEN_SIZE_MAX = 1 << 18  # of the keys together: 65,536 partitions
_seen_size = 0


class _Topic(NamedTuple):
    prefix: bytes
    partitions: tuple[int, ...]
    values: list[bytes]


class CommitRecords(PackedRecords):
    """Records of offsets, by topic."""

    __slots__ = ("offsets", "topics")

    def __init__(self, section: bytes, count: int, topics: list[_Topic], offsets: Offsets) -> None:
        """``offsets`` are those of the shard that will replay them."""
        super().__init__(section, count)
        self.topics = topics
        self.offsets = offsets

    def replay(self, shard: Shard, base_offset: int) -> None:
        offset = base_offset
        for prefix, partitions, values in self.topics:
            if not self.offsets.replay_known_topic(prefix, partitions, values):
                for index, (partition, value) in enumerate(zip(partitions, values, strict=True)):
                    key = prefix + _PARTITION.pack(partition)
                    shard.replay(key, value, offset + index, -1, -1)
            offset += len(values)

    def __iter__(self) -> Iterator[NewRecord]:
        for prefix, partitions, values in self.topics:
            for partition, value in zip(partitions, values, strict=True):
                yield NewRecord(prefix + _PARTITION.pack(partition), value)


def take_packed(
    commit: Commit,
    request: m.OffsetCommitRequest,
    response: m.OffsetCommitResponse,
    offsets: Offsets,
) -> CommitRecords | None:
    """Fill in ``response`` and return the records; None if this is not a case for here."""
    if commit.refusal or commit.expire_at >= 0 or not request.topics:
        return None
    topics: list[_Topic] = []
    sections: list[bytes] = []
    answers: list[m.OffsetCommitResponse.OffsetCommitResponseTopic] = []
    delta = 0
    topic: Any  # partitions are packed, or a list
    for topic in request.topics:
        packed = topic.partitions
        if type(packed) is not PackedPartitions or not packed.block:
            return None
        if commit.by_topic_id:
            state = commit.picture.topic_by_id(TopicId(topic.topic_id))
        else:
            state = commit.picture.topics.get(topic.name)
        seen = _look(packed)
        if (
            state is None
            or seen.lowest < 0
            or seen.highest >= len(state.partitions)
            or delta + len(seen.partitions) > _DELTA_COUNT
        ):
            return None
        prefix = offsets.prefix(commit.group_id, state.name)
        tail = PLAIN_TAIL.pack(commit.now, 1, 0, 16, state.topic_id)
        values: list[bytes] = []
        _write_records(sections, values, packed.block, delta, prefix, tail)
        topics.append(_Topic(prefix, seen.partitions, values))
        delta += len(values)
        answers.append(
            response.OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=seen.answers
            )
        )
    response.topics = answers
    return CommitRecords(b"".join(sections), delta, topics, offsets)


def _look(packed: PackedPartitions) -> _Seen:
    global _seen_size
    seen = _seen.get(packed.indexes)
    if seen is None:
        _seen_size += len(packed.indexes)
        if _seen_size > _SEEN_SIZE_MAX:
            _seen.clear()
            _seen_size = len(packed.indexes)
        partitions = tuple(index for (index,) in _PARTITION.iter_unpack(packed.indexes))
        answer = m.OffsetCommitResponse.OffsetCommitResponsePartition
        seen = _seen[packed.indexes] = _Seen(
            partitions,
            min(partitions),
            max(partitions),
            [answer(partition_index=index, error_code=ErrorCode.NONE) for index in partitions],
        )
    return seen


def _write_records(
    sections: list[bytes],
    values: list[bytes],
    block: bytes,
    first_delta: int,
    prefix: bytes,
    tail: bytes,
) -> None:
    """Append the records of one topic to ``sections`` and their values to ``values``."""
    delta_end = first_delta + len(block) // WIDTH
    delta = first_delta
    while delta < delta_end:
        # Records whose delta has the same width have the same shape.
        is_short = delta < _ONE_BYTE_COUNT
        run_end = min(delta_end, _ONE_BYTE_COUNT) if is_short else delta_end
        rows = block[(delta - first_delta) * WIDTH : (run_end - first_delta) * WIDTH]
        delta_size = 1 if is_short else 2
        key_head = b"\0\0" + bytes(delta_size) + _varint(len(prefix) + 4)
        value_head = _varint(PLAIN_SIZE) + _VALUE_HEAD
        rest_size = len(key_head) + len(prefix) + 4 + len(value_head) - 2 + PLAIN_SIZE + 1
        length = _varint(rest_size)
        template = b"".join(
            (length, key_head, prefix, bytes(4), value_head, bytes(_FIELDS_SIZE))
            + (_NO_METADATA, tail, b"\0")
        )
        delta_at = len(length) + 2
        partition_at = len(length) + len(key_head) + len(prefix)
        value_at = partition_at + 4 + len(value_head) - 2
        offset_at = value_at + 2
        width = len(template)
        records = bytearray(template * (run_end - delta))
        records[delta_at::width] = _deltas_low[delta:run_end]
        if not is_short:
            records[delta_at + 1 :: width] = _deltas_high[delta:run_end]
        for place in range(4):
            records[partition_at + place :: width] = rows[PARTITION_AT + place :: WIDTH]
            records[offset_at + 8 + place :: width] = rows[LEADER_EPOCH_AT + place :: WIDTH]
        for place in range(8):
            records[offset_at + place :: width] = rows[OFFSET_AT + place :: WIDTH]
        section = bytes(records)
        sections.append(section)
        values += _values_in(value_at, width, run_end - delta).unpack(section)
        delta = run_end


@lru_cache(maxsize=256)
def _values_in(value_at: int, width: int, count: int) -> Struct:
    """Cuts the values out of so many records, in one go."""
    return Struct(f"{value_at}x{PLAIN_SIZE}s{width - value_at - PLAIN_SIZE}x" * count)


def _varint(value: int) -> bytes:
    """A zigzag varint of a number below 2**20 that is not negative."""
    value <<= 1
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
