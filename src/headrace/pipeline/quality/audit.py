"""The audit: what every tier should hold of each topic and minute, and what it holds."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from deltalake import write_deltalake

from headrace.model.audit import AUDIT_TOPIC, ReadMessage, reader_name
from headrace.model.dead_letters import retry_topic
from headrace.model.ids import id_to_text
from headrace.pipeline.events import RAW
from headrace.pipeline.quality.balance import Balance, Tier, balance
from headrace.pipeline.quality.counting import (
    Offsets,
    Published,
    Topic,
    find_topics,
    in_log,
    in_table,
    published,
)
from headrace.pipeline.quality.reads import read_by
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.runner.settings import PIPELINES
from headrace.pipeline.warehouse.offsets import txn_id
from headrace.pipeline.warehouse.table import Table, open_table
from headrace.spark.cluster import Cluster

FINDINGS = "audit"
_FINDINGS_SCHEMA = pa.schema(
    [
        ("checked_at", pa.timestamp("us", "UTC")),
        ("tier", pa.string()),
        ("name", pa.string()),
        ("topic", pa.string()),
        ("minute", pa.timestamp("us", "UTC")),
        ("expected", pa.int64()),
        ("found", pa.int64()),
        ("doubled", pa.int64()),
    ]
)


def audit(cluster: Cluster, warehouse: Path, topics: Sequence[str] = ()) -> list[Balance]:
    """Compare all tiers of these topics, or of all that are counted or that tables hold."""
    counted = published(cluster)
    queries = list(_queries(warehouse, counted))
    loaded = {path.name for path in (warehouse / RAW).glob("*") if open_table(path) is not None}
    read = {topic for query in queries for topic in query.ends if topic != query.retries}
    names = set(topics) or (counted.sent.keys() | loaded | read) - {AUDIT_TOPIC}
    found: list[Balance] = []
    for topic in find_topics(cluster, sorted(names)):
        ours = [query for query in queries if topic.name in query.ends]
        found += _of_topic(cluster, warehouse, topic, counted.sent.get(topic.name), ours)
    return found


class _QueryReads(NamedTuple):
    """A query of a pipeline that ran in this warehouse."""

    name: str
    last_batch: int
    ends: Mapping[str, Mapping[int, int]]  # the next offsets after that batch, by topic
    retries: str  # a topic that only this pipeline reads
    messages: Sequence[ReadMessage]


def _queries(warehouse: Path, counted: Published) -> Iterator[_QueryReads]:
    for path in sorted((warehouse / PIPELINES).glob("*")):
        directory = PipelineDirectory(path)
        for query, query_id in sorted((directory.recorded() or {}).get("queries", {}).items()):
            last = directory.last_batch(query)
            if last < 0:
                continue
            ends = {
                topic: {int(partition): offset for partition, offset in offsets.items()}
                for topic, offsets in directory.offsets(query, last).items()
                if not topic.startswith("#")
            }
            messages = counted.read.get(reader_name(path.name, query, query_id), [])
            if messages:  # an older version published none
                name = f"{path.name}/{query}"
                yield _QueryReads(name, last, ends, retry_topic(path.name), messages)


def _of_topic(
    cluster: Cluster,
    warehouse: Path,
    topic: Topic,
    counted: Mapping[int, int] | None,
    queries: Sequence[_QueryReads],
) -> list[Balance]:
    table = open_table(warehouse / RAW / topic.name)
    reads = [read_by(one.messages, id_to_text(topic.topic_id), one.last_batch) for one in queries]
    asked = [Offsets({}, _loaded(table, topic))]
    asked += [
        Offsets(read.first_offsets, {n: query.ends[topic.name][n] for n in read.first_offsets})
        for query, read in zip(queries, reads, strict=True)
    ]
    log = in_log(cluster, topic, asked)
    found: list[Balance] = []
    if counted is not None:
        found += balance(
            Tier.BROKER, "", topic.name, counted, log.all, whole_since_ms=log.whole_since_ms
        )
    if table is not None:
        held = in_table(table, topic.topic_id)
        found += balance(
            Tier.TABLE,
            f"{RAW}/{topic.name}",
            topic.name,
            log.within[0],
            held.found,
            held.doubled,
            whole_since_ms=log.whole_since_ms,
        )
    for query, read, expected in zip(queries, reads, log.within[1:], strict=True):
        found += balance(
            Tier.JOB,
            query.name,
            topic.name,
            expected,
            read.counts,
            whole_since_ms=log.whole_since_ms,
        )
    return found


def _loaded(table: Table | None, topic: Topic) -> dict[int, int]:
    """The next offsets that the table has recorded."""
    if table is None:
        return {}
    found = {n: table.recorded(txn_id(topic.topic_id, n)) for n in topic.end_offsets}
    return {partition: offset for partition, offset in found.items() if offset is not None}


def keep(balances: Sequence[Balance], warehouse: Path, checked_at_ms: int) -> None:
    """Append the findings to the table that reports read."""
    rows = [
        {
            "checked_at": _time(checked_at_ms),
            "tier": str(one.tier),
            "name": one.name,
            "topic": one.topic,
            "minute": _time(one.minute_ms),
            "expected": one.expected,
            "found": one.found,
            "doubled": one.doubled,
        }
        for one in balances
    ]
    if rows:
        table = pa.Table.from_pylist(rows, schema=_FINDINGS_SCHEMA)
        write_deltalake(str(warehouse / FINDINGS), table, mode="append")


def _time(millis: int) -> datetime:
    return datetime.fromtimestamp(millis / 1000, UTC)
