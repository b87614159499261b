"""Pipelines and loads on a standalone cluster, whose executors get the package in an archive.

The executors' Python does not find Headrace by itself. One of them is killed in the middle, and
Spark runs slow tasks twice: the results are those of one process.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.s3_server import new_url, s3_server
from tests.spark import cluster_runs
from tests.spark.kit import wait_for
from tests.spark.processes import descendants, kill

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def environment(tmp_path):
    return cluster_runs.environment_without_headrace(tmp_path)


@pytest.fixture
def packages(tmp_path):
    return cluster_runs.write_packages(tmp_path)


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


@pytest.fixture(params=["directory", "s3"])
def warehouse(request, tmp_path):
    """A place of tables, its storage options, and the arguments of the command for both."""
    if request.param == "directory":
        directory = tmp_path / "warehouse"
        yield directory, None, ["--warehouse", directory]
        return
    with s3_server() as options:
        url = new_url()
        yield url, options, ["--warehouse", url, "--state", tmp_path / "state", *storage(options)]


def storage(options):
    return [f"--storage-option={name}={value}" for name, value in options.items()]


@pytest.mark.long
def test_a_pipeline_gives_the_results_of_one_process(
    topics, standalone, environment, packages, warehouse, tmp_path
):
    place, options, arguments = warehouse
    counts, views = topics.create("counts"), cluster_runs.send_views(topics)
    file = cluster_runs.write_file(tmp_path / "site.py", views, counts)
    told = run_and_kill_an_executor(
        standalone, environment, tmp_path, "run", file, "--once",
        "--batch-records", cluster_runs.BATCH, *arguments, "-b", topics.bootstrap,
        *on_cluster(standalone, packages),
    )  # fmt: skip
    assert len(told) > cluster_runs.EVENTS / cluster_runs.BATCH
    cluster_runs.check_results(topics, counts, place, options)


def test_a_load_into_s3_has_every_record_once(topics, standalone, environment, packages, tmp_path):
    topic = cluster_runs.send_views(topics)
    with s3_server() as options:
        url = new_url()
        run_and_kill_an_executor(
            standalone, environment, tmp_path, "load", topic, "--once", "--table", url,
            "--value", "string", "--batch-size", "20k", "-b", topics.bootstrap, *storage(options),
            *on_cluster(standalone, packages),
        )  # fmt: skip
        cluster_runs.check_load(url, options)
