"""A week of events through the five jobs, day by day: what the queries keep between batches.

    python -m bench.pipeline_week ADDRESS WAREHOUSE EVENTS

Prints a line of JSON for each day, which has EVENTS events: keys in the state of all queries, and
the size of their checkpoints.
"""

import json
import sys
import tempfile
from datetime import date, timedelta
from pathlib import Path

from bench.pipeline_work import JOBS
from headrace.pipeline.generate.sending import generate_day
from headrace.pipeline.runner.inspection import read_state
from headrace.pipeline.runner.run import run_once
from headrace.pipeline.runner.session import start_session
from headrace.pipeline.runner.settings import RunSettings

DAYS = 7
_FIRST = date(2026, 3, 2)


def main(address: str, warehouse: Path, events: int) -> None:
    settings = RunSettings(warehouse, {"kafka.bootstrap.servers": address})
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        spark = start_session(Path(scratch), master="local[2]", name="bench")
        for number in range(DAYS):
            generate_day(address, _FIRST + timedelta(days=number), events=events, seed=number)
            for _ in run_once(JOBS, spark, settings):
                pass
            keys = sum(one.keys for job in JOBS for one in read_state(job, spark, settings))
            files = (warehouse / "_pipelines").rglob("*")
            size = sum(file.stat().st_size for file in files if file.is_file())
            print(json.dumps({"keys": keys, "checkpoint_mb": size / 1e6}), flush=True)
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
