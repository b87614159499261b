"""Starts a pipeline over (``--reset``): from what the raw tables have, then from its topics.

The records that retention deleted from the topics are one batch of each query, before its stream
starts where the topics begin. They pass through the same functions and sinks as any others. A
pipeline that is killed meanwhile has no checkpoint yet, so the next run asks for ``--reset`` again.
"""

import uuid
from collections.abc import Generator
from typing import TYPE_CHECKING

from headrace.pipeline.graph import Query
from headrace.pipeline.runner.fanout import Contents, Fanout
from headrace.pipeline.runner.history import Ends, Older, records_before_topics
from headrace.pipeline.runner.planning import Plan
from headrace.pipeline.runner.records import source_rows
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.runner.streams import Progress
from headrace.pipeline.tables import BatchName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rebuild(
    plan: Plan, spark: "SparkSession", settings: RunSettings
) -> Generator[Progress, None, dict[str, Ends]]:
    """Write what only the raw tables have. Returns the offsets at which each query starts."""
    begins: dict[str, Ends] = {}
    for query in plan.queries:
        sources = [source_rows(plan.nodes[name]) for name in query.sources]
        older = records_before_topics(spark, settings, sources)
        begins[query.name] = older.begins
        if older.records is not None:
            yield _write(plan, query, older, settings)
    return begins


def _write(plan: Plan, query: Query, older: Older, settings: RunSettings) -> Progress:
    assert older.records is not None
    records = older.records.persist()
    try:
        fanout = Fanout(
            plan.file.name,
            plan.nodes,
            query,
            plan.schemas,
            settings,
            counted=plan.counted(query),
            processed=lambda *_: records,
        )
        versions = fanout.versions([name for name in query.inputs if name not in query.tables])
        name = BatchName(f"reset-{uuid.uuid4()}", 0)
        done = fanout.run(records, name, versions, Contents(older.topic_ids))
    finally:
        records.unpersist()
    return Progress(
        plan.file.name,
        query.name,
        None,
        done.rows,
        done.rows / done.seconds if done.seconds else 0.0,
        done.seconds,
        None,
        done.late,
        done.dropped,
        0,
        done.dead_letters,
        done.expectations,
        done.written,
    )
