"""Delta's own jar for Spark, downloaded once with Maven, next to Spark's Kafka jar."""

import shutil
import subprocess
from pathlib import Path

from bench import spark_jar

VERSION = "4.0.0"  # for the PySpark of bench/spark_jar.py
CACHE = spark_jar.CACHE.parent / "delta-jar"
_ARTIFACTS = ("delta-spark_2.13", "delta-storage")


def missing() -> str | None:
    """Why the jar cannot run here; None if it can."""
    if not (CACHE / "jars").exists() and shutil.which("mvn") is None:
        return "needs mvn on the PATH"
    return spark_jar.missing()


def fetch() -> tuple[str, str]:
    """The interpreter to run a job with, and the value of ``spark.jars``."""
    python, _ = spark_jar.fetch()
    if not (CACHE / "jars").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        (CACHE / "pom.xml").write_text(_pom())
        subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"],
            cwd=CACHE,
            check=True,
        )
    return python, ",".join(str(path) for path in sorted((CACHE / "jars").glob("*.jar")))


def run(job: Path, *arguments: str) -> str:
    """What a job prints, run with Delta's jar."""
    python, jars = fetch()
    done = subprocess.run(
        [python, str(job), jars, *arguments], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()[-1]


def _pom() -> str:
    entries = "".join(
        f"<dependency><groupId>io.delta</groupId><artifactId>{name}</artifactId>"
        f"<version>{VERSION}</version><exclusions><exclusion><groupId>*</groupId>"
        "<artifactId>*</artifactId></exclusion></exclusions></dependency>"
        for name in _ARTIFACTS
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>headrace</groupId>"
        f"<artifactId>delta-jar</artifactId><version>1</version><dependencies>{entries}"
        "</dependencies></project>"
    )
