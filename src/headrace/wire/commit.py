"""OffsetCommit requests: the parts that a consumer repeats are decoded once.

A consumer commits all its partitions in one request, perhaps a hundred of them every second, and
nearly always without metadata. In flexible versions such partitions have a fixed width:

    i32 partition · i64 offset · i32 leader epoch · u8 size of the metadata + 1 · u8 tagged fields
                    └──────── place ───────┘

Two commits differ only in the places. The other bytes are the *form* of the request. One ``struct``
splits a request into form and places; a known form needs no decoding. The compiled codec decodes
everything unusual (metadata, tags, an older version).
"""

# Every broker loads this module; evaluated annotations would build message classes at start.
from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any

from headrace.wire import messages as m
from headrace.wire import schema
from headrace.wire.schema import Buffer

VERSIONS = (8, 9, 10)
_FIRST_WITH_TOPIC_IDS = 10
_TOPIC_ID_SIZE = 16
_WIDTH = 18
_PLACE_AT, _PLACE_END, _METADATA_AT, _TAGS_AT = 4, 16, 16, 17
_PLACE_SIZE = _PLACE_END - _PLACE_AT
_PARTITION = Struct(">i14x")
_unpack_place = Struct(">qi").unpack
_unpack_generation = Struct(">i").unpack_from


class NamedPartitions:
    """The partitions that a form names in one topic."""

    __slots__ = ("derived", "highest", "indexes", "lowest", "sizes")

    def __init__(self, block: bytes) -> None:
        self.indexes = tuple(index for (index,) in _PARTITION.iter_unpack(block))
        self.lowest = min(self.indexes, default=0)
        self.highest = max(self.indexes, default=0)
        self.sizes = block[_METADATA_AT::_WIDTH]  # of the metadata + 1; 0 for null
        self.derived: Any = None  # for the group coordinator, to cache what it computes from them


class PackedPartitions:
    """A sequence of partitions without metadata; each is built when it is read."""

    __slots__ = ("named", "places")

    def __init__(self, named: NamedPartitions, places: Sequence[bytes]) -> None:
        self.named = named
        self.places = places

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[m.OffsetCommitRequest.OffsetCommitRequestPartition]:
        named = self.named
        for partition, size, place in zip(named.indexes, named.sizes, self.places, strict=True):
            offset, leader_epoch = _unpack_place(place)
            yield m.OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=leader_epoch,
                committed_metadata="" if size else None,
            )


class _Form:
    """A request without its places."""

    __slots__ = ("generation", "group_id", "instance_id", "member_id", "topics")

    def __init__(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> None:
        self.group_id = group_id
        self.generation = generation
        self.member_id = member_id
        self.instance_id = instance_id
        self.topics: list[tuple[str, bytes, NamedPartitions]] = []

    @property
    def size(self) -> int:
        """The approximate memory, including ``derived``: a record key per partition."""
        return sum(
            len(named.indexes) * (len(self.group_id) + len(name) + 150)
            for name, _, named in self.topics
        )

    def filled(self, places: Sequence[bytes]) -> m.OffsetCommitRequest:
        topics = []
        start = 0
        for name, topic_id, named in self.topics:
            end = start + len(named.indexes)
            packed: Any = PackedPartitions(named, places[start:end])
            topics.append(
                m.OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=name, topic_id=topic_id, partitions=packed
                )
            )
            start = end
        return m.OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            topics=topics,
        )


class _Cut:
    """Splits requests of one layout into form and places; has the known forms."""

    __slots__ = ("_pieces", "forms", "places_at")

    def __init__(self, size: int, places_at: list[int]) -> None:
        codes = []
        position = 0
        for at in places_at:
            codes.append(f"{at - position}s{_PLACE_SIZE}s")
            position = at + _PLACE_SIZE
        self._pieces = Struct("".join((*codes, f"{size - position}s"))).unpack_from
        self.places_at = places_at
        self.forms: dict[bytes, _Form] = {}

    def apply(self, buffer: Buffer, position: int) -> tuple[bytes, Sequence[bytes]]:
        pieces = self._pieces(buffer, position)
        return b"".join(pieces[::2]), pieces[1::2]


