"""From the records of topics to the rows of sources: deduplicated, decoded, judged by their time.

One Spark source reads all topics of a query. The deduplication keeps the topic and the ID of an
event, and nothing else of the pipeline file is part of Spark's state: the file may change its
columns and functions, and the checkpoint remains valid.

Time is judged per record, against its own Kafka timestamp, which is capped by the clock of the
driver when the batch was planned. So the same records give the same rows in one batch or in
many. The watermark follows the same timestamps, not event time: an event from the year 2100 or
1970 neither moves it nor falls behind it. A retry is judged by the timestamp of its record, and
moves the watermark by its own.
"""

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from headrace.model.dead_letters import HEADER_PREFIX
from headrace.pipeline.graph import Node, duration_ms
from headrace.pipeline.rules import RECORD
from headrace.spark.ddl import parse_fields
from headrace.spark.source_schema import PLANNED_AT, WATERMARK

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The clock of a producer may be this far ahead.
AHEAD_MS = 600_000
ARRIVED, EVENT, FATE, REASON = "_arrived", "_event", "_fate", "_reason"
# Of a retry: how often it was tried, the ID of its topic, and the sinks that lack it (null: all).
ATTEMPT, TOPIC_ID, SINKS = "_attempt", "_topic_id", "_sinks"
_CLOCK = "_clock"  # moves the watermark
_CORRUPT = "_corrupt"
# Of records that are no rows whatever the file says; "late" is the third.
BAD_FATES = ("decode", "event-time")
RECORD_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "headers", "value")
LETTER_COLUMNS = (
    *RECORD_COLUMNS, "topic_id", "attempt", "sinks", "stage", "rule", "reason"
)  # fmt: skip


class SourceRows(NamedTuple):
    """What the records of one topic become."""

    name: str
    topic: str
    schema: StructType
    event_time: str
    event_id: str
    lateness_ms: int
    late: str  # recompute, deadletter, drop
    has_rules: bool

    @property
    def column(self) -> str:
        """The rows of this source in a batch of all sources."""
        return f"_rows_{self.name}"


def source_rows(node: Node) -> SourceRows:
    lateness = duration_ms(node.option("lateness"))
    assert lateness is not None
    return SourceRows(
        node.name,
        node.declared.topic,
        parse_fields(node.option("schema")),
        node.option("event_time"),
        node.option("event_id"),
        lateness,
        node.option("late"),
        bool(node.rules),
    )


def arrived(records: "DataFrame") -> "DataFrame":
    """Records with the time at which each arrived. Spark keeps the clock of a batch."""
    is_streaming = PLANNED_AT in records.columns
    # The clock of Spark is a part of the code that it compiles: in a stream, for every batch.
    now = F.col(PLANNED_AT) if is_streaming else F.current_timestamp()
    time = F.least("timestamp", now)
    nothing = F.lit(None).cast("string")
    clock = time
    if is_streaming:
        # A record that is older than the watermark does not fall behind it.
        clock = F.greatest(time, F.col(WATERMARK) + F.make_interval(secs=F.lit(0.001)))
    return records.withColumns(
        {ARRIVED: time, _CLOCK: clock, ATTEMPT: F.lit(0), TOPIC_ID: nothing, SINKS: nothing}
    ).drop(WATERMARK, PLANNED_AT)


def with_retries(
    arrived: "DataFrame", retry_topic: str, sources: Sequence[SourceRows]
) -> "DataFrame":
    """Retries stand for their records, with their topic, place and timestamp.

    Records of the retry topic that are no retries for these sources are left out.
    """
    is_retry = F.col("topic") == retry_topic
    place = {
        "topic": _header("topic"),
        "partition": _header("partition").cast("int"),
        "offset": _header("offset").cast("long"),
        "timestamp": F.timestamp_millis(_header("timestamp").cast("long")),
        "headers": F.filter("headers", lambda one: ~one["key"].startswith(HEADER_PREFIX)),
        ARRIVED: F.timestamp_millis(_header("timestamp").cast("long")),
        ATTEMPT: _header("attempt").cast("int"),
        TOPIC_ID: _header("topicid"),
        SINKS: _header("sinks"),
    }
    found = arrived.withColumns(
        {name: F.when(is_retry, one).otherwise(F.col(name)) for name, one in place.items()}
    )
    return found.where(F.col("topic").isin([source.topic for source in sources]))


