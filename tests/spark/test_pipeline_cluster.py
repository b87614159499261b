"""Pipelines and loads on a standalone cluster, whose executors get the package in an archive.

The executors' Python does not find Headrace by itself. One of them is killed in the middle, and
Spark runs slow tasks twice: the results are those of one process.
"""

import json
import os
import random
import subprocess
import sys
import sysconfig
import tarfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

import headrace
from tests.fakes.s3_server import new_url, s3_server
from tests.spark.kit import wait_for
from tests.spark.processes import descendants, kill

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EVENTS, PAGES, BATCH = 3_000, 7, 500
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
FILE = """
from pyspark.sql import functions as F
from headrace.pipeline import source, step, table, topic

@source("{views}", schema="event_id string, at timestamp, page string, visitor long",
        event_time="at", event_id="event_id")
def views(records):
    return records

@step
def counted(views, page_counts):
    new = views.groupBy("page").agg(F.count("*").alias("views"))
    known = page_counts.select("page", F.col("views").alias("before"))
    return new.join(known, "page", "left").select(
        "page", (F.col("views") + F.coalesce("before", F.lit(0))).alias("views"))

@table(key=["page"], schema="page string, views long")
def page_counts(counted):
    return counted

@table(key=["event_id"])
def seen(views):
    return views

@topic("{counts}", key="page", compacted=True)
def announced(counted):
    return counted
"""


@pytest.fixture
def environment(tmp_path):
    """For the driver: executors use a Python that has all packages except ours."""
    python = tmp_path / "python"
    site = sysconfig.get_paths()["purelib"]
    # Without its module `site`, Python reads no file that adds the source tree to its path.
    python.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{site}"\nexec {sys.executable} -S "$@"\n'
    )
    python.chmod(0o755)
    for module, is_found in (("pyarrow", True), ("headrace", False)):
        tried = subprocess.run([python, "-c", f"import {module}"], capture_output=True)
        assert (tried.returncode == 0) is is_found, tried.stderr
    return {**os.environ, "PYSPARK_PYTHON": str(python)}


@pytest.fixture
def packages(tmp_path):
    """The archive that ``pip install --target`` and ``tar`` would make."""
    path = tmp_path / "packages.tar.gz"
    source = Path(headrace.__file__).parent
    with tarfile.open(path, "w:gz") as archive:
        for package in (source, source.with_name("pyspark_headrace")):
            archive.add(package, package.name)
    return path


def view(number):
    at = START + timedelta(milliseconds=100 * number)
    value = {"event_id": str(number), "at": at.isoformat(), "visitor": number % 50}
    return json.dumps(value | {"page": f"/{number % PAGES}"})


def send_views(topics):
    """Two partitions; a few events are doubled."""
    topic = topics.create("views", 2)
    for partition in range(2):
        numbers = [n for n in range(EVENTS) if n % 2 == partition]
        values = [view(n) for n in [*numbers, *numbers[:20]]]
        topics.send(topic, values, partition, timestamp=int(START.timestamp() * 1000))
    return topic


def run_and_kill_an_executor(standalone, environment, directory, *command):
    """Run a command of ``headrace pipeline`` to its end; kill after its first line of JSON."""
    out, log = directory / "out", directory / "log"
    with out.open("w") as told, log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "pipeline", *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=errors,
            cwd=directory,  # Spark leaves files there
            env=environment,
        )
    try:
        wait_for(lambda: out.read_text() or process.poll() is not None, "a batch", 600)
        executors = [
            pid
            for worker in standalone.worker_pids
            for pid in descendants(worker)
            if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert executors, log.read_text()[-4000:]
        kill(random.Random(14).choice(executors))
        assert process.wait(600) == 0, log.read_text()[-4000:]
    finally:
        process.kill()
        process.wait()
    return [json.loads(line) for line in out.read_text().splitlines()]


def on_cluster(standalone, packages):
    options = ["--master", standalone.address, "--archives", packages, "--format", "json"]
    options += ["--conf", "spark.speculation=true", "--conf", "spark.speculation.multiplier=1.1"]
    return options


def test_a_pipeline_gives_the_results_of_one_process(
    topics, standalone, environment, packages, tmp_path
):
    file, counts, warehouse = tmp_path / "site.py", topics.create("counts"), tmp_path / "warehouse"
    file.write_text(FILE.format(views=send_views(topics), counts=counts))
    told = run_and_kill_an_executor(
        standalone, environment, tmp_path, "run", file, "--once", "--batch-records", BATCH,
        "--warehouse", warehouse, "-b", topics.bootstrap, *on_cluster(standalone, packages),
    )  # fmt: skip
    assert len(told) > EVENTS / BATCH
    expected = Counter(f"/{number % PAGES}" for number in range(EVENTS))
    latest = {}
    for message in topics.read(counts):
        latest[message.key().decode()] = json.loads(message.value())["views"]
    assert latest == expected
    rows = DeltaTable(str(warehouse / "page_counts")).to_pyarrow_table()
    newest = {row["page"]: row["views"] for row in rows.sort_by("_batch").to_pylist()}
    assert newest == expected
    seen = DeltaTable(str(warehouse / "seen")).to_pyarrow_table().column("event_id").to_pylist()
    assert sorted(seen) == sorted(map(str, range(EVENTS)))


def test_a_load_into_s3_has_every_record_once(topics, standalone, environment, packages, tmp_path):
    topic = send_views(topics)
    with s3_server() as options:
        url = new_url()
        storage = [f"--storage-option={name}={value}" for name, value in options.items()]
        run_and_kill_an_executor(
            standalone, environment, tmp_path, "load", topic, "--once", "--table", url,
            "--value", "string", "--batch-size", "20k", "-b", topics.bootstrap, *storage,
            *on_cluster(standalone, packages),
        )  # fmt: skip
        views = DeltaTable(url, storage_options=options).to_pyarrow_dataset()  # noqa: F841
        rows, distinct = duckdb.sql(
            "select count(*), count(distinct (_partition, _offset)) from views"
        ).fetchall()[0]
    assert rows == distinct == EVENTS + 40
