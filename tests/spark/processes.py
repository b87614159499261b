"""Finds and kills the processes of a Spark job: its driver, its executors, its Python workers."""

import os
import signal
import subprocess
from pathlib import Path


def descendants(pid):
    """All processes below ``pid``, from /proc."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue  # the process has ended
        for child in children:
            found += [int(child), *descendants(int(child))]
    return found


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


class Run:
    """One run of a program on a standalone cluster, and the processes that work for it."""

    def __init__(self, standalone, log, *command):
        self._standalone = standalone
        self.process = subprocess.Popen(
            [*map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=Path(log.name).parent,  # Spark leaves files there
        )

    def alive(self):
        return self.process.poll() is None

    def kill_driver(self):
        """Kill the driver with its JVM and its Python workers; executors stay."""
        below = descendants(self.process.pid)
        for pid in [self.process.pid, *below]:
            kill(pid)
        self.process.wait()

    def kill_one(self, victim, dice):
        below = [pid for worker in self._standalone.worker_pids for pid in descendants(worker)]
        if victim == "executor":
            found = [
                p for p in below if b"CoarseGrainedExecutorBackend" in b" ".join(command_of(p))
            ]
            found = [p for p in found if command_of(p)[0].endswith(b"java")]
        else:
            below += descendants(self.process.pid)
            found = [p for p in below if b"pyspark" in b" ".join(command_of(p)[2:3])]
        if found:
            kill(dice.choice(found))
        return bool(found)
