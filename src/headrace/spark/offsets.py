"""Starting and ending offsets: parsed from options, resolved by time, and split into tasks.

Every end is exclusive, like Kafka's "next offset". Offsets in JSON have the form of Spark's Kafka
source: ``{"topic": {"partition": offset}}``, where -2 means earliest and -1 latest.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headrace.model.ids import TopicPartition
from headrace.spark.cluster import EARLIEST, LATEST, Cluster
from headrace.spark.failures import BadOption

Offsets = dict[TopicPartition, int]
_TIMESTAMP_MS_MAX = 1 << 43  # in the year 2248


class Limit(NamedTuple):
    """The start or the end of a read, as the options give it."""

    option: str  # the option's name, for messages
    all_at: int | None = None  # EARLIEST or LATEST
    by_partition: tuple[tuple[TopicPartition, int], ...] | None = None
    all_since_ms: int | None = None
    since_ms_by_partition: tuple[tuple[TopicPartition, int], ...] | None = None
    latest_if_none: bool = True  # for a time after the last record; else an error


class Range(NamedTuple):
    """The records that one task reads; ``offset_end`` is exclusive."""

    place: TopicPartition
    first_offset: int
    offset_end: int

    @property
    def size(self) -> int:
        return self.offset_end - self.first_offset


def parse_offsets(option: str, text: str) -> Offsets:
    form = f'{option} takes JSON like {{"topicA":{{"0":23,"1":-1}}}}'
    try:
        return offsets_from_json(json.loads(text))
    except (ValueError, TypeError, AttributeError) as broken:
        raise BadOption(f"{form}, not {text!r}") from broken


def _whole(number: object) -> int:
    if type(number) is not int:
        raise ValueError(f"{number!r} is not a whole number")
    return number


def offsets_to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    by_topic: dict[str, dict[str, int]] = {}
    for place, offset in sorted(offsets.items()):
        by_topic.setdefault(place.topic, {})[str(place.partition)] = offset
    return by_topic


def offsets_from_json(by_topic: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Raises ValueError, TypeError or AttributeError for other JSON."""
    return {
        TopicPartition(topic, int(partition)): _whole(number)
        for topic, partitions in by_topic.items()
        for partition, number in partitions.items()
    }


def parse_starting(options: Mapping[str, str], *, streaming: bool) -> Limit:
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise BadOption(f"startingOffsetsByTimestampStrategy is {strategy!r}; use error or latest")
    limit = _parse_limit(
        options,
        ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets"),
        default="latest" if streaming else "earliest",
    )._replace(latest_if_none=strategy == "latest")
    if not streaming:
        if limit.all_at == LATEST:
            raise BadOption("startingOffsets cannot be latest in a batch query: it would be empty")
        for place, offset in limit.by_partition or ():
            if offset == LATEST:
                raise BadOption(f"startingOffsets of {place} cannot be latest in a batch query")
    return limit


def parse_ending(options: Mapping[str, str]) -> Limit:
    limit = _parse_limit(
        options, ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"), default="latest"
    )
    if limit.all_at == EARLIEST:
        raise BadOption("endingOffsets cannot be earliest: the query would be empty")
    for place, offset in limit.by_partition or ():
        if offset == EARLIEST:
            raise BadOption(f"endingOffsets of {place} cannot be earliest")
    return limit


def _parse_limit(options: Mapping[str, str], names: tuple[str, str, str], default: str) -> Limit:
    """The first of three options: a time for all partitions, times by partition, offsets."""
    time_for_all, time_for_each, offset = names
    text = options.get(time_for_all.lower())
    if text is not None:
        # Not negative: brokers read negative times as "earliest", "latest" and so on.
        if not text.strip().isdecimal():
            raise BadOption(f"{time_for_all} takes milliseconds since 1970, not {text!r}")
        return Limit(time_for_all, all_since_ms=int(text))
    text = options.get(time_for_each.lower())
    if text is not None:
        times = parse_offsets(time_for_each, text)
        for place, time_ms in times.items():
            if time_ms < 0:
                raise BadOption(
                    f"{time_for_each} takes milliseconds since 1970, not {time_ms} for {place}"
                )
        return Limit(time_for_each, since_ms_by_partition=tuple(sorted(times.items())))
    text = options.get(offset.lower(), default).strip()
    if text.lower() in ("earliest", "latest"):
        return Limit(offset, all_at=EARLIEST if text.lower() == "earliest" else LATEST)
    if not text.startswith("{"):
        raise BadOption(f"{offset} is {text!r}; use earliest, latest or JSON")
    found = parse_offsets(offset, text)
    for place, number in found.items():
        if number < EARLIEST:
            raise BadOption(f"{offset} of {place} is {number}; -2 is earliest and -1 latest")
    return Limit(offset, by_partition=tuple(sorted(found.items())))


def check_limits(starting: Limit, ending: Limit) -> None:
    """Check that both name the same partitions, and that no start is after its end."""
    for field in ("by_partition", "since_ms_by_partition"):
        first, last = getattr(starting, field), getattr(ending, field)
        if first is None or last is None:
            continue
        starts, ends = dict(first), dict(last)
        if starts.keys() != ends.keys():
            differ = ", ".join(str(place) for place in sorted(starts.keys() ^ ends.keys()))
            raise BadOption(
                f"{starting.option} and {ending.option} must name the same partitions; "
                f"only one of them names {differ}"
            )
        for place, start in starts.items():
            if 0 <= ends[place] < start:
                raise BadOption(
                    f"{starting.option} of {place} is {start}, "
                    f"which is after its {ending.option}, {ends[place]}"
                )


