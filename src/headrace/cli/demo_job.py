"""The demo's Spark job, in a separate process.

Ctrl-C reaches every process of a terminal, and the JVM, Spark's Python and this process would each
print a traceback. So the job runs in its own session and is killed instead. It tolerates that: each
batch counts once, however often it is started.
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
    """As ``demo.run``; prints Spark's stderr only if the job fails."""
    # Also removes the files that a killed Spark leaves behind.
    with tempfile.TemporaryDirectory(
        prefix="headrace-spark-", ignore_cleanup_errors=True
    ) as scratch:
        stderr_path = Path(scratch) / "stderr"
        with stderr_path.open("wb") as errors:
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
            output.note(stderr_path.read_text("utf-8", "replace").rstrip())
            raise
        finally:
            # Before waiting for it: until then, the system cannot reuse its process ID.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            with job:
                pass


def _outcome(job: "subprocess.Popen[bytes]", say: demo.Say) -> demo.Outcome:
    assert job.stdout is not None
    for line in job.stdout:
        kind, content = json.loads(line)
        if kind == "line":
            say(content)
        elif kind == "failed":
            raise PipelineError(content)
        else:
            pages = [(page, count) for page, count in content["top_pages"]]
            return demo.Outcome(**{**content, "top_pages": pages, "table": Path(content["table"])})
    raise PipelineError("the process of the job ended early")


def _work(address: str, tables: str) -> None:
    """The job's process: prints each line of progress and the outcome as JSON."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Spark's JVM may print to stdout
    threading.Thread(target=_end_with_the_demo, daemon=True).start()

    def tell(kind: str, what: object) -> None:
        channel.write(json.dumps([kind, what]) + "\n")
        channel.flush()

    try:
        done = demo.run(address, Path(tables), partial(tell, "line"))
    except ClientError as failure:
        tell("failed", str(failure))
    else:
        tell("done", {**done._asdict(), "table": str(done.table)})


def _end_with_the_demo() -> None:
    """End when stdin does: a demo that was killed cannot kill this process."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    _work(*sys.argv[1:])
