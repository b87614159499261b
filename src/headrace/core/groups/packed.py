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
from struct import Struct
from typing import Any, NamedTuple

from headrace.core.groups.offsets import PLAIN_SIZE, PLAIN_TAIL, Commit, Offsets
from headrace.core.outcome import NewRecord, PackedRecords, Shard
from headrace.model.ids import TopicId
from headrace.records.varint import varint
from headrace.wire import messages as m
from headrace.wire.commit import OFFSET_AT, PARTITION_AT, WIDTH, PackedPartitions
from headrace.wire.framing import Encoded
from headrace.wire.schema import Message, encoder

_PARTITION = Struct(">i")
_VALUE_HEAD = b"\0\4"  # version 4
_NO_METADATA = b"\1"
_FIELDS_SIZE = 8 + 4  # offset and leader epoch, side by side in request and value
_RESPONSE_HEAD = bytes(4)  # the throttle time

# Deltas are zigzag varints: one byte up to 63, two up to here; no commit has more partitions.
_DELTA_COUNT = 8192
_ONE_BYTE_COUNT = 64
_deltas_low = bytes(
    delta << 1 if delta < _ONE_BYTE_COUNT else delta << 1 & 0x7F | 0x80
    for delta in range(_DELTA_COUNT)
)
_deltas_high = bytes(delta >> 6 for delta in range(_DELTA_COUNT))


class _Seen:
    """What follows from the partitions that a consumer names, which are the same each time."""

    __slots__ = ("bodies", "highest", "lowest", "partitions")

    def __init__(self, indexes: bytes) -> None:
        self.partitions = tuple(index for (index,) in _PARTITION.iter_unpack(indexes))
        self.lowest = min(self.partitions)
        self.highest = max(self.partitions)
        self.bodies: dict[tuple[int, str, bytes], bytes] = {}  # answers, by version and topic


_seen: dict[bytes, _Seen] = {}
_SEEN_SIZE_MAX = 1 << 20  # bytes in keys and bodies together
_seen_size = 0


class _Run(NamedTuple):
    """Records of one width, back to back, and where each has its value."""

    section: bytes
    value_at: int
    width: int


class _Topic(NamedTuple):
    """Satisfies ``offsets.Uncut``."""

    prefix: bytes
    partitions: tuple[int, ...]
    runs: list[_Run]

    def values(self) -> list[bytes]:
        found: list[bytes] = []
        for section, value_at, width in self.runs:
            found += [section[at : at + PLAIN_SIZE] for at in range(value_at, len(section), width)]
        return found


class CommitRecords(PackedRecords):
    """Records of offsets, by topic."""

    __slots__ = ("offsets", "topics")

    def __init__(self, count: int, topics: list[_Topic], offsets: Offsets) -> None:
        """``offsets`` are those of the shard that will replay them."""
        section = b"".join(run.section for topic in topics for run in topic.runs)
        super().__init__(section, count)
        self.topics = topics
        self.offsets = offsets

    def replay(self, shard: Shard, base_offset: int) -> None:
        offset = base_offset
        for topic in self.topics:
            if not self.offsets.replay_known_topic(topic.prefix, topic):
                for index, (partition, value) in enumerate(
                    zip(topic.partitions, topic.values(), strict=True)
                ):
                    key = topic.prefix + _PARTITION.pack(partition)
                    shard.replay(key, value, offset + index, -1, -1)
            offset += len(topic.partitions)

    def __iter__(self) -> Iterator[NewRecord]:
        for topic in self.topics:
            for partition, value in zip(topic.partitions, topic.values(), strict=True):
                yield NewRecord(topic.prefix + _PARTITION.pack(partition), value)


def take_packed(
    commit: Commit, request: m.OffsetCommitRequest, api_version: int, offsets: Offsets
) -> tuple[CommitRecords, Message] | None:
    """The records and the answer; None if this is not a case for here."""
    if commit.refusal or commit.expire_at >= 0 or not request.topics:
        return None
    topics: list[_Topic] = []
    bodies: list[bytes] = []
    count = 0
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
            or count + len(seen.partitions) > _DELTA_COUNT
        ):
            return None
        prefix = offsets.prefix(commit.group_id, state.name)
        tail = PLAIN_TAIL.pack(commit.now, 1, 0, 16, state.topic_id)
        topics.append(_Topic(prefix, seen.partitions, _records(packed.block, count, prefix, tail)))
        count += len(seen.partitions)
        bodies.append(_body(seen, api_version, topic.name, topic.topic_id))
    head = _RESPONSE_HEAD + bytes((len(bodies) + 1,))
    return (
        CommitRecords(count, topics, offsets),
        Encoded(b"".join((head, *bodies, b"\0"))),
    )


def _look(packed: PackedPartitions) -> _Seen:
    seen = _seen.get(packed.indexes)
    if seen is None:
        _make_room(len(packed.indexes))
        seen = _seen[packed.indexes] = _Seen(packed.indexes)
    return seen


def _body(seen: _Seen, api_version: int, name: str, topic_id: bytes) -> bytes:
    """What the answer says of one topic, all of whose partitions were taken."""
    body = seen.bodies.get((api_version, name, topic_id))
    if body is None:
        response = m.OffsetCommitResponse
        answer = response.OffsetCommitResponsePartition
        given = response.OffsetCommitResponseTopic(
            name=name,
            topic_id=topic_id,
            partitions=[answer(partition_index=index) for index in seen.partitions],
        )
        out = bytearray()
        encoder(response, api_version)(response(topics=[given]), out)
        # Before it stands the head with the count of topics, behind it no tagged field.
        body = bytes(out[len(_RESPONSE_HEAD) + 1 : -1])
        _make_room(len(body))
        seen.bodies[api_version, name, topic_id] = body
    return body


def _make_room(size: int) -> None:
    global _seen_size
    _seen_size += size
    if _seen_size > _SEEN_SIZE_MAX:
        _seen.clear()
        _seen_size = size


def _records(block: bytes, first_delta: int, prefix: bytes, tail: bytes) -> list[_Run]:
    """The records of one topic."""
    runs = []
    delta_end = first_delta + len(block) // WIDTH
    delta = first_delta
    while delta < delta_end:
        # Records whose delta has the same width have the same shape.
        is_short = delta < _ONE_BYTE_COUNT
        run_end = min(delta_end, _ONE_BYTE_COUNT) if is_short else delta_end
        rows = block[(delta - first_delta) * WIDTH : (run_end - first_delta) * WIDTH]
        delta_size = 1 if is_short else 2
        key_head = b"\0\0" + bytes(delta_size) + varint(len(prefix) + 4)
        value_head = varint(PLAIN_SIZE) + _VALUE_HEAD
        rest_size = len(key_head) + len(prefix) + 4 + len(value_head) - 2 + PLAIN_SIZE + 1
        length = varint(rest_size)
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
        for place in range(_FIELDS_SIZE):
            records[offset_at + place :: width] = rows[OFFSET_AT + place :: WIDTH]
        runs.append(_Run(bytes(records), value_at, width))
        delta = run_end
    return runs
