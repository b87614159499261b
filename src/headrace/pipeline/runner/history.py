"""The records that a query has processed, read again from the raw tables and the topics.

A raw table has records that retention deleted from its topic long ago; the topic has records that
are not loaded yet. The offsets in the raw table say where one ends and the other begins.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructType

from headrace.model.ids import TopicPartition, id_to_text
from headrace.pipeline.errors import RunRefused
from headrace.pipeline.runner.records import (
    ATTEMPT,
    RECORD_COLUMNS,
    SourceRows,
    arrived,
    deduplicated,
    with_retries,
    without_events_of,
)
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.warehouse.offsets import txn_id
from headrace.pipeline.warehouse.rows import EVENT_COLUMNS, METADATA_COLUMNS
from headrace.pipeline.warehouse.spark_reader import read_table
from headrace.pipeline.warehouse.table import Table, open_table
from headrace.spark.cluster import EARLIEST, LATEST, Cluster
from headrace.spark.options import parse_source
from headrace.spark.source_schema import HEADERS, KAFKA_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("headrace.pipeline")

Ends = Mapping[TopicPartition, int]
# Spark's default has milliseconds.
_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSxxx"}


class RecordsGone(RunRefused):
    """Records that are needed are neither in a raw table nor in their topic."""


def records_before(
    spark: "SparkSession", settings: RunSettings, sources: Sequence[SourceRows], ends: Ends
) -> "DataFrame":
    """All records of these sources before these offsets. Raises RecordsGone."""
    frames = []
    first: dict[TopicPartition, int] = {}
    cluster = Cluster(
        parse_source({**settings.source, "subscribe": "unused"}, streaming=False).client
    )
    try:
        for source in sources:
            places = [place for place in ends if place.topic == source.topic]
            topic_id = cluster.existing_topic(source.topic).topic_id
            table = open_table(settings.raw_table(source.topic))
            loaded = _loaded(table, topic_id, places)
            earliest = cluster.list_offsets(dict.fromkeys(places, EARLIEST), read_committed=True)
            for place in places:
                _check(place, earliest[place], loaded[place], ends[place])
                first[place] = min(ends[place], max(earliest[place], loaded[place]))
            if table is not None:
                frames.append(_from_table(spark, table, source, topic_id, ends))
    finally:
        cluster.close()
    frames.append(records_of_topics(spark, settings, first, ends))
    records = frames[0]
    for frame in frames[1:]:
        records = records.unionByName(frame)
    return records


def records_since(
    spark: "SparkSession",
    settings: RunSettings,
    sources: Sequence[SourceRows],
    ends: Ends,
    since_ms: int,
) -> "DataFrame":
    """The records before these offsets with a timestamp of ``since_ms`` or later.

    Topics have the newest records, and finding those of a time in them costs nothing. A raw table
    is read for what retention deleted. Raises RecordsGone.
    """
    frames = []
    first: dict[TopicPartition, int] = {}
    cluster = Cluster(
        parse_source({**settings.source, "subscribe": "unused"}, streaming=False).client
    )
    try:
        for source in sources:
            places = [place for place in ends if place.topic == source.topic]
            earliest, newer = (
                cluster.list_offsets(dict.fromkeys(places, which), read_committed=True)
                for which in (EARLIEST, max(since_ms, 0))
            )
            for place in places:
                found = ends[place] if newer[place] < 0 else newer[place]
                first[place] = min(ends[place], max(earliest[place], found))
            # Where the oldest record of a log is new enough, the records before it may be too.
            cut = {
                place: earliest[place]
                for place in places
                if earliest[place] > 0 and first[place] <= earliest[place]
            }
            if cut:
                topic_id = cluster.existing_topic(source.topic).topic_id
                table = open_table(settings.raw_table(source.topic))
                loaded = _loaded(table, topic_id, list(cut))
                for place in cut:
                    _check(place, earliest[place], loaded[place], ends[place])
                if table is not None:
                    rows = _from_table(spark, table, source, topic_id, cut)
                    frames.append(rows.where(F.unix_millis("timestamp") >= since_ms))
    finally:
        cluster.close()
    return reduce(
        lambda one, other: one.unionByName(other),
        [*frames, records_of_topics(spark, settings, first, ends)],
    )


class Older(NamedTuple):
    """What a query that starts over reads before its topics, and where these begin."""

    records: "DataFrame | None"  # of the raw tables, each event once; None without any
    begins: Ends
    topic_ids: Mapping[str, str]


def records_before_topics(
    spark: "SparkSession", settings: RunSettings, sources: Sequence[SourceRows]
) -> Older:
    """The records that retention deleted from the topics and raw tables have.

    An event that is there and again in its topic is left out here: the query will read it.
    """
    frames, begins, topic_ids = [], dict[TopicPartition, int](), dict[str, str]()
    cluster = Cluster(
        parse_source({**settings.source, "subscribe": "unused"}, streaming=False).client
    )
    try:
        for source in sources:
            metadata = cluster.existing_topic(source.topic)
            topic_ids[source.topic] = id_to_text(metadata.topic_id)
            places = [TopicPartition(source.topic, number) for number in metadata.leaders]
            earliest = cluster.list_offsets(dict.fromkeys(places, EARLIEST), read_committed=True)
            begins |= earliest
            cut = {place: first for place, first in earliest.items() if first > 0}
            table = open_table(settings.raw_table(source.topic)) if cut else None
            loaded = _loaded(table, metadata.topic_id, list(cut))
            for place, first in cut.items():
                if loaded[place] < first:
                    log.warning(
                        "The records of %s from offset %d to %d are neither in the raw table nor "
                        "in the topic: the tables will lack them",
                        place,
                        loaded[place],
                        first - 1,
                    )
            if table is not None:
                frames.append(_from_table(spark, table, source, metadata.topic_id, cut))
        if not frames:
            return Older(None, begins, topic_ids)
        older = reduce(lambda one, other: one.unionByName(other), frames)
        newest_ms = older.agg(F.unix_millis(F.max("timestamp"))).head()
        if newest_ms is None or newest_ms[0] is None:
            return Older(None, begins, topic_ids)
        until_ms = newest_ms[0] + max(source.lateness_ms for source in sources)
        ends = _offsets_at(cluster, begins, until_ms)
    finally:
        cluster.close()
    again = arrived(records_of_topics(spark, settings, begins, ends))
    events = deduplicated(arrived(older), sources)
    return Older(without_events_of(events, again, sources), begins, topic_ids)


def _offsets_at(cluster: Cluster, begins: Ends, time_ms: int) -> dict[TopicPartition, int]:
    """Where the records of this time begin; the end of a log without any."""
    found = cluster.list_offsets(dict.fromkeys(begins, time_ms), read_committed=True)
    latest = cluster.list_offsets(dict.fromkeys(begins, LATEST), read_committed=True)
    return {
        place: max(begins[place], latest[place] if found[place] < 0 else found[place])
        for place in begins
    }


def with_retries_before(
    spark: "SparkSession",
    settings: RunSettings,
    records: "DataFrame",
    retry_topic: str,
    sources: Sequence[SourceRows],
    ends: Ends,
) -> "DataFrame":
    """These records, with the time at which each arrived; retries stand for their records."""
    ours = {place: end for place, end in ends.items() if place.topic == retry_topic}
    known = arrived(records)
    if not any(ours.values()):
        return known
    retries = records_of_topics(spark, settings, dict.fromkeys(ours, 0), ours)
    both = known.unionByName(with_retries(arrived(retries), retry_topic, sources))
    newest = F.row_number().over(
        Window.partitionBy("topic", "partition", "offset").orderBy(F.desc(ATTEMPT))
    )
    return both.withColumn("_nth", newest).where("_nth = 1").drop("_nth")


def _loaded(
    table: Table | None, topic_id: bytes, places: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    found = {
        place: table.recorded(txn_id(topic_id, place.partition)) if table is not None else None
        for place in places
    }
    return {place: offset or 0 for place, offset in found.items()}


def _check(place: TopicPartition, earliest: int, loaded: int, end: int) -> None:
    if loaded < earliest and loaded < end and earliest > 0:
        raise RecordsGone(
            f"the records of {place} from offset {loaded} to {min(earliest, end)} are neither in "
            "the raw table nor in the topic, so they cannot be computed again"
        )


def _from_table(
    spark: "SparkSession", table: Table, source: SourceRows, topic_id: bytes, ends: Ends
) -> "DataFrame":
    rows = read_table(spark, table)
    schema = rows.schema
    names = [name for name in source.schema.fieldNames() if name in schema.fieldNames()]
    value = F.to_json(F.struct(*names), _TIMES)
    if _is_loaded_whole(schema):
        value = F.col("value")
    before = F.lit(False)
    for place, end in ends.items():
        if place.topic == source.topic:
            before |= (F.col("_partition") == place.partition) & (F.col("_offset") < end)
    return rows.where((F.col("_topic_id") == id_to_text(topic_id)) & before).select(
        F.col("_topic").alias("topic"),
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
        F.col("_timestamp").alias("timestamp"),
        F.col("_key").alias("key"),
        F.col("_headers").cast(HEADERS).alias("headers"),
        value.cast("binary").alias("value"),
    )


def _is_loaded_whole(schema: StructType) -> bool:
    """Whether a raw table has the values as they are. A field of a value may be named ``value``."""
    others = (*METADATA_COLUMNS, *EVENT_COLUMNS)
    fields = [field for field in schema if field.name not in others]
    return [field.name for field in fields] == ["value"] and isinstance(
        fields[0].dataType, BinaryType | StringType
    )


def records_of_topics(
    spark: "SparkSession", settings: RunSettings, first: Ends, ends: Ends
) -> "DataFrame":
    """The records from ``first`` to before ``ends``."""
    if not any(first[place] < ends[place] for place in first):
        return spark.createDataFrame([], _record_schema())
    reader = spark.read.format("headrace")
    options = {
        **settings.source,
        "assign": json.dumps(_by_topic({place: place.partition for place in first}, as_list=True)),
        "startingOffsets": json.dumps(_by_topic(first)),
        "endingOffsets": json.dumps(_by_topic({place: ends[place] for place in first})),
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load().select(*RECORD_COLUMNS)


def _by_topic(offsets: Ends, *, as_list: bool = False) -> dict[str, object]:
    found: dict[str, dict[str, int]] = {}
    for place, offset in sorted(offsets.items()):
        found.setdefault(place.topic, {})[str(place.partition)] = offset
    return {topic: list(parts.values()) if as_list else parts for topic, parts in found.items()}


def _record_schema() -> StructType:
    schema = StructType()
    for name in RECORD_COLUMNS:
        schema = schema.add(name, KAFKA_COLUMNS[name])
    return schema
