"""Finds the records for which a function fails, by halving the batch.

Spark tells that a task failed, not for which row. A function that fails for a few records must
not stop the pipeline for good; one that fails for many is wrong itself.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from headrace.pipeline.runner.kept import Kept
from headrace.pipeline.runner.records import ATTEMPT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORDS_MAX = 10
_NTH = "_nth"

# The reason why a function fails for these records; None if it does not.
Try = Callable[["DataFrame"], str | None]


class Isolated:
    """The records of a batch in two parts, until ``release``."""

    def __init__(self, kept: Kept, reasons: dict[int, str]) -> None:
        self._kept = kept
        self._reasons = reasons
        numbers = list(reasons)
        self.good: DataFrame = kept.rows.where(~F.col(_NTH).isin(numbers)).drop(_NTH)
        self.bad: DataFrame = kept.rows.where(F.col(_NTH).isin(numbers))

    @property
    def count(self) -> int:
        return len(self._reasons)

    def reason(self) -> "Column":
        """Why the function fails for each of ``bad``."""
        found = F.lit(None).cast("string")
        for number, reason in self._reasons.items():
            found = F.when(F.col(_NTH) == number, reason).otherwise(found)
        return found

    def release(self) -> None:
        self._kept.release()


class NotIsolated(Exception):
    """The function fails for more records than a few, or for none of them alone."""

    def __init__(self, found: int) -> None:
        super().__init__(found)
        self.found = found


def isolate(records: "DataFrame", fails: Try) -> Isolated:
    """The records for which a function fails. Raises NotIsolated."""
    order = Window.orderBy("topic", "partition", "offset", ATTEMPT)
    kept = Kept(records.withColumn(_NTH, F.row_number().over(order)))
    count = kept.rows.count()
    reasons: dict[int, str] = {}

    def tried(first: int, end: int) -> str | None:
        rows = kept.rows.where((F.col(_NTH) >= first) & (F.col(_NTH) < end))
        return fails(rows.where(~F.col(_NTH).isin(list(reasons))).drop(_NTH))

    while tried(1, count + 1) is not None:
        number, reason = _first_bad(tried, 1, count + 1)
        if reason is None or len(reasons) == RECORDS_MAX:
            kept.release()
            raise NotIsolated(len(reasons))
        reasons[number] = reason
    return Isolated(kept, reasons)


def _first_bad(
    tried: Callable[[int, int], str | None], first: int, end: int
) -> tuple[int, str | None]:
    """A record of a failing range that fails alone; without a reason if none does."""
    while end - first > 1:
        middle = (first + end) // 2
        if tried(first, middle) is not None:
            end = middle
        else:
            first = middle
    return first, tried(first, end)
