"""Five jobs and the load of all topics, in one Spark session, as a process to measure.

    python -m bench.pipeline_work ADDRESS WAREHOUSE COMMIT_AGE_S

Prints a line of JSON for every batch of a query and every commit of the load: who, when, how long,
and how far it read. A line of input stops the load, or starts it again. Ends when its input ends.
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.pipeline.raw import keep_events_loaded
from headrace.pipeline.runner.directory import PipelineDirectory
from headrace.pipeline.runner.run import run
from headrace.pipeline.runner.session import start_session
from headrace.pipeline.runner.settings import RunSettings
from headrace.pipeline.runner.streams import Progress
from headrace.pipeline.warehouse.load import Progress as Loaded

JOBS = ("activity", "feed", "ranking", "security", "operations")


def _tell(who: str, seconds: float, rows: int, read: Mapping[str, Mapping[str, int]]) -> None:
    told = {"who": who, "at": time.time(), "seconds": seconds, "rows": rows, "read": read}
    # In one piece: queries and loads tell their batches at the same time.
    sys.stdout.write(f"{json.dumps(told)}\n")
    sys.stdout.flush()


def _tell_batch(batch: Progress, settings: RunSettings) -> None:
    directory = PipelineDirectory(settings.state(batch.pipeline))
    # Spark keeps the offsets of the last hundred batches.
    ends = directory.offsets(batch.query, batch.batch)
    read = {topic: parts for topic, parts in ends.items() if not topic.startswith("#")}
    _tell(f"{batch.pipeline}/{batch.query}", batch.seconds, batch.rows, read)


def _tell_commit(topic: str, batch: Loaded) -> None:
    read = {str(span.place.partition): span.offset_end for span in batch.spans}
    _tell(f"load/{topic}", batch.seconds, batch.row_count, {topic: read})


def main(address: str, warehouse: Path, commit_age_s: float) -> None:
    source = {"kafka.bootstrap.servers": address}
    settings = RunSettings(warehouse, source)
    stop = threading.Event()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        spark = start_session(Path(scratch), master="local[2]", name="bench", is_short=False)
        loads = _Loads(spark, source, warehouse, commit_age_s)

        def obey() -> None:
            for _ in sys.stdin:
                loads.toggle()
            stop.set()

        threading.Thread(target=obey, daemon=True).start()
        loads.toggle()
        try:
            for batch in run(JOBS, spark, settings, stop):
                _tell_batch(batch, settings)
        finally:
            loads.stop()
            spark.stop()


class _Loads:
    """The load of all topics, which can be stopped and started again."""

    def __init__(
        self, spark: Any, source: Mapping[str, str], warehouse: Path, commit_age_s: float
    ) -> None:
        self._given = (spark, source, warehouse, commit_age_s, _tell_commit)
        self._running: tuple[threading.Thread, threading.Event] | None = None

    def toggle(self) -> None:
        if self._running is not None:
            self.stop()
            return
        over = threading.Event()
        thread = threading.Thread(target=keep_events_loaded, args=(*self._given, over))
        self._running = (thread, over)
        thread.start()

    def stop(self) -> None:
        if self._running is not None:
            thread, over = self._running
            self._running = None
            over.set()
            thread.join()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
