"""What queries and loads read, from the messages that they published. Pure.

A batch that was interrupted runs again, and may cut its offsets into other tasks. So of the ranges
of one batch, those are counted that follow each other. Two batches of a query never read the same
offset: what both published counts twice, and the audit shows it. A load has no numbered batches:
its table takes each offset once.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.model.audit import LoadMessage, ReadMessage, ReadRange


class Read(NamedTuple):
    """The records of one topic that a query or a load read."""

    first_offsets: dict[int, int]  # by partition
    end_offsets: dict[int, int]
    counts: Counter[int]  # by minute


def read_by(messages: Iterable[ReadMessage], topic_id: str, last_batch: int) -> Read:
    """``messages`` are those of one query; batches after the last one may be unfinished."""
    ranges: dict[tuple[int, int], list[ReadRange]] = defaultdict(list)
    for message in messages:
        for one in message.ranges:
            if message.batch <= last_batch and one.topic_id == topic_id:
                ranges[message.batch, one.partition].append(one)
    return _read(ranges)


def loaded_by(messages: Iterable[LoadMessage], topic_id: str) -> Read:
    """``messages`` are those of one table, with the ranges that were lost."""
    ranges: dict[tuple[int, int], list[ReadRange]] = defaultdict(list)
    for message in messages:
        for one in message.ranges:
            if one.topic_id == topic_id:
                ranges[0, one.partition].append(one)
    return _read(ranges)


def _read(ranges: Mapping[tuple[int, int], Sequence[ReadRange]]) -> Read:
    """``ranges`` are by batch and partition."""
    found = Read({}, {}, Counter())
    for (_, partition), some in sorted(ranges.items()):
        for one in in_a_row(some):
            first = found.first_offsets.get(partition, one.first_offset)
            found.first_offsets[partition] = min(first, one.first_offset)
            end = found.end_offsets.get(partition, one.offset_end)
            found.end_offsets[partition] = max(end, one.offset_end)
            found.counts.update(one.counts)
    return found


def in_a_row(ranges: Sequence[ReadRange]) -> list[ReadRange]:
    """Ranges without overlap that reach as far as possible."""
    ordered = sorted(
        (one for one in ranges if one.first_offset < one.offset_end),
        key=lambda one: (one.first_offset, one.offset_end),
    )
    chosen: list[ReadRange] = []
    while ordered:
        start = ordered[0].first_offset
        # The range by which a chain of ranges reaches each offset.
        last: dict[int, ReadRange] = {}
        for one in ordered:
            is_next = one.first_offset == start or one.first_offset in last
            if is_next and one.offset_end not in last:
                last[one.offset_end] = one
        reached = offset = max(last)
        chain = []
        while offset != start:
            chain.append(last[offset])
            offset = last[offset].first_offset
        chosen += reversed(chain)
        ordered = [one for one in ordered if one.first_offset >= reached]
    return chosen