def resolve(
    limit: Limit, places: Sequence[TopicPartition], cluster: Cluster, *, read_committed: bool
) -> Offsets:
    """Offsets for all ``places``; asks the brokers for times, earliest and latest."""
    if limit.all_at is not None:
        return cluster.list_offsets(
            dict.fromkeys(places, limit.all_at), read_committed=read_committed
        )
    if limit.by_partition is not None:
        named = dict(limit.by_partition)
        _check_all_named(limit, named, places)
        return _late_bound(named, cluster, read_committed)
    if limit.since_ms_by_partition is not None:
        times = dict(limit.since_ms_by_partition)
        _check_all_named(limit, times, places)
    else:
        assert limit.all_since_ms is not None
        times = dict.fromkeys(places, limit.all_since_ms)
    found = cluster.list_offsets(times, read_committed=read_committed)
    for place, offset in found.items():
        if offset < 0 and not limit.latest_if_none:
            raise BadOption(
                f"{limit.option}: {place} has no record at or after {times[place]}; "
                "set startingOffsetsByTimestampStrategy=latest to start at its end"
            )
    return _late_bound(
        {place: LATEST if offset < 0 else offset for place, offset in found.items()},
        cluster,
        read_committed,
    )


def _late_bound(named: Offsets, cluster: Cluster, read_committed: bool) -> Offsets:
    open_ = {place: offset for place, offset in named.items() if offset < 0}
    if not open_:
        return named
    return named | cluster.list_offsets(open_, read_committed=read_committed)


def _check_all_named(
    limit: Limit, named: Mapping[TopicPartition, int], places: Sequence[TopicPartition]
) -> None:
    wrong = sorted(named.keys() ^ set(places))
    if wrong:
        hint = " (-2 is earliest, -1 latest)" if limit.by_partition is not None else ""
        raise BadOption(
            f"{limit.option} must name exactly the partitions that the query reads{hint}; "
            f"it differs in {', '.join(str(place) for place in wrong)}"
        )


# --- sizes ------------------------------------------------------------------------------------


def limited(starts: Offsets, ends: Offsets, rows_max: int) -> Offsets:
    """Ends moved back so that about ``rows_max`` offsets are left, in proportion to the backlog.

    A partition with any backlog gets at least one offset, so that none starves.
    """
    backlog = {place: max(0, end - starts.get(place, end)) for place, end in ends.items()}
    total = sum(backlog.values())
    if total <= rows_max:
        return dict(ends)
    return {
        place: starts[place] + min(backlog[place], max(1, rows_max * backlog[place] // total))
        if backlog[place]
        else end
        for place, end in ends.items()
    }


def limited_by_time(
    starts: Offsets, ends: Offsets, rows_max: int, offsets_at: Callable[[int], Offsets]
) -> Offsets:
    """Ends moved back to one record timestamp, so that no partition gets ahead of the others.

    ``offsets_at`` tells the first offset at or after a timestamp, -1 if there is none. Its
    partitions are those of ``ends``.
    """
    if sum(max(0, end - starts.get(place, end)) for place, end in ends.items()) <= rows_max:
        return dict(ends)

    def cut(timestamp_ms: int) -> Offsets:
        found = offsets_at(timestamp_ms)
        return {
            place: end if found[place] < 0 else min(end, max(starts.get(place, end), found[place]))
            for place, end in ends.items()
        }

    def size(some: Offsets) -> int:
        return sum(some[place] - starts.get(place, some[place]) for place in some)

    low, high = 0, _TIMESTAMP_MS_MAX
    while high - low > 1:
        middle = (low + high) // 2
        if size(cut(middle)) <= rows_max:
            low = middle
        else:
            high = middle
    found, later = cut(low), cut(high)
    if size(found):
        return found
    # More records than the limit have the next timestamp, or one beyond all dates.
    return limited(starts, later if size(later) else ends, rows_max)


def split(
    ranges: Sequence[Range],
    *,
    partitions_min: int | None = None,
    rows_max: int | None = None,
) -> list[Range]:
    """One range per task: none larger than ``rows_max``, and about ``partitions_min`` or more.

    Pieces of one partition keep their order, and no range is empty. Ranges smaller than an
    even share stay whole; larger ranges are cut into even pieces.
    """
    filled = [range_ for range_ in ranges if range_.size > 0]
    if rows_max is not None:
        filled = [piece for range_ in filled for piece in _cut(range_, -(-range_.size // rows_max))]
    if partitions_min is None or len(filled) >= partitions_min or not filled:
        return filled
    pieces_left, size_left = partitions_min, sum(range_.size for range_ in filled)
    pieces_of = {}
    # Smallest first: larger ranges get the pieces that smaller ranges do not need.
    for index in sorted(range(len(filled)), key=lambda i: filled[i].size):
        share = round(pieces_left * filled[index].size / size_left) if size_left else 1
        pieces_of[index] = max(1, min(share, filled[index].size))
        pieces_left = max(1, pieces_left - pieces_of[index])
        size_left -= filled[index].size
    return [
        piece for index, range_ in enumerate(filled) for piece in _cut(range_, pieces_of[index])
    ]


def join(ranges: Sequence[Range], rows_min: int | None) -> list[tuple[Range, ...]]:
    """The ranges of each task: one, or as many as have ``rows_min`` records together."""
    tasks: list[tuple[Range, ...]] = []
    joined: list[Range] = []
    for range_ in ranges:
        joined.append(range_)
        if sum(one.size for one in joined) >= (rows_min or 1):
            tasks.append(tuple(joined))
            joined = []
    return [*tasks, tuple(joined)] if joined else tasks


def _cut(range_: Range, pieces: int) -> list[Range]:
    borders = [range_.first_offset + range_.size * number // pieces for number in range(pieces + 1)]
    return [
        Range(range_.place, first, end)
        for first, end in zip(borders, borders[1:], strict=False)
        if end > first
    ]
