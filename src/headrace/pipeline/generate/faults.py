"""What goes wrong between an event and its record: late, doubled and broken ones. Pure.

The time in the traffic is when an event is sent; it happened a moment before, or long before.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.pipeline.generate.columns import Ints

LATE_MS: Final = 600_000  # the lateness that the jobs allow
DOUBLED_SHARE: Final = 0.01
_LATE_SHARE, _TOO_LATE_SHARE = 0.008, 0.002
_BROKEN_SHARE = 0.001
_LATENCY_MS = (20, 1_500)
_LATE_RANGE_MS = (60_000, 540_000)
_TOO_LATE_RANGE_MS = (660_000, 10_800_000)
_REPEATED_AFTER_MS = (50, 300_000)
_DAY_MS = 86_400_000
_YEAR_2100_MS = 4_102_444_800_000

# The state of a record.
GOOD, CUT, WRONG_TYPE, IN_1970, IN_2100 = range(5)


class Records(NamedTuple):
    """Records in the order in which they are sent; ``row`` is the index of the event."""

    row: Ints
    sent_ms: Ints
    at_ms: Ints
    state: npt.NDArray[np.int8]
    is_double: npt.NDArray[np.bool_]

    def taken(self, rows: Ints | slice) -> "Records":
        return Records._make(column[rows] for column in self)


class Count(NamedTuple):
    """Records of a topic: ``sent`` is the sum of unique, doubled, broken and out of time.

    ``unique`` includes the late ones.
    """

    sent: int = 0
    unique: int = 0  # good events
    doubled: int = 0  # records that repeat one of them
    late: int = 0  # by at most ten minutes
    too_late: int = 0  # by more
    broken: int = 0  # not JSON, or a wrong type
    out_of_time: int = 0  # events of 1970 and 2100

    def plus(self, other: "Count") -> "Count":
        return Count(*(mine + more for mine, more in zip(self, other, strict=True)))


def with_faults(
    sent_ms: Ints,
    rng: np.random.Generator,
    *,
    doubled: int,
    broken: bool,
    first_at_ms: int | None,
    end_ms: int,
) -> Records:
    """Records of these events. None is before ``first_at_ms``, or sent at ``end_ms`` or later."""
    count = len(sent_ms)
    kind = rng.random(count)
    delay = rng.integers(*_LATENCY_MS, count)
    floor = np.iinfo(np.int64).min if first_at_ms is None else first_at_ms
    first = 0.0
    for share, range_ms in ((_LATE_SHARE, _LATE_RANGE_MS), (_TOO_LATE_SHARE, _TOO_LATE_RANGE_MS)):
        longer = rng.integers(*range_ms, count)
        is_late = (kind >= first) & (kind < first + share) & (sent_ms - longer >= floor)
        delay = np.where(is_late, longer, delay)
        first += share
    at_ms = np.maximum(sent_ms - delay, floor)
    state = np.zeros(count, np.int8)
    if broken:
        hit = np.flatnonzero(rng.random(count) < _BROKEN_SHARE)
        state[hit] = rng.integers(CUT, IN_2100 + 1, len(hit))
    at_ms = np.where(state == IN_1970, sent_ms % _DAY_MS, at_ms)
    at_ms = np.where(state == IN_2100, _YEAR_2100_MS + sent_ms % _DAY_MS, at_ms)
    repeated = rng.choice(np.flatnonzero(state == GOOD), doubled, replace=False)
    again_ms = sent_ms[repeated] + rng.integers(*_REPEATED_AFTER_MS, doubled)
    row = np.concatenate((np.arange(count), repeated))
    sent = np.concatenate((sent_ms, np.minimum(again_ms, end_ms - 1)))
    is_double = np.arange(count + doubled) >= count
    return Records(row, sent, at_ms[row], state[row], is_double).taken(
        np.argsort(sent, kind="stable")
    )


def counted(records: Records) -> Count:
    good = records.state == GOOD
    first = good & ~records.is_double
    delay = records.sent_ms - records.at_ms
    is_late = first & (delay >= _LATE_RANGE_MS[0])
    broken = (records.state == CUT) | (records.state == WRONG_TYPE)
    return Count(
        len(records.row),
        int(first.sum()),
        int((good & records.is_double).sum()),
        int((is_late & (delay <= LATE_MS)).sum()),
        int((is_late & (delay > LATE_MS)).sum()),
        int(broken.sum()),
        int((~good & ~broken).sum()),
    )
