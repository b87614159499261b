"""Dead letters that were sent again: each lands once in a query, however often it is sent.

A table holds which attempts have landed. A batch that runs again must not see its own rows there,
so it reads what batches before it wrote.
"""

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.pipeline.runner.records import ATTEMPT, TOPIC_ID
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.tables import BatchName, JobTable, Rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE = "_retries"
SCHEMA = pa.schema(
    [
        ("pipeline", pa.string()),
        ("query", pa.string()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("attempt", pa.int32()),
    ]
)
_PLACE = ["topic_id", "partition", "offset", "attempt"]


def retries_table(settings: RunSettings) -> JobTable:
    return JobTable(settings.table(TABLE), Rules(tuple(SCHEMA.names)))


class Retries:
    """The retries of one query."""

    def __init__(self, pipeline: str, query: str, settings: RunSettings) -> None:
        self._pipeline = pipeline
        self._query = query
        self._table = retries_table(settings)

    def not_landed(self, records: "DataFrame", batch: BatchName) -> "DataFrame":
        """The records of a batch without retries that landed before; each retry once."""
        spark = records.sparkSession
        known = self._table.rows(spark, from_arrow_schema(SCHEMA), before=batch)
        landed = known.where(
            (F.col("pipeline") == self._pipeline) & (F.col("query") == self._query)
        ).select(*(F.col(name).alias(f"_landed_{name}") for name in _PLACE))
        columns = (TOPIC_ID, "partition", "offset", ATTEMPT)
        same = [
            F.col(here) == F.col(f"_landed_{there}")
            for here, there in zip(columns, _PLACE, strict=True)
        ]
        retries = records.where(F.col(ATTEMPT) > 0).dropDuplicates(list(columns))
        fresh = retries.join(F.broadcast(landed), same, "left_anti")
        return records.where(F.col(ATTEMPT) == 0).unionByName(fresh)

    def landed(self, rows: "DataFrame", batch: BatchName) -> None:
        """Record the retries of a batch."""
        found = rows.where(F.col(ATTEMPT) > 0).select(
            F.lit(self._pipeline).alias("pipeline"),
            F.lit(self._query).alias("query"),
            "topic",
            F.col(TOPIC_ID).alias("topic_id"),
            "partition",
            "offset",
            F.col(ATTEMPT).alias("attempt"),
        )
        self._table.append_few(found.toArrow().cast(SCHEMA), batch)
