"""The figures by name; each is a function that measures and returns rows."""

from collections.abc import Callable

from bench.figures import (
    cluster,
    failover,
    groups,
    growth,
    latency,
    limits,
    many_partitions,
    memory,
    pipeline,
    reassignment,
    ship,
    spark,
    start,
    throughput,
    transactions,
    warehouse,
)
from bench.report import Row
from bench.run import Run

FIGURES: dict[str, Callable[[Run], list[Row]]] = {
    "start": start.process_start,
    "embedded": start.embedded_start,
    "recovery": start.recovery,
    "memory": memory.resident,
    "throughput": throughput.throughput,
    "latency": latency.latency,
    "compaction": latency.compaction,
    "partitions": throughput.partitions,
    "connections": memory.connections,
    "commits": groups.commits,
    "heartbeats": groups.heartbeats,
    "joins": groups.joins,
    "reload": groups.reload,
    "transactions": transactions.transactions,
    "growth": growth.growth,
    "cluster-throughput": cluster.throughput,
    "cluster-latency": cluster.latency,
    "cluster-start": cluster.start,
    "cluster-embedded": cluster.embedded_start,
    "cluster-failover": failover.failover,
    "cluster-failover-2000": failover.failover_of_many,
    "cluster-partitions": many_partitions.many_partitions,
    "cluster-move": reassignment.reassignment,
    "limit": limits.raw_limit,
    "sendfile": limits.sendfile,
    "ship": ship.lines,
    "spark-read": spark.reading,
    "spark-write": spark.writing,
    "spark-stream": spark.streaming,
    "spark-filter": spark.filtering,
    "readers": spark.readers,
    "pipeline-live": pipeline.live,
    "pipeline-catch-up": pipeline.catching_up,
    "pipeline-state": pipeline.week,
    "warehouse-load": warehouse.loading,
    "warehouse-commits": warehouse.committing,
}


def purpose(name: str) -> str:
    """The first line of a figure's docstring."""
    return (FIGURES[name].__doc__ or "").strip().splitlines()[0]
