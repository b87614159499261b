"""The raw tables: every topic of the activity events, loaded into a table of its own."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.pipeline.events import EVENT_TIME, RAW, SCHEMAS
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


def raw_settings(topic: str, source: Mapping[str, str], warehouse: Path) -> LoadSettings:
    values = {"value.format": "json", "value.schema": SCHEMAS[topic]}
    return LoadSettings(
        (topic,), warehouse / RAW / topic, {**source, **values}, event_time=EventTime(EVENT_TIME)
    )
