"""The Spark session of a run: fair pools, so that short triggers do not wait for long ones."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from headrace.spark.demo import start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Triggers up to this many milliseconds, the name of their pool, and its weight.
_POOLS = ((1_000, "at-once", 16), (5_000, "soon", 4), (10_000, "steady", 2))
_SLOW_POOL = ("slow", 1)
# A load of a topic is short, and many records wait for it.
LOADS = "loads"
_LOADS_WEIGHT = 4
_HEAP_MB_MAX = 4096


def pool_of(trigger_ms: int) -> str:
    return next((name for limit, name, _ in _POOLS if trigger_ms <= limit), _SLOW_POOL[0])


def start_session(
    directory: Path,
    *,
    master: str,
    name: str,
    config: Mapping[str, str] | None = None,
    is_short: bool = True,
) -> "SparkSession":
    """``directory`` holds the files of the session; a short one lasts for minutes.

    ``config`` are settings of Spark that take precedence.
    """
    directory.mkdir(parents=True, exist_ok=True)
    pools = directory / "pools.xml"
    pools.write_text(pools_xml())
    settings = {
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": pools.as_uri(),
        "spark.sql.streaming.stopTimeout": "60s",
        "spark.driver.memory": f"{_heap_mb()}m",
        # Spark's default of 100 classes is less than one batch of all queries needs: the JVM would
        # compile all of them again for every batch.
        "spark.sql.codegen.cache.maxEntries": "5000",
        **(config or {}),
    }
    return start_spark(directory, master=master, name=name, config=settings, is_short=is_short)


def _heap_mb() -> int:
    """A quarter of this machine's memory: the queries keep their batches while functions run.

    Spark's default is 1 GB. With 20,000 events per second, five jobs ended for want of memory
    with 2 GB.
    """
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return min(max(1024, memory_mb // 4), _HEAP_MB_MAX)


def pools_xml() -> str:
    """The pools, in Spark's format."""
    pools = [(name, weight) for _, name, weight in _POOLS] + [_SLOW_POOL, (LOADS, _LOADS_WEIGHT)]
    entries = "".join(
        f"<pool name={quoteattr(name)}><schedulingMode>FIFO</schedulingMode>"
        f"<weight>{weight}</weight><minShare>{int(weight > 4)}</minShare></pool>"
        for name, weight in pools
    )
    return f"<allocations>{entries}</allocations>"
