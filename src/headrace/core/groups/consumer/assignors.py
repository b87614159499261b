"""Which member gets which partitions: the assignors that a coordinator runs for consumer groups.

Both are functions of the members, of each member's part in the last target, and of the partition
counts of the topics. They ignore racks.

    uniform   every member gets the same number of partitions, plus or minus one, with as few moves
              as possible; if members subscribe to different topics, as even as those allow
    range     each topic is cut into one range of partitions per subscriber, so that partition 7 of
              two topics of the same size goes to the same member; moves do not matter

The same input gives the same assignment on every broker: members and topics are ordered by id.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

from headrace.model.ids import TopicId

# Of one member; topics without partitions are omitted.
Partitions = Mapping[TopicId, frozenset[int]]


class Subscriber(NamedTuple):
    """One member as an assignor sees it."""

    member_id: str
    instance_id: str | None
    topics: frozenset[TopicId]  # existing ones only
    had: Partitions  # in the last target; may contain deleted topics


Assignor = Callable[[Iterable[Subscriber], Mapping[TopicId, int]], dict[str, Partitions]]
_Held = dict[TopicId, set[int]]


def uniform(
    subscribers: Iterable[Subscriber], partition_counts: Mapping[TopicId, int]
) -> dict[str, Partitions]:
    members = sorted(subscribers, key=lambda member: member.member_id)
    if not members:
        return {}
    first = members[0].topics
    if all(member.topics is first or member.topics == first for member in members):
        held = _uniform_homogeneous(members, partition_counts)
    else:
        held = _uniform_heterogeneous(members, partition_counts)
    return {member_id: _frozen(topics) for member_id, topics in held.items()}


def range_(
    subscribers: Iterable[Subscriber], partition_counts: Mapping[TopicId, int]
) -> dict[str, Partitions]:
    # Static members first, by instance id: a returning one gets its old place.
    members = sorted(
        subscribers,
        key=lambda member: (
            (0, member.instance_id) if member.instance_id is not None else (1, member.member_id)
        ),
    )
    held: dict[str, dict[TopicId, frozenset[int]]] = {member.member_id: {} for member in members}
    for topic_id in _topics_of(members):
        readers = [member.member_id for member in members if topic_id in member.topics]
        quota, extra = divmod(partition_counts[topic_id], len(readers))
        start = 0
        for place, member_id in enumerate(readers):
            end = start + quota + (place < extra)
            if start < end:
                held[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(held)


ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform, "range": range_}


def _frozen(topics: _Held) -> Partitions:
    return {topic_id: frozenset(held) for topic_id, held in topics.items() if held}


def _topics_of(members: Sequence[Subscriber]) -> list[TopicId]:
    return sorted({topic_id for member in members for topic_id in member.topics})


def _keep_owned_partitions(
    members: Sequence[Subscriber], partition_counts: Mapping[TopicId, int]
) -> tuple[dict[str, _Held], dict[TopicId, list[int]]]:
    """What each member keeps, with one owner per partition; and the rest, in order."""
    held: dict[str, _Held] = {}
    free = {
        topic_id: dict.fromkeys(range(partition_counts[topic_id]))
        for topic_id in _topics_of(members)
    }
    for member in members:
        kept: _Held = {}
        for topic_id in sorted(member.had):
            if topic_id not in member.topics:
                continue
            unclaimed = free[topic_id]
            mine = {partition for partition in member.had[topic_id] if partition in unclaimed}
            for partition in mine:
                del unclaimed[partition]
            if mine:
                kept[topic_id] = mine
        held[member.member_id] = kept
    return held, {topic_id: list(unclaimed) for topic_id, unclaimed in free.items()}


def _uniform_homogeneous(
    members: Sequence[Subscriber], partition_counts: Mapping[TopicId, int]
) -> dict[str, _Held]:
    """All members subscribe to the same topics, so any of them can own any partition."""
    held, free = _keep_owned_partitions(members, partition_counts)
    total = sum(partition_counts[topic_id] for topic_id in members[0].topics)
    quota, extra = divmod(total, len(members))
    room: dict[str, int] = {}
    # Members above the quota get the extra places first: each saves one move.
    for member in members:
        mine = held[member.member_id]
        count = sum(map(len, mine.values()))
        allowed = quota
        if count > quota and extra:
            allowed += 1
            extra -= 1
        for topic_id, partition in _surplus(mine, count - allowed):
            mine[topic_id].discard(partition)
            free[topic_id].append(partition)
        room[member.member_id] = max(0, allowed - count)
    for member in members:
        if not extra:
            break
        mine_count = sum(map(len, held[member.member_id].values()))
        if mine_count + room[member.member_id] == quota:
            room[member.member_id] += 1
            extra -= 1
    # Round robin, so that the partitions of a topic go to different members.
    open_members = [member.member_id for member in members if room[member.member_id]]
    turn = 0
    for topic_id in sorted(free):
        for partition in sorted(free[topic_id]):
            turn %= len(open_members)
            member_id = open_members[turn]
            held[member_id].setdefault(topic_id, set()).add(partition)
            room[member_id] -= 1
            if room[member_id]:
                turn += 1
            else:
                del open_members[turn]
    return held


def _surplus(mine: _Held, count: int) -> list[tuple[TopicId, int]]:
    """The last ``count`` partitions of a member; none if ``count`` is not positive."""
    if count <= 0:
        return []
    everything = [
        (topic_id, partition) for topic_id in sorted(mine) for partition in mine[topic_id]
    ]
    return sorted(everything)[-count:]


def _uniform_heterogeneous(
    members: Sequence[Subscriber], partition_counts: Mapping[TopicId, int]
) -> dict[str, _Held]:
    """Members subscribe to different topics: balance topic by topic until no move helps."""
    held, free = _keep_owned_partitions(members, partition_counts)
    load = {member_id: sum(map(len, mine.values())) for member_id, mine in held.items()}
    readers = {
        topic_id: [member.member_id for member in members if topic_id in member.topics]
        for topic_id in free
    }
    # Topics with few subscribers come first; those with many even out the rest.
    order = sorted(readers, key=lambda topic_id: (len(readers[topic_id]), topic_id))
    for topic_id in order:
        if not free[topic_id]:
            continue
        least_loaded = [(load[name], name) for name in readers[topic_id]]
        heapify(least_loaded)
        for partition in free[topic_id]:
            count, member_id = least_loaded[0]
            held[member_id].setdefault(topic_id, set()).add(partition)
            load[member_id] = count + 1
            heapreplace(least_loaded, (count + 1, member_id))
    # A move goes from a member to one that has at least two fewer. The sum of the squared loads
    # falls with each move, so this ends.
    has_moved = True
    while has_moved:
        has_moved = False
        for topic_id in order:
            while (move := _best_move(topic_id, readers[topic_id], held, load)) is not None:
                giver, taker = move
                partition = max(held[giver][topic_id])
                held[giver][topic_id].discard(partition)
                held[taker].setdefault(topic_id, set()).add(partition)
                load[giver] -= 1
                load[taker] += 1
                has_moved = True
    return held


def _best_move(
    topic_id: TopicId,
    readers: Sequence[str],
    held: Mapping[str, _Held],
    load: Mapping[str, int],
) -> tuple[str, str] | None:
    givers = [name for name in readers if held[name].get(topic_id)]
    if not givers:
        return None
    giver = max(givers, key=lambda name: (load[name], name))
    taker = min(readers, key=lambda name: (load[name], name))
    return (giver, taker) if load[giver] - load[taker] > 1 else None