class CommitDecoder:
    """Decodes requests and remembers their forms, in limited memory."""

    def __init__(self, *, kept_size_max: int = 16 << 20, form_size_max: int = 1 << 18) -> None:
        """Forms above ``form_size_max`` (about 1500 partitions) are not remembered."""
        # By version, size and the first byte, which is the length of the group id. All are dropped
        # when they have grown large: frequent commits are soon known again.
        self._cuts: dict[tuple[int, int, int], _Cut] = {}
        self._kept_size = 0
        self._kept_size_max = kept_size_max
        self._form_size_max = form_size_max

    def decode(
        self, buffer: Buffer, position: int, end: int, api_version: int
    ) -> m.OffsetCommitRequest:
        """Decode a request. Raises PeerBroken and nothing else, as all decoders."""
        size = end - position
        layout = (api_version, size, buffer[position] if size else 0)
        cut = self._cuts.get(layout)
        if cut is not None:
            said, places = cut.apply(buffer, position)
            form = cut.forms.get(said)
            if form is not None:
                return form.filled(places)
        data = bytes(memoryview(buffer)[position:end])
        found = _look(data, api_version)
        if found is None:
            request, _ = schema.decoder(m.OffsetCommitRequest, api_version)(data, 0, size)
            return request
        form, places_at = found
        self._keep(data, layout, form, places_at)
        return form.filled([data[at : at + _PLACE_SIZE] for at in places_at])

    def _keep(
        self, data: bytes, layout: tuple[int, int, int], form: _Form, places_at: list[int]
    ) -> None:
        size = form.size + len(data)
        if size > self._form_size_max:
            return
        self._kept_size += size
        if self._kept_size > self._kept_size_max:
            self._cuts.clear()
            self._kept_size = size
        cut = self._cuts.get(layout)
        if cut is None or cut.places_at != places_at:
            cut = self._cuts[layout] = _Cut(len(data), places_at)
        cut.forms[cut.apply(data, 0)[0]] = form


def _look(data: bytes, api_version: int) -> tuple[_Form, list[int]] | None:
    """The form and the positions of the places; None for an unusual or invalid request."""
    places_at: list[int] = []
    try:
        group_id, at = _text(data, 0)
        (generation,) = _unpack_generation(data, at)
        member_id, at = _text(data, at + 4)
        instance_id, at = _text(data, at) if data[at] else (None, at + 1)
        topic_count = data[at] - 1
        at += 1
        if not 0 <= topic_count < 0x7F:
            return None
        form = _Form(group_id, generation, member_id, instance_id)
        for _ in range(topic_count):
            name, topic_id = "", bytes(_TOPIC_ID_SIZE)
            if api_version >= _FIRST_WITH_TOPIC_IDS:
                topic_id = data[at : at + _TOPIC_ID_SIZE]
                at += _TOPIC_ID_SIZE
            else:
                name, at = _text(data, at)
            count, at = _length(data, at)
            block = data[at : at + count * _WIDTH]
            block_end = at + len(block)
            if (
                len(block) != count * _WIDTH
                or block[_METADATA_AT::_WIDTH].strip(b"\0\1")  # null or empty metadata
                or block[_TAGS_AT::_WIDTH].strip(b"\0")
                or data[block_end]
            ):
                return None
            form.topics.append((name, topic_id, NamedPartitions(block)))
            places_at += range(at + _PLACE_AT, block_end, _WIDTH)
            at = block_end + 1
        if data[at]:
            return None
    except (IndexError, StructError, UnicodeDecodeError, ValueError):
        return None
    return form, places_at


def _length(data: bytes, at: int) -> tuple[int, int]:
    """A compact length of up to two bytes, and the position after it."""
    size = data[at]
    if size < 0x80:
        size, at = size - 1, at + 1
    elif data[at + 1] < 0x80:
        size, at = (size & 0x7F | data[at + 1] << 7) - 1, at + 2
    else:
        raise ValueError("too long for the fast path")
    if size < 0:
        raise ValueError("null")
    return size, at


def _text(data: bytes, at: int) -> tuple[str, int]:
    size, at = _length(data, at)
    end = at + size
    if end > len(data):
        raise ValueError("truncated")
    return data[at:end].decode(), end


decode = CommitDecoder().decode
