"""The audit: what every tier should hold of each topic and minute, and what it holds."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from headrace.model.audit import AUDIT_TOPIC
from headrace.pipeline.events import RAW
from headrace.pipeline.quality.balance import Balance, Tier, balance
from headrace.pipeline.quality.counting import Topic, find_topics, in_log, in_table, published
from headrace.pipeline.warehouse.table import open_table
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
    """Compare all tiers of these topics, or of all that producers count or tables hold."""
    counted = published(cluster)
    loaded = {path.name for path in (warehouse / RAW).glob("*") if open_table(path) is not None}
    names = set(topics) or (counted.keys() | loaded) - {AUDIT_TOPIC}
    found: list[Balance] = []
    for topic in find_topics(cluster, sorted(names)):
        found += _of_topic(cluster, warehouse, topic, counted.get(topic.name))
    return found


def _of_topic(
    cluster: Cluster, warehouse: Path, topic: Topic, counted: dict[int, int] | None
) -> list[Balance]:
    table = open_table(warehouse / RAW / topic.name)
    log = in_log(cluster, topic, table)
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
            log.loaded,
            held.found,
            held.doubled,
            whole_since_ms=log.whole_since_ms,
        )
    return found


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
