"""What the queries of pipelines read, from the messages that their tasks published. Pure.

A batch that was interrupted runs again, and may cut its offsets into other tasks. So of the ranges
of one batch, those are counted that follow each other. Two batches never read the same offset:
what both published counts twice, and the audit shows it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.model.audit import ReadMessage, ReadRange


class Read(NamedTuple):
    """The records of one topic that a query read."""

    first_offsets: dict[int, int]  # by partition
    counts: Counter[int]  # by minute


def read_by(messages: Iterable[ReadMessage], topic_id: str, last_batch: int) -> Read:
    """``messages`` are those of one query; batches after the last one may be unfinished."""
    ranges: dict[tuple[int, int], list[ReadRange]] = defaultdict(list)
    for message in messages:
        for one in message.ranges:
            if message.batch <= last_batch and one.topic_id == topic_id:
                ranges[message.batch, one.partition].append(one)
    first_offsets: dict[int, int] = {}
    counts: Counter[int] = Counter()
    for (_, partition), found in sorted(ranges.items()):
        for one in in_a_row(found):
            known = first_offsets.get(partition, one.first_offset)
            first_offsets[partition] = min(known, one.first_offset)
            counts.update(one.counts)
    return Read(first_offsets, counts)


def in_a_row(ranges: Sequence[ReadRange]) -> list[ReadRange]:
    """Ranges without overlap that reach as far as possible."""
    ordered = sorted(ranges, key=lambda one: (one.first_offset, one.offset_end))
    chosen: list[ReadRange] = []
    while ordered:
        # From each offset that a chain of ranges reaches, the chain.
        chains: dict[int, list[ReadRange]] = {ordered[0].first_offset: []}
        for one in ordered:
            if one.first_offset in chains and one.offset_end not in chains:
                chains[one.offset_end] = [*chains[one.first_offset], one]
        reached = max(chains)
        chosen += chains[reached]
        ordered = [one for one in ordered if one.first_offset >= reached and one not in chosen]
    return chosen
