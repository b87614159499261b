"""Which brokers hold a new partition: round robin with a growing shift, across racks.

Brokers have a fixed order. Partition i has its first replica on broker (start + i) mod n and the
others on the next ones. After every n partitions the distance between the first replica and the
others grows by one. The partitions that a dead broker led then spread over all other brokers
instead of its one neighbor.
"""

from collections.abc import Iterable, Sequence

from headrace.model.cluster_metadata import BrokerEntry
from headrace.model.errors import ErrorCode, Rejected
from headrace.model.ids import BrokerId


def place(
    brokers: Iterable[BrokerEntry],
    partition_count: int,
    replication_factor: int,
    *,
    start: int,
    shift: int,
    first_partition: int = 0,
) -> list[tuple[BrokerId, ...]]:
    """Replicas for each new partition, the preferred leader first.

    ``start`` and ``shift`` are two random numbers from zero up. ``first_partition`` is above zero
    when a topic grows, so that the pattern continues where it stopped.
    Raises Rejected: INVALID_PARTITIONS or INVALID_REPLICATION_FACTOR.
    """
    entries = sorted(brokers)
    check_factor(replication_factor, len(entries))
    if partition_count <= 0:
        raise Rejected(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    racks = {entry.broker_id: entry.rack for entry in entries}
    step = 1
    if None in racks.values():
        # If one broker has no rack, no rule about racks can hold: ignore them.
        racks = {broker: str(broker) for broker in racks}
        order = [entry.broker_id for entry in entries]
        rack_count = len(order)
    else:
        order = alternate_racks([(entry.broker_id, entry.rack or "") for entry in entries])
        # Neighbors are in different racks: a shift by all racks leads to the same rack again.
        step = rack_count = len(set(racks.values()))

    placed = []
    turns_before = max(0, first_partition - 1) // len(order)
    for partition in range(first_partition, first_partition + partition_count):
        first = (start + partition) % len(order)
        # The shift grows once per full turn over the brokers, counted from the first partition
        # that is placed.
        grown = step * (shift + partition // len(order) - turns_before)
        chosen = [order[first]]
        chosen_racks = {racks[order[first]]}
        distance = 0
        while len(chosen) < replication_factor:
            candidate = order[_neighbor(first, grown + distance, len(order))]
            distance += 1
            # A rack gets its second replica only when every rack has one. After that, any unused
            # candidate is taken.
            crowded = racks[candidate] in chosen_racks and len(chosen_racks) < rack_count
            if candidate not in chosen and not crowded:
                chosen.append(candidate)
                chosen_racks.add(racks[candidate])
        placed.append(tuple(chosen))
    return placed


def check_factor(replication_factor: int, broker_count: int) -> None:
    """Raise Rejected(INVALID_REPLICATION_FACTOR) unless enough brokers are alive."""
    if replication_factor <= 0:
        raise Rejected(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0.",
        )
    if replication_factor > broker_count:
        raise Rejected(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor {replication_factor} is larger than the {broker_count} "
            f"live broker{'s' if broker_count != 1 else ''}.",
        )


def alternate_racks(brokers: Sequence[tuple[BrokerId, str]]) -> list[BrokerId]:
    """The brokers in an order in which neighbors are in different racks as far as possible."""
    by_rack: dict[str, list[BrokerId]] = {}
    for broker, rack in sorted(brokers, key=lambda entry: (entry[1], entry[0])):
        by_rack.setdefault(rack, []).append(broker)
    order: list[BrokerId] = []
    turn = 0
    while len(order) < len(brokers):
        order += [members[turn] for members in by_rack.values() if turn < len(members)]
        turn += 1
    return order


def _neighbor(first: int, distance: int, broker_count: int) -> int:
    """Never ``first`` itself: the distance counts the other brokers only."""
    if broker_count == 1:
        return first
    return (first + 1 + distance % (broker_count - 1)) % broker_count
