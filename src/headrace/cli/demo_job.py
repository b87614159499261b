"""The demo's Spark job, in a process of its own whose remarks nobody has to read.

Ctrl-C goes to every process of a terminal, and a JVM, Spark's Python and ours would each print a
trace of where it met them. So the job has a session of its own and is killed instead, which it
is made for: each batch counts once, however often it is begun.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

from headrace.cli import output
from headrace.client.errors import ClientError
from headrace.spark import demo
from headrace.spark.failures import PipelineError


def run(address: str, tables: Path, say: demo.Say) -> demo.Outcome:
    """As ``demo.run``; what Spark wrote to stderr is shown only if the job fails."""
    # What Spark leaves behind when it is killed goes with the folder.
    with tempfile.TemporaryDirectory(
        prefix="headrace-spark-", ignore_cleanup_errors=True
    ) as scratch:
        remarks = Path(scratch) / "stderr"
        with remarks.open("wb") as errors:
            job = subprocess.Popen(
                [sys.executable, "-m", __name__, address, str(tables)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "TMPDIR": scratch},
            )
        try:
            return _outcome(job, say)
        except ClientError:
            output.note(remarks.read_text("utf-8", "replace").rstrip())
            raise
        finally:
            # Before it is waited for: as long as it is not, nobody else can have its number.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            with job:
                pass


def _outcome(job: "subprocess.Popen[bytes]", say: demo.Say) -> demo.Outcome:
    assert job.stdout is not None
    for line in job.stdout:
        kind, told = json.loads(line)
        if kind == "line":
            say(told)
        elif kind == "failed":
            raise PipelineError(told)
        else:
            pages = [(page, count) for page, count in told["top_pages"]]
            return demo.Outcome(**{**told, "top_pages": pages, "table": Path(told["table"])})
    raise PipelineError("its process ended before its work was done")


def _work(address: str, tables: str) -> None:
    """The process: a line of JSON for each line of progress, and one for the end."""
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Spark's JVM may print too
    threading.Thread(target=_end_with_the_demo, daemon=True).start()

    def tell(kind: str, what: object) -> None:
        told.write(json.dumps([kind, what]) + "\n")
        told.flush()

    try:
        done = demo.run(address, Path(tables), partial(tell, "line"))
    except ClientError as failure:
        tell("failed", str(failure))
    else:
        tell("done", {**done._asdict(), "table": str(done.table)})


def _end_with_the_demo() -> None:
    """A demo that was killed itself could not end us: but then our stdin ends."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    _work(*sys.argv[1:])
