"""Rows that several functions of a batch use: computed once, and planned once.

``persist`` alone keeps the rows, but every query on them is planned from their sources on. With
some steps on top of each other, Spark then plans longer than it computes.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Kept:
    """``rows`` stand for the result of a frame. ``release`` frees it."""

    def __init__(self, frame: "DataFrame") -> None:
        from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

        self._persisted = frame.persist()
        # As Spark does for the rows of foreachBatch: a plan of one leaf, on the kept rows. A lost
        # executor is no problem, because the rows know what they were computed from.
        session = frame.sparkSession
        computed = self._persisted._jdf
        leaf = session._jsparkSession.internalCreateDataFrame(
            computed.queryExecution().toRdd(), computed.schema(), False
        )
        self.rows: DataFrame = ClassicFrame(leaf, session)

    def release(self) -> None:
        self._persisted.unpersist()
