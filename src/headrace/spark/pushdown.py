"""Uses filters on topic, partition, offset and timestamp to fetch less.

Spark still applies every filter to the rows. So a range that is too wide only costs time, but a
range that is too narrow loses rows.

A lower bound in time is exact: brokers find the first record at or after a time, and all records
before it are older. An upper bound needs order. If producers set the timestamps, an older record
may follow a younger one: the end moves only as far as the option ``timestampDisorder`` allows.
If the broker sets them (log append time), only clock differences between brokers count.
"""

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from headrace.model.ids import TopicPartition
from headrace.spark.cluster import Cluster
from headrace.spark.offsets import Offsets

# Between two leaders of a partition: log append time may go back by this much at a failover.
CLOCK_DIFFERENCE_MS = 60_000

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Bounds(NamedTuple):
    """Bounds of the rows that can pass the filters; an ``…_end`` is exclusive, None is no bound."""

    topics: frozenset[str] | None = None
    topic_prefix: str = ""
    partition_first: int = 0
    partition_end: int | None = None
    partitions: frozenset[int] | None = None
    offset_first: int = 0
    offset_end: int | None = None
    since_ms: int | None = None
    until_ms_end: int | None = None

    def admits(self, place: TopicPartition) -> bool:
        return (
            (self.topics is None or place.topic in self.topics)
            and place.topic.startswith(self.topic_prefix)
            and place.partition >= self.partition_first
            and (self.partition_end is None or place.partition < self.partition_end)
            and (self.partitions is None or place.partition in self.partitions)
        )


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """The bounds of all filters together (AND); filters that give no bound are ignored."""
    found = Bounds()
    for one in filters:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        narrow = _NARROW.get(attribute[0]) if len(attribute) == 1 else None
        if narrow is not None:
            found = narrow(found, one)
    return found


def _whole_range(one: Filter) -> tuple[int | None, int | None]:
    """First and end of a comparison with a whole number; None, None for other filters."""
    value = getattr(one, "value", None)
    if isinstance(one, In):
        numbers = [number for number in one.value if type(number) is int]
        if not numbers or len(numbers) < len([v for v in one.value if v is not None]):
            return None, None
        return min(numbers), max(numbers) + 1
    if type(value) is not int:
        return None, None
    if isinstance(one, EqualTo | EqualNullSafe):
        return value, value + 1
    if isinstance(one, GreaterThan):
        return value + 1, None
    if isinstance(one, GreaterThanOrEqual):
        return value, None
    if isinstance(one, LessThan):
        return None, value
    if isinstance(one, LessThanOrEqual):
        return None, value + 1
    return None, None


def _largest(*numbers: int | None) -> int | None:
    return max((n for n in numbers if n is not None), default=None)


def _least(*numbers: int | None) -> int | None:
    return min((n for n in numbers if n is not None), default=None)


def _narrow_topic(bounds: Bounds, one: Filter) -> Bounds:
    names: frozenset[str] | None = None
    if isinstance(one, EqualTo | EqualNullSafe) and isinstance(one.value, str):
        names = frozenset({one.value})
    elif isinstance(one, In) and all(isinstance(name, str) for name in one.value):
        names = frozenset(one.value)
    elif isinstance(one, StringStartsWith) and one.value.startswith(bounds.topic_prefix):
        return bounds._replace(topic_prefix=one.value)
    if names is None:
        return bounds
    return bounds._replace(topics=names if bounds.topics is None else names & bounds.topics)


def _narrow_partition(bounds: Bounds, one: Filter) -> Bounds:
    first, end = _whole_range(one)
    if isinstance(one, In) and first is not None:
        numbers = frozenset(number for number in one.value if number is not None)
        known = bounds.partitions
        bounds = bounds._replace(partitions=numbers if known is None else numbers & known)
    return bounds._replace(
        partition_first=max(bounds.partition_first, first or 0),
        partition_end=_least(bounds.partition_end, end),
    )


