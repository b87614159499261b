"""The warehouse load: rows and bytes per second next to Spark's jar, and the cost of commits."""

import json
import subprocess
import sys

from bench import load, topics
from bench.figures.spark import fill_with_views
from bench.process_tree import cpu_seconds
from bench.report import Row, ratio_at_least, value_at_least, value_at_most
from bench.run import Run, Samples
from bench.spark_session import Session, sessions

_BESIDE = "Spark's jar, to Parquet"
_RATE = "3 M records of 160 bytes into a table"
_PER_CORE = "the same, for each core-second of Spark"
_LINEAR = "30 M records / 3 M records"
_RECORD_BYTES = 160
_PARTITIONS = 4


def loading(run: Run) -> list[Row]:
    """Load 3 M records into a Delta table; Spark's jar writes them to Parquet files."""
    samples = Samples("warehouse-load")
    count = run.sized(3_000_000, 100_000)
    with run.node("headrace") as node:
        fill_with_views(node.address, "views", count)
        with sessions(run) as started:
            for round_number in range(run.rounds + 1):
                for side, session in started.items():
                    before = cpu_seconds(session.process.pid)
                    seconds = _seconds(run, session, node.address, "views", side)
                    cores = cpu_seconds(session.process.pid) - before
                    rate = count / seconds
                    per_core = count * _RECORD_BYTES / cores / (1 << 20)
                    run.say(
                        f"warehouse-load {side}: {rate:,.0f} rows/s, {per_core:.0f} MiB/s per core"
                    )
                    if round_number:  # the first round compiles
                        samples.add(side, _RATE, rate)
                        samples.add(side, _PER_CORE, per_core)
            samples.add("headrace", _LINEAR, _linear(run, started["headrace"], node.address, count))
    return [
        samples.row(_RATE, "rows/s", ratio_at_least(1.4), peer="jar", beside=_BESIDE),
        samples.row(_PER_CORE, "MiB/s", value_at_least(25), peer="jar", beside=_BESIDE),
        samples.row(_LINEAR, "× rows/s", value_at_least(0.9), peer="jar"),
    ]


def _seconds(run: Run, session: Session, address: str, topic: str, side: str) -> float:
    what = "load" if side == "headrace" else "parquet"
    directory = str(run.scratch / f"table-{side}")
    told = session.ask(what, address=address, topic=topic, directory=directory)
    return float(told["seconds"])


def _linear(run: Run, session: Session, address: str, count: int) -> float:
    """How much of the rate is left with ten times the records."""
    rates = []
    for times in (1, 10):
        topic = f"times-{times}"
        topics.create(address, topic, _PARTITIONS)
        load.produce(address, topic, count * times, _RECORD_BYTES, limit_s=900)
        rates.append(count * times / _seconds(run, session, address, topic, "headrace"))
        run.say(f"warehouse-load: {count * times:,} records at {rates[-1]:,.0f} rows/s")
    return rates[1] / rates[0]


def committing(run: Run) -> list[Row]:
    """Memory of a driver over 1,000 commits with 20,000 files; commits of 1,000 partitions."""
    samples = Samples("warehouse-commits")
    grown = "driver's growth from commit 100 to 1,000, 20,000 files"
    longest = "longest commit of a table with 1,000 partitions"
    for round_number in range(run.rounds):
        told = _commit(run, f"files-{round_number}", run.sized(1_000, 100), 20, _PARTITIONS)
        samples.add("headrace", grown, told["grown_mb"])
        told = _commit(run, f"partitions-{round_number}", run.sized(100, 25), 1, 1_000)
        samples.add("headrace", longest, max(told["first_s"], told["longest_s"]))
    return [
        samples.row(grown, "MB", value_at_most(64)),
        samples.row(longest, "s", value_at_most(2)),
    ]


def _commit(run: Run, name: str, commits: int, files: int, partitions: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.table_commits", str(run.scratch / name)]
    command += map(str, (commits, files, partitions))
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    run.say(
        f"warehouse-commits: {commits} of {files} files, {partitions} partitions: {done.stdout}"
    )
    told: dict[str, float] = json.loads(done.stdout)
    return told
