"""Stops a query whose topics send too many bad records, before any of them is a dead letter.

A record is bad if its value cannot be decoded, or its event time is out of range. A late record is
not: a network that was down makes many of them, and the file says what to do with each. Nor is a
retry, which a person asked for.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.model.ids import TopicPartition
from headrace.pipeline.errors import TooManyBadRecords
from headrace.pipeline.runner.records import ATTEMPT, BAD_FATES, FATE, REASON, SourceRows
from headrace.pipeline.warehouse.bad_share import BadShare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Found = Mapping[str, tuple[int, int]]  # bad records and all records of a batch, by topic


class BadRecords:
    """The bad records of the newest batches of one query, by topic."""

    def __init__(self, sources: Sequence[SourceRows], share_max: float) -> None:
        self._share_max = share_max
        self._shares = {source.topic: BadShare(share_max) for source in sources}

    def check(self, records: "DataFrame", found: Found) -> None:
        """Raises TooManyBadRecords. ``records`` are the decoded ones of the batch."""
        for topic, (bad, total) in found.items():
            judged = self._shares[topic].too_many(bad, total)
            if judged is not None:
                raise TooManyBadRecords(
                    f"{judged.bad:,} of the last {judged.total:,} records of topic {topic} "
                    f"({judged.bad / judged.total:.1%}) would be dead letters, more than "
                    f"{self._share_max:.0%}. {_first(records, topic)}Nothing of this batch was "
                    "written. Correct the producer or the schema, or allow more with --bad-max"
                )

    def add(self, found: Found) -> None:
        """Remember a batch that was written."""
        for topic, (bad, total) in found.items():
            self._shares[topic].add(bad, total)


def _first(records: "DataFrame", topic: str) -> str:
    """The first bad record of the batch; nothing if all are in batches before it."""
    bad = records.where(
        (F.col("topic") == topic) & F.col(FATE).isin(*BAD_FATES) & (F.col(ATTEMPT) == 0)
    )
    first = bad.orderBy("partition", "offset").select("partition", "offset", REASON).head()
    if first is None:
        return ""
    place = TopicPartition(topic, first[0])
    return f"The first is offset {first[1]} of {place}: {first[2]}. "
