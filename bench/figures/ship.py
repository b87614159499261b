"""``headrace ship``: lines of a log file, shipped on one core."""

import os
import subprocess
import sys
import time
from pathlib import Path

from bench import topics
from bench.report import Row, value_at_least
from bench.run import Run, Samples

_LINE = b"%010d 2026-11-17T15:45:06.123Z INFO com.example.Orders order accepted, user=4711, 12 ms\n"
_METRIC = "lines of 92 bytes, one core"


def lines(run: Run) -> list[Row]:
    """``headrace ship --once``, pinned to one core, including its start.

    Apache Kafka has no counterpart: its FileStream connector does not follow rotated files.
    """
    samples = Samples("ship")
    count = run.sized(3_000_000, 50_000)
    log = run.scratch / "app.log"
    with log.open("wb") as file:
        for start in range(0, count, 10_000):
            file.write(b"".join(_LINE % number for number in range(start, start + 10_000)))
    node = run.node("headrace")
    with node:
        for round_number in range(run.rounds + 1):
            topic = f"shipped-{round_number}"
            topics.create(node.address, topic, 1)
            rate = count / _ship(run, node.address, log, topic)
            run.say(f"ship: {rate:,.0f} lines/s")
            if round_number:
                samples.add("headrace", _METRIC, rate)
    return [samples.row(_METRIC, "lines/s", value_at_least(100_000))]


def _ship(run: Run, address: str, file: Path, topic: str) -> float:
    """Ship a file on one core. Return the seconds until it is acknowledged."""
    core = max(os.sched_getaffinity(0))
    command = ["taskset", "-c", str(core), sys.executable, "-m", "headrace", "ship", str(file)]
    command += ["-t", topic, "-b", address, "--once"]
    command += ["--state", str(run.scratch / f"state-{topic}")]
    start = time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start
