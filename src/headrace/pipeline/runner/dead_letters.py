"""Keeps the dead letters of a pipeline: records and rows that no function sees, with the reason.

Each letter goes to a table and to a topic, both before the sinks that lack its record. Both drop
what a batch that runs again writes again. What is too large for the topic is only in the table.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.model.dead_letters import (
    DEAD_LETTER_TOPIC,
    HEADER_OVERHEAD,
    HEADER_PREFIX,
    LETTER_OVERHEAD,
    LETTER_SIZE_MAX,
    LETTER_VALUE_SIZE_MAX,
    MESSAGE_SIZE_DEFAULT,
)
from headrace.pipeline.planned import Functions
from headrace.pipeline.runner.kept import Kept
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.tables import BatchName, JobTable, Rules
from headrace.spark.sink import write_frame, write_rows
from headrace.spark.source_schema import HEADERS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TABLE = "_dead_letters"
_KEY = ("topic", "partition", "offset", "stage")
FEW_ROWS, FEW_RECORDS = "letters/rows", "letters/records"


class DeadLetters:
    """The letters of one pipeline."""

    def __init__(self, pipeline: str, settings: RunSettings) -> None:
        self._pipeline = pipeline
        self._settings = settings

    def write(self, letters: "DataFrame", batch: BatchName, part: str = "") -> None:
        """Keep letters (``LETTER_COLUMNS``), once. A batch writes each ``part`` of them at once."""
        named = BatchName(f"{batch.query}/{part}" if part else batch.query, batch.number)
        kept = Kept(letters.withColumn("pipeline", F.lit(self._pipeline)))
        try:
            self._table(_KEY).append(kept.rows, named)
            write_frame(letter_records(kept.rows, self._size_max()), self._sink_options(named))
        finally:
            kept.release()

    def frames(self, letters: "DataFrame", functions: Functions) -> "dict[str, DataFrame]":
        """The rows of the table and the records of the topic: if few, to be collected."""
        size_max = self._size_max()
        rows = functions.call(
            FEW_ROWS,
            lambda letters: letters.withColumn("pipeline", F.lit(self._pipeline)),
            {"letters": letters},
            version="pipeline",
        )
        records = functions.call(
            FEW_RECORDS,
            lambda rows: letter_records(rows, size_max),
            {"rows": rows},
            version=size_max,
        )
        return {FEW_ROWS: rows, FEW_RECORDS: records}

    def write_few(self, found: Mapping[str, pa.Table], batch: BatchName) -> None:
        """As ``write``, for the rows and records that the driver has collected."""
        self._table(_KEY).append_few(found[FEW_ROWS], batch)
        write_rows(found[FEW_RECORDS], self._sink_options(batch))

    def failed(self, spark: "SparkSession", sink: str) -> "DataFrame | None":
        """The records for which a function of this table or topic failed; None without any."""
        table = self._table((*_KEY, "attempt"))
        if table.version() is None:
            return None
        return table.rows(spark, StructType([])).where(
            (F.col("pipeline") == self._pipeline)
            & (F.col("stage") == "step")
            & F.array_contains(F.split("sinks", ","), sink)
        )

    def _table(self, key: tuple[str, ...]) -> JobTable:
        return JobTable(self._settings.table(TABLE), Rules(key))

    def _size_max(self) -> int:
        return self._settings.record_sizes.get(DEAD_LETTER_TOPIC, MESSAGE_SIZE_DEFAULT)

    def _sink_options(self, batch: BatchName) -> dict[str, str]:
        source = self._settings.source
        name = source.get("kafka.client.id", "headrace")
        return {
            **source,
            "kafka.client.id": f"{name}-{batch.query}-letters",
            "kafka.max.request.size": str(LETTER_SIZE_MAX),
            "topic": DEAD_LETTER_TOPIC,
            "delivery": "exactly-once",
            "delivery.id": f"{batch.query}/{TABLE}",
            "delivery.batch": str(batch.number),
        }


def letter_records(letters: "DataFrame", size_max: int) -> "DataFrame":
    """Letters as records of the topic: those of their records, with headers of ours.

    A record above ``size_max`` bytes has no value, and if need be no key and no headers of its own.
    """
    ours = {
        "stage": F.col("stage"),
        "pipeline": F.col("pipeline"),
        "rule": F.col("rule"),
        "reason": F.col("reason"),
        "topic": F.col("topic"),
        "topicid": F.col("topic_id"),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "timestamp": F.unix_millis("timestamp"),
        "attempt": F.col("attempt"),
        "sinks": F.col("sinks"),
    }
    added = F.array(*(_header(name, value) for name, value in ours.items()))
    whole = letters.select(
        "key",
        "value",
        F.coalesce(F.col("headers"), F.array().cast(HEADERS)).alias("given"),
        F.filter(added, lambda one: one["value"].isNotNull()).alias("ours"),
    )
    value_size = F.coalesce(F.length("value"), F.lit(0))
    own_size = F.coalesce(F.length("key"), F.lit(0)) + _size("given")
    sized = whole.select("*", value_size.alias("value_size"), own_size.alias("own_size"))
    has_own = F.col("own_size") + _size("ours") + LETTER_OVERHEAD <= size_max
    has_value = (F.col("value_size") <= LETTER_VALUE_SIZE_MAX) & (
        F.col("value_size") + F.col("own_size") + _size("ours") + LETTER_OVERHEAD <= size_max
    )
    # The table has what is omitted.
    omitted = F.when(~has_own, F.col("value_size") + F.col("own_size"))
    omitted = omitted.when(~has_value, F.col("value_size"))
    nothing = F.array().cast(HEADERS)
    return sized.select(
        F.when(has_own, F.col("key")).alias("key"),
        F.when(has_value, F.col("value")).alias("value"),
        F.concat(
            F.when(has_own, F.col("given")).otherwise(nothing),
            "ours",
            F.when(has_value, nothing).otherwise(F.array(_header("omitted", omitted))),
        ).alias("headers"),
    )


def _size(headers: str) -> "Column":
    """The bytes of a column of headers, at most."""
    return F.aggregate(
        headers,
        F.lit(0),
        lambda size, one: (
            size
            + F.octet_length(one["key"])
            + F.coalesce(F.length(one["value"]), F.lit(0))
            + HEADER_OVERHEAD
        ),
    )


def _header(name: str, value: "Column") -> "Column":
    return F.struct(
        F.lit(HEADER_PREFIX + name).alias("key"),
        value.cast("string").cast("binary").alias("value"),
    )
