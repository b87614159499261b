"""Delta's own jar for Spark, downloaded once with Maven, next to Spark's Kafka jar."""

import shutil
import subprocess
from pathlib import Path

from bench import maven, spark_jar

VERSION = "4.0.0"  # for the PySpark of bench/spark_jar.py
CACHE = spark_jar.CACHE.parent / "delta-jar"
_JARS = {"io.delta:delta-spark_2.13": VERSION, "io.delta:delta-storage": VERSION}


def missing() -> str | None:
    """Why the jar cannot run here; None if it can."""
    if not (CACHE / "jars").exists() and shutil.which("mvn") is None:
        return "needs mvn on the PATH"
    return spark_jar.missing()


def fetch() -> tuple[str, str]:
    """The interpreter to run a job with, and the value of ``spark.jars``."""
    python, _ = spark_jar.fetch()
    jars = maven.fetch(CACHE / "jars", _JARS, without=maven.ALL)
    return python, ",".join(map(str, jars))


def run(job: Path, *arguments: str) -> str:
    """What a job prints, run with Delta's jar."""
    python, jars = fetch()
    done = subprocess.run(
        [python, str(job), jars, *arguments], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()[-1]
