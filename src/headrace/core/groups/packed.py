"""Commits of many partitions at once, without an object for each.

For partitions that arrive packed (``wire.commit``), all bytes of a record around the committed
place are known from the last commit of the same partitions, so the records are joined from pieces.
``take_packed`` does what ``offset_commit.take_commits`` does, for commits that are taken as a
whole; all others go there.

    length · 0 · 0 · delta · key size · prefix · partition · value size · version      head
    OFFSET · LEADER EPOCH                                                              place
    no metadata · COMMIT TIMESTAMP · topic id as a tagged field · no headers           tail
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, NamedTuple

from headrace.core.groups.group import CommitOptions
from headrace.core.groups.offsets import PLAIN_SIZE, PLAIN_TAIL, TOPIC_ID_TAG, Offsets
from headrace.core.outcome import NewRecord, PackedRecords, Shard
from headrace.model.cluster_metadata import ClusterMetadata
from headrace.model.ids import Millis, TopicId
from headrace.records.varint import varint
from headrace.wire import messages as m
from headrace.wire.commit import NamedPartitions, PackedPartitions
from headrace.wire.framing import Encoded
from headrace.wire.schema import Message

_PARTITION = Struct(">i")
_VALUE_VERSION = b"\0\4"
_NO_METADATA = b"\1"
_NO_HEADERS = b"\0"
_RESPONSE_HEAD = bytes(4)  # the throttle time
_COUNT_MAX = 8192  # larger commits are rare


class _Known:
    """What follows from the partitions of a topic that a consumer names in every commit."""

    __slots__ = ("body", "first_delta", "heads", "name", "options", "prefix", "topic_id")

    def __init__(
        self,
        named: NamedPartitions,
        prefix: bytes,
        first_delta: int,
        options: CommitOptions,
        name: str,
        topic_id: bytes,
    ) -> None:
        self.prefix = prefix
        self.first_delta = first_delta
        self.options = options
        self.name = name
        self.topic_id = topic_id
        self.heads = list(_heads(named, prefix, first_delta))
        self.body = _body(named, options, name, topic_id)


class _Topic(NamedTuple):
    """Satisfies ``offsets.PackedValues``."""

    prefix: bytes
    partitions: tuple[int, ...]
    places: Sequence[bytes]
    tail: bytes

    def values(self) -> list[bytes]:
        value_tail = self.tail[: -len(_NO_HEADERS)]
        return [_VALUE_VERSION + place + value_tail for place in self.places]


class CommitRecords(PackedRecords):
    """Records of offsets, by topic."""

    __slots__ = ("offsets", "topics")

    def __init__(self, section: bytes, count: int, topics: list[_Topic], offsets: Offsets) -> None:
        """``offsets`` belong to the shard that will replay the records."""
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
    request: m.OffsetCommitRequest,
    options: CommitOptions,
    metadata: ClusterMetadata,
    offsets: Offsets,
    now: Millis,
) -> tuple[CommitRecords, Message] | None:
    """The records and the response of an allowed commit; None if the fast path does not apply."""
    if not request.topics:
        return None
    topics: list[_Topic] = []
    pieces: list[bytes] = []
    bodies: list[bytes] = []
    count = 0
    topic: Any  # its partitions are packed, or a list
    for topic in request.topics:
        packed = topic.partitions
        if type(packed) is not PackedPartitions or not packed.places:
            return None
        if options.by_topic_id:
            state = metadata.topic_by_id(TopicId(topic.topic_id))
        else:
            state = metadata.topics.get(topic.name)
        named = packed.named
        first_delta = count
        count += len(named.indexes)
        if (
            state is None
            or named.lowest < 0
            or named.highest >= len(state.partitions)
            or count > _COUNT_MAX
        ):
            return None
        prefix = offsets.prefix(request.group_id, state.name)
        known = _known(named, prefix, first_delta, options, topic)
        tail = b"".join(
            (_NO_METADATA, PLAIN_TAIL.pack(now, TOPIC_ID_TAG, state.topic_id), _NO_HEADERS)
        )
        topics.append(_Topic(prefix, named.indexes, packed.places, tail))
        pieces += _pieces_of_records(known.heads, packed.places, tail)
        bodies.append(known.body)
    head = _RESPONSE_HEAD + bytes((len(bodies) + 1,))
    return (
        CommitRecords(b"".join(pieces), count, topics, offsets),
        Encoded(b"".join((head, *bodies, b"\0"))),
    )


def _pieces_of_records(heads: list[bytes], places: Sequence[bytes], tail: bytes) -> list[bytes]:
    """Head, place and tail of each record."""
    pieces = [tail] * (3 * len(heads))
    pieces[::3] = heads
    pieces[1::3] = places
    return pieces


def _known(
    named: NamedPartitions, prefix: bytes, first_delta: int, options: CommitOptions, topic: Any
) -> _Known:
    known: _Known | None = named.derived
    if (
        known is None
        or known.prefix != prefix
        or known.first_delta != first_delta
        or known.options is not options
        or known.name != topic.name
        or known.topic_id != topic.topic_id
    ):
        known = _Known(named, prefix, first_delta, options, topic.name, topic.topic_id)
        named.derived = known
    return known


def _heads(named: NamedPartitions, prefix: bytes, first_delta: int) -> Iterator[bytes]:
    key_size = varint(len(prefix) + _PARTITION.size)
    value_size = varint(PLAIN_SIZE)
    for delta, partition in enumerate(named.indexes, first_delta):
        # Attributes and the timestamp delta are zero.
        rest = b"".join(
            (b"\0\0", varint(delta), key_size, prefix, _PARTITION.pack(partition), value_size)
        )
        yield varint(len(rest) + PLAIN_SIZE + len(_NO_HEADERS)) + rest + _VALUE_VERSION


def _body(named: NamedPartitions, options: CommitOptions, name: str, topic_id: bytes) -> bytes:
    """The response for one topic, with all partitions taken."""
    response = m.OffsetCommitResponse
    answer = response.OffsetCommitResponsePartition
    given = response.OffsetCommitResponseTopic(
        name=name,
        topic_id=topic_id,
        partitions=[answer(partition_index=index) for index in named.indexes],
    )
    out = bytearray()
    options.encode_response(response(topics=[given]), out)
    # Cut off the head with the count of topics, and the empty tagged fields at the end.
    return bytes(out[len(_RESPONSE_HEAD) + 1 : -1])
