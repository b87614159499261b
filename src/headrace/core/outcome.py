"""What a coordinator's machine answers to an event: records to append, replies to let go.

A *shard* is the machine behind one partition of an internal topic (groups and their offsets,
transactions). It is pure, and told everything: the request, the ids drawn for it, the time.

    decide    an event method returns an Outcome and changes *soft* state only: deadlines,
              requests that wait, a rebalance under way. Soft state dies with the shard.
    append    the runtime (``broker.coordinators.runtime``) writes ``records`` as one batch,
    replay    hands each of them back to ``Shard.replay``, the only writer of *hard* state,
              which is what the log holds; loading a shard is nothing but replaying,
    reply     and lets ``replies`` go once the high watermark has passed the batch.

Rules between a shard and its runtime:

* One event at a time. Nothing happens to a shard between its decision and the replay of it.
* Replies wait for *all* that this shard has appended so far, their own records or not, so that
  nobody is told of state that the next coordinator could have forgotten. Reads need no more.
* If the records cannot be written, each reply's ticket is answered with the failure instead
  (the handler knows how its API spells that) and nothing is replayed. If it is unclear what was
  written, or leadership is lost, the shard is thrown away and loaded again.
* A ticket may stay unanswered for as long as the shard likes; a later Outcome, of whatever event,
  answers it. A ticket is answered once. That its client is gone meanwhile is not noticed, as in
  Kafka: clients reconnect, and for the rest there are sessions.
"""

from collections.abc import Iterator
from typing import NamedTuple, NewType, Protocol

from headrace.model.ids import Millis
from headrace.wire.schema import Message

Ticket = NewType("Ticket", int)  # the runtime's handle on one waiting request


class RequestContext(NamedTuple):
    """What a machine may know about the client of a request."""

    client_id: str
    client_host: str


class NewRecord(NamedTuple):
    """A record for the internal topic, encoded; ``value`` None is a tombstone."""

    key: bytes
    value: bytes | None


class PackedRecords:
    """Many records of one kind, made in one piece, outside of transactions.

    ``section`` is what a batch holds behind its header, with offset deltas from 0. A plain base:
    every commit is asked whether it is one, and a class with a metaclass is slow to tell.
    """

    __slots__ = ("count", "section")

    def __init__(self, section: bytes, count: int) -> None:
        self.section = section
        self.count = count

    def __iter__(self) -> Iterator[NewRecord]:
        """The same, one by one."""
        raise NotImplementedError

    def replay(self, shard: "Shard", base_offset: int) -> None:
        """The same as the shard's ``replay`` for each of them."""
        raise NotImplementedError


class Reply(NamedTuple):
    ticket: Ticket
    response: Message


class ProducerStamp(NamedTuple):
    """Whose open transaction the records of an outcome belong to."""

    producer_id: int
    producer_epoch: int


class Outcome(NamedTuple):
    """``first + second`` is both, in this order; two transactions cannot be added."""

    records: tuple[NewRecord, ...] | PackedRecords = ()
    replies: tuple[Reply, ...] = ()
    # Of the machine's own kind (a transaction's WriteMarkers); carried out once the records of
    # this outcome are committed.
    effects: tuple[object, ...] = ()
    # Given: the records are appended as part of this producer's transaction, and ``replay`` gets
    # its id. They count once ``replay_marker`` brings the transaction's end.
    producer: ProducerStamp | None = None
    # May the records go into several batches when one would be too large? Only where each of
    # them makes sense without the others, as tombstones do.
    splittable: bool = False

    def __add__(self, other: "Outcome") -> "Outcome":  # type: ignore[override]
        if not any(self):
            return other
        if not any(other):
            return self
        assert self.producer == other.producer or not (self.records and other.records)
        return Outcome(
            (*self.records, *other.records),
            self.replies + other.replies,
            self.effects + other.effects,
            self.producer or other.producer,
            (self.splittable or not self.records) and (other.splittable or not other.records),
        )


NOTHING = Outcome()


class Shard(Protocol):
    """What the runtime asks of a machine, besides the events that handlers bring to it."""

    def replay(
        self,
        record_key: bytes,
        record_value: bytes | None,
        offset: int,
        producer_id: int,
        producer_epoch: int,
    ) -> None:
        """Apply one record, live or loading. ``producer_id`` is -1 outside of transactions.

        A key of an unknown kind is skipped: a newer broker wrote it.
        """
        ...

    def replay_marker(
        self, producer_id: int, producer_epoch: int, committed: bool, offset: int
    ) -> None:
        """A transaction that had records in this partition has ended."""
        ...

    def loaded(self, now: Millis) -> Outcome:
        """All of the log is replayed; from now on there will be events."""
        ...

    def tick(self, now: Millis) -> Outcome:
        """Carry out ONE thing whose time has come; called again while ``next_deadline`` is past."""
        ...

    def next_deadline(self) -> float | None:
        """When ``tick`` is wanted next, on the clock of ``now``."""
        ...
