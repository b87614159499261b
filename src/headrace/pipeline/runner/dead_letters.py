"""The dead letters of a pipeline: records and rows that no function sees, with stage and reason."""

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headrace.pipeline.tables import BatchName, JobTable, Rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE = "_dead_letters"
_KEY = ("topic", "partition", "offset", "stage")


def dead_letters(rows: "DataFrame", warehouse: Path, pipeline: str, batch: BatchName) -> int:
    """Keep the letters of a batch, once. ``rows`` have ``stage``, ``rule`` and ``reason``."""
    table = JobTable(warehouse / TABLE, Rules(_KEY))
    return table.append(rows.withColumn("pipeline", F.lit(pipeline)), batch).row_count
