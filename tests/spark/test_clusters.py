"""The same source on a real standalone cluster, and through Spark Connect."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.spark.kit import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOBS = Path(__file__).parent / "jobs"
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


def run_job(name, *arguments, seconds=600):
    done = subprocess.run(
        [sys.executable, str(JOBS / name), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture
def filled(topics):
    topic = topics.create("clustered", 2)
    topics.create(name=f"{topic}-copy", partitions=2)
    for partition in range(2):
        topics.send(topic, range(500), partition)
    return topic


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def log_says(path, pattern):
    return path.exists() and re.search(pattern, path.read_text(errors="replace"))


@pytest.fixture
def standalone(tmp_path):
    """A master and two workers of one core each, from PySpark's own wheel."""
    port = free_port()
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_NO_DAEMONIZE": "1"}
    children = []

    def start(name, *arguments):
        log = (tmp_path / f"{name}.log").open("w")
        children.append(
            subprocess.Popen(
                [str(SPARK_CLASS), *arguments],
                stdout=log,
                stderr=log,
                env=environment,
                cwd=tmp_path,
            )
        )
        log.close()

    address = f"spark://127.0.0.1:{port}"
    try:
        start(
            "master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1",
            "--port", str(port), "--webui-port", str(free_port()),
        )  # fmt: skip
        wait_for(lambda: log_says(tmp_path / "master.log", "Starting Spark master"), "master", 120)
        for number in range(2):
            start(
                f"worker{number}", "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1",
                "--webui-port", str(free_port()), "-c", "1", "-m", "1g",
                "-d", str(tmp_path / f"work{number}"), address,
            )  # fmt: skip
        for number in range(2):
            log = tmp_path / f"worker{number}.log"
            wait_for(lambda log=log: log_says(log, "registered with master"), "worker", 120)
        yield address
    finally:
        for child in reversed(children):
            child.terminate()
        for child in children:
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def test_partitions_are_read_on_executors_of_a_cluster(topics, filled, standalone, bootstrap):
    told = json.loads(run_job("where_read.py", standalone, bootstrap, filled).splitlines()[-1])

    assert told["rows"] == 1000
    # Executors run in their worker's folder; the driver does not.
    folders = {re.search(r"/work(\d)/", place)[1] for place in told["places"]}
    assert folders == {"0", "1"}
    assert len(topics.read(f"{filled}-copy")) == 1000


def test_it_works_through_spark_connect(topics, filled, bootstrap):
    told = json.loads(run_job("where_read.py", "connect", bootstrap, filled).splitlines()[-1])

    assert told["rows"] == 1000
    assert len(topics.read(f"{filled}-copy")) == 1000