def _header(name: str) -> "Column":
    """The text of one of our headers; null without it."""
    ours = F.filter("headers", lambda one: one["key"] == HEADER_PREFIX + name)
    return F.get(ours, F.lit(0))["value"].cast("string")


def deduplicated(records: "DataFrame", sources: Sequence[SourceRows]) -> "DataFrame":
    """Without events that came before. ``records`` is a stream or a batch.

    A stream has retries as records of their own topic, because their events came before.
    """
    identified = [source for source in sources if source.event_id]
    if not identified:
        return records
    place = F.concat(F.lit("place/"), _place())
    named = records.withColumn(EVENT, F.coalesce(_event_of(identified), place))
    key = ["topic", EVENT]
    order = (ARRIVED, "partition", "offset")
    if records.isStreaming:
        window_ms = max(source.lateness_ms for source in identified)
        # The operator keeps the first of equal events that it meets in a batch. Sorted, that is
        # the one that arrived first, as it is when they come in two batches.
        kept = named.withWatermark(_CLOCK, f"{window_ms} milliseconds")
        sorted_ = kept.repartition(*key).sortWithinPartitions(*order)
        return sorted_.dropDuplicatesWithinWatermark(key).drop(EVENT)
    nth = F.row_number().over(Window.partitionBy(*key).orderBy(*order))
    return named.withColumn("_nth", nth).where("_nth = 1").drop(EVENT, "_nth")


def without_events_of(
    records: "DataFrame", others: "DataFrame", sources: Sequence[SourceRows]
) -> "DataFrame":
    """Without events that are also rows of ``others``."""
    identified = [source for source in sources if source.event_id]
    if not identified:
        return records
    is_row = reduce(
        lambda one, source: one | ((F.col("topic") == source.topic) & _is_row(source)),
        identified,
        F.lit(False),
    )
    rows = decoded(others, sources).where(is_row)
    known = rows.select(F.col("topic").alias("_topic"), _event_of(identified).alias("_known"))
    same = [F.col("topic") == F.col("_topic"), F.col(EVENT) == F.col("_known")]
    named = records.withColumn(EVENT, _event_of(identified))
    return named.join(known.distinct(), same, "left_anti").drop(EVENT)


def _place() -> "Column":
    return F.concat_ws("/", F.col("partition").cast("string"), F.col("offset").cast("string"))


def _event_of(identified: Sequence[SourceRows]) -> "Column":
    """The event of a record; null if it has no ID."""
    return reduce(
        lambda others, source: F.when(F.col("topic") == source.topic, _event(source)).otherwise(
            others
        ),
        identified,
        F.lit(None).cast("string"),
    )


def _event(source: SourceRows) -> "Column":
    """The text that repeated events share."""
    text = F.get_json_object(_text(), f"$['{source.event_id}']")
    return F.concat(F.lit("id/"), text)


def _is_late(source: SourceRows, time: "Column") -> "Column":
    """A retry is not: who sends a late record again wants it to count."""
    limit = F.col(ARRIVED) - F.make_interval(secs=F.lit(source.lateness_ms / 1000))
    return (F.col(ATTEMPT) == 0) & (time < limit)