def _narrow_offset(bounds: Bounds, one: Filter) -> Bounds:
    first, end = _whole_range(one)
    return bounds._replace(
        offset_first=max(bounds.offset_first, first or 0),
        offset_end=_least(bounds.offset_end, end),
    )


def _narrow_timestamp(bounds: Bounds, one: Filter) -> Bounds:
    value: Any = getattr(one, "value", None)
    values = value if isinstance(one, In) else (value,)
    moments = [_milliseconds(moment) for moment in values if moment is not None]
    if not moments or None in moments:
        return bounds
    exact = [moment for moment in moments if moment is not None]
    since = until = None
    if isinstance(one, EqualTo | EqualNullSafe | In):
        since, until = math.ceil(min(exact)), math.floor(max(exact)) + 1
    elif isinstance(one, GreaterThanOrEqual):
        since = math.ceil(exact[0])
    elif isinstance(one, GreaterThan):
        since = math.floor(exact[0]) + 1
    elif isinstance(one, LessThan):
        until = math.ceil(exact[0])
    elif isinstance(one, LessThanOrEqual):
        until = math.floor(exact[0]) + 1
    return bounds._replace(
        since_ms=_largest(bounds.since_ms, since), until_ms_end=_least(bounds.until_ms_end, until)
    )


def _milliseconds(moment: Any) -> float | None:
    if not isinstance(moment, datetime.datetime) or moment.tzinfo is None:
        return None  # without a time zone it depends on the session
    return (moment - _EPOCH) / datetime.timedelta(milliseconds=1)


_NARROW = {
    "topic": _narrow_topic,
    "partition": _narrow_partition,
    "offset": _narrow_offset,
    "timestamp": _narrow_timestamp,
}


def narrow(
    bounds: Bounds,
    starts: Offsets,
    ends: Offsets,
    cluster: Cluster,
    *,
    read_committed: bool,
    disorder_ms: int | None,
) -> tuple[Offsets, Offsets]:
    """Starts and ends of the partitions that can hold a row, as narrow as is safe.

    ``disorder_ms`` is how much older than an earlier record a record may be; None if unknown.
    """
    places = [place for place in starts if bounds.admits(place)]
    starts = {place: max(starts[place], bounds.offset_first) for place in places}
    if bounds.offset_end is not None:
        ends = {place: min(ends[place], bounds.offset_end) for place in places}
    else:
        ends = {place: ends[place] for place in places}
    # A bound before 1970 includes records without a timestamp (-1), which brokers cannot find.
    if bounds.since_ms is not None and bounds.since_ms >= 0:
        found = cluster.list_offsets(
            dict.fromkeys(places, bounds.since_ms), read_committed=read_committed
        )
        # No record is that young, so none below the ends can pass.
        starts = {
            place: max(starts[place], offset) if offset >= 0 else ends[place]
            for place, offset in found.items()
        }
    if bounds.until_ms_end is not None:
        slack_ms = _allowed_disorder(places, cluster, disorder_ms)
        wanted = {
            place: max(0, bounds.until_ms_end + slack)
            for place, slack in slack_ms.items()
            if slack is not None
        }
        for place, offset in cluster.list_offsets(wanted, read_committed=read_committed).items():
            if offset >= 0:
                ends[place] = min(ends[place], offset)
    return starts, {place: max(ends[place], starts[place]) for place in places}


def _allowed_disorder(
    places: Sequence[TopicPartition], cluster: Cluster, disorder_ms: int | None
) -> Mapping[TopicPartition, int | None]:
    if disorder_ms is not None:
        return dict.fromkeys(places, disorder_ms)
    topics = list(dict.fromkeys(place.topic for place in places))
    kinds = cluster.topic_setting(topics, "message.timestamp.type")
    return {
        place: CLOCK_DIFFERENCE_MS if kinds.get(place.topic) == "LogAppendTime" else None
        for place in places
    }
