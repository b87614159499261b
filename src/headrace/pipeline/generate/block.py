"""Records of a span of time: drawn as numbers, and turned into keys and values piece by piece."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline.generate import faults
from headrace.pipeline.generate.columns import Events, Ints, event_ids, mix, times, values
from headrace.pipeline.generate.drawing import Span
from headrace.pipeline.generate.faults import Count, Records
from headrace.pipeline.generate.machines import Outage
from headrace.pipeline.generate.site import Site
from headrace.pipeline.generate.traffic import KEYS, counts_of, draw

DAY_MS = 86_400_000
# The events that close a day: enough to move every watermark beyond the sessions of the day.
_CLOSING_AFTER_MS = 3_600_000
_CLOSING_PER_TOPIC = 4
_CLOSING_DRAWN = 400
_PIECE_ROWS = 100_000
_CUT_BYTES = 40
_IDS_PER_TOPIC = 1 << 40


class Piece(NamedTuple):
    """Records of one topic, in the order in which they are sent."""

    topic: str
    timestamp_ms: Ints
    key: pa.Array  # binary
    value: pa.Array  # binary
    counts: Count


class _OfTopic(NamedTuple):
    events: Events
    records: Records


class Block:
    """The records of a span. ``id_base`` distinguishes the IDs of its events from others'."""

    def __init__(self, of_topics: dict[str, _OfTopic], id_base: int, outages: list[Outage]) -> None:
        self._of_topics = of_topics
        self._id_base = id_base
        self.outages = outages

    @property
    def counts(self) -> dict[str, Count]:
        return {topic: faults.counted(drawn.records) for topic, drawn in self._of_topics.items()}

    def pieces(self, rows: int = _PIECE_ROWS) -> Iterator[list[Piece]]:
        """All records, in order of time: about ``rows`` of all topics together at a time."""
        sent = np.sort(np.concatenate([of.records.sent_ms for of in self._of_topics.values()]))
        borders = [int(sent[0]), *sent[rows::rows].tolist(), int(sent[-1]) + 1]
        for since, until in zip(borders, borders[1:], strict=False):
            yield self.between(since, until)

    def between(self, since_ms: int, until_ms: int) -> list[Piece]:
        """The records that are sent in this time."""
        found = []
        for number, (topic, drawn) in enumerate(self._of_topics.items()):
            first, end = np.searchsorted(drawn.records.sent_ms, (since_ms, until_ms))
            if first < end:
                records = drawn.records.taken(slice(first, end))
                found.append(self._piece(topic, number, drawn.events, records))
        return found

    def _piece(self, topic: str, number: int, events: Events, records: Records) -> Piece:
        columns = events.taken(records.row).columns
        ids = event_ids(self._id_base, number * _IDS_PER_TOPIC + records.row)
        at = times(records.at_ms)
        wrong = records.state == faults.WRONG_TYPE
        if wrong.any():
            at = pc.if_else(pa.array(wrong), "soon", at)
        value = values(ids, at, columns)
        cut = pa.array(records.state == faults.CUT)
        if cut.true_count:
            value = pc.replace_with_mask(
                value, cut, pc.binary_slice(value.filter(cut), 0, _CUT_BYTES)
            )
        key = columns[KEYS[topic]].plain()
        return Piece(topic, records.sent_ms, key, value, faults.counted(records))


def make_day(site: Site, day: date, events: int, seed: int, *, broken: bool = True) -> Block:
    """The records of a day; ``events`` counts those after it that close its windows, too."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    span = Span(int(midnight.timestamp() * 1000), DAY_MS, has_rhythm=True)
    closing = _closing_events(site, span, seed)
    count = events - sum(len(later.sent_ms) for later in closing.values())
    of_topics, outages = _drawn(site, span, count, seed, broken, first_at_ms=span.start_ms)
    closed = {topic: _closed(drawn, closing[topic]) for topic, drawn in of_topics.items()}
    return Block(closed, _id_base(seed, span), outages)


def make_block(
    site: Site, start_ms: int, length_ms: int, events: int, seed: int, *, broken: bool = True
) -> Block:
    """The records of a time that is evenly busy."""
    span = Span(start_ms, length_ms, has_rhythm=False)
    of_topics, outages = _drawn(site, span, events, seed, broken, first_at_ms=None)
    return Block(of_topics, _id_base(seed, span), outages)


def _drawn(
    site: Site, span: Span, events: int, seed: int, broken: bool, *, first_at_ms: int | None
) -> tuple[dict[str, _OfTopic], list[Outage]]:
    """``events`` records, doubled ones included."""
    rng = np.random.default_rng([seed, span.start_ms])
    doubled = {topic: int(n * faults.DOUBLED_SHARE) for topic, n in counts_of(events).items()}
    traffic = draw(site, span, counts_of(events - sum(doubled.values())), rng)
    of_topics = {}
    for topic, drawn in traffic.events.items():
        records = faults.with_faults(
            drawn.sent_ms,
            rng,
            doubled=doubled[topic],
            broken=broken,
            first_at_ms=first_at_ms,
            end_ms=span.end_ms,
        )
        of_topics[topic] = _OfTopic(drawn, records)
    return of_topics, traffic.outages


def _closing_events(site: Site, span: Span, seed: int) -> dict[str, Events]:
    """A few events of the next day for each topic."""
    after = Span(span.end_ms + _CLOSING_AFTER_MS, 60_000, has_rhythm=False)
    rng = np.random.default_rng([seed, after.start_ms])
    drawn = draw(site, after, counts_of(_CLOSING_DRAWN), rng).events
    return {topic: events.taken(slice(_CLOSING_PER_TOPIC)) for topic, events in drawn.items()}


def _closed(drawn: _OfTopic, closing: Events) -> _OfTopic:
    first, count = len(drawn.events.sent_ms), len(closing.sent_ms)
    good = np.zeros(count, np.int8)
    later = Records(
        np.arange(first, first + count), closing.sent_ms, closing.sent_ms, good, good.astype(bool)
    )
    pairs: Iterator[tuple[Any, Any]] = zip(drawn.records, later, strict=True)
    both = Records(*(np.concatenate(pair) for pair in pairs))
    return _OfTopic(drawn.events.followed_by(closing), both)


def _id_base(seed: int, span: Span) -> int:
    start = np.array([span.start_ms], np.uint64)
    return int(mix(mix(start) + np.uint64(seed))[0])
