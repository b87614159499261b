"""Committed offsets of the groups of one shard, and pending offsets of open transactions.

An offset is stored as the bytes of its record's value and decoded when it is read: commits and
reloads outnumber fetches by far, and neither needs the content.

    record key     i16 1 · group · topic · i32 partition      (texts with an i16 length)
                   └──────── prefix ───────┘
    record value   version 4: i64 offset · i32 leader epoch · metadata · i64 commit timestamp ·
                   the topic's id as tagged field 0
                   version 1 has no leader epoch, but ends with an i64 expire timestamp, for the
                   retention time that OffsetCommit had up to version 4

Offsets of a transaction are pending until its marker. A later commit of the same partition outside
of transactions voids a pending one: the newest record of a key must win, whatever compaction has
removed before it.
"""

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import NamedTuple, Protocol

from headrace.core.groups.group import TEXT_SIZE_MAX, Expiry
from headrace.core.outcome import NewRecord
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import Millis
from headrace.wire import messages as m
from headrace.wire.framing import decode_versioned, encode_versioned

OFFSET_COMMIT_TYPES = (0, 1)  # Kafka 0.8 wrote type 0, with the same key

_TYPE = _LENGTH = Struct(">h")
_PARTITION = Struct(">i")
_PARTITION_AT = -_PARTITION.size  # in a record key
_unpack_partition = _PARTITION.unpack_from
# Most values have version 4, no metadata, and the topic id as their only tagged field.
_PLAIN_VALUE = Struct(">hqiBq3s16s")
PLAIN_HEAD = Struct(">hqiB")
PLAIN_TAIL = Struct(">q3s16s")
VALUE_VERSION = 4
NO_METADATA = 1  # the length of the text, plus 1
TOPIC_ID_TAG = bytes((1, 0, 16))  # one tagged field, its number, its size
PLAIN_SIZE = _PLAIN_VALUE.size
_KEY_TYPE = 1
_new = tuple.__new__


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int  # -1: by the retention of the broker
    topic_id: bytes  # zeros if the record has none


def encode_value(committed: CommittedOffset) -> bytes:
    value = m.OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp,
        expire_timestamp=committed.expire_timestamp,
        topic_id=committed.topic_id,
    )
    return encode_versioned(value, 1 if committed.expire_timestamp >= 0 else VALUE_VERSION)


def decode_value(value: bytes) -> CommittedOffset:
    if len(value) == PLAIN_SIZE:
        version, offset, epoch, metadata, timestamp, tag, topic_id = _PLAIN_VALUE.unpack(value)
        if version == VALUE_VERSION and metadata == NO_METADATA and tag == TOPIC_ID_TAG:
            return _new(CommittedOffset, (offset, epoch, "", timestamp, -1, topic_id))
    opened = decode_versioned(m.OffsetCommitValue, value)
    return CommittedOffset(
        opened.offset,
        opened.leader_epoch,
        opened.metadata,
        opened.commit_timestamp,
        opened.expire_timestamp,
        opened.topic_id,
    )


def key_prefix(group_id: str, topic: str) -> bytes:
    """A record key without its partition. Raises Rejected if a text is too long."""
    group, name = group_id.encode(), topic.encode()
    if len(group) > TEXT_SIZE_MAX or len(name) > TEXT_SIZE_MAX:
        raise Rejected(ErrorCode.INVALID_GROUP_ID)
    return b"".join(
        (_TYPE.pack(_KEY_TYPE), _LENGTH.pack(len(group)), group, _LENGTH.pack(len(name)), name)
    )


def open_prefix(prefix: bytes) -> tuple[str, str]:
    """Group and topic of a record key without its partition."""
    (size,) = _LENGTH.unpack_from(prefix, 2)
    topic_at = 4 + size
    return prefix[4:topic_at].decode(), prefix[topic_at + 2 :].decode()


