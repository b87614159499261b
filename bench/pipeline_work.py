"""Five jobs and the load of all topics, in one Spark session, as a process to measure.

    python -m bench.pipeline_work ADDRESS WAREHOUSE COMMIT_AGE_S

Prints a line of JSON for every batch of a query and every commit of the load: who, when, how long,
and how far it read. Ends when its input ends.
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

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
    print(json.dumps(told), flush=True)


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

    def wait_for_end() -> None:
        sys.stdin.read()
        stop.set()

    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        spark = start_session(Path(scratch), master="local[2]", name="bench", is_short=False)
        loads = threading.Thread(
            target=keep_events_loaded,
            args=(spark, source, warehouse, commit_age_s, _tell_commit, stop),
        )
        waiting = threading.Thread(target=wait_for_end, daemon=True)
        for thread in (loads, waiting):
            thread.start()
        try:
            for batch in run(JOBS, spark, settings, stop):
                _tell_batch(batch, settings)
        finally:
            stop.set()
            loads.join()
            spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
