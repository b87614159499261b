"""Dead letters of loads and pipelines in one shape: which are the same, and their summary. Pure."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# Reasons of one kind differ in numbers and times.
_NUMBERS = re.compile(r"\d+(?:[-:., T]+\d+)*")


class Place(NamedTuple):
    """Where a record was."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


class Identity(NamedTuple):
    """What a batch that runs again writes again, within one table of dead letters."""

    pipeline: str | None
    topic: str  # its ID where that is known
    partition: int
    offset: int
    stage: str
    timestamp_ms: int | None  # differs in a topic that was created again, if its ID is not known


class Decision(NamedTuple):
    """What was decided about a letter."""

    action: str
    at_ms: int


DROPPED, RESENT = "dropped", "resent"


class Letter(NamedTuple):
    """A record that became no row, or a range of records that were lost."""

    pipeline: str | None  # None: a load wrote it
    table: str | None  # that of the load
    stage: str
    rule: str | None  # the expectation that failed
    reason: str
    topic: str
    topic_id: str | None  # None: a row of a function
    partition: int
    offset: int
    offset_end: int  # above offset + 1 for a range
    timestamp_ms: int | None  # of the record
    written_ms: int
    attempt: int = 0  # how often the record was sent again before it failed
    sinks: str | None = None  # the tables and topics that lack the record; None: all
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def identity(self) -> Identity:
        return Identity(
            self.pipeline,
            self.topic_id or self.topic,
            self.partition,
            self.offset,
            self.stage,
            self.timestamp_ms,
        )

    def is_settled_by(self, decision: Decision) -> bool:
        """Whether lists leave this letter out. One that failed again after it was sent is back."""
        return decision.action == DROPPED or decision.at_ms >= self.written_ms

    @property
    def why_not_resent(self) -> str:
        """Why this letter cannot be sent again; empty if it can."""
        if self.pipeline is None:
            return (
                "a load reads its topics only; correct it, and replace its rows with headrace "
                f"pipeline load {self.topic} … --reload-from offset:{self.offset}"
            )
        if self.partition < 0:
            return "it is a row of a function and not a record"
        if self.topic_id is None:
            return "an older version wrote it, without the ID of its topic"
        return ""

    @property
    def place(self) -> Place:
        return Place(self.topic, self.partition, self.offset)

    @property
    def origin(self) -> str:
        """The pipeline or the table, as text."""
        return _origin(self.pipeline, self.table)

    def is_at(self, place: Place) -> bool:
        return (
            place.topic == self.topic
            and place.partition == self.partition
            and self.offset <= place.offset < self.offset_end
        )


class Wanted(NamedTuple):
    """A selection of letters; None selects all."""

    pipeline: str | None = None
    topic: str | None = None
    stage: str | None = None
    since_ms: int | None = None  # when the letter was written
    places: Sequence[Place] = ()  # empty: all

    def selects(self, letter: Letter) -> bool:
        return (
            self.pipeline in (None, letter.pipeline)
            and self.topic in (None, letter.topic)
            and self.stage in (None, letter.stage)
            and (self.since_ms is None or letter.written_ms >= self.since_ms)
            and (not self.places or any(letter.is_at(place) for place in self.places))
        )


def each_once(letters: Iterable[Letter]) -> list[Letter]:
    """The newest of equal letters, newest first."""
    found: dict[Identity, Letter] = {}
    for one in letters:
        known = found.get(one.identity)
        if known is None or one.written_ms > known.written_ms:
            found[one.identity] = one
    return sorted(found.values(), key=lambda one: (-one.written_ms, one.place))


class Summary(NamedTuple):
    """Letters of one origin, topic, stage and kind of reason."""

    pipeline: str | None
    table: str | None
    topic: str
    stage: str
    rule: str | None
    reason: str  # with "…" for what differs
    records: int
    last_written_ms: int
    example: str  # the place of one of the newest

    @property
    def origin(self) -> str:
        return _origin(self.pipeline, self.table)


def summarize(letters: Iterable[Letter]) -> list[Summary]:
    """The most frequent kinds first."""
    groups: dict[tuple[object, ...], list[Letter]] = {}
    for one in letters:
        kind = _NUMBERS.sub("…", one.reason)
        key = (one.pipeline, one.table, one.topic, one.stage, one.rule, kind)
        groups.setdefault(key, []).append(one)
    found = []
    for group in groups.values():
        newest = max(group, key=lambda one: one.written_ms)
        is_same = all(one.reason == newest.reason for one in group)
        found.append(
            Summary(
                newest.pipeline,
                newest.table,
                newest.topic,
                newest.stage,
                newest.rule,
                newest.reason if is_same else _NUMBERS.sub("…", newest.reason),
                sum(one.offset_end - one.offset for one in group),
                newest.written_ms,
                str(newest.place),
            )
        )
    return sorted(found, key=lambda one: (-one.records, one.topic, one.stage, one.reason))


def _origin(pipeline: str | None, table: str | None) -> str:
    return f"pipeline {pipeline}" if table is None else f"table {table}"
