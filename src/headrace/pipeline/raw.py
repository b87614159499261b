"""The raw tables: every topic of the activity events, loaded into a table of its own."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.pipeline.events import EVENT_TIME, RAW, SCHEMAS
from headrace.pipeline.runner.session import LOADS
from headrace.pipeline.warehouse.load import Load, Progress
from headrace.pipeline.warehouse.rows import EventTime
from headrace.pipeline.warehouse.settings import LoadSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A load waits for the driver as long as for its tasks, so another one can use the cores.
_LOADS_AT_ONCE = 2


def load_events(
    spark: "SparkSession",
    source: Mapping[str, str],
    warehouse: Path,
    report: Callable[[str, Progress], None],
) -> None:
    """Load what the topics hold now. ``report`` gets every batch with its topic."""

    def load(topic: str) -> None:
        loader = Load(spark, raw_settings(topic, source, warehouse))
        try:
            loader.once(lambda batch: report(topic, batch))
        finally:
            loader.close()

    with ThreadPoolExecutor(_LOADS_AT_ONCE) as pool:
        for loaded in [pool.submit(load, topic) for topic in SCHEMAS]:
            loaded.result()


def keep_events_loaded(
    spark: "SparkSession",
    source: Mapping[str, str],
    warehouse: Path,
    commit_age_s: float,
    report: Callable[[str, Progress], None],
    stop: threading.Event,
) -> None:
    """Load until ``stop`` is set. No record waits longer than the age, as long as this keeps up."""
    with ExitStack() as stack:
        loads = {
            topic: stack.enter_context(closing(Load(spark, raw_settings(topic, source, warehouse))))
            for topic in SCHEMAS
        }

        def load(topic: str) -> None:
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", LOADS)
            loads[topic].once(lambda batch: report(topic, batch))

        pool = stack.enter_context(ThreadPoolExecutor(_LOADS_AT_ONCE))
        took_s = 0.0
        while not stop.wait(max(0.0, commit_age_s - 2 * took_s)):
            began_at = time.monotonic()
            for loaded in [pool.submit(load, topic) for topic in SCHEMAS]:
                loaded.result()
            took_s = time.monotonic() - began_at


def raw_settings(topic: str, source: Mapping[str, str], warehouse: Path) -> LoadSettings:
    values = {"value.format": "json", "value.schema": SCHEMAS[topic]}
    return LoadSettings(
        (topic,), warehouse / RAW / topic, {**source, **values}, event_time=EventTime(EVENT_TIME)
    )
