"""A Spark session in a separate process, with our source or with Spark's own Kafka jar.

The process runs ``spark_work.py``: it reads one JSON line per job and prints one per result.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import spark_jar
from bench.run import Run

_WORK = Path(__file__).parent / "spark_work.py"


class SessionFailed(Exception):
    """The process of a Spark session ended; the message holds the end of its log."""


class Session:
    def __init__(self, side: str, log: Path) -> None:
        python, jars, source = sys.executable, "", "headrace"
        if side == "jar":
            source = "kafka"
            python, jars = spark_jar.fetch()
        self._log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [python, str(_WORK), source, jars],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.answer()

    def tell(self, **told: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            log_end = self._log.read_text(errors="replace")[-3000:]
            raise SessionFailed(f"a Spark session ended:\n{log_end}")
        told: dict[str, Any] = json.loads(line)
        return told

    def ask(self, what: str, **told: Any) -> dict[str, Any]:
        """Run one job; ``seconds`` of the answer is how long it took."""
        self.tell(what=what, **told)
        return self.answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def sessions(run: Run) -> Iterator[dict[str, Session]]:
    """Our session and, unless the run is without peers, the jar's, for alternating rounds."""
    with contextlib.ExitStack() as stack:
        started = {}
        for side in ("headrace", "jar") if "kafka" in run.sides else ("headrace",):
            started[side] = Session(side, run.scratch / f"spark-{side}.log")
            stack.callback(started[side].close)
        yield started
