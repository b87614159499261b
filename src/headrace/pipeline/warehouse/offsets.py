"""Which offsets a table holds, and whether a batch continues them. Pure.

A Delta table stores one number per application, in the commits that add rows. Here an application
is a partition of a topic, and its number is the next offset to load. So rows and offsets
move in one commit, and nothing else records what was loaded.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from headrace.model.ids import TopicPartition, id_to_text
from headrace.pipeline.errors import CommitRefused, LoadStopped


class Span(NamedTuple):
    """The offsets of one partition in a batch; ``offset_end`` is exclusive."""

    place: TopicPartition
    topic_id: bytes
    first_offset: int
    offset_end: int

    @property
    def txn_id(self) -> str:
        return txn_id(self.topic_id, self.place.partition)

    @property
    def size(self) -> int:
        return self.offset_end - self.first_offset


class Decision(Enum):
    COMMIT = "commit"
    REPEATED = "repeated"


class Bounds(NamedTuple):
    """The log of one partition: its first offset, and the end of what may be read."""

    earliest: int
    latest: int


def txn_id(topic_id: bytes, partition: int) -> str:
    """The same for every loader, host and run: Delta detects conflicts between equal IDs only."""
    return f"{id_to_text(topic_id)}/{partition}"


def decide(spans: Iterable[Span], recorded: Mapping[str, int | None]) -> Decision:
    """Whether a batch may be committed, or was loaded before. Raises CommitRefused.

    ``recorded`` is the table's next offset by txn ID; None if it has none. The files of a batch
    hold rows of several partitions, so a batch is committed or dropped as a whole.
    """
    repeated, continuing = [], []
    for span in spans:
        next_offset = recorded[span.txn_id]
        if next_offset is None or span.first_offset == next_offset:
            continuing.append(span)
        elif span.offset_end <= next_offset:
            repeated.append(span)
        else:
            raise CommitRefused(_mismatch(span, next_offset))
    if repeated and continuing:
        next_offset = recorded[repeated[0].txn_id]
        assert next_offset is not None
        raise CommitRefused(_mismatch(repeated[0], next_offset))
    return Decision.REPEATED if repeated else Decision.COMMIT


def _mismatch(span: Span, next_offset: int) -> str:
    relation = "overlaps" if span.first_offset < next_offset else "leaves a gap after"
    return (
        f"the batch of {span.place} {relation} what the table holds: the batch begins at offset "
        f"{span.first_offset} and ends before {span.offset_end}, and the table continues at "
        f"{next_offset}. Nothing was committed"
    )


def lost_span(
    place: TopicPartition, topic_id: bytes, recorded: int | None, bounds: Bounds
) -> Span | None:
    """The offsets that left the log before they were loaded; None if there are none."""
    if recorded is None or recorded >= bounds.earliest:
        return None
    return Span(place, topic_id, recorded, bounds.earliest)


def pending_span(
    place: TopicPartition, topic_id: bytes, recorded: int | None, bounds: Bounds
) -> Span | None:
    """The offsets to load next; None if there are none. Raises LoadStopped."""
    lost = lost_span(place, topic_id, recorded, bounds)
    if lost is not None:
        raise LoadStopped(
            f"retention deleted records of {place} before they were loaded: the table continues "
            f"at offset {recorded}, and the log starts at {bounds.earliest}. To go on without "
            f"these {lost.size} offsets, run the load with --accept-loss"
        )
    first = bounds.earliest if recorded is None else recorded
    if first > bounds.latest:
        raise LoadStopped(
            f"the log of {place} ends before what the table holds: the table continues at offset "
            f"{first}, and the log ends at {bounds.latest}. The cluster lost records, or this is "
            "another cluster with the same topic ID"
        )
    return Span(place, topic_id, first, bounds.latest) if first < bounds.latest else None
