"""Caches rows that several functions of a batch use: computed once, and planned once.

``persist`` alone caches the rows, but Spark still plans every query on them from their sources.
With several steps on top of each other, planning then takes longer than computing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Kept:
    """The cached result of a frame, as ``rows``, until ``release``."""

    def __init__(self, frame: "DataFrame") -> None:
        from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

        self._persisted = frame.persist()
        # As Spark does for the rows of foreachBatch: a plan of one leaf, on the cached rows. If an
        # executor is lost, Spark computes its rows again.
        session = frame.sparkSession
        computed = self._persisted._jdf
        leaf = session._jsparkSession.internalCreateDataFrame(
            computed.queryExecution().toRdd(), computed.schema(), False
        )
        self.rows: DataFrame = ClassicFrame(leaf, session)

    def release(self) -> None:
        self._persisted.unpersist()
