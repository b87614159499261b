"""Spark's own Kafka jar, to compare with: PySpark 4.0.0 and the jar in a separate environment.

Both are in ``.cache/spark-jar`` of the project, downloaded once. The jar of a newer Spark is not
available everywhere, and an older PySpark must not replace ours.
"""

import shutil
import subprocess
import venv
from pathlib import Path

from bench import maven

PYSPARK = "4.0.0"
CACHE = Path(__file__).parent.parent / ".cache" / "spark-jar"

_PACKAGES = (f"pyspark=={PYSPARK}", "pyarrow", "numpy", "pandas<3")
_JARS = {
    "org.apache.spark:spark-sql-kafka-0-10_2.13": PYSPARK,
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13": PYSPARK,
    "org.apache.kafka:kafka-clients": "3.9.1",
    "org.apache.commons:commons-pool2": "2.12.0",
}


def missing() -> str | None:
    """Why the jar cannot run here; None if it can."""
    if shutil.which("java") is None:
        return "needs java on the PATH"
    if not (CACHE / "ready").exists() and shutil.which("mvn") is None:
        return "needs mvn on the PATH"
    return None


def fetch() -> tuple[str, str]:
    """The interpreter to run a job with, and the value of ``spark.jars``."""
    python = CACHE / "env" / "bin" / "python"
    if not (CACHE / "ready").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        venv.create(CACHE / "env", with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *_PACKAGES], check=True)
        (CACHE / "ready").touch()
    # PySpark contains the other dependencies of these jars.
    jars = maven.fetch(CACHE / "jars", _JARS, without=maven.ALL)
    return str(python), ",".join(map(str, jars))
