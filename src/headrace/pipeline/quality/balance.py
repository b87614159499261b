"""Compares what one tier counted with what the next one holds, by topic and minute. Pure.

producer   records that producers got acknowledged, as they published it
broker     records in the log
table      records in the raw table or its dead letters, as far as the table was loaded
load       records that a load counted for a table that cannot be read here
job        records that a query of a pipeline read, up to the last batch that it finished

A tier is compared only in minutes in which the expectation is whole: the log may have lost the
beginning of a minute to retention, and a producer may not count at all.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

Counts = Mapping[int, int]  # by start of the minute, in milliseconds


class Tier(StrEnum):
    BROKER = "broker"
    TABLE = "table"
    LOAD = "load"
    JOB = "job"


class Balance(NamedTuple):
    """One minute of one topic at one tier."""

    tier: Tier
    name: str  # of the table, or of pipeline and query; empty for brokers
    topic: str
    minute_ms: int
    expected: int
    found: int  # each record once
    doubled: int = 0

    @property
    def missing(self) -> int:
        return max(0, self.expected - self.found)

    @property
    def surplus(self) -> int:
        """Records that should not be there: doubled, or missing in the tier before."""
        return self.doubled + max(0, self.found - self.expected)

    @property
    def is_even(self) -> bool:
        return self.expected == self.found and not self.doubled


def balance(
    tier: Tier,
    name: str,
    topic: str,
    expected: Counts,
    found: Counts,
    doubled: Counts | None = None,
    *,
    whole_since_ms: int | None = None,
) -> Iterator[Balance]:
    """Every minute in which something was expected or found.

    Minutes before ``whole_since_ms`` are left out: the expectation there is not whole.
    """
    extra = doubled or {}
    for minute in sorted(expected.keys() | found.keys() | extra.keys()):
        if whole_since_ms is None or minute >= whole_since_ms:
            yield Balance(
                tier,
                name,
                topic,
                minute,
                expected.get(minute, 0),
                found.get(minute, 0),
                extra.get(minute, 0),
            )


class Total(NamedTuple):
    """All minutes of one topic at one tier."""

    tier: Tier
    name: str
    topic: str
    minutes: int
    expected: int
    found: int
    missing: int
    surplus: int


def totals(balances: list[Balance]) -> list[Total]:
    """Sums by tier, name and topic, in the order of the first minute of each."""
    groups: dict[tuple[Tier, str, str], list[Balance]] = {}
    for one in balances:
        groups.setdefault((one.tier, one.name, one.topic), []).append(one)
    return [
        Total(
            *key,
            len(group),
            sum(one.expected for one in group),
            sum(one.found for one in group),
            sum(one.missing for one in group),
            sum(one.surplus for one in group),
        )
        for key, group in groups.items()
    ]
