"""The outcome of an event in a coordinator's machine: records to append, replies to send.

A *shard* is the machine behind one partition of an internal topic (groups and their offsets,
transactions). It is pure. Its caller passes in everything: the request, random ids, the time.

    decide    an event method returns an Outcome and changes *soft* state only: deadlines,
              parked requests, a rebalance in progress. Soft state is lost with the shard.
    append    the runtime (``broker.coordinators.runtime``) writes ``records`` as one batch,
    replay    passes each of them to ``Shard.replay``, the only writer of *hard* state, which
              is what the log holds; loading a shard means replaying its log,
    reply     and sends ``replies`` once the high watermark has passed the batch.

Rules between a shard and its runtime:

* One event at a time. Nothing happens to a shard between a decision and its replay.
* Replies wait for *everything* that this shard has appended so far, not only for their own
  records. A client never sees state that the next coordinator could miss. Reads wait as well.
* If the records cannot be written, each ticket of a reply gets the failure instead (the handler
  knows how its API reports it) and nothing is replayed. If it is unclear what was written, or
  leadership is lost, the shard is dropped and loaded again.
* A ticket may stay unanswered as long as the shard needs; the Outcome of any later event can
  answer it. A ticket is answered once. As in Kafka, the shard does not notice when the client
  disconnects: clients reconnect, and sessions expire.
"""

from collections.abc import Iterator
from typing import NamedTuple, NewType, Protocol

from headrace.model.ids import Millis
from headrace.wire.schema import Message

Ticket = NewType("Ticket", int)  # the runtime's handle on one unanswered request


class RequestContext(NamedTuple):
    """What a machine may know about the client of a request."""

    client_id: str
    client_host: str


class NewRecord(NamedTuple):
    """An encoded record for the internal topic; a ``value`` of None is a tombstone."""

    key: bytes
    value: bytes | None


class PackedRecords:
    """Many records of one kind, encoded in one piece, outside of transactions.

    ``section`` is the part of a batch after its header, with offset deltas from 0. This is a
    plain base class: ``isinstance`` runs for every commit, and a metaclass would slow it down.
    """

    __slots__ = ("count", "section")

    def __init__(self, section: bytes, count: int) -> None:
        self.section = section
        self.count = count

    def __iter__(self) -> Iterator[NewRecord]:
        """The records one by one."""
        raise NotImplementedError

    def replay(self, shard: "Shard", base_offset: int) -> None:
        """Equivalent to ``shard.replay`` for each record."""
        raise NotImplementedError


class Reply(NamedTuple):
    ticket: Ticket
    response: Message


class ProducerStamp(NamedTuple):
    """The producer whose open transaction the records of an outcome belong to."""

    producer_id: int
    producer_epoch: int


class Outcome(NamedTuple):
    """``first + second`` combines both, in this order; they must not be of two transactions."""

    records: tuple[NewRecord, ...] | PackedRecords = ()
    replies: tuple[Reply, ...] = ()
    # Types of the machine's own (a transaction's WriteMarkers); carried out once the records of
    # this outcome are committed.
    effects: tuple[object, ...] = ()
    # If given, the records are part of this producer's transaction, and ``replay`` gets its id.
    # They take effect when ``replay_marker`` reports the end of the transaction.
    producer: ProducerStamp | None = None
    # Whether the records may be spread over several batches when one would be too large. Only
    # if each record makes sense without the others, as tombstones do.
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
    """What the runtime needs from a machine, besides the events that handlers pass to it."""

    def replay(
        self,
        record_key: bytes,
        record_value: bytes | None,
        offset: int,
        producer_id: int,
        producer_epoch: int,
    ) -> None:
        """Apply one record, while loading or afterwards. ``producer_id`` is -1 outside of
        transactions.

        Keys of an unknown type are skipped: a newer broker wrote them.
        """
        ...

    def replay_marker(
        self, producer_id: int, producer_epoch: int, committed: bool, offset: int
    ) -> None:
        """End a transaction that had records in this partition."""
        ...

    def loaded(self, now: Millis) -> Outcome:
        """The whole log is replayed; events follow."""
        ...

    def tick(self, now: Millis) -> Outcome:
        """Handle ONE expired deadline; called again while ``next_deadline`` is past."""
        ...

    def next_deadline(self) -> float | None:
        """When ``tick`` is due next, on the clock of ``now``."""
        ...
