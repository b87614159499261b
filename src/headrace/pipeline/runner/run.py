"""Runs pipeline files: plan, lock, queries, progress until the end or until they are stopped."""

import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from headrace.model.audit import AUDIT_TOPIC, AUDIT_TOPIC_CONFIGS
from headrace.model.dead_letters import (
    DEAD_LETTER_CONFIGS,
    DEAD_LETTER_TOPIC,
    MESSAGE_SIZE_SETTING,
    RETRY_CONFIGS,
    retry_topic,
)
from headrace.pipeline.errors import reason
from headrace.pipeline.loading import load
from headrace.pipeline.runner.claim import TABLE as RUNS
from headrace.pipeline.runner.claim import claim
from headrace.pipeline.runner.dead_letters import TABLE as DEAD_LETTERS
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.runner.expectations import EXPECTATIONS
from headrace.pipeline.runner.fanout import READS, forget_counts, job_table
from headrace.pipeline.runner.history import Ends
from headrace.pipeline.runner.planning import Plan, make_plan
from headrace.pipeline.runner.rebuild import rebuild
from headrace.pipeline.runner.retries import TABLE as RETRIES
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.runner.streams import Progress, Stream, prepared
from headrace.pipeline.runner.upkeep import Upkeep
from headrace.pipeline.warehouse.storage import location_of
from headrace.spark.cluster import Cluster
from headrace.spark.failures import PipelineError
from headrace.spark.options import parse_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_EVERY_S = 0.1


class _Running(NamedTuple):
    directory: PipelineDirectory
    upkeep: Upkeep
    streams: list[Stream]


def run_once(
    files: Sequence[str], spark: "SparkSession", settings: RunSettings
) -> Iterator[Progress]:
    """Process what the topics hold now, file after file, in one session."""
    for file in files:
        yield from run([file], spark, settings._replace(once=True))


def run(
    files: Sequence[str],
    spark: "SparkSession",
    settings: RunSettings,
    stop: threading.Event | None = None,
) -> Iterator[Progress]:
    """Run files together in one session, and tell every batch.

    Ends with ``once``, or when all are asked to stop, or with ``stop``: queries finish the batches
    that they write. Raises BadPipeline, RunRefused, and what ends a query.
    """
    session = prepared(spark)
    with _naming_files(), ExitStack() as stack:
        plans = []
        for file in files:
            loaded = load(file)
            directory = PipelineDirectory(settings.state(loaded.name))
            stack.enter_context(directory.locked())
            directory.clear_stop()
            plan = make_plan(loaded, session, settings)
            plan.check(settings)
            plans.append(plan)
        # Nothing is written before all files are found to be right.
        claimed = [_claimed(plan, settings) for plan in plans]
        running = []
        for plan, own in zip(plans, claimed, strict=True):
            ours = _with_topics(plan, own)
            _start_over(plan, session, ours)
            begins = (yield from rebuild(plan, session, ours)) if settings.reset else {}
            running.append(_start(plan, session, ours, stack, begins))
        # Called first: all queries finish their batches at the same time.
        stack.callback(_finish, running)
        yield from _progress(running, stop or threading.Event())


@contextmanager
def _naming_files() -> Iterator[None]:
    """A full disk, or a file that may not be written, in words."""
    try:
        yield
    except OSError as failed:
        raise PipelineError(
            f"cannot use {failed.filename or 'a file of the warehouse'}: "
            f"{failed.strerror or reason(failed)}. "
            "Nothing is lost: correct it, and run the pipeline again"
        ) from failed


def _start(
    plan: Plan,
    spark: "SparkSession",
    settings: RunSettings,
    stack: ExitStack,
    begins: Mapping[str, Ends],
) -> _Running:
    running = _Running(plan.directory, _upkeep(plan, settings), [])
    for query in plan.queries:
        stream = Stream(plan, query, spark, settings, begins.get(query.name))
        stack.callback(stream.stop)
        stream.wait_until_started()
        running.streams.append(stream)
    ids = {query.name: one.id for query, one in zip(plan.queries, running.streams, strict=True)}
    plan.directory.record(plan.declaration, ids)
    return running


def _upkeep(plan: Plan, settings: RunSettings) -> Upkeep:
    names = [name for query in plan.queries for name in query.tables]
    tables = [settings.table(name) for name in (*names, READS, EXPECTATIONS, RETRIES, RUNS)]
    return Upkeep(plan.directory.path / "cleaned", tables, settings.table(DEAD_LETTERS))


def _progress(running: Sequence[_Running], stop: threading.Event) -> Iterator[Progress]:
    streams = [stream for one in running for stream in one.streams]
    while True:
        is_active = any(stream.is_active() for stream in streams)
        for stream in streams:
            yield from stream.progress()
            stream.check()
        if not is_active:
            for one in running:
                one.upkeep.run_if_due()
            return
        for one in running:
            if all(stream.has_finished_a_batch for stream in one.streams):
                one.upkeep.run_if_due()
            if stop.is_set() or one.directory.is_asked_to_stop():
                _finish([one])
                one.directory.clear_stop()
        for stream in streams:
            stream.end_if_idle()
        time.sleep(_LOOK_EVERY_S)


def _finish(running: Sequence[_Running]) -> None:
    for one in running:
        for stream in one.streams:
            stream.finish()


def _claimed(plan: Plan, settings: RunSettings) -> RunSettings:
    """The settings of a run that no older one disturbs."""
    starts_over = settings.reset or settings.start is not None
    if starts_over:
        # First: a checkpoint whose tables are half deleted must not be continued.
        plan.directory.forget_queries()
    if settings.state_directory is None:
        return settings
    warehouse = location_of(settings.warehouse)
    ours = claim(warehouse, plan.directory, plan.declaration, takes_over=starts_over)
    return settings._replace(claim=ours)


def _start_over(plan: Plan, spark: "SparkSession", settings: RunSettings) -> None:
    for name in (name for query in plan.queries for name in query.tables):
        if settings.claim is not None:
            table = job_table(plan.nodes[name], settings)
            table.take_over(plan.schemas[name], without_rows=settings.reset)
        elif settings.reset:
            shutil.rmtree(settings.table(name), ignore_errors=True)
    if settings.reset:
        forget_counts(plan.file.name, spark, settings)


def _with_topics(plan: Plan, settings: RunSettings) -> RunSettings:
    """Create the topics of a pipeline that are missing; the settings know their limits."""
    wanted = [node for node in plan.file.nodes if node.kind == "topic"]
    retries = retry_topic(plan.file.name)
    options = parse_source({**settings.source, "subscribe": "unused"}, streaming=False)
    cluster = Cluster(options.client)
    try:
        cluster.create_topic(DEAD_LETTER_TOPIC, -1, DEAD_LETTER_CONFIGS)
        cluster.create_topic(retries, 1, RETRY_CONFIGS)
        cluster.create_topic(AUDIT_TOPIC, 1, AUDIT_TOPIC_CONFIGS)
        for node in wanted:
            policy = {"cleanup.policy": "compact"} if node.option("compacted") else {}
            cluster.create_topic(node.declared.topic, -1, policy)
        names = [DEAD_LETTER_TOPIC, *(node.declared.topic for node in wanted)]
        limits = cluster.topic_setting(names, MESSAGE_SIZE_SETTING)
        retry_partitions = len(cluster.topics([retries])[retries].leaders)
    finally:
        cluster.close()
    return settings._replace(
        record_sizes={name: int(limit) for name, limit in limits.items()},
        retry_partitions=retry_partitions,
    )