class PackedValues(Protocol):
    """Values of many partitions in one piece; taken apart when one of them is read."""

    @property
    def partitions(self) -> tuple[int, ...]: ...
    def values(self) -> Iterable[bytes]: ...


class TopicOffsets:
    """The offsets of one group in one topic: record values by partition."""

    __slots__ = ("_packed", "_values", "group_id", "prefix", "topic")

    def __init__(self, group_id: str, topic: str, prefix: bytes) -> None:
        self.group_id = group_id
        self.topic = topic
        self.prefix = prefix
        self._values: dict[int, bytes] = {}
        self._packed: PackedValues | None = None  # newer than the ``_values`` of its partitions

    @property
    def values(self) -> dict[int, bytes]:
        packed = self._packed
        if packed is not None:
            self._packed = None
            self._values.update(zip(packed.partitions, packed.values(), strict=True))
        return self._values

    def put(self, packed: PackedValues) -> None:
        """A consumer mostly commits the same partitions, and nothing reads them in between."""
        before = self._packed
        if before is not None and before.partitions is not packed.partitions:
            self._values.update(zip(before.partitions, before.values(), strict=True))
        self._packed = packed


class Offsets:
    """Changed by ``replay`` and ``replay_marker`` alone."""

    def __init__(self) -> None:
        # Two indexes over the same objects: all and only those that hold an offset.
        self._by_prefix: dict[bytes, TopicOffsets] = {}
        self._by_group: dict[str, dict[str, TopicOffsets]] = {}
        # Values by record key, for each producer with an open transaction; None is void.
        self._pending: dict[int, dict[bytes, bytes | None]] = {}
        self._pending_counts: dict[
            bytes, int
        ] = {}  # how many transactions hold an offset of the key

    # -- replay ---------------------------------------------------------------------------

    def replay(self, record_key: bytes, value: bytes | None, producer_id: int) -> str | None:
        """Apply a record; returns the group id if this is the group's first offset."""
        if producer_id >= 0:
            self._replay_pending(record_key, value, producer_id)
            return None
        if self._pending_counts and record_key in self._pending_counts:
            for held in self._pending.values():
                if record_key in held:
                    held[record_key] = None
        return self._apply(record_key, value)

    def replay_known(self, record_key: bytes, value: bytes) -> bool:
        """Fast path for another offset of a known group and topic; False if it does not apply."""
        found = self._by_prefix.get(record_key[:_PARTITION_AT])
        if found is None or self._pending_counts or value[1] > VALUE_VERSION:
            return False
        found.values[_unpack_partition(record_key, len(record_key) + _PARTITION_AT)[0]] = value
        return True

    def replay_known_topic(self, prefix: bytes, packed: PackedValues) -> bool:
        """The same for many partitions of one topic, all in a known version."""
        found = self._by_prefix.get(prefix)
        if found is None or self._pending_counts:
            return False
        found.put(packed)
        return True

    def _replay_pending(self, record_key: bytes, value: bytes | None, producer_id: int) -> None:
        held = self._pending.setdefault(producer_id, {})
        if record_key not in held:
            self._pending_counts[record_key] = self._pending_counts.get(record_key, 0) + 1
        held[record_key] = value

    def replay_marker(self, producer_id: int, committed: bool) -> list[str]:
        """End a transaction; returns the groups that got their first offset."""
        begun = []
        for record_key, value in self._pending.pop(producer_id, {}).items():
            count = self._pending_counts.pop(record_key) - 1
            if count:
                self._pending_counts[record_key] = count
            if committed and value is not None:
                group_id = self._apply(record_key, value)
                if group_id is not None:
                    begun.append(group_id)
        return begun

    def _apply(self, record_key: bytes, value: bytes | None) -> str | None:
        prefix = record_key[:_PARTITION_AT]
        (partition,) = _PARTITION.unpack_from(record_key, len(prefix))
        found = self._by_prefix.get(prefix)
        if value is None:
            if found is not None and found.values.pop(partition, None) is not None:
                self._drop_if_empty(found)
            return None
        if value[0] or value[1] > VALUE_VERSION:
            version = _TYPE.unpack_from(value)[0]
            raise ValueError(f"an offset is stored in the unknown version {version}")
        if found is None:
            return self._begin(prefix, partition, value)
        found.values[partition] = value
        return None

    def _begin(self, prefix: bytes, partition: int, value: bytes) -> str | None:
        group_id, topic = open_prefix(prefix)
        found = self._by_prefix[prefix] = TopicOffsets(group_id, topic, prefix)
        found.values[partition] = value
        topics = self._by_group.get(group_id)
        if topics is not None:
            topics[topic] = found
            return None
        self._by_group[group_id] = {topic: found}
        return group_id

    def _drop_if_empty(self, found: TopicOffsets) -> None:
        if found.values:
            return
        del self._by_prefix[found.prefix]
        topics = self._by_group[found.group_id]
        del topics[found.topic]
        if not topics:
            del self._by_group[found.group_id]

    # -- reading --------------------------------------------------------------------------

    def of_group(self, group_id: str) -> Mapping[str, TopicOffsets]:
        return self._by_group.get(group_id, {})

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        found = self._by_group.get(group_id, {}).get(topic)
        value = found.values.get(partition) if found is not None else None
        return decode_value(value) if value is not None else None

    def prefix(self, group_id: str, topic: str) -> bytes:
        found = self._by_group.get(group_id, {}).get(topic)
        return found.prefix if found is not None else key_prefix(group_id, topic)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending_counts)

    def is_pending(self, prefix: bytes, partition: int) -> bool:
        """Whether an open transaction may still change this offset."""
        return prefix + _PARTITION.pack(partition) in self._pending_counts

    def pending_of(self, group_id: str) -> list[tuple[str, int]]:
        """Topics and partitions for which open transactions hold offsets of a group."""
        found = []
        for record_key in self._pending_counts:
            holder, topic = open_prefix(record_key[:_PARTITION_AT])
            if holder == group_id:
                found.append(
                    (topic, _PARTITION.unpack_from(record_key, len(record_key) + _PARTITION_AT)[0])
                )
        return found

    # -- deletion -------------------------------------------------------------------------

    def tombstones_of_group(self, group_id: str) -> list[NewRecord]:
        """For all offsets, also pending ones: a later marker must find nothing."""
        gone = {
            found.prefix + _PARTITION.pack(partition): None
            for found in self.of_group(group_id).values()
            for partition in found.values
        }
        for topic, partition in self.pending_of(group_id):
            gone[key_prefix(group_id, topic) + _PARTITION.pack(partition)] = None
        return [NewRecord(record_key, None) for record_key in gone]

    def tombstones_of_topics(self, topics: Iterable[str]) -> list[NewRecord]:
        gone = frozenset(topics)
        keys = {
            found.prefix + _PARTITION.pack(partition): None
            for found in self._by_prefix.values()
            if found.topic in gone
            for partition in found.values
        }
        for record_key in self._pending_counts:
            if open_prefix(record_key[:_PARTITION_AT])[1] in gone:
                keys[record_key] = None
        return [NewRecord(record_key, None) for record_key in keys]

    def expired(
        self, group_id: str, expiry: Expiry, retention_ms: int, now: Millis
    ) -> Iterator[NewRecord]:
        """Tombstones for offsets whose retention time is over."""
        for found in self.of_group(group_id).values():
            if found.topic in expiry.kept_topics:
                continue
            for partition, value in found.values.items():
                committed = decode_value(value)
                if committed.expire_timestamp >= 0:
                    is_over = now >= committed.expire_timestamp
                else:
                    # A reset after the group became empty counts from its commit.
                    since = max(committed.commit_timestamp, expiry.since)
                    is_over = now - since >= retention_ms
                if is_over and not self.is_pending(found.prefix, partition):
                    yield NewRecord(found.prefix + _PARTITION.pack(partition), None)
