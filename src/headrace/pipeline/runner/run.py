"""Runs a pipeline file: plan, lock, queries, progress until the end or until it is stopped."""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from headrace.pipeline.loading import load
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.runner.planning import Plan, make_plan
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.runner.streams import Progress, Stream, prepared
from headrace.spark.cluster import Cluster
from headrace.spark.options import parse_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_EVERY_S = 0.1


def run_once(
    files: Sequence[str], spark: "SparkSession", settings: RunSettings
) -> Iterator[Progress]:
    """Process what the topics hold now, file after file, in one session."""
    for file in files:
        yield from run(file, spark, settings._replace(once=True))


def run(file: str, spark: "SparkSession", settings: RunSettings) -> Iterator[Progress]:
    """Run a file, and tell every batch. Ends with ``once``, or when it is asked to stop.

    Raises BadPipeline, RunRefused, and what ends a query.
    """
    session = prepared(spark)
    loaded = load(file)
    directory = PipelineDirectory(settings.state(loaded.name))
    with directory.locked(), ExitStack() as stack:
        directory.clear_stop()
        plan = make_plan(loaded, session, settings)
        plan.check(settings)
        _start_over(plan, settings)
        _create_topics(plan, settings)
        streams: list[Stream] = []
        for query in plan.queries:
            stream = Stream(plan, query, session, settings)
            stack.callback(stream.stop)
            streams.append(stream)
        directory.record(
            plan.declaration,
            {query.name: stream.id for query, stream in zip(plan.queries, streams, strict=True)},
        )
        yield from _progress(streams, directory)


def _progress(streams: Sequence[Stream], directory: PipelineDirectory) -> Iterator[Progress]:
    while True:
        active = any(stream.is_active() for stream in streams)
        for stream in streams:
            yield from stream.progress()
            stream.check()
        if not active:
            return
        if directory.is_asked_to_stop():
            directory.clear_stop()
            return
        time.sleep(_LOOK_EVERY_S)


def _start_over(plan: Plan, settings: RunSettings) -> None:
    if settings.reset:
        for query in plan.queries:
            for name in query.tables:
                shutil.rmtree(settings.table(name), ignore_errors=True)
    if settings.reset or settings.start is not None:
        plan.directory.forget_queries()


def _create_topics(plan: Plan, settings: RunSettings) -> None:
    wanted = [node for node in plan.file.nodes if node.kind == "topic"]
    if not wanted:
        return
    options = parse_source({**settings.source, "subscribe": "unused"}, streaming=False)
    cluster = Cluster(options.client)
    try:
        for node in wanted:
            policy = {"cleanup.policy": "compact"} if node.option("compacted") else {}
            cluster.create_topic(node.declared.topic, -1, policy)
    finally:
        cluster.close()
