"""HDFS and YARN in one process, from Hadoop's own test jar, downloaded once with Maven."""

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench import maven
from tests.spark.kit import wait_for

CACHE = Path(__file__).parents[2] / ".cache" / "hadoop"
PROGRAM = Path(__file__).parent / "HadoopCluster.java"
NAME = "core-site.xml"
_JARS = {
    "org.apache.hadoop:hadoop-client-minicluster": "3.5.0",
    # The test jar uses these, and does not name them.
    "org.junit.jupiter:junit-jupiter-api": "5.11.4",
    "org.mockito:mockito-core": "4.11.0",
    "org.slf4j:slf4j-reload4j": "1.7.36",
    "org.bouncycastle:bcpkix-jdk18on": "1.78.1",
}


def missing() -> str | None:
    """Why Hadoop cannot run here; None if it can."""
    absent = [name for name in ("javac", "mvn") if shutil.which(name) is None]
    return f"needs {' and '.join(absent)} on the PATH" if absent else None


class Hadoop:
    """The address of the files, and the directory with the settings of clients."""

    def __init__(self, settings: Path) -> None:
        self.settings = settings
        said = re.search(
            r"<name>fs.defaultFS</name><value>(hdfs://[^<]*)", (settings / NAME).read_text()
        )
        assert said is not None
        self.address = said[1]

    @property
    def environment(self) -> dict[str, str]:
        return {"HADOOP_CONF_DIR": str(self.settings)}


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Hadoop]:
    maven.fetch(CACHE, _JARS)
    jars = f"{CACHE}/*"
    subprocess.run(["javac", "-cp", jars, "-d", str(directory), str(PROGRAM)], check=True)
    settings = directory / "settings"
    settings.mkdir()
    with (directory / "hadoop.log").open("w") as log:
        process = subprocess.Popen(
            ["java", "-Xmx512m", "-XX:+UseSerialGC", "-cp", f"{directory}:{jars}"]
            + ["HadoopCluster", str(settings)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=directory,  # YARN puts its files there
        )
    try:
        wait_for(lambda: (settings / NAME).exists() or process.poll() is not None, "Hadoop", 120)
        assert process.poll() is None, (directory / "hadoop.log").read_text(errors="replace")
        yield Hadoop(settings)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
