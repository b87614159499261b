"""Exactly once under ``kill -9`` of the driver, of its Python workers and of the broker."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.spark.kit import Topics

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.torture]

JOB = Path(__file__).parent / "jobs" / "copy_once.py"
ROWS = 50_000  # twenty rounds make a million
RUNS_MAX = 12


def descendants(pid):
    """All processes below ``pid``, from /proc."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def is_python(pid):
    try:
        return b"pyspark" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[2]
    except (OSError, IndexError):
        return False


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


class Run:
    """One run of the job, as a process that can be killed with all below it."""

    def __init__(self, log, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, str(JOB), "local[2]", *map(str, arguments)],
            stdout=log,
            stderr=log,
        )

    def alive(self):
        return self.process.poll() is None

    def kill_driver(self):
        below = descendants(self.process.pid)
        for pid in [self.process.pid, *below]:
            kill(pid)
        self.process.wait()

    def kill_worker(self, dice):
        workers = [pid for pid in descendants(self.process.pid) if is_python(pid)]
        if workers:
            kill(dice.choice(workers))


@pytest.fixture
def node(tmp_path):
    from headrace.testing import Broker

    named = os.environ.get("HEADRACE_TEST_BOOTSTRAP")
    if named:
        yield named, None
        return
    with Broker(process=True) as broker:
        yield broker.bootstrap_servers, broker


def test_every_row_is_copied_once_whatever_is_killed(node, torture_rounds, tmp_path):
    bootstrap, broker = node
    topics = Topics(bootstrap)
    for round_ in range(torture_rounds):
        dice = random.Random(round_)
        source, target = topics.create(partitions=3), topics.create(partitions=2)
        for partition in range(3):
            rows = range(partition, ROWS, 3)
            topics.send(source, [(str(n), f"row {n}") for n in rows], partition)
        log_path = tmp_path / f"round{round_}.log"
        kills = _run_until_copied(
            broker, dice, log_path, bootstrap, source, target, tmp_path / f"c{round_}"
        )

        keys = sorted(int(message.key()) for message in topics.read(target))
        assert keys == list(range(ROWS)), (
            f"round {round_} with kills {kills}: {len(keys)} rows, {len(set(keys))} different; "
            f"{log_path.read_text(errors='replace')[-3000:]}"
        )


def _run_until_copied(broker, dice, log_path, bootstrap, source, target, checkpoint):
    kills = []
    victims = ["driver", "worker"] + (["broker"] if broker is not None else [])
    with log_path.open("a") as log:
        for run_number in range(RUNS_MAX):
            starts = _starts(log_path)
            run = Run(log, bootstrap, source, target, checkpoint)
            try:
                # The last run is left in peace, so that the round ends.
                while run.alive() and run_number < RUNS_MAX - 1:
                    _let_it_work(run, dice, log_path, checkpoint, starts)
                    if not run.alive():
                        break
                    victim = dice.choice(victims)
                    kills.append(victim)
                    if victim == "driver":
                        run.kill_driver()
                    elif victim == "worker":
                        run.kill_worker(dice)
                    else:
                        broker.kill()
                        broker.start()
                if run.alive():
                    assert run.process.wait(600) is not None
                if run.process.returncode == 0:
                    return kills
            finally:
                if run.alive():
                    run.kill_driver()
    raise AssertionError(f"no run came to its end; kills {kills}")


def _starts(log_path):
    return log_path.read_text(errors="replace").count("STARTED")


def _batches(checkpoint):
    """How many batches have been begun, over all runs."""
    return len(list((checkpoint / "offsets").glob("[0-9]*")))


def _let_it_work(run, dice, log_path, checkpoint, starts_before):
    """Waits for the query to have begun, then for a random moment some batches later.

    Counted in batches and not in seconds, so that a slow machine is not killed before it works.
    """
    give_up_at = time.monotonic() + 300
    while run.alive() and _starts(log_path) == starts_before:
        assert time.monotonic() < give_up_at, "the job did not start"
        time.sleep(0.02)
    wanted = _batches(checkpoint) + dice.choice([0, 0, 1, 1, 2, 3])
    while run.alive() and _batches(checkpoint) < wanted and time.monotonic() < give_up_at:
        time.sleep(0.02)
    until = time.monotonic() + dice.uniform(0, 2)
    while run.alive() and time.monotonic() < until:
        time.sleep(0.02)
