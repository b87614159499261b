"""What clients did and saw: records sent and read, offsets, owners of partitions, in order of time.

Clients of a test write it down as it happens, with their own clock; ``checker`` looks for
anomalies in the end. It knows no broker: simulated clients and stock clients fill it alike.

A record is known by its value, which no other record of its partition has.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from headrace.model.ids import TopicPartition


class Outcome(Enum):
    """What the producer knows about a record."""

    UNKNOWN = "unknown"  # no answer came: it may be in the log, once
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"  # for good, before it was appended


class Ending(Enum):
    """What the producer knows about a transaction."""

    UNKNOWN = "unknown"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass
class Sent:
    """A record that a producer was given, in the order in which it was given."""

    producer: str
    place: TopicPartition
    value: bytes
    key: bytes | None
    idempotent: bool
    transaction: str | None
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1
    leader: int = -1  # the broker that acknowledged it


class Entry(NamedTuple):
    """One offset of a log. ``value`` is None for a control record, which clients skip."""

    offset: int
    value: bytes | None
    leader_epoch: int = -1  # -1: the reader does not know it
    key: bytes | None = None
    producer: tuple[int, int] | None = None  # its ID and epoch; None: the reader does not know it


@dataclass
class Reading:
    """What one reader saw of a partition, from one position on, without a break."""

    reader: str
    place: TopicPartition
    committed_only: bool
    start: int
    end: int  # its position now
    entries: list[Entry] = field(default_factory=list)


class Contents(NamedTuple):
    """A partition in the end, from its log start to its high watermark."""

    start: int
    end: int
    entries: list[Entry]


class Replica(NamedTuple):
    """One replica in the end. ``entries`` may go beyond the high watermark."""

    broker_id: int
    high_watermark: int
    entries: list[Entry]


class Latest(NamedTuple):
    """An answer to "what is the latest offset", to one client."""

    client: str
    place: TopicPartition
    offset: int


@dataclass
class Ownership:
    """A member owns these partitions from ``since`` on.

    ``until`` is when it sent the last request that the coordinator accepted: it was still the
    owner then.
    """

    group: str
    member: str
    generation: int
    places: tuple[TopicPartition, ...]
    since: float
    until: float


class Commit(NamedTuple):
    """An accepted commit (``asked_at`` is not used), or an offset that the coordinator answered."""

    group: str
    place: TopicPartition
    offset: int
    asked_at: float
    answered_at: float


class History:
    """The notes of all clients of one run."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.endings: dict[str, Ending] = {}  # of transactions
        self.readings: list[Reading] = []
        self.latest: list[Latest] = []
        self.ownerships: list[Ownership] = []
        self.commits: list[Commit] = []
        self.committed_offsets: list[Commit] = []  # as a coordinator answered
        self.unexpected: list[str] = []
        self.contents: dict[TopicPartition, Contents] = {}
        self.committed_contents: dict[TopicPartition, Contents] = {}  # with read_committed
        self.replicas: dict[TopicPartition, list[Replica]] = {}
        self.compacted_topics: set[str] = set()

    # --- producers

    def send(
        self,
        producer: str,
        place: TopicPartition,
        value: bytes,
        *,
        key: bytes | None = None,
        idempotent: bool = False,
        transaction: str | None = None,
    ) -> Sent:
        """Write it down before the first attempt. Set ``Sent.outcome`` once it is known."""
        sent = Sent(producer, place, value, key, idempotent, transaction)
        self.sent.append(sent)
        return sent

    def acknowledge(self, sent: Sent, offset: int, leader: int = -1) -> None:
        """``offset`` is -1 if the broker does not remember it (a repeated, old batch)."""
        sent.outcome, sent.offset, sent.leader = Outcome.ACKNOWLEDGED, offset, leader

    def refuse(self, sent: Sent) -> None:
        sent.outcome = Outcome.REFUSED

    def begin(self, transaction: str) -> None:
        self.endings[transaction] = Ending.UNKNOWN

    def end(self, transaction: str, ending: Ending) -> None:
        self.endings[transaction] = ending

    # --- consumers

    def start_reading(
        self, reader: str, place: TopicPartition, start: int, *, committed_only: bool = False
    ) -> Reading:
        """Call it for every position that is not the end of what this reader read last."""
        reading = Reading(reader, place, committed_only, start, start)
        self.readings.append(reading)
        return reading

    def read(self, reading: Reading, entries: Iterable[Entry], end: int) -> None:
        """``end`` is the position after the fetch, behind records that the reader skipped."""
        reading.entries += entries
        reading.end = end

    def answer_latest(self, client: str, place: TopicPartition, offset: int) -> None:
        self.latest.append(Latest(client, place, offset))

    # --- groups

    def own(
        self,
        group: str,
        member: str,
        generation: int,
        places: Iterable[TopicPartition],
        since: float,
    ) -> Ownership:
        """Call it when the assignment arrived; set ``until`` with every accepted request."""
        ownership = Ownership(group, member, generation, tuple(places), since, since)
        self.ownerships.append(ownership)
        return ownership

    def commit(self, group: str, place: TopicPartition, offset: int, answered_at: float) -> None:
        self.commits.append(Commit(group, place, offset, answered_at, answered_at))

    def answer_committed(
        self, group: str, place: TopicPartition, offset: int, asked_at: float, answered_at: float
    ) -> None:
        self.committed_offsets.append(Commit(group, place, offset, asked_at, answered_at))

    # --- in the end

    def expect_nothing_of(self, event: str) -> None:
        """An answer that no correct broker gives, whatever the faults."""
        self.unexpected.append(event)

    def find(
        self,
        place: TopicPartition,
        start: int,
        end: int,
        entries: Iterable[Entry],
        *,
        committed_only: bool = False,
    ) -> None:
        """What the partition holds after everything has converged."""
        into = self.committed_contents if committed_only else self.contents
        into[place] = Contents(start, end, list(entries))

    def find_replica(
        self, place: TopicPartition, broker_id: int, high_watermark: int, entries: Iterable[Entry]
    ) -> None:
        replica = Replica(broker_id, high_watermark, list(entries))
        self.replicas.setdefault(place, []).append(replica)