def decoded(records: "DataFrame", sources: Sequence[SourceRows]) -> "DataFrame":
    """Records with a column per source, its rows, and the fate of records that are no rows."""
    columns: dict[str, Column] = {}
    fate: Column = F.lit(None).cast("string")
    reason: Column = F.lit(None).cast("string")
    text = _text()
    for source in sources:
        here = F.col("topic") == source.topic
        schema = StructType([*source.schema.fields, StructField(_CORRUPT, StringType())])
        parsed = F.from_json(text, schema, {"columnNameOfCorruptRecord": _CORRUPT})
        columns[source.column] = F.when(here, parsed)
        fate = F.when(here, _fate(source)).otherwise(fate)
        reason = F.when(here, _reason(source)).otherwise(reason)
    return records.withColumns(columns).withColumn(FATE, fate).withColumn(REASON, reason)


def _text() -> "Column":
    return F.col("value").cast("string")


def _is_text() -> "Column":
    """Spark's JSON parser would replace other bytes, and nobody would see it."""
    return F.is_valid_utf8(_text())


def _is_corrupt(source: SourceRows) -> "Column":
    """An empty value, and JSON's null, are no row either."""
    row = F.col(source.column)
    return row.isNull() | row[_CORRUPT].isNotNull()


def _fate(source: SourceRows) -> "Column":
    row = F.col(source.column)
    fate = F.when(F.col("value").isNull() | ~_is_text() | _is_corrupt(source), "decode")
    if source.event_time:
        time = row[source.event_time]
        ahead = F.col(ARRIVED) + F.make_interval(secs=F.lit(AHEAD_MS / 1000))
        fate = fate.when(time > ahead, "event-time").when(_is_late(source, time), "late")
    return fate


def _reason(source: SourceRows) -> "Column":
    reason = (
        F.when(F.col("value").isNull(), "the record has no value")
        .when(~_is_text(), "the value is not valid UTF-8")
        .when(
            _is_corrupt(source),
            f"the value is not JSON of {source.schema.simpleString()}",
        )
    )
    if not source.event_time:
        return reason
    time = F.col(source.column)[source.event_time]
    told = F.concat(
        F.lit(f"{source.event_time} is "),
        time.cast("string"),
        F.lit(", and the record arrived at "),
        F.col(ARRIVED).cast("string"),
    )
    return reason.when(time.isNotNull(), told)


def rows_of(records: "DataFrame", source: SourceRows) -> "DataFrame":
    """The rows of one source, without dead letters and dropped records."""
    here = records.where((F.col("topic") == source.topic) & _is_row(source))
    return here.select(
        *(
            # A field of this name is no part of the value.
            ARRIVED if name == ARRIVED else f"{source.column}.`{name}`"
            for name in source.schema.fieldNames()
        ),
        *([F.struct("partition", "offset").alias(RECORD)] if source.has_rules else []),
    )


def _is_row(source: SourceRows) -> "Column":
    """Whether a decoded record is neither a dead letter nor dropped."""
    is_row = F.col(FATE).isNull()
    return is_row | (F.col(FATE) == "late") if source.late == "recompute" else is_row


def letters_of(records: "DataFrame", sources: Sequence[SourceRows]) -> "DataFrame":
    """The records that become dead letters, with ``stage``, ``rule`` and ``reason``."""
    kept = [source.topic for source in sources if source.late != "deadletter"]
    letters = records.where(F.col(FATE).isNotNull())
    if kept:
        letters = letters.where((F.col(FATE) != "late") | ~F.col("topic").isin(kept))
    return as_letters(letters, F.col(FATE), F.col(REASON))


def as_letters(
    records: "DataFrame",
    stage: "Column",
    reason: "Column",
    *,
    rule: "Column | None" = None,
    sinks: "Column | None" = None,
) -> "DataFrame":
    """Records with the columns of dead letters."""
    nothing = F.lit(None).cast("string")
    return records.select(
        *RECORD_COLUMNS,
        F.col(TOPIC_ID).alias("topic_id"),
        F.col(ATTEMPT).alias("attempt"),
        (F.col(SINKS) if sinks is None else sinks).alias("sinks"),
        stage.alias("stage"),
        (nothing if rule is None else rule).alias("rule"),
        reason.alias("reason"),
    )
