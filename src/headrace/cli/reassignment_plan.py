"""New assignments for existing partitions: spread evenly, with few moves. Pure.

The first replica of a partition is its preferred leader. A replica that may stay stays, unless it
has to move so that all brokers hold about as many. Replicas of a partition are in different racks
as far as possible.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Partition = tuple[str, int]
Assignment = dict[Partition, list[int]]


class NotEnoughBrokers(Exception):
    """A partition needs more replicas than there are brokers."""

    def __init__(self, partition: Partition, wanted: int, available: int) -> None:
        super().__init__(
            f"{name_of(partition)} needs {wanted} brokers for its replicas, but only {available} "
            f"{'is' if available == 1 else 'are'} available"
        )
        self.partition = partition


class Move(NamedTuple):
    """One partition that changes its replicas, or only their order."""

    topic: str
    partition: int
    current: list[int]
    target: list[int]
    size: int  # bytes that each added replica has to copy

    @property
    def name(self) -> str:
        return name_of((self.topic, self.partition))

    @property
    def added(self) -> list[int]:
        return [broker for broker in self.target if broker not in self.current]

    @property
    def removed(self) -> list[int]:
        return [broker for broker in self.current if broker not in self.target]

    @property
    def bytes_to_copy(self) -> int:
        return self.size * len(self.added)


def name_of(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


def moves(current: Assignment, target: Assignment, sizes: Mapping[Partition, int]) -> list[Move]:
    """The partitions of ``target`` whose replicas are not yet these."""
    return [
        Move(*partition, current[partition], replicas, sizes.get(partition, 0))
        for partition, replicas in sorted(target.items())
        if current[partition] != replicas
    ]


def spread(
    current: Assignment,
    chosen: Iterable[Partition],
    brokers: Sequence[int],
    racks: Mapping[int, str | None],
    *,
    factor: int | None = None,
    moves: bool = True,
) -> Assignment:
    """New replicas for the ``chosen`` partitions, on ``brokers`` only, evenly per topic.

    ``current`` has all partitions of the cluster, so that the others count too. ``factor`` changes
    the number of replicas. Without ``moves``, replicas that may stay stay, in their order. Raises
    NotEnoughBrokers.
    """
    spreading = _Spreading(current, list(chosen), brokers, racks)
    for partition in spreading.chosen:
        spreading.fill(partition, factor or len(current[partition]))
    if moves:
        spreading.even_out()
        spreading.order_leaders()
    return {partition: spreading.replicas[partition] for partition in spreading.chosen}


def without_broker(
    current: Assignment,
    leaving: int,
    brokers: Sequence[int],
    racks: Mapping[int, str | None],
    *,
    may_shrink: bool = False,
) -> Assignment:
    """Other replicas for the partitions on ``leaving``; nothing else moves.

    ``may_shrink``: a partition gets fewer replicas if there is no broker for another one. Raises
    NotEnoughBrokers, also if its last replica would go.
    """
    chosen = [partition for partition, replicas in current.items() if leaving in replicas]
    remaining = [broker for broker in brokers if broker != leaving]
    spreading = _Spreading(current, chosen, remaining, racks, leaving=leaving)
    for partition in chosen:
        wanted = len(current[partition])
        if may_shrink:
            usable = {*remaining, *current[partition]} - {leaving}
            wanted = max(1, min(wanted, len(usable)))
        spreading.fill(partition, wanted)
    return {partition: spreading.replicas[partition] for partition in chosen}


class _Spreading:
    def __init__(
        self,
        current: Assignment,
        chosen: list[Partition],
        brokers: Sequence[int],
        racks: Mapping[int, str | None],
        *,
        leaving: int | None = None,
    ) -> None:
        """Only replicas on ``brokers`` stay; with ``leaving``, all but those on that broker."""
        self.chosen = sorted(chosen)
        self.brokers = sorted(brokers)
        # One broker without a rack: no rule about racks can hold.
        known = all(racks.get(broker) is not None for broker in brokers)
        self.racks = {broker: racks.get(broker) if known else str(broker) for broker in brokers}
        self.current = current
        allowed = set(brokers)
        self.replicas: Assignment = {}
        self.total: Counter[int] = Counter()
        self.of_topic: Counter[tuple[str, int]] = Counter()
        is_chosen = set(self.chosen)
        for partition, replicas in current.items():
            kept = replicas
            if partition in is_chosen:
                kept = [b for b in replicas if (b in allowed if leaving is None else b != leaving)]
                self.replicas[partition] = list(kept)
            for broker in kept:
                self._count(partition, broker, 1)

    def _count(self, partition: Partition, broker: int, change: int) -> None:
        self.total[broker] += change
        self.of_topic[partition[0], broker] += change

    def fill(self, partition: Partition, factor: int) -> None:
        """Drop the last replicas, or add some on the brokers with the fewest."""
        replicas = self.replicas[partition]
        if factor > len({*self.brokers, *replicas}) or factor < 1:
            raise NotEnoughBrokers(partition, factor, len({*self.brokers, *replicas}))
        for broker in replicas[factor:]:
            self._count(partition, broker, -1)
        del replicas[factor:]
        while len(replicas) < factor:
            broker = min(
                (one for one in self.brokers if one not in replicas),
                key=lambda one: (self._crowds(one, replicas), *self._load(partition[0], one)),
            )
            replicas.append(broker)
            self._count(partition, broker, 1)

    def _load(self, topic: str, broker: int) -> tuple[int, int, int]:
        return self.of_topic[topic, broker], self.total[broker], broker

    def _crowds(self, broker: int, replicas: Iterable[int]) -> int:
        """How many of ``replicas`` are in the rack of ``broker``."""
        return sum(self.racks.get(one) == self.racks[broker] for one in replicas)

    def even_out(self) -> None:
        """Move replicas from full brokers to empty ones: first per topic, then altogether."""
        by_topic: dict[str, list[Partition]] = {}
        for partition in self.chosen:
            by_topic.setdefault(partition[0], []).append(partition)
        for topic, own in by_topic.items():
            while self._moved_one(own, topic):
                pass
        while self._moved_one(self.chosen, None):
            pass

    def _moved_one(self, own: list[Partition], topic: str | None) -> bool:
        """Whether a replica could move; None evens out the totals, but no topic gets worse."""

        def load(broker: int) -> int:
            return self.total[broker] if topic is None else self.of_topic[topic, broker]

        by_load = sorted(self.brokers, key=lambda broker: (load(broker), broker))
        for full in reversed(by_load):
            for empty in by_load:
                if load(full) - load(empty) < 2:
                    break
                for partition in own:
                    if self._may_move(partition, full, empty, topic is None):
                        self._move(partition, full, empty)
                        return True
        return False

    def _may_move(self, partition: Partition, full: int, empty: int, keeps_topics: bool) -> bool:
        replicas = self.replicas[partition]
        if full not in replicas or empty in replicas:
            return False
        topic = partition[0]
        if keeps_topics and self.of_topic[topic, full] <= self.of_topic[topic, empty]:
            return False
        others = [one for one in replicas if one != full]
        return self._crowds(empty, others) <= self._crowds(full, others)

    def _move(self, partition: Partition, full: int, empty: int) -> None:
        replicas = self.replicas[partition]
        replicas[replicas.index(full)] = empty
        self._count(partition, full, -1)
        self._count(partition, empty, 1)

    def order_leaders(self) -> None:
        """Let each broker be the first replica of about as many partitions of a topic."""
        leading: Counter[tuple[str, int]] = Counter()
        overall: Counter[int] = Counter()
        for partition, replicas in self.current.items():
            if partition not in self.replicas and replicas:
                overall[replicas[0]] += 1
        for partition in self.chosen:
            topic, replicas = partition[0], self.replicas[partition]
            first = min(
                replicas,
                key=lambda one: (
                    leading[topic, one],
                    overall[one],
                    replicas.index(one),
                ),
            )
            replicas.remove(first)
            replicas.insert(0, first)
            leading[topic, first] += 1
            overall[first] += 1
