"""The same source on a real standalone cluster, and through Spark Connect."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOBS = Path(__file__).parent / "jobs"


def run_job(folder, name, *arguments, seconds=600):
    done = subprocess.run(
        [sys.executable, str(JOBS / name), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=folder,  # where Spark leaves what it leaves
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture
def filled(topics):
    topic = topics.create("clustered", 2)
    for target in ("copy", "streamed"):
        topics.create(name=f"{topic}-{target}", partitions=2)
    for partition in range(2):
        topics.send(topic, range(500), partition)
    return topic


def assert_copied(topics, source):
    rows = sorted(message.value() for message in topics.read(source))
    for target in ("copy", "streamed"):
        assert sorted(m.value() for m in topics.read(f"{source}-{target}")) == rows


def test_partitions_are_read_on_executors_of_a_cluster(
    topics, filled, standalone, bootstrap, tmp_path
):
    told = json.loads(
        run_job(tmp_path, "where_read.py", standalone.address, bootstrap, filled).splitlines()[-1]
    )

    assert told["rows"] == 1000
    # Executors run in their worker's folder; the driver does not.
    folders = {re.search(r"/work(\d)/", place)[1] for place in told["places"]}
    assert folders == {"0", "1"}
    assert_copied(topics, filled)


def test_it_works_through_spark_connect(topics, filled, bootstrap, tmp_path):
    told = json.loads(
        run_job(tmp_path, "where_read.py", "connect", bootstrap, filled).splitlines()[-1]
    )

    assert told["rows"] == 1000
    assert_copied(topics, filled)
