"""Tables with windows: rows are computed from all events of a window, whenever they came.

Some results of two batches do not merge into one: distinct counts, the first or last of a window,
the top of a ranking. A batch computes the windows that it touches again, from all records that the
query has read. So a late event changes its window as if it had come in time, and an event that
comes again long after the first counts once.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F

from headrace.pipeline.analysis import time_column
from headrace.pipeline.graph import Node, duration_ms
from headrace.pipeline.runner.records import AHEAD_MS, SourceRows, rows_of
from headrace.pipeline.tables import DELETED
from headrace.spark.failures import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

# Every span is part of the condition of a query; those with the smallest gaps are joined.
_SPANS_MAX = 50
_START = "_window"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Touched(NamedTuple):
    """The windows that the events of a batch belong to."""

    column: str  # of the table's key: the start of the window
    width_ms: int
    starts_ms: tuple[int, ...]

    @property
    def arrived_since_ms(self) -> int:
        """No record of these windows has an older timestamp."""
        return self.starts_ms[0] - AHEAD_MS

    def inside(self, time: "Column") -> "Column":
        """Whether an event belongs to one of them, or to a window between two that are close."""
        found = F.lit(False)
        for since_ms, until_ms in spans(self.starts_ms, self.width_ms):
            since, until = (F.lit(_time(one)) for one in (since_ms, until_ms))
            found |= (time >= since) & (time < until)
        return found

    def rows(self, made: "DataFrame") -> "DataFrame":
        """The rows of these windows only."""
        starts = made.sparkSession.createDataFrame(
            pa.table([pa.array(self.starts_ms, pa.int64())], names=[_START])
        )
        here = made.withColumn(_START, _millis(self.column))
        return here.join(F.broadcast(starts), _START, "left_semi").drop(_START)


def touched(node: Node, schema: "StructType", found: "Sequence[DataFrame]") -> Touched | None:
    """The windows of these event times, each the column ``_time``; None without any."""
    width_ms = duration_ms(node.option("window"))
    column = time_column(schema, node.option("key"))
    assert width_ms and column
    starts: set[int] = set()
    for times in found:
        millis = F.unix_millis(F.col("_time").cast("timestamp"))
        start = F.expr(f"_ms - pmod(_ms, {width_ms})")
        rows = times.select(millis.alias("_ms")).where("_ms is not null")
        starts.update(rows.select(start.alias(_START)).distinct().toArrow()[_START].to_pylist())
    return Touched(column, width_ms, tuple(sorted(starts))) if starts else None


def event_times(records: "DataFrame", source: SourceRows) -> "DataFrame":
    """Of the rows of one source."""
    return rows_of(records, source).select(F.col(source.event_time).alias("_time"))


def spans(starts_ms: Sequence[int], width_ms: int) -> list[tuple[int, int]]:
    """Windows in order as few spans from a start to before an end."""
    found: list[tuple[int, int]] = []
    for start in starts_ms:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], start + width_ms)
        else:
            found.append((start, start + width_ms))
    while len(found) > _SPANS_MAX:
        gaps = [after[0] - before[1] for before, after in zip(found, found[1:], strict=False)]
        at = gaps.index(min(gaps))
        found[at : at + 2] = [(found[at][0], found[at + 1][1])]
    return found


def check_starts(node: Node, made: "DataFrame", windows: Touched) -> None:
    """Raises PipelineError if the function has other windows than it declares."""
    start = _millis(windows.column)
    wrong = made.where(start % windows.width_ms != 0).select(F.col(windows.column).cast("string"))
    first = wrong.head()
    if first is not None:
        raise PipelineError(
            str(
                node.mistake(
                    f"{windows.column} is {first[0]}, which is not the start of a window of "
                    f"{node.option('window')}, counted from 1970-01-01 00:00 UTC"
                )
            )
        )


def in_a_window(node: Node, made: "DataFrame") -> "DataFrame":
    """All rows of a table, computed at once. An event without a time is in no window."""
    column = time_column(made.schema, node.option("key"))
    return made.where(F.col(f"`{column}`").isNotNull()).withColumn(DELETED, F.lit(False))


def with_deleted(
    whole: "DataFrame", before: "DataFrame", windows: Touched, key: Sequence[str]
) -> "DataFrame":
    """The rows of windows, and the keys that these windows had before and have no more."""
    same = [F.col(f"n.`{name}`").eqNullSafe(F.col(f"b.`{name}`")) for name in key]
    known = windows.rows(before.select(*key))
    gone = known.alias("b").join(whole.select(*key).alias("n"), same, "left_anti")
    return whole.withColumn(DELETED, F.lit(False)).unionByName(
        gone.withColumn(DELETED, F.lit(True)), allowMissingColumns=True
    )


def _millis(column: str) -> "Column":
    return F.unix_millis(F.col(f"`{column}`").cast("timestamp"))


def _time(millis: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=millis)
