"""A standalone Spark cluster from PySpark's own wheel: a master and two workers of one core."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.spark.kit import wait_for

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
WORKERS = 2


class Standalone:
    """The address for drivers, and the processes whose children are executors."""

    def __init__(self, directory: Path) -> None:
        self.address = f"spark://127.0.0.1:{_free_port()}"
        self._directory = directory
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._start(
            "master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1",
            "--port", self.address.rpartition(":")[2], "--webui-port", str(_free_port()),
        )  # fmt: skip
        self._wait_until("master", "Starting Spark master")
        for number in range(WORKERS):
            self._start(
                f"worker{number}", "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1",
                "--webui-port", str(_free_port()), "-c", "1", "-m", "1g",
                "-d", str(self._directory / f"work{number}"), self.address,
            )  # fmt: skip
        for number in range(WORKERS):
            self._wait_until(f"worker{number}", "registered with master")

    @property
    def worker_pids(self) -> list[int]:
        return [child.pid for child in self._children[1:]]

    def stop(self) -> None:
        for child in reversed(self._children):
            child.terminate()
        for child in self._children:
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _start(self, name: str, *arguments: str) -> None:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_NO_DAEMONIZE": "1"}
        with self._log(name).open("w") as log:
            self._children.append(
                subprocess.Popen(
                    [str(SPARK_CLASS), *arguments],
                    stdout=log,
                    stderr=log,
                    env=environment,
                    cwd=self._directory,
                )
            )

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _wait_until(self, name: str, said: str) -> None:
        log = self._log(name)
        wait_for(lambda: re.search(said, log.read_text(errors="replace")), name, 120)


@contextmanager
def running(directory: Path) -> Iterator[Standalone]:
    cluster = Standalone(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
