"""Finds what must not happen in a ``History``: lost, doubled, reordered, changed records and more.

``anomalies`` compares the notes of the clients with the contents of the partitions in the end.
Every rule holds for correct brokers under any fault that ``docs/simulation.md`` names, so one
anomaly is one bug of the brokers, or of the test's clients.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from itertools import combinations, pairwise
from typing import NamedTuple

from headrace.model.ids import TopicPartition
from tests.history.history import (
    Contents,
    Ending,
    Entry,
    History,
    Outcome,
    Ownership,
    Reading,
    Sent,
)


class Kind(Enum):
    LOST = "an acknowledged record is not in the log"
    DOUBLED = "a record of an idempotent producer is in the log twice"
    REORDERED = "records of one producer are not in the order in which it sent them"
    PHANTOM = "a record that was never sent, or was refused, is in the log or was read"
    UNSEEN = "a reader passed a record without seeing it"
    CHANGED = "a record that was read is gone, or its offset holds another one"
    LATEST_WENT_BACK = "the latest offset went back for a client"
    GAP = "an offset between log start and high watermark holds nothing"
    ABORTED_READ = "read_committed showed a record of an aborted transaction"
    TORN = "a transaction is visible in part"
    TWO_OWNERS = "two members of a group own a partition at the same time"
    COMMIT_WENT_BACK = "a committed offset of a group went back"
    TWO_LEADERS = "two brokers acknowledged records in one leader epoch"
    REPLICAS_DIFFER = "replicas differ below the high watermark"
    UNEXPECTED = "a broker answered what no correct broker answers"


class Anomaly(NamedTuple):
    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"{self.kind.name}: {self.text}"


def anomalies(history: History) -> list[Anomaly]:
    """All anomalies, in a fixed order."""
    return [found for rule in _RULES for found in rule(history)]


def _places(history: History) -> Iterator[tuple[TopicPartition, Contents, list[Sent]]]:
    for place in sorted(history.contents):
        yield place, history.contents[place], [s for s in history.sent if s.place == place]


def _is_compacted(history: History, place: TopicPartition) -> bool:
    return place.topic in history.compacted_topics


def _offsets(contents: Contents) -> dict[bytes, int]:
    """The first offset of each value."""
    offsets: dict[bytes, int] = {}
    for entry in contents.entries:
        if entry.value is not None:
            offsets.setdefault(entry.value, entry.offset)
    return offsets


# --- records


def _lost(history: History) -> Iterator[Anomaly]:
    for place, contents, sent in _places(history):
        held = {(entry.offset, entry.value) for entry in contents.entries}
        values = {entry.value for entry in contents.entries}
        newest = {entry.key: entry.offset for entry in contents.entries}
        for record in sent:
            if record.outcome is not Outcome.ACKNOWLEDGED or 0 <= record.offset < contents.start:
                continue
            if record.offset < 0:
                is_held = record.value in values
            else:
                is_held = (record.offset, record.value) in held
            if not is_held and _is_compacted(history, place):
                is_held = newest.get(record.key, -1) > record.offset
            if not is_held:
                yield Anomaly(Kind.LOST, f"{place}: {record.value!r} at {record.offset}")


def _doubled(history: History) -> Iterator[Anomaly]:
    for copy in _copies(history):
        if len(set(copy.producers)) < len(copy.producers):
            yield Anomaly(Kind.DOUBLED, f"{copy.place}: {copy.value!r} at {copy.offsets}")


def sent_again(history: History) -> int:
    """The records that a client sent again under a new epoch of its producer.

    After an error that it does not expect, librdkafka raises its epoch and sends everything again
    that is not acknowledged. No broker can know that it has these records already.
    """
    return sum(len(set(copy.producers)) == len(copy.producers) for copy in _copies(history))


class _Copies(NamedTuple):
    """A record of an idempotent producer that is in the log more than once."""

    place: TopicPartition
    value: bytes
    offsets: list[int]
    producers: list[tuple[int, int] | None]


def _copies(history: History) -> Iterator[_Copies]:
    for place, contents, sent in _places(history):
        idempotent = {record.value for record in sent if record.idempotent}
        producers = {
            entry.offset: entry.producer
            for replica in history.replicas.get(place, [])[:1]
            for entry in replica.entries
        }
        offsets: dict[bytes, list[int]] = {}
        for entry in contents.entries:
            if entry.value in idempotent:
                offsets.setdefault(entry.value, []).append(entry.offset)
        for value, found in offsets.items():
            if len(found) > 1:
                yield _Copies(place, value, found, [producers.get(each) for each in found])


def _reordered(history: History) -> Iterator[Anomaly]:
    for place, contents, sent in _places(history):
        offsets = _offsets(contents)
        by_producer: dict[str, list[tuple[int, bytes]]] = {}
        for record in sent:
            # A plain producer that gave up may still be heard later; an idempotent one may not.
            offset = offsets.get(record.value, -1) if record.idempotent else record.offset
            if offset >= 0:
                by_producer.setdefault(record.producer, []).append((offset, record.value))
        for producer, in_order in by_producer.items():
            for (first, value), (second, later) in pairwise(in_order):
                if first >= second:
                    text = f"{place}: {producer} sent {value!r} before {later!r}"
                    yield Anomaly(Kind.REORDERED, f"{text}; offsets {first} and {second}")


def _phantom(history: History) -> Iterator[Anomaly]:
    may_be: dict[TopicPartition, set[bytes]] = {}
    for record in history.sent:
        if record.outcome is not Outcome.REFUSED:
            may_be.setdefault(record.place, set()).add(record.value)
    seen = [(place, contents.entries) for place, contents in sorted(history.contents.items())]
    seen += [(reading.place, reading.entries) for reading in history.readings]
    for place, entries in seen:
        known = may_be.get(place, set())
        for entry in entries:
            if entry.value is not None and entry.value not in known:
                yield Anomaly(Kind.PHANTOM, f"{place}: {entry.value!r} at {entry.offset}")


def _gap(history: History) -> Iterator[Anomaly]:
    for place, contents, _ in _places(history):
        if _is_compacted(history, place):
            continue
        held = {entry.offset for entry in contents.entries}
        missing = [o for o in range(contents.start, contents.end) if o not in held]
        if missing:
            yield Anomaly(Kind.GAP, f"{place}: {_few(missing)} of {contents.start}-{contents.end}")


# --- readers


def _visible(history: History, reading: Reading) -> Contents | None:
    if reading.committed_only:
        return history.committed_contents.get(reading.place)
    return history.contents.get(reading.place)


def _unseen(history: History) -> Iterator[Anomaly]:
    for reading in history.readings:
        contents = _visible(history, reading)
        if contents is None:
            continue
        seen = {entry.offset for entry in reading.entries}
        missed = [
            entry.offset
            for entry in contents.entries
            if reading.start <= entry.offset < reading.end
            and entry.value is not None
            and entry.offset not in seen
        ]
        if missed:
            text = f"{reading.reader} read {reading.place} from {reading.start} to {reading.end}"
            yield Anomaly(Kind.UNSEEN, f"{text} without {_few(missed)}")


def _changed(history: History) -> Iterator[Anomaly]:
    for reading in history.readings:
        contents = history.contents.get(reading.place)
        if contents is None:
            continue
        compacted = _is_compacted(history, reading.place)
        held = {entry.offset: entry.value for entry in contents.entries}
        for offset, value, *_ in reading.entries:
            if offset < contents.start or (compacted and offset not in held):
                continue
            if offset not in held or held[offset] != value:
                found = repr(held[offset]) if offset in held else "nothing"
                text = f"{reading.place}: {reading.reader} read {value!r} at {offset}"
                yield Anomaly(Kind.CHANGED, f"{text}, which now holds {found}")


def _latest_went_back(history: History) -> Iterator[Anomaly]:
    last: dict[tuple[str, TopicPartition], int] = {}
    for client, place, offset in history.latest:
        before = last.get((client, place), offset)
        if offset < before:
            text = f"{place}: {client} was told {before}, then {offset}"
            yield Anomaly(Kind.LATEST_WENT_BACK, text)
        last[client, place] = offset


# --- transactions


def _aborted_read(history: History) -> Iterator[Anomaly]:
    aborted = {
        (record.place, record.value): record.transaction
        for record in history.sent
        if record.transaction and history.endings.get(record.transaction) is Ending.ABORTED
    }
    seen = [
        (reading.reader, reading.place, reading.entries)
        for reading in history.readings
        if reading.committed_only
    ]
    for place, contents in sorted(history.committed_contents.items()):
        seen.append(("the last reader", place, contents.entries))
    for reader, place, entries in seen:
        for entry in entries:
            if entry.value is not None and (place, entry.value) in aborted:
                name = aborted[place, entry.value]
                text = f"{place}: {reader} read {entry.value!r} of {name} at {entry.offset}"
                yield Anomaly(Kind.ABORTED_READ, text)


def _torn(history: History) -> Iterator[Anomaly]:
    """A committed transaction is visible as a whole; one with an unknown end wholly or not."""
    visible = {
        (place, entry.value)
        for place, contents in history.committed_contents.items()
        for entry in contents.entries
    }
    for name, ending in history.endings.items():
        if ending is Ending.ABORTED:
            continue
        records = [
            record
            for record in history.sent
            if record.transaction == name and record.place in history.committed_contents
        ]
        seen = [record for record in records if (record.place, record.value) in visible]
        missing = [
            record.value
            for record in records
            if record.outcome is Outcome.ACKNOWLEDGED and record not in seen
        ]
        if missing and (ending is Ending.COMMITTED or seen):
            yield Anomaly(Kind.TORN, f"{name} ({ending.value}) without {_few(missing)}")


# --- groups


def _two_owners(history: History) -> Iterator[Anomaly]:
    by_place: dict[tuple[str, TopicPartition], list[Ownership]] = {}
    for ownership in history.ownerships:
        for place in ownership.places:
            by_place.setdefault((ownership.group, place), []).append(ownership)
    for (group, place), ownerships in sorted(by_place.items()):
        ownerships.sort(key=lambda ownership: (ownership.since, ownership.until))
        for first, second in combinations(ownerships, 2):
            if first.member == second.member:
                continue
            # An assignment that arrives late, and that no answer confirms later, owns nothing.
            is_confirmed = second.until > second.since
            overlaps = is_confirmed and second.since < first.until
            if first.generation == second.generation or overlaps:
                text = f"{group} {place}: {first.member} (generation {first.generation}) and "
                text += f"{second.member} (generation {second.generation})"
                yield Anomaly(Kind.TWO_OWNERS, f"{text} from {second.since:.3f}")


def _commit_went_back(history: History) -> Iterator[Anomaly]:
    """Members commit positions that only grow, so no answer is lower than an earlier commit."""
    for answer in history.committed_offsets:
        known = [
            commit.offset
            for commit in history.commits
            if (commit.group, commit.place) == (answer.group, answer.place)
            and commit.answered_at <= answer.asked_at
        ]
        if known and answer.offset < max(known):
            text = f"{answer.group} {answer.place}: committed {max(known)}, then {answer.offset}"
            yield Anomaly(Kind.COMMIT_WENT_BACK, text)


# --- brokers


def _two_leaders(history: History) -> Iterator[Anomaly]:
    for place, contents, sent in _places(history):
        epochs = {entry.offset: entry.leader_epoch for entry in contents.entries}
        leaders: dict[int, dict[int, bytes]] = {}
        for record in sent:
            epoch = epochs.get(record.offset, -1)
            if record.leader >= 0 and epoch >= 0:
                leaders.setdefault(epoch, {}).setdefault(record.leader, record.value)
        for epoch, found in sorted(leaders.items()):
            if len(found) > 1:
                yield Anomaly(Kind.TWO_LEADERS, f"{place}: epoch {epoch}, brokers {found}")


def _replicas_differ(history: History) -> Iterator[Anomaly]:
    for place, replicas in sorted(history.replicas.items()):
        view = _last_by_key if _is_compacted(history, place) else _by_offset
        end = max(replica.high_watermark for replica in replicas)
        start = max(min((e.offset for e in r.entries), default=0) for r in replicas)
        first, *others = replicas
        expected = view(first.entries, start, end)
        for other in others:
            found = view(other.entries, start, end)
            for where in sorted(expected.keys() | found.keys(), key=str):
                if expected.get(where) != found.get(where):
                    text = f"{place}: at {where!r} broker {first.broker_id} has "
                    text += f"{expected.get(where)}, broker {other.broker_id} {found.get(where)}"
                    yield Anomaly(Kind.REPLICAS_DIFFER, text)
                    break


def _by_offset(entries: list[Entry], start: int, end: int) -> dict[object, object]:
    return {entry.offset: entry for entry in entries if start <= entry.offset < end}


def _last_by_key(entries: list[Entry], start: int, end: int) -> dict[object, object]:
    return {e.key: e.value for e in entries if e.offset < end and e.value is not None}


def _unexpected(history: History) -> Iterator[Anomaly]:
    for event in history.unexpected:
        yield Anomaly(Kind.UNEXPECTED, event)


def _few(items: list[int] | list[bytes]) -> str:
    shown = ", ".join(str(item) for item in items[:5])
    return shown if len(items) <= 5 else f"{shown} and {len(items) - 5} more"


_RULES: tuple[Callable[[History], Iterator[Anomaly]], ...] = (
    _lost,
    _doubled,
    _reordered,
    _phantom,
    _gap,
    _unseen,
    _changed,
    _latest_went_back,
    _aborted_read,
    _torn,
    _two_owners,
    _commit_went_back,
    _two_leaders,
    _replicas_differ,
    _unexpected,
)
