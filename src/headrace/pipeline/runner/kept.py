"""Caches rows that several functions of a batch use: computed once, and planned once.

``persist`` of a frame caches rows too, but Spark still plans every query on them from their
sources, and makes columns of them. With several steps on top of each other, and rows that are read
a few times, both take longer than computing.
"""

from typing import TYPE_CHECKING

from headrace.pipeline.planned import frame_of, kept_rdd

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Kept:
    """The cached result of a frame, as ``rows``, until ``release``."""

    def __init__(self, frame: "DataFrame") -> None:
        self._rdd = kept_rdd(frame)
        self.rows: DataFrame = frame_of(frame.sparkSession, self._rdd, frame._jdf.schema())

    def release(self) -> None:
        self._rdd.unpersist(False)
