"""The audit: what every tier should hold of each topic and minute, and what it holds."""

import time
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from deltalake import write_deltalake

from headrace.model.audit import AUDIT_TOPIC, MINUTE_MS, reader_name
from headrace.model.dead_letters import retry_topic
from headrace.model.ids import id_to_text
from headrace.pipeline.events import RAW
from headrace.pipeline.quality.balance import Balance, Tier, balance
from headrace.pipeline.quality.counting import (
    LogCounts,
    Offsets,
    Published,
    TableCounts,
    Topic,
    Unreadable,
    find_topics,
    in_log,
    in_table,
    names_records,
    published,
)
from headrace.pipeline.quality.reads import loaded_by, read_by
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.runner.settings import PIPELINES
from headrace.pipeline.warehouse.offsets import txn_id
from headrace.pipeline.warehouse.storage import location_of
from headrace.pipeline.warehouse.table import RETENTION_TXN, Table, open_table
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


class Lost(NamedTuple):
    """Offsets that retention deleted before a load read them, accepted with --accept-loss."""

    table: str
    topic: str
    partition: int
    first_offset: int
    offset_end: int


class Findings(NamedTuple):
    balances: list[Balance]
    lost: list[Lost]
    unreadable: list[Unreadable]  # records among the published counts


def audit(cluster: Cluster, warehouse: Path, topics: Sequence[str] = ()) -> Findings:
    """Compare all tiers of these topics, or of all that are counted or that tables hold."""
    # In this order, because all tiers go on meanwhile: what a query has finished, it published
    # before, and what was published is in the log.
    finished = list(_queries(warehouse))
    counted = published(cluster)
    # A query of an older version published nothing.
    queries = [query for query in finished if query.reader in counted.read]
    names = set(topics)
    if not names:
        names |= counted.sent.keys()
        names |= {path.name for path in (warehouse / RAW).glob("*") if open_table(path) is not None}
        names |= {topic for query in queries for topic in query.ends if topic != query.retries}
        names |= {one.topic for some in counted.loaded.values() for m in some for one in m.ranges}
        names.discard(AUDIT_TOPIC)
    found: list[Balance] = []
    for topic in find_topics(cluster, sorted(names)):
        checks = [
            *_tables(warehouse, topic, counted),
            *_jobs([query for query in queries if topic.name in query.ends], topic, counted),
        ]
        found += _compared(cluster, topic, counted, checks)
    return Findings(found, list(_lost(counted, names)), counted.unreadable)


class _Check(NamedTuple):
    """One tier of a topic behind the log."""

    tier: Tier
    name: str
    asked: Offsets  # what it should hold
    held: TableCounts
    since_ms: int | None = None  # minutes before this one are not compared


def _compared(
    cluster: Cluster, topic: Topic, counted: Published, checks: Sequence[_Check]
) -> Iterator[Balance]:
    log = in_log(cluster, topic, [check.asked for check in checks])
    if topic.name in counted.sent:
        yield from _sent(topic.name, counted, log)
    for check, expected in zip(checks, log.within, strict=True):
        # Which rows of a table are still in the log is known by their offsets.
        since_ms = check.since_ms if check.tier is Tier.TABLE else log.whole_since_ms
        yield from balance(
            check.tier,
            check.name,
            topic.name,
            expected,
            check.held.found,
            check.held.doubled,
            whole_since_ms=since_ms,
        )


def _sent(topic: str, counted: Published, log: LogCounts) -> Iterator[Balance]:
    """What producers published, and the log."""
    known = [one for one in (log.whole_since_ms, counted.whole_since_ms) if one is not None]
    since_ms = max(known, default=None)
    # A count of a minute to come may have been published at any time.
    until_ms = None if counted.whole_since_ms is None else time.time_ns() // 1_000_000
    for one in balance(
        Tier.BROKER, "", topic, counted.sent[topic], log.all, whole_since_ms=since_ms
    ):
        if until_ms is None or one.minute_ms <= until_ms:
            yield one


def _tables(warehouse: Path, topic: Topic, counted: Published) -> Iterator[_Check]:
    """The raw table of the topic, and every other table that loads counted."""
    topic_id = id_to_text(topic.topic_id)
    raw = location_of(warehouse / RAW / topic.name).url
    names = {raw: f"{RAW}/{topic.name}"}
    for place, messages in sorted(counted.loaded.items()):
        if any(one.topic_id == topic_id for message in messages for one in message.ranges):
            names.setdefault(place, place)
    for place, name in names.items():
        path = Path(place)
        is_here = path.is_absolute() and (path / "_delta_log").is_dir()
        table = open_table(path) if is_here else None
        if table is not None and names_records(table):
            loaded = _loaded(table, topic)
            held = in_table(table, topic, loaded)
            yield _Check(Tier.TABLE, name, Offsets({}, loaded), held, _kept_since(table))
            continue
        read = loaded_by(counted.loaded.get(place, ()), topic_id)
        if read.end_offsets:
            asked = Offsets(read.first_offsets, read.end_offsets)
            yield _Check(Tier.LOAD, name, asked, TableCounts(read.counts, Counter()))


def _kept_since(table: Table) -> int | None:
    """The first minute of which retention removed no row; None if it removed none at all."""
    removed_until_ms = table.recorded(RETENTION_TXN)
    return None if removed_until_ms is None else -(-removed_until_ms // MINUTE_MS) * MINUTE_MS


def _jobs(queries: Sequence["_Query"], topic: Topic, counted: Published) -> Iterator[_Check]:
    for query in queries:
        messages = counted.read[query.reader]
        read = read_by(messages, id_to_text(topic.topic_id), query.last_batch)
        ends = query.ends[topic.name].items()
        asked = Offsets(read.first_offsets, {n: end for n, end in ends if n in read.first_offsets})
        yield _Check(Tier.JOB, query.name, asked, TableCounts(read.counts, Counter()))


def _lost(counted: Published, topics: Container[str]) -> Iterator[Lost]:
    for table, messages in sorted(counted.loaded.items()):
        for message in messages:
            for one in message.ranges:
                if message.is_lost and one.topic in topics:
                    yield Lost(table, one.topic, one.partition, one.first_offset, one.offset_end)


class _Query(NamedTuple):
    """A query of a pipeline that ran in this warehouse."""

    name: str
    reader: str  # under which it publishes
    last_batch: int
    ends: Mapping[str, Mapping[int, int]]  # the next offsets after that batch, by topic
    retries: str  # a topic that only this pipeline reads


def _queries(warehouse: Path) -> Iterator[_Query]:
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
            reader = reader_name(path.name, query, query_id)
            yield _Query(f"{path.name}/{query}", reader, last, ends, retry_topic(path.name))


def _loaded(table: Table, topic: Topic) -> dict[int, int]:
    """The next offsets that the table has recorded, as far as the log was seen."""
    found = {n: table.recorded(txn_id(topic.topic_id, n)) for n in topic.end_offsets}
    return {n: min(one, topic.end_offsets[n]) for n, one in found.items() if one is not None}


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
    """The date of a timestamp; the first or the last date for one that is outside of them."""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC)
    except (OSError, OverflowError, ValueError):
        return datetime(1, 1, 1, tzinfo=UTC) if millis < 0 else datetime(9999, 12, 31, tzinfo=UTC)
