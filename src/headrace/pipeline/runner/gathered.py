"""Collects the rows of several frames in this process, all computed by one Spark job.

A job of its own for each frame would take longer than computing the rows of a small batch.
"""

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from headrace.pipeline.planned import Functions
from headrace.pipeline.tables import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FRAME = "_frame"


def gathered(frames: "Mapping[str, DataFrame]", functions: Functions) -> dict[str, pa.Table]:
    """The rows of each frame, in the types of a table."""
    if not frames:
        return {}
    name = f"gathered/{'/'.join(frames)}"
    found = functions.call(name, _joined, frames, version="gathered").toArrow()
    return {name: _rows_of(found, name, frame) for name, frame in frames.items()}


def _joined(**frames: "DataFrame") -> "DataFrame":
    """Rows of one column per frame, of which all but one are null."""

    def part(name: str, frame: "DataFrame") -> "DataFrame":
        row = F.struct(*(F.col(f"`{column}`") for column in frame.columns))
        columns = [
            (row if other == name else F.lit(None).cast(frames[other].schema)).alias(other)
            for other in frames
        ]
        return frame.select(F.lit(name).alias(_FRAME), *columns)

    parts = [part(name, frame) for name, frame in frames.items()]
    return reduce(lambda one, other: one.unionAll(other), parts).coalesce(1)


def _rows_of(found: pa.Table, name: str, frame: "DataFrame") -> pa.Table:
    rows = found.filter(pc.equal(found.column(_FRAME), name)).column(name)
    return pa.Table.from_struct_array(rows).cast(arrow_schema(frame.schema))
