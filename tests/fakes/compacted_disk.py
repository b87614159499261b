"""A disk whose topics are compacted, and a log with many small segments on it."""

from pathlib import Path
from typing import Any

from headrace.core.cleaning import measure
from headrace.records.record import Record, build_batch
from headrace.storage.compaction.log_cleaner import CleanerSettings, clean, summarize
from tests.fakes.logs import NOW, Disk, append, settings


def compacted_disk(path: Path) -> Disk:
    compacted = settings(
        cleanup_policy=frozenset({"compact", "delete"}),
        segment_bytes=20_000,
        index_interval_bytes=500,
        min_cleanable_dirty_ratio=0.0,
    )
    return Disk(path, config=compacted)


def fill(log: Any, count: int = 400, keys: int = 50) -> None:
    """Record n has the timestamp NOW + n; keys repeat every ``keys`` records."""
    for n in range(count):
        record = Record(0, NOW + n, b"%d" % (n % keys), b"v" * 100)
        append(log, memoryview(bytearray(build_batch([record]))))


async def compact(log: Any) -> None:
    dirt = measure(summarize(log, log.log_end), NOW)
    await clean(log, dirt, CleanerSettings(buffer_size=1 << 20), NOW)
